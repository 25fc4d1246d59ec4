"""Finding cells for tokens in one stream (``src/llama-kv-cache.cpp: find_slot``).

The search begins at the head, looks at every cell once and wraps at the end. It never walks cells in
Python: it looks at windows of cells, each larger than the last::

    cells   0 0 0 . 1 1 . .      from the head, 4 cells: 6 7, then from the start: 3, no more
                        ^ head
"""

from __future__ import annotations

import numpy as np

from kvsim import window
from kvsim.cell_index import ranges, where
from kvsim.cells import CellTable
from kvsim.memory import BoolArray, IntArray, PrepareFailure
from kvsim.models.params import SwaType

FIRST_WINDOW = 1024
"""Cells looked at in the first step; each later step looks at four times as many."""

NO_CELLS: IntArray = np.empty(0, np.int32)


class SlotSearch:
    """One search over ``cells``, valid until they change.

    ``starts`` says for each sequence that holds cells its window has passed where the window of its next
    token begins.
    """

    def __init__(self, cells: CellTable, head: int, swa_type: SwaType, n_swa: int) -> None:
        self.cells = cells
        self.head = head
        self.starts: dict[int, int] = {}
        self._all_usable: BoolArray | None = None
        for s in cells.sequences() if swa_type is not SwaType.NONE else ():
            first, last = cells.seq_range(s)
            start = window.window_start(swa_type, n_swa, last + 1)
            if first < start:
                self.starts[s] = start

    def usable(self, lo: int, hi: int) -> BoolArray:
        """Which cells of [lo, hi) a token may take: empty ones, and those whose only owner's window has
        passed them. A shared cell is never taken, even if masked for all its owners (F2)."""
        free: BoolArray = self.cells.pos[lo:hi] == -1
        if self.starts:
            free |= self.cells.passed(lo, hi, self.starts)
        return free

    def _from(self, n: int) -> int:
        """The head, or 0 when enough cells before it are free."""
        enough_before = self.head > self.cells.used + 2 * n
        return 0 if enough_before or self.head >= self.cells.size else self.head

    def all_usable(self) -> BoolArray:
        """:meth:`usable` for every cell."""
        if self._all_usable is None:
            self._all_usable = self.usable(0, self.cells.size)
        return self._all_usable

    def find(self, n: int) -> IntArray:
        """The first ``n`` usable cells, fewer if there are not so many."""
        size = self.cells.size
        if n > size:
            return NO_CELLS
        if size <= FIRST_WINDOW:
            mask = self.all_usable()
            usable = where(mask)
            first = int(np.count_nonzero(mask[: self._from(n)]))
            after = usable[first : first + n]
            return after if len(after) == n else np.concatenate((after, usable[:first]))[:n]
        head, missing, found = self._from(n), n, []
        for start, stop in ((head, size), (0, head)):
            step, lo = FIRST_WINDOW, start
            while lo < stop and missing:
                hi = min(stop, lo + step)
                taken = where(self.usable(lo, hi), lo)[:missing]
                found.append(taken)
                missing -= len(taken)
                lo, step = hi, step * 4
        return found[0] if len(found) == 1 else np.concatenate(found)

    def find_run(self, n: int) -> IntArray:
        """The first run of ``n`` usable cells, which the historic allocator asked for; empty if none."""
        size = self.cells.size
        if n > size:
            return NO_CELLS
        at, tested, usable = self._from(n), 0, self.all_usable()
        while tested < size:
            if at + n > size:
                tested += size - at
                at = 0
                continue
            blocked = np.flatnonzero(~usable[at : at + n])
            if not len(blocked):
                return np.arange(at, at + n, dtype=np.int32)
            at += int(blocked[0]) + 1
            tested += int(blocked[0]) + 1
        return NO_CELLS

    def refusal(self, cache: str, stream: int, asked: int, found: int) -> PrepareFailure:
        """Why there was no room, in numbers."""
        usable = self.all_usable()
        free = int(np.count_nonzero(self.cells.pos == -1))
        edges = ranges(usable)
        holes = [end - start for start, end in zip(edges[::2], edges[1::2], strict=True)]
        return PrepareFailure(
            cache=cache, stream=stream, ubatch=0, asked=asked, free=free, found=found,
            reclaimable=int(np.count_nonzero(usable)) - free, largest_hole=max(holes, default=0),
        )  # fmt: skip
