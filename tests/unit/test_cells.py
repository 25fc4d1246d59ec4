"""The cell table, rule by rule (spec cells.md), and against the table written cell by cell."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from cell_oracle import NaiveCells
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cell_index import SMALL, all_empty, index_of, live_of, ranges, where
from kvsim.cells import HANDFUL, CellTable
from kvsim.errors import IntegrityError
from kvsim.memory import POS_INF
from kvsim.owner_words import ids_of_words, seq_words
from kvsim.seq_ranges import FEW, Extent, PositionIndex, SeqRanges, greatest, least

EVERY = (0, POS_INF)


def ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int32)


def table(*rows: tuple[int, int, tuple[int, ...]], size: int = 8) -> CellTable:
    """A table with cells ``(index, pos, owners)``, token = 10 * index."""
    t = CellTable(size)
    for i, pos, owners in rows:
        t.place(ints(i), ints(pos), [owners])
        t.set_ext(ints(i), 10 * i)
    return t


def drawn(t: CellTable) -> str:
    """Positions, one character a cell."""
    return "".join("." if p == -1 else str(p) for p in t.pos.tolist())


# -- rule by rule --------------------------------------------------------------------------


def test_r1_reset_brings_every_field_back() -> None:
    t = table((0, 0, (0,)), (1, 1, (0, 70)))
    t.pos_add(0, *EVERY, 3)
    t.reset()
    assert (t.used, t.used_max_p1, t.has_shift, t.rows()) == (0, 0, False, [])
    assert (t.seq_pos_min(0), t.seq_pos_max(70)) == (-1, -1)
    assert t.tok.tolist() == [-1] * 8
    assert t.shift.tolist() == [0] * 8
    t.check_integrity()


def test_r3_reset_shift_keeps_positions() -> None:
    t = table((0, 4, (0,)))
    t.pos_add(0, *EVERY, 2)
    t.reset_shift()
    assert t.rows() == [[0, 6, [0], 0, 0, 0, 0]]
    assert not t.has_shift


def test_r3_reset_shift_reaches_a_cell_that_was_divided_to_position_minus_one() -> None:
    """It is behind the last cell with a position, and is used all the same (R21)."""
    t = table((0, 0, (0,)), (2, 2, (0,)))
    t.pos_div(0, 0, 3, -2)
    assert t.rows()[1] == [2, -1, [0], 3, 20, 0, 0]
    t.reset_shift()
    assert t.rows()[1] == [2, -1, [0], 0, 20, 0, 0]


def test_r4_place_leaves_ext_shift_and_flag() -> None:
    t = CellTable(4)
    t.set_ext(ints(2), 7, 1, 2)  # R5: of any cell, empty or not
    t.place(ints(2), ints(9), [(3,)])
    assert t.rows() == [[2, 9, [3], 0, 7, 1, 2]]
    assert not t.has_shift


def test_r6_place_adds_all_owners() -> None:
    t = table((1, 5, (0, 2, 255)))
    assert t.owners(1) == [0, 2, 255]
    assert [t.seq_pos_min(s) for s in (0, 1, 2, 255)] == [5, -1, 5, 5]


def test_r7_seq_rm_frees_a_cell_with_its_last_owner_only() -> None:
    t = table((0, 0, (0,)), (1, 1, (0, 1)), (2, 2, (1,)))
    t.pos_add(0, 1, 2, 4)
    lost, freed = t.seq_rm(0, *EVERY)
    assert (lost.tolist(), freed.tolist()) == ([0, 1], [0])
    assert t.rows() == [[1, 5, [1], 4, 10, 0, 0], [2, 2, [1], 0, 20, 0, 0]]
    t.seq_rm(1, 5, 6)
    assert (t.shift[1], t.tok[1], t.used) == (0, -1, 1)


def test_r7_seq_rm_of_an_unknown_sequence_does_nothing() -> None:
    t = table((0, 0, (0,)))
    lost, freed = t.seq_rm(200, *EVERY)
    assert (lost.tolist(), freed.tolist(), t.used) == ([], [], 1)


def test_r8_rm_range_frees_for_every_owner() -> None:
    t = table((0, 0, (0,)), (1, 1, (0, 1)), (3, 2, (1,)))
    assert t.rm_range(1, 3).tolist() == [1, 3]
    assert t.rows() == [[0, 0, [0], 0, 0, 0, 0]]
    assert (t.seq_pos_max(0), t.seq_pos_max(1)) == (0, -1)


def test_r8_evict_frees_the_live_ones_and_says_how_far_each_owner_lost() -> None:
    t = table((0, 5, (0,)), (1, 7, (1,)), (2, 6, (0,)), (3, 9, (0,)))
    assert t.evict(ints(2, 4, 0, 1)) == {0: 6, 1: 7}
    assert drawn(t) == "...9...."


def test_r9_seq_keep_drops_others_and_frees_what_is_not_its_own() -> None:
    t = table((0, 0, (0,)), (1, 1, (0, 1)), (2, 2, (1,)), (3, 3, (2, 65)))
    shed, freed = t.seq_keep(1)
    assert (shed.tolist(), freed.tolist()) == ([1], [0, 3])
    assert [(row[0], row[2]) for row in t.rows()] == [(1, [1]), (2, [1])]
    assert t.sequences() == [1]


def test_r9_a_used_cell_without_owners_survives_seq_keep() -> None:
    t = table((0, 3, ()), (1, 0, (0,)))
    assert t.seq_keep(5)[1].tolist() == [1]
    assert t.rows() == [[0, 3, [], 0, 0, 0, 0]]
    assert t.rm_range(*EVERY).tolist() == [0]  # only a removal for everybody frees it


def test_r10_reads() -> None:
    t = table((0, 0, (4,)), (1, 1, (4, 70)), (2, 2, (70,)))
    assert t.has(4).tolist() == [True, True, False]
    assert t.has(200).tolist() == [False, False, False]
    assert t.single_owner(4, 0, 3).tolist() == [True, False, False]
    assert t.single_owner(70, 0, 4).tolist() == [False, False, True, False]
    assert t.single_owner(200, 0, 2).tolist() == [False, False]
    assert t.sequences() == [4, 70]


def test_r11_ranges_are_half_open() -> None:
    t = table(*((i, i, (0,)) for i in range(6)))
    assert t.seq_rm(0, 2, 4)[0].tolist() == [2, 3]


def test_r12_the_highest_cell_wins_among_equal_positions() -> None:
    t = table((5, 3, (0,)), (2, 3, (0,)), (6, 8, (0,)), (0, 4, (1,)))
    assert [t.seq_pos_tok_le(0, p) for p in (2, 3, 7, 8, 99)] == [-1, 50, 50, 60, 60]
    positions, cells = t.by_position(0)
    assert (positions.tolist(), cells.tolist()) == ([3, 3, 8], [2, 5, 6])


def test_r13_pos_add_moves_for_every_owner() -> None:
    t = table((0, 0, (0, 1)), (1, 1, (0,)))
    moved, freed = t.pos_add(0, *EVERY, 5)
    assert (moved.tolist(), freed.tolist()) == ([0, 1], [])
    assert (t.seq_pos_min(1), t.seq_pos_max(1), t.shift.tolist()[:2]) == (5, 5, [5, 5])
    t.pos_add(0, *EVERY, -2)
    assert t.shift.tolist()[:2] == [3, 3]


def test_r13_delta_zero_raises_the_flag() -> None:
    t = table((0, 0, (0,)))
    t.pos_add(0, *EVERY, 0)
    assert t.has_shift


def test_r14_r16_below_zero_the_cell_is_free_for_all_but_keeps_its_ext() -> None:
    t = table((0, 1, (0, 1)), (1, 4, (0,)))
    t.set_ext(ints(0), 42, 3, 4)
    moved, freed = t.pos_add(0, *EVERY, -2)
    assert (moved.tolist(), freed.tolist()) == ([1], [0])
    assert t.sequences() == [0]
    assert (t.pos[0], t.shift[0], t.tok[0], t.x[0], t.y[0]) == (-1, 0, 42, 3, 4)
    t.place(ints(0), ints(9), [(2,)])
    assert t.rows()[0] == [0, 9, [2], 0, 42, 3, 4]


def test_r15_pos_div_truncates_and_adds_old_minus_new() -> None:
    t = table((0, 8, (0,)), (1, 9, (0,)))
    assert t.pos_div(0, *EVERY, 2).tolist() == [0, 1]
    assert (t.pos.tolist()[:2], t.shift.tolist()[:2]) == ([4, 4], [4, 5])
    t.pos_div(0, *EVERY, -3)  # a negative result is not checked: -4/3 is -1, and so "empty"
    assert t.pos.tolist()[:2] == [-1, -1]
    assert t.used == 2


def test_r17_the_flag_outlives_the_shifted_cells() -> None:
    t = table((0, 8, (0,)))
    t.pos_add(0, *EVERY, 1)
    t.seq_rm(0, *EVERY)
    assert t.has_shift


def test_r18_r19_save_and_restore_leave_shift_and_flag() -> None:
    t = table((1, 3, (0,)))
    t.pos_add(0, *EVERY, 2)
    saved = t.save(ints(0, 1))
    t.evict(ints(1))
    t.place(ints(0, 1), ints(8, 9), [(1,), (1, 64)])
    t.set_ext(ints(0, 1), 1)
    t.restore(saved)
    assert t.rows() == [[1, 5, [0], 0, 10, 0, 0]]  # the shift is gone with the eviction
    assert (t.has_shift, t.sequences(), t.seq_pos_max(0)) == (True, [0], 5)
    t.check_integrity()


def test_r21_position_minus_one_is_used_but_empty() -> None:
    t = table((0, -1, (0,)), (1, 0, (0,)))
    assert (t.used, t.n_live, t.used_max_p1) == (2, 1, 2)
    assert t.seq_pos_min(0) == -1
    assert t.seq_pos_max(0) == 0
    assert t.rows()[0] == [0, -1, [0], 0, 0, 0, 0]


def test_r21_ranges_never_match_it() -> None:
    t = table((0, -1, (0,)))
    assert t.seq_rm(0, *EVERY)[0].tolist() == []
    assert t.pos_add(0, *EVERY, 3)[0].tolist() == []
    assert t.seq_share(0, 1, *EVERY).tolist() == []
    assert t.rm_range(*EVERY).tolist() == []


def test_r21_seq_keep_of_another_frees_it_of_its_own_keeps_it() -> None:
    t = table((0, -1, (0,)))
    t.seq_keep(0)
    assert t.used == 1
    assert t.seq_keep(1)[1].tolist() == [0]
    assert (t.used, t.seq_pos_min(0), t.rows()) == (0, -1, [])


def test_r21_re_use_leaves_the_old_bits_and_the_old_entry() -> None:
    t = table((0, -1, (0,)))
    t.place(ints(0), ints(4), [(1,)])
    assert t.rows()[0][:3] == [0, 4, [0, 1]]
    assert (t.used, t.seq_pos_min(0), t.seq_pos_max(0)) == (1, -1, -1)
    assert (t.seq_pos_min(1), t.seq_pos_tok_le(0, 9)) == (4, 0)
    t.seq_rm(0, *EVERY)
    t.seq_rm(1, *EVERY)
    assert (t.used, t.by_position(0)[1].tolist()) == (0, [0])  # the entry stays until the table is reset
    t.reset()
    assert t.by_position(0)[1].tolist() == []


def test_r21_undoing_a_placement_leaves_it_used_without_a_sequence() -> None:
    t = CellTable(4)
    saved = t.save(ints(2, 3))
    t.place(ints(2, 3), ints(-1, 0), [(0,), (0,)])
    t.restore(saved)
    assert t.rows() == [[2, -1, [], 0, -1, 0, 0]]
    assert (t.used, t.seq_pos_min(0)) == (1, -1)
    t.place(ints(2), ints(5), [(1,)])
    t.seq_rm(1, *EVERY)
    assert t.used == 0


# -- the invariants are checked --------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "cell", "value", "rule"),
    [
        ("pos", 0, -1, "I1"),
        ("pos", 0, 5, "I2"),
        ("shift", 7, 1, "I4"),
        ("seq", (0, 7), 1, "I3"),
        ("seq", (0, 0), 2, "carry"),
    ],
)
def test_integrity_notices_a_changed_field(field: str, cell: Any, value: int, rule: str) -> None:
    t = table((0, 0, (0,)), (1, 1, (0,)))
    t.check_integrity()
    getattr(t, field)[cell] = value
    with pytest.raises(IntegrityError, match=rule):
        t.check_integrity()


# -- against the table written cell by cell ---------------------------------------------------

SIZE = 9
SEQS = (0, 1, 2, 66, 255)
NAMES = (
    "place", "share_place", "evict", "seq_rm", "rm_range", "seq_keep", "seq_share", "pos_add", "pos_div",
    "undone_place", "set_ext", "reset_shift", "reset",
)  # fmt: skip
small = st.integers(0, 12)
operation = st.tuples(st.sampled_from(NAMES), small, small, st.integers(-6, 6), st.integers(0, 4))


def free_cells(naive: NaiveCells, start: int, n: int) -> list[int]:
    """As a slot: free cells from ``start`` on, wrapping once."""
    order = [(start + k) % SIZE for k in range(SIZE)]
    return [i for i in order if naive.cells[i].pos == -1][:n]


def both_place(
    fast: CellTable, naive: NaiveCells, cells: list[int], pos: list[int], ids: list[tuple[int, ...]]
) -> None:
    fast.place(ints(*cells), ints(*pos), ids)
    naive.place(cells, pos, ids)


def perform(fast: CellTable, naive: NaiveCells, op: tuple[str, int, int, int, int], lowest: int) -> None:
    name, a, b, d, k = op
    s, other = SEQS[k], SEQS[(k + 1 + a % 4) % len(SEQS)]
    p0, p1 = min(a, b), POS_INF if b > 10 else max(a, b)
    if name in ("place", "share_place", "undone_place"):
        cells = free_cells(naive, a % SIZE, 1 + b % 4)
        pos = [max(lowest, d) + (i if a % 2 else 0) for i in range(len(cells))]
        ids = [(s, other) if name == "share_place" and (i + b) % 2 else (s,) for i in range(len(cells))]
        if name == "undone_place":
            taken = sorted({*cells, a % SIZE})
            pos, ids = (pos * 2)[: len(taken)], [(s,)] * len(taken)
            saved, naive_saved = fast.save(ints(*taken)), naive.save(taken)
            assert fast.evict(ints(*taken)) == naive.evict(taken)
            if len(pos) == len(taken):
                both_place(fast, naive, taken, pos, ids)
            if d < -3:  # something purged while it was placed
                fast.seq_rm(other, 0, 3)
                naive.seq_rm(other, 0, 3)
            fast.restore(saved)
            naive.restore(naive_saved)
        elif cells:
            both_place(fast, naive, cells, pos, ids)
    elif name == "evict":
        cells = sorted({a % SIZE, b % SIZE})
        assert fast.evict(ints(*cells)) == naive.evict(cells)
    elif name == "set_ext":
        fast.set_ext(ints(a % SIZE), b, d, k)
        naive.set_ext([a % SIZE], b, d, k)
    elif name == "pos_div":
        d = d or 2
        d = abs(d) if lowest == 0 else d
        assert fast.pos_div(s, p0, p1, d).tolist() == naive.pos_div(s, p0, p1, d)
    elif name == "pos_add":
        assert listed(fast.pos_add(s, p0, p1, d)) == list(naive.pos_add(s, p0, p1, d))
    elif name == "seq_rm":
        assert listed(fast.seq_rm(s, p0, p1)) == list(naive.seq_rm(s, p0, p1))
    elif name == "seq_keep":
        assert listed(fast.seq_keep(s)) == list(naive.seq_keep(s))
    elif name == "seq_share":
        assert fast.seq_share(s, other, p0, p1).tolist() == naive.seq_share(s, other, p0, p1)
    elif name == "rm_range":
        assert fast.rm_range(p0, p1).tolist() == naive.rm_range(p0, p1)
    else:
        getattr(fast, name)()
        getattr(naive, name)()


def listed(arrays: tuple[Any, ...]) -> list[list[int]]:
    return [a.tolist() for a in arrays]


def assert_same(fast: CellTable, naive: NaiveCells) -> None:
    assert fast.rows() == naive.rows()
    assert (fast.used, fast.used_max_p1, fast.has_shift) == (
        len(naive.used),
        naive.used_max_p1,
        naive.has_shift,
    )
    for field in ("pos", "shift", "tok", "x", "y"):
        assert getattr(fast, field).tolist() == [getattr(cell, field) for cell in naive.cells], field
    for s in SEQS:
        assert (fast.seq_pos_min(s), fast.seq_pos_max(s)) == (naive.seq_pos_min(s), naive.seq_pos_max(s)), s
        assert fast.has(s, SIZE).tolist() == [s in cell.seq for cell in naive.cells], s
        held = sorted(cell.pos for cell in naive.cells if s in cell.seq)
        assert [fast.positions(s, start) for start in (-1, 5)] == [
            [p for p in held if p >= max(start, 0)] for start in (-1, 5)
        ], s
        pairs = list(zip(*listed(fast.by_position(s)), strict=True))
        assert pairs == sorted(naive.seq_pos.get(s, ())), s
        assert [fast.seq_pos_tok_le(s, p) for p in range(-1, 14)] == [
            naive.seq_pos_tok_le(s, p) for p in range(-1, 14)
        ], s
    assert fast.sequences() == sorted(s for s, entries in naive.seq_pos.items() if entries)
    fast.check_integrity()


@settings(max_examples=200, deadline=None)
@given(st.lists(operation, max_size=25))
def test_equals_the_table_written_cell_by_cell(ops: list[tuple[str, int, int, int, int]]) -> None:
    fast, naive = CellTable(SIZE), NaiveCells(SIZE)
    for op in ops:
        perform(fast, naive, op, lowest=0)
        assert_same(fast, naive)


@settings(max_examples=200, deadline=None)
@given(st.lists(operation, max_size=25))
def test_r21_equals_the_table_written_cell_by_cell_with_positions_of_minus_one(
    ops: list[tuple[str, int, int, int, int]],
) -> None:
    fast, naive = CellTable(SIZE), NaiveCells(SIZE)
    for op in ops:
        perform(fast, naive, op, lowest=-1)
        assert_same(fast, naive)


# -- which cells one owner's window has passed -------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.sets(st.sampled_from(SEQS), max_size=2)), max_size=8),
       st.dictionaries(st.sampled_from(SEQS), st.integers(-3, 12), min_size=1))  # fmt: skip
def test_passed_cells_have_one_owner_and_lie_before_its_start(
    cells: list[tuple[int, set[int]]], starts: dict[int, int]
) -> None:
    wanted = [len(ids) == 1 and pos < starts.get(next(iter(ids)), -99) for pos, ids in cells]
    for size in (len(cells), HANDFUL + 1):  # few cells are looked at one by one
        t = table(*((i, pos, tuple(ids)) for i, (pos, ids) in enumerate(cells)), size=size)
        assert t.passed(0, size, starts).tolist() == wanted + [False] * (size - len(cells))


# -- the small parts ---------------------------------------------------------------------------


@given(st.sets(st.integers(0, 255)))
def test_ids_survive_the_owner_words(ids: set[int]) -> None:
    assert ids_of_words(seq_words(ids, 4)) == sorted(ids)


@pytest.mark.parametrize(
    "pos", [[-1, -1], [3, 4], [-1, 3, -1, 4], [3] * FEW + [-1], [-1] * (FEW + 1), [3] * 99]
)
def test_live_cells_are_those_with_a_position(pos: list[int]) -> None:
    cells = np.arange(10, 10 + len(pos), dtype=np.int32)
    assert live_of(cells, ints(*pos)).tolist() == [10 + i for i, p in enumerate(pos) if p != -1]


@given(st.lists(st.booleans(), max_size=12))
def test_where_finds_what_a_mask_selects(mask: list[bool]) -> None:
    found = where(np.array(mask, np.bool_))
    assert found.dtype == np.int32
    assert found.tolist() == [i for i, chosen in enumerate(mask) if chosen]


@given(st.lists(st.booleans(), max_size=12), st.integers(0, 9))
def test_where_counts_from_the_cell_it_is_told(mask: list[bool], lo: int) -> None:
    assert where(np.array(mask, np.bool_), lo).tolist() == [lo + i for i, yes in enumerate(mask) if yes]


@pytest.mark.parametrize("n", [SMALL, SMALL + 1])
@pytest.mark.parametrize("run", [slice(0, 0), slice(5, 9), slice(0, None), slice(3, 99, 2)])
def test_where_and_ranges_of_small_and_of_large_masks(n: int, run: slice) -> None:
    mask = np.zeros(n, np.bool_)
    mask[run] = True
    wanted = list(range(n))[run]
    assert where(mask, 7).tolist() == [7 + i for i in wanted]
    edges = ranges(mask)
    assert [i for a, b in zip(edges[::2], edges[1::2], strict=True) for i in range(a, b)] == wanted
    assert edges == sorted(set(edges))


@pytest.mark.parametrize("n", [1, FEW, FEW + 1, 3 * FEW])
def test_few_numbers_and_many_have_the_same_ends(n: int) -> None:
    falling = np.arange(n + 4, 4, -1, dtype=np.int32)
    assert (least(falling), greatest(falling)) == (5, n + 4)
    extent = Extent.of(falling[::-1])
    assert (extent.lo, extent.hi, extent.n, extent.gapless) == (5, n + 4, n, True)
    twice = Extent.of(np.repeat(falling, 2))
    assert (twice.lo, twice.hi, twice.n, twice.gapless) == (5, n + 4, 2 * n, False)
    assert not all_empty(falling)
    assert all_empty(np.full(n, -1, np.int32))
    assert not all_empty(np.append(np.full(n, -1, np.int32), np.int32(0)))


def test_of_no_numbers_the_greatest_is_below_any_cell() -> None:
    assert greatest(ints()) == -1


@pytest.mark.parametrize("n", [FEW, FEW + 1])
def test_r8_few_and_many_evicted_cells_are_told_by_owner(n: int) -> None:
    t = CellTable(2 * n)
    cells = np.arange(n, dtype=np.int32)
    t.place(cells, cells, [(i % 2, 66) for i in range(n)])
    assert t.evict(cells) == {0: (n - 1) // 2 * 2, 1: (n - 2) // 2 * 2 + 1, 66: n - 1}
    t.check_integrity()


@pytest.mark.parametrize("lowest", [0, -1])
def test_a_copy_goes_its_own_way(lowest: int) -> None:
    """Also where positions were negative and llama.cpp's own index is kept (R21)."""
    t = table((0, lowest, (0,)), (1, 3, (0, 1)), (2, 4, (1,)))
    before = t.rows()
    twin = copy.deepcopy(t)
    twin.place(ints(5), ints(9), [(0,)])
    twin.set_ext(ints(0, 1), 7, 8, 9)
    twin.pos_add(0, 3, 4, 2)
    twin.seq_rm(1, *EVERY)
    twin.check_integrity()
    assert t.rows() == before
    assert (t.used, t.seq_pos_max(0), t.seq_pos_max(1), t.sequences()) == (3, 3, 4, [0, 1])
    assert (twin.used, twin.seq_pos_max(0), twin.sequences()) == (3, 9, [0])


