"""The smallest and largest position of every sequence of a cell table.

llama.cpp keeps a sorted set of (position, cell) per sequence. Here one :class:`Extent` per sequence
nearly always answers, without looking at a cell: a sequence whose positions are all different and as many
as fit between the two ends has no holes, so what is left after losing some of them is known::

    positions 4 5 6 7 8 9    lost 4, 5 and 7    left 6 8 9: from 6 to 9, and a hole at 7

Only a sequence with holes that loses one of its ends must be looked up in the cells again.

:class:`PositionIndex` is the sorted set itself. A table uses it once it has met a negative position (spec
cells R21), because from then on llama.cpp's answers depend on history and not only on the cells.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.memory import BoolArray, IntArray

NONE_HELD = (-1, -1)

FEW = 32
"""Numbers that cost less one by one than as an array."""


def least(values: IntArray) -> int:
    """The smallest of some positions or cells."""
    return min(values.tolist()) if len(values) <= FEW else int(values.min())


def greatest(values: IntArray) -> int:
    """The largest of some positions or cells, -1 without any."""
    return max(values.tolist(), default=-1) if len(values) <= FEW else int(values.max())


class Extent:
    """``n`` cells from position ``lo`` to ``hi``; ``distinct``: known to be at different positions."""

    __slots__ = ("distinct", "hi", "lo", "n")

    def __init__(self, lo: int, hi: int, n: int, distinct: bool) -> None:
        self.lo = lo
        self.hi = hi
        self.n = n
        self.distinct = distinct

    @classmethod
    def of(cls, pos: IntArray) -> Extent:
        """Of cells at these positions, at least one."""
        if len(pos) <= FEW:
            held = pos.tolist()
            return cls(min(held), max(held), len(held), len(set(held)) == len(held))
        run = bool((pos[1:] > pos[:-1]).all())
        lo, hi = (int(pos[0]), int(pos[-1])) if run else (int(pos.min()), int(pos.max()))
        return cls(lo, hi, len(pos), run)

    @property
    def gapless(self) -> bool:
        return self.distinct and self.n == self.hi - self.lo + 1


class SeqRanges:
    """Kept while no position is negative. ``n`` of every sequence is exact; its ends may be *stale*."""

    def __init__(self) -> None:
        self._extents: dict[int, Extent] = {}
        self._stale: set[int] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> SeqRanges:
        """Memories are copied to try things on, which is no time to go through all this entry by entry."""
        twin = SeqRanges()
        twin._extents = {s: Extent(e.lo, e.hi, e.n, e.distinct) for s, e in self._extents.items()}
        twin._stale = set(self._stale)
        return twin

    def sequences(self) -> list[int]:
        """The sequences that hold a cell, ascending."""
        return sorted(self._extents)

    def range(self, s: int) -> tuple[int, int] | None:
        """(min, max) of ``s``, (-1, -1) if it holds no cell, None if it must be looked up."""
        if s in self._stale:
            return None
        have = self._extents.get(s)
        return NONE_HELD if have is None else (have.lo, have.hi)

    def run(self, s: int) -> tuple[int, int] | None:
        """The half-open range of positions that ``s`` has one cell each at, if that is known without looking."""
        have = self._extents.get(s)
        if have is None:
            return 0, 0
        return (have.lo, have.hi + 1) if have.gapless and s not in self._stale else None

    def learn(self, s: int, held: IntArray) -> None:
        """``held`` are the positions of ``s``, looked up in the cells."""
        extent = Extent.of(held)
        if not extent.distinct and extent.hi - extent.lo + 1 == extent.n:
            extent.distinct = len(np.unique(held)) == extent.n
        self._extents[s] = extent
        self._stale.discard(s)

    def add(self, s: int, cells: IntArray, pos: IntArray) -> None:
        """``cells`` began to carry ``s``, at ``pos``."""
        self._merge(s, Extent.of(pos))

    def _merge(self, s: int, new: Extent) -> None:
        have = self._extents.get(s)
        if have is None:
            self._extents[s] = new
            return
        apart = new.lo > have.hi or new.hi < have.lo
        have.distinct = have.distinct and new.distinct and apart and s not in self._stale
        have.lo, have.hi, have.n = min(have.lo, new.lo), max(have.hi, new.hi), have.n + new.n

    def drop(self, s: int, cells: IntArray, pos: IntArray) -> None:
        """``cells`` no longer carry ``s``; they were at ``pos``."""
        have = self._extents[s]
        gapless = have.gapless and s not in self._stale
        have.n -= len(pos)
        if have.n == 0:
            self._forget(s)
        elif gapless:
            lost = set(pos.tolist())
            while have.lo in lost:
                have.lo += 1
            while have.hi in lost:
                have.hi -= 1
        elif least(pos) <= have.lo or greatest(pos) >= have.hi:
            self._stale.add(s)

    def drop_range(self, s: int, p0: int, p1: int, cells: IntArray, pos: IntArray) -> None:
        """``cells``, all that ``s`` had in [p0, p1), no longer carry it."""
        have = self._extents[s]
        have.n -= len(cells)
        if have.n == 0:
            self._forget(s)
        elif s in self._stale or (have.lo < p0 and p1 <= have.hi):
            return  # a hole in the middle, or not known before
        else:
            have.lo, have.hi = (p1, have.hi) if p0 <= have.lo else (have.lo, p0 - 1)
            if not have.gapless:
                self._stale.add(s)

    def share(self, src: int, dst: int, cells: IntArray, pos: IntArray, gained: BoolArray) -> None:
        """``cells`` of ``src`` are carried by ``dst`` too; it ``gained`` some of them just now."""
        source = self._extents[src]
        known = src not in self._stale
        new = pos if np.count_nonzero(gained) == len(pos) else pos[gained]
        if not len(new):
            return
        whole = known and len(new) == source.n
        lo, hi = (source.lo, source.hi) if whole else (least(new), greatest(new))
        self._merge(dst, Extent(lo, hi, len(new), source.distinct and known))

    def keep(self, s: int) -> None:
        """Only ``s`` is left."""
        self._extents = {s: self._extents[s]} if s in self._extents else {}
        self._stale &= {s}

    def move(self, s: int, delta: int) -> None:
        """All positions of ``s`` changed by ``delta``."""
        have = self._extents[s]
        have.lo, have.hi = have.lo + delta, have.hi + delta

    def disturb(self, s: int, n_lost: int) -> None:
        """Positions of ``s`` changed in some way, and ``n_lost`` cells are gone."""
        have = self._extents[s]
        have.n -= n_lost
        self._stale.add(s)
        if have.n == 0:
            self._forget(s)

    def count(self, s: int) -> int:
        """How many cells carry ``s``."""
        return self._extents[s].n if s in self._extents else 0

    def _forget(self, s: int) -> None:
        self._extents.pop(s, None)
        self._stale.discard(s)


class PositionIndex:
    """llama.cpp's own index, entry by entry: a set of (position, cell) per sequence.

    Entries can outlive their cell: one at a negative position is not removed when the cell is used again.
    """

    def __init__(self) -> None:
        self._entries: dict[int, set[tuple[int, int]]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> PositionIndex:
        twin = PositionIndex()
        twin._entries = {s: set(entries) for s, entries in self._entries.items()}
        return twin

    def sequences(self) -> list[int]:
        """The sequences that have an entry, ascending."""
        return sorted(s for s, entries in self._entries.items() if entries)

    def range(self, s: int) -> tuple[int, int]:
        """(min, max) of ``s``, (-1, -1) if it has no entry."""
        entries = self._entries.get(s)
        return (min(entries)[0], max(entries)[0]) if entries else NONE_HELD

    def by_position(self, s: int) -> tuple[IntArray, IntArray]:
        """Positions and cells of ``s``, by position, then by cell."""
        table = np.array(sorted(self._entries.get(s, ())), np.int32).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def add(self, s: int, cells: IntArray, pos: IntArray) -> None:
        """``cells`` carry ``s``, at ``pos``."""
        self._entries.setdefault(s, set()).update(zip(pos.tolist(), cells.tolist(), strict=True))

    def drop(self, s: int, cells: IntArray, pos: IntArray) -> None:
        """``cells`` no longer carry ``s`` at ``pos``. Entries at other positions stay."""
        self._entries.get(s, set()).difference_update(zip(pos.tolist(), cells.tolist(), strict=True))

    def drop_range(self, s: int, p0: int, p1: int, cells: IntArray, pos: IntArray) -> None:
        self.drop(s, cells, pos)

    def share(self, src: int, dst: int, cells: IntArray, pos: IntArray, gained: BoolArray) -> None:
        """An entry is made for every cell, had ``dst`` carried it before or not."""
        self.add(dst, cells, pos)
