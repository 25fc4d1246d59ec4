"""What a defragmentation moves (spec decode.md 6): the historic plan, and one of as few moves as can be."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.defrag import EXACT_SEGMENTS, Defrag, Move, fragmentation, plan_classic, plan_minimal, segments
from kvsim.memory import BoolArray

PLENTY = 10**6


def empty(drawing: str) -> BoolArray:
    """``X`` used, ``.`` empty."""
    return np.array([c == "." for c in drawing], np.bool_)


def after(drawing: str, moves: list[Move]) -> str:
    """The drawing once the moves are made. Fails if one reads an empty cell or hits a used one."""
    cells = list(drawing)
    for m in moves:
        for i in range(m.length):
            assert (cells[m.src + i], cells[m.dst + i]) == ("X", ".")
            cells[m.src + i], cells[m.dst + i] = ".", "X"
    return "".join(cells)


# -- the classic plan ------------------------------------------------------------------------------


def literal_plan(free: list[bool], max_moves: int) -> list[int] | None:
    """Destination of every cell, by the pseudo-code of D3; the length of the table means "not moved"."""
    n_kv, n_used = len(free), free.count(False)
    ids, moves, i0 = [n_kv] * n_kv, 0, 0
    while i0 < n_used:
        if not free[i0]:
            ids[i0] = i0
            i0 += 1
            continue
        nh = 1
        while i0 + nh < n_used and free[i0 + nh]:
            nh += 1
        nf, i = 0, n_kv - 1
        while i > i0:
            if not free[i] and ids[i] == n_kv:
                nf += 1
                if nf == nh:
                    break
            i -= 1
        assert nf == nh
        nf, run, stop = 0, False, False
        while i < n_kv:
            if free[i] or ids[i] != n_kv:
                if moves == max_moves:
                    stop = True
                    break
                run = False
            else:
                ids[i] = i0 + nf
                if not run:
                    moves, run = moves + 1, True
                nf += 1
                if nf == nh:
                    break
            i += 1
        if stop or moves == max_moves:
            break
        i0 += nh
    return ids if moves else None


@given(free=st.lists(st.booleans(), max_size=40), budget=st.integers(1, 12) | st.just(PLENTY))
@settings(max_examples=400, deadline=None)
def test_d3_classic_is_the_historic_plan(free: list[bool], budget: int) -> None:
    while free and free[-1]:
        free.pop()  # n_kv ends with the last used cell
    ids = literal_plan(free, budget)
    moved = {i: to for i, to in enumerate(ids or []) if to not in (len(free), i)}
    moves = plan_classic(np.array(free, np.bool_), budget)
    assert {m.src + i: m.dst + i for m in moves for i in range(m.length)} == moved
    assert len(moves) <= budget


def test_d3_the_example() -> None:
    drawing = "XX..XX.XX..X.XX"
    assert plan_classic(empty(drawing), 100) == [Move(13, 2, 2), Move(11, 6, 1)]
    assert after(drawing, plan_classic(empty(drawing), 100)) == "XXXXXXXXX......"
    assert plan_classic(empty(drawing), 1) == [Move(13, 2, 2)]


def test_d3_a_hole_takes_the_last_cells_in_their_order() -> None:
    assert plan_classic(empty("X..X.X.X"), PLENTY) == [Move(5, 1, 1), Move(7, 2, 1)]


def test_budget_0_moves_nothing_where_the_historic_code_never_stopped() -> None:
    drawing = "X.X.X.X"
    assert literal_plan(list(empty(drawing)), 0) == literal_plan(list(empty(drawing)), PLENTY)
    assert plan_classic(empty(drawing), 0) == plan_minimal(empty(drawing), 0) == []


@pytest.mark.parametrize("drawing", ["", "X", "XXXX"])
def test_nothing_to_fill_nothing_to_move(drawing: str) -> None:
    assert plan_classic(empty(drawing), PLENTY) == plan_minimal(empty(drawing), PLENTY) == []


@pytest.mark.parametrize(("n_layer", "budget"), [(1, 1365), (2, 682), (32, 42), (1366, 0), (4096, 0), (0, 0)])
def test_d2_budget(n_layer: int, budget: int) -> None:
    assert Defrag().max_moves(n_layer) == budget


@pytest.mark.parametrize(
    ("threshold", "n_kv", "n_used", "n_pad", "wanted"),
    [
        (0.0, 4096, 1, 1, False),
        (-1.0, 4096, 1, 1, False),
        (0.1, 2047, 1, 1, False),
        (0.1, 2048, 1, 1, True),
        (0.5, 2048, 1023, 1, False),  # exactly half is empty, padding counted as used
        (0.5, 2048, 1022, 1, True),
        (0.5, 2048, 991, 32, True),
        (0.5, 2048, 992, 32, False),
        (0.1, 2048, 2048, 1, False),
    ],
)
def test_d1_threshold(threshold: float, n_kv: int, n_used: int, n_pad: int, wanted: bool) -> None:
    assert Defrag(threshold=threshold).wanted(n_kv, n_used, n_pad, optimize=False) is wanted
    assert Defrag(threshold=threshold).wanted(n_kv, n_used, n_pad, optimize=True)


# -- the minimal plan ------------------------------------------------------------------------------


def fewest_moves(free: BoolArray) -> int:
    """By trying every way to fill the holes below the used count from the cells behind it."""
    n_used = int(np.count_nonzero(~free))
    holes = np.flatnonzero(free[:n_used])
    sources = np.flatnonzero(~free[n_used:]) + n_used
    behind = np.diff(sources) == 1
    best = len(sources)
    for targets in permutations(holes.tolist()):
        runs = len(sources) - int(np.count_nonzero(behind & (np.diff(targets) == 1)))
        best = min(best, runs)
    return best


@pytest.mark.parametrize("size", range(1, 13))
def test_minimal_is_minimal_on_every_cache_of_up_to_12_cells(size: int) -> None:
    for bits in range(1 << (size - 1), 1 << size):  # the last cell is used
        free = np.array([not bits >> i & 1 for i in range(size)])
        moves = plan_minimal(free, PLENTY)
        drawing = "".join(".X"[not f] for f in free)
        n_used = drawing.count("X")
        assert after(drawing, moves) == "X" * n_used + "." * (size - n_used)
        assert len(moves) == fewest_moves(free), drawing


def test_minimal_pairs_equal_lengths_and_groups_sums() -> None:
    # holes of 2 and 1, then runs of 1 and 2: the classic plan takes the run of 2 for the hole of 2 by luck
    drawing = "X..X.XX.XX.X"
    assert [m.length for m in plan_classic(empty(drawing), PLENTY)] == [1, 1, 1]
    assert plan_minimal(empty(drawing), PLENTY) == [Move(8, 1, 2), Move(11, 4, 1)]
    # holes 3, 2 and runs 4, 1 share no part: 4 segments in one group need 3 moves
    drawing = "X...X..XX....XXXX.X"
    assert segments(empty(drawing)[:8]) == [(1, 3), (5, 2)]
    assert len(plan_minimal(empty(drawing), PLENTY)) == 3


def drawing_of(holes: list[int], fillers: list[int]) -> str:
    """Holes of these lengths before the used count, runs of these lengths after it; they sum up to the
    same."""
    return "".join("X" + "." * n for n in holes) + ".".join("X" * n for n in fillers)


def most_groups(balance: list[int]) -> int:
    """Into how many groups of sum 0 the numbers can be split, by trying every group that holds the first."""
    if not balance:
        return 0
    best = 1
    for chosen in range(1 << (len(balance) - 1)):
        group = [balance[0], *(n for i, n in enumerate(balance[1:]) if chosen >> i & 1)]
        rest = [n for i, n in enumerate(balance[1:]) if not chosen >> i & 1]
        if sum(group) == 0 and rest:
            best = max(best, 1 + most_groups(rest))
    return best


def test_minimal_finds_groups_that_share_nothing() -> None:
    """3 takes 1 and 2, 10 takes 4 and 6: six segments in two groups need four moves, filled in order five."""
    drawing = drawing_of([10, 3], [1, 4, 2, 6])
    assert len(plan_minimal(empty(drawing), PLENTY)) == 4
    assert len(plan_classic(empty(drawing), PLENTY)) == 5


@given(
    holes=st.lists(st.integers(1, 12), min_size=1, max_size=4), cuts=st.sets(st.integers(1, 30), max_size=4)
)
@settings(max_examples=150, deadline=None)
def test_minimal_needs_one_move_less_than_segments_for_every_group(holes: list[int], cuts: set[int]) -> None:
    bounds = [0, *sorted(c for c in cuts if c < sum(holes)), sum(holes)]
    fillers = [b - a for a, b in pairwise(bounds)]
    drawing = drawing_of(holes, fillers)
    moves = plan_minimal(empty(drawing), PLENTY)
    n_used = len(holes) + sum(fillers)
    assert after(drawing, moves).rstrip(".") == "X" * n_used
    assert len(moves) == len(holes) + len(fillers) - most_groups([*holes, *(-n for n in fillers)])


def test_minimal_stops_at_the_budget() -> None:
    drawing = "X.X.X.XXX.XX"
    assert len(plan_minimal(empty(drawing), PLENTY)) == 3
    assert len(plan_minimal(empty(drawing), 1)) == 1


@given(st.lists(st.integers(1, 3), min_size=20, max_size=60))
@settings(max_examples=60, deadline=None)
def test_minimal_beyond_the_exact_size_still_fills_every_hole(lengths: list[int]) -> None:
    drawing = "".join("X."[i % 2] * n for i, n in enumerate(lengths)) + "X"
    free = empty(drawing)
    n_used = drawing.count("X")
    n_segments = len(segments(free[:n_used])) + len(segments(~free[n_used:]))
    moves = plan_minimal(free, PLENTY)
    assert after(drawing, moves)[:n_used] == "X" * n_used
    assert len(moves) <= max(0, n_segments - 1)
    if n_segments > EXACT_SEGMENTS:
        assert len(moves) <= len(plan_classic(free, PLENTY)) + n_segments // 2


@pytest.mark.parametrize(
    ("drawing", "share"), [("", 0.0), ("...", 0.0), ("XX", 0.0), ("X.X.", 1 / 3), (".X", 0.5)]
)
def test_fragmentation_is_the_share_of_empty_cells_before_the_last_used(drawing: str, share: float) -> None:
    assert fragmentation(empty(drawing)) == pytest.approx(share)
