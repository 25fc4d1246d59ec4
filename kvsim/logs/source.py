"""The text of a log: plain or gzip, in UTF-8."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from kvsim.errors import TraceError

LONGEST_LINE = 16 << 20
"""Bytes. One line of llama.cpp's JSON log has a whole print of the slot search."""


def log_text(file: BinaryIO, most: int | None = None) -> Iterator[str]:
    """The lines of a log; bytes that are no UTF-8 are marked.

    Raises TraceError for what is no text, for a damaged gzip stream, for a line that is too long, and for more
    than ``most`` bytes of text.
    """
    raw = io.BufferedReader(file)  # type: ignore[type-var]
    try:
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
        yield from _lines(gzip.GzipFile(fileobj=raw) if packed else raw, most)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceError(f"the gzip stream is damaged: {error}") from None
    finally:
        raw.detach()  # the file is the caller's


def _lines(file: io.BufferedIOBase, most: int | None) -> Iterator[str]:
    longest = LONGEST_LINE if most is None else min(LONGEST_LINE, most)
    length = 0
    while line := file.readline(longest + 1):
        length += len(line)
        if most is not None and length > most:
            raise TraceError(f"the log is longer than {most >> 20} MiB: cut out the part that you ask about")
        if len(line) > longest:
            raise TraceError(f"a line is longer than {longest >> 20} MiB: this is no log of llama.cpp")
        if b"\0" in line:
            raise TraceError("this is no text: it has bytes that are 0 (UTF-16? save it as UTF-8)")
        yield line.decode("utf-8", "replace")
