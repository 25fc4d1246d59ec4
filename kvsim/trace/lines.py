"""From bytes to JSON values, one line at a time; gzip or plain, and all that can be wrong with them."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from kvsim.errors import TraceError
from kvsim.trace.reuse import LineParser

MAX_LINE = 32 << 20
"""Longest line that is read, in bytes. A picture of 131,072 cells in five caches takes about half."""

_PIECE = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"


def read_lines(file: BinaryIO, path: str) -> Iterator[tuple[int, Any]]:
    """The JSON values of a file of JSON lines with their line numbers, from 1.

    Compression is told by the first two bytes. Holds one line at a time.
    Raises :class:`TraceError` with ``path`` and the line that cannot be read.
    """
    compressed = file.read(2) == _GZIP_MAGIC
    file.seek(0)
    if path.endswith(".gz") and not compressed:
        raise TraceError("not a gzip file, though its name says so", path, 0)
    lines = _split(gzip.GzipFile(fileobj=file) if compressed else file)
    header = LineParser(parse_constant=_refuse_constant, parse_float=_finite)
    operations = LineParser(parse_constant=_refuse_constant, parse_float=_refuse_fraction)
    number = 0
    while True:
        number += 1
        try:
            line = next(lines, None)
            if line is None:
                return
            yield number, parse_line(line, header if number == 1 else operations)
        except EOFError:
            raise TraceError("the gzip stream ends early: the file is cut off", path, number) from None
        except (OSError, zlib.error) as error:
            raise TraceError(f"the gzip stream is damaged: {error}", path, number) from None
        except TraceError as error:
            raise TraceError(error.reason, path, number) from None


def _split(stream: Any) -> Iterator[bytes]:
    """The lines with their ends, of a line that is too long as much as shows it.

    What was read before a stream breaks is given before the error; ``readline`` of a gzip stream would do the
    same in pieces of 8 KiB, which takes twice as long.
    """
    begun: list[bytes] = []
    length = 0
    while piece := stream.read1(_PIECE):
        at = 0
        while end := piece.find(b"\n", at) + 1:
            yield b"".join([*begun, piece[at:end]])
            begun, length, at = [], 0, end
        begun.append(piece[at:])
        length += len(piece) - at
        if length > MAX_LINE:
            break
    if length:
        yield b"".join(begun)


def parse_line(line: bytes, parser: LineParser) -> Any:
    """The value of one line. Raises TraceError, without a place."""
    if len(line) > MAX_LINE:
        raise TraceError(f"the line is longer than {MAX_LINE >> 20} MiB")
    try:
        return parser.parse(line)
    except UnicodeDecodeError as error:
        raise TraceError(f"byte {error.start + 1} of the line is not UTF-8") from None
    except json.JSONDecodeError as error:
        if not line.strip():
            raise TraceError("the line is empty") from None
        if not line.endswith(b"\n"):
            raise TraceError("the last line is cut off") from None
        raise TraceError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise TraceError("not a trace: brackets are nested too deeply") from None
    except ValueError as error:  # a number Python refuses to convert
        raise TraceError(f"not JSON: {error}") from None


def _refuse_constant(name: str) -> float:
    raise TraceError(f"not JSON: {name} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise TraceError(f"the number {text[:40]} is too large")
    return value


def _refuse_fraction(text: str) -> float:
    raise TraceError(f"{text[:40]} is not a whole number; operations hold no others")
