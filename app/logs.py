"""A log of llama.cpp, uploaded or pasted, opened like a recording: its slot searches, and its messages."""

from __future__ import annotations

import io

from app.recordings import Opening
from kvsim.errors import TraceError
from kvsim.logs import Imported, LoggedContext, import_log, log_text

SUFFIXES = (".log", ".txt", ".log.gz", ".txt.gz")
MAX_TEXT = 64 << 20
"""Longest log, in bytes of text."""

_BEGINS = b'{"kvtrace"'


def is_log(name: str, data: bytes) -> bool:
    """Whether this is to be read as a log: by its name, unless it begins as a recording does."""
    return name.lower().endswith(SUFFIXES) and not data.lstrip().startswith(_BEGINS)


def read_log(data: bytes, name: str) -> Imported:
    """The contexts and messages of a log, plain or gzip. Raises TraceError if it cannot be read or is too long."""
    try:
        return import_log(log_text(io.BytesIO(data), MAX_TEXT))
    except TraceError as error:
        raise TraceError(error.reason, name) from None


class LogOpening(Opening):
    """A context of a log being packed, step by step."""

    def __init__(self, context: LoggedContext, name: str) -> None:
        try:
            header = context.header(name)
        except TraceError as error:
            raise TraceError(error.reason, name) from None
        self.n_seen = len(context.seen) + 1
        self.shows = shows(context)
        self._begin(header, context.steps(), name)

    @property
    def share(self) -> float:
        return len(self.packer.steps) / self.n_seen


def shows(context: LoggedContext) -> str:
    """What can be seen of a context at the level its log was written with."""
    searches = context.searches
    with_cells = [search for search in searches if search.position_lines]
    windowed = [search for search in searches if search.n_swa]
    if not searches:
        return "messages only, no slot search is printed"
    if not with_cells:
        return "counts and positions, no cells"
    if len(with_cells) == len(searches):
        return "all cells"
    if with_cells == windowed:
        return "cells of the window cache only"
    return f"cells of {len(with_cells):,} of {len(searches):,} slot searches"
