"""Some cells of a stream: as a mask, as their numbers, as ranges, as an index.

What is small is told by looking at each number, since numpy's own time is longer than that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsim.memory import BoolArray, IntArray
from kvsim.seq_ranges import FEW

SMALL = 512
"""Cells of which looking at each costs less than being clever."""

Index = NDArray[np.intp] | slice


def where(mask: BoolArray, lo: int = 0) -> IntArray:
    """The cells a mask selects, its first one being cell ``lo``. One run of cells, which is what a sequence
    mostly is, is found faster."""
    if len(mask) > SMALL:
        n = int(np.count_nonzero(mask))
        first = int(mask.argmax()) if n else 0
        if mask[first : first + n].all():
            return np.arange(lo + first, lo + first + n, dtype=np.int32)
    cells: IntArray = mask.nonzero()[0].astype(np.int32)
    if lo:
        cells += lo
    return cells


def all_empty(pos: IntArray) -> bool:
    """Whether cells at these positions are all empty."""
    return pos.tolist().count(-1) == len(pos) if len(pos) <= FEW else bool((pos == -1).all())


def live_of(cells: IntArray, pos: IntArray) -> IntArray:
    """Those of ``cells``, which are at ``pos``, that are live."""
    if len(pos) <= FEW:
        n_empty = pos.tolist().count(-1)
        if n_empty in (0, len(pos)):
            return cells[n_empty:]
    live: IntArray = cells[pos != -1]
    return live


def ranges(mask: BoolArray) -> list[int]:
    """The cells a mask selects as half-open ranges ``[a, b, c, d, ...]``."""
    padded = np.zeros(len(mask) + 2, np.bool_)
    padded[1:-1] = mask
    edges: list[int] = (padded[1:] != padded[:-1]).nonzero()[0].tolist()
    return edges


def index_of(cells: IntArray) -> Index:
    """Cells as the quickest index: a slice if they are one run. They ascend, but may wrap once as those of
    a slot do."""
    n = len(cells)
    if n:
        first = cells.item(0)
        if n == cells.item(n - 1) - first + 1:
            return slice(first, first + n)
    return cells.astype(np.intp)
