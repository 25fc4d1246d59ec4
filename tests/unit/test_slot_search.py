"""The search for free cells against a walk over the cells one by one (spec kv_cache.md F1, F2)."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.caches.slot_search import FIRST_WINDOW, SlotSearch
from kvsim.cells import CellTable
from kvsim.models.params import SwaType

N_SWA = 5


def filled(size: int, share: float, seed: int) -> CellTable:
    """A table of which about this share is used: three sequences in turn, some cells of two of them."""
    rng = np.random.default_rng(seed)
    cells = np.flatnonzero(rng.random(size) < share).astype(np.int32)
    table = CellTable(size)
    owners = [(i % 3, 3) if i % 7 == 0 else (i % 3,) for i in range(len(cells))]
    table.place(cells, np.arange(len(cells), dtype=np.int32), owners)
    return table


def usable(table: CellTable, cell: int, swa: SwaType) -> bool:
    """Empty, or the only owner's window has passed it."""
    if table.pos[cell] == -1:
        return True
    owners = table.owners(cell)
    passed = int(table.pos[cell]) <= table.seq_pos_max(owners[0]) + 1 - N_SWA
    return swa is SwaType.STANDARD and len(owners) == 1 and passed


def walked(table: CellTable, head: int, n: int, swa: SwaType) -> list[int]:
    """The first ``n`` usable cells, one after the other, wrapping once."""
    if head > table.used + 2 * n:
        head = 0
    order = [(head + i) % table.size for i in range(table.size)]
    return [cell for cell in order if usable(table, cell, swa)][:n]


@pytest.mark.parametrize("size", [1, 7, 40, FIRST_WINDOW, FIRST_WINDOW + 1, 3 * FIRST_WINDOW])
@pytest.mark.parametrize("swa", [SwaType.NONE, SwaType.STANDARD])
@pytest.mark.parametrize("share", [0.0, 0.7, 0.98, 1.0])
def test_f1_f2_a_search_finds_what_a_walk_finds(size: int, swa: SwaType, share: float) -> None:
    table = filled(size, share, seed=size)
    for head in (0, size // 3, size - 1, size):
        for n in (1, min(3, size), size):
            found = SlotSearch(table, head, swa, N_SWA).find(n)
            assert found.dtype == np.int32
            assert found.tolist() == walked(table, head, n, swa)


@pytest.mark.parametrize("size", [40, 3 * FIRST_WINDOW])
def test_f2_a_refusal_counts_what_there_is(size: int) -> None:
    table = filled(size, 0.9, seed=1)
    free = [table.pos[cell] == -1 for cell in range(size)]
    ok = "".join(".#"[usable(table, cell, SwaType.STANDARD)] for cell in range(size))
    refusal = SlotSearch(table, 0, SwaType.STANDARD, N_SWA).refusal("swa", 0, asked=size, found=3)
    assert (refusal.free, refusal.reclaimable) == (sum(free), ok.count("#") - sum(free))
    assert refusal.largest_hole == max(map(len, ok.split(".")))
