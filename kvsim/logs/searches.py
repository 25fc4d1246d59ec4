"""One print of the slot search: counts, and as the level allows ranges and cells.

Upstream: ``src/llama-kv-cache.cpp: find_slot``. It is printed before a slot is looked for, for each stream of
the ubatch; when a batch has several ubatches, those before this one are placed on trial.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kvsim.logs import grid
from kvsim.memory import MAX_SEQ

_N = r"(\d{1,18})"
_COUNTS = re.compile(
    rf"find_slot: stream\[{_N}\], n = *{_N}, used = *{_N}, head = *{_N}, size = *{_N}, n_swa = *{_N}\s*$",
    re.ASCII,
)
_POS = r"(-?\d{1,18})"
_SPAN = re.compile(rf"find_slot: stream\[{_N}\] min\[{_N}\] = *{_POS}, max\[\d+\] = *{_POS}\s*$", re.ASCII)
_OWNERS = re.compile(r"[.M\d]+(?: \*)?| ?\*")
_POSITIONS = re.compile(r" *[.\d][.\d ]*(?: \*)?| ?\*")

MAX_POS = 2**31 - 1

SEVERAL = -1
"""The owner of a cell that several sequences share."""


@dataclass
class Search:
    """One stream of one cache, just before a slot was looked for. ``line`` is where its print begins.

    ``spans``: sequence -> first and last position. The cells are parsed when they are asked for.
    """

    line: int
    stream: int
    n: int
    used: int
    head: int
    size: int
    n_swa: int
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    owner_lines: list[str] = field(default_factory=list)
    position_lines: list[str] = field(default_factory=list)

    def cells(self) -> list[tuple[int, int, tuple[int, ...] | None]] | None:
        """Index, position and owners (None: unknown) of every cell that is not empty.

        None if cells were not printed, or only a part of them was.
        """
        if not self.position_lines:
            return None
        positions = grid.positions(self.position_lines, self.size, max(map(len, self.owner_lines)))
        if positions is None:
            return None
        text = "".join(line.removesuffix("*").rstrip() for line in self.owner_lines)
        owners = grid.owners(text, positions, self.spans)
        if owners is None:
            owners = [None] * self.size
        return [
            (i, pos, seqs)
            for i, (pos, seqs) in enumerate(zip(positions, owners, strict=True))
            if pos is not None
        ]

    def marks(self) -> dict[int, tuple[int, int]] | None:
        """Index -> position and owner (:data:`SEVERAL` for more than one, or one that cannot be told) of every
        cell that is not empty; None as :meth:`cells`."""
        cells = self.cells()
        if cells is None:
            return None
        return {i: (pos, seqs[0] if seqs and len(seqs) == 1 else SEVERAL) for i, pos, seqs in cells}

    @property
    def counts(self) -> tuple[int, ...]:
        """What two caches that are filled alike print alike."""
        return (self.stream, self.n, self.used, self.head, self.size)


def read_searches(text: str) -> list[Search]:
    """The prints in what llama.cpp said, in order; lines that belong to none are passed over."""
    reader = SearchReader()
    found = [reader.feed(number, line)[1] for number, line in enumerate(text.split("\n"), 1)]
    return [search for search in (*found, reader.end()) if search is not None]


class SearchReader:
    """Collects prints line by line; other lines may stand between."""

    def __init__(self) -> None:
        self._search: Search | None = None
        self._owners_ended = False

    def feed(self, number: int, line: str) -> tuple[bool, Search | None]:
        """Whether the line belongs to a print, and the print that it shows to be complete."""
        if counts := _COUNTS.search(line):
            complete = self.end()
            stream, n, used, head, size, n_swa = map(int, counts.groups())
            if max(used, head) > size:
                return False, complete  # damaged: no cache holds more than its cells
            self._search = Search(number, stream, n, used, head, size, n_swa)
            self._owners_ended = False
            return True, complete
        return (False, None) if self._search is None else (self._add(self._search, line), None)

    def end(self) -> Search | None:
        """The print that was being read; call it where no more of it can follow."""
        search, self._search = self._search, None
        return search

    def _add(self, search: Search, line: str) -> bool:
        if span := _SPAN.search(line):
            stream, seq, first, last = map(int, span.groups())
            if stream == search.stream and seq < MAX_SEQ and max(abs(first), abs(last)) <= MAX_POS:
                search.spans[seq] = (first, last)
            return True
        if search.spans:
            return False
        if not line.strip():
            self._owners_ended = bool(search.owner_lines)
            return True
        printed = sum(map(len, search.owner_lines))
        if not self._owners_ended and _OWNERS.fullmatch(line) and printed < 3 * search.size:
            search.owner_lines.append(line)
            return True
        if search.owner_lines and _POSITIONS.fullmatch(line):
            self._owners_ended = True
            search.position_lines.append(line)
            return True
        return False