@given(st.integers(0, 7), st.integers(0, 8), st.booleans())
def test_index_of_selects_the_cells_in_order(start: int, n: int, gap: bool) -> None:
    cells = [(start + k) % 8 for k in range(n) if not gap or k != 1]
    assert np.arange(8)[index_of(ints(*cells))].tolist() == cells


def test_a_gapless_sequence_never_needs_a_look_at_the_cells() -> None:
    """Appending, and losing ends and middles that a hole was not cut by before, is followed exactly."""
    kept = SeqRanges()
    kept.add(0, ints(), ints(*range(10, 20)))
    kept.drop(0, ints(), ints(11, 10, 19))
    assert kept.range(0) == (12, 18)
    kept.drop_range(0, 0, 14, ints(0, 0), ints())
    assert kept.range(0) == (14, 18)
    kept.add(0, ints(), ints(19))
    kept.drop(0, ints(), ints(16))  # a hole in the middle
    assert kept.range(0) == (14, 19)
    kept.drop_range(0, 0, 17, ints(0, 0), ints())  # and everything before it
    assert kept.range(0) == (17, 19)
    kept.move(0, -17)
    assert kept.range(0) == (0, 2)


def test_a_sequence_with_holes_that_loses_an_end_is_looked_up_again() -> None:
    kept = SeqRanges()
    kept.add(0, ints(), ints(3, 4, 8))
    kept.drop(0, ints(), ints(3))
    assert kept.range(0) is None
    kept.learn(0, ints(8, 4))
    assert kept.range(0) == (4, 8)


def test_entries_of_the_literal_index_outlive_their_cell() -> None:
    index = PositionIndex()
    index.add(0, ints(5), ints(-1))
    index.drop(0, ints(5), ints(3))  # dropped at the position the cell has now
    assert index.range(0) == (-1, -1)
    assert index.by_position(0)[1].tolist() == [5]
