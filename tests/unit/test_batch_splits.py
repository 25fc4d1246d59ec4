"""Splitting: rules S1 to S4 and the examples E1 to E9 of spec/batch.md."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.batch import Batch, BatchAllocator, Ubatch
from kvsim.errors import CacheUsageError
from kvsim.splitter import keep_tails

Sets = list[tuple[int, ...]]


def allocator_of(sets: Sets) -> BatchAllocator:
    """A batch with an entry for each of these sets; positions are all 0, which V8 and V12 let pass."""
    allocator = BatchAllocator(1, n_seq_max=8)
    allocator.init(Batch(tokens=[7] * len(sets), pos=[0] * len(sets), seq_ids=sets))
    return allocator


def rows(sets: Sets, split: Callable[[BatchAllocator], Ubatch | None]) -> list[list[int]]:
    """Batch indices of all ubatches of a split that takes everything."""
    allocator = allocator_of(sets)
    ubatches = allocator.split_all(lambda: split(allocator))
    assert ubatches is not None
    return [ubatch.idx.tolist() for ubatch in ubatches]


def of_lengths(*lengths: int) -> Sets:
    """Entries of sequence 0, then of sequence 1, ..."""
    return [(seq,) for seq, length in enumerate(lengths) for _ in range(length)]


def equal(n: int, sequential: bool = False, tail: int = 0) -> Callable[[BatchAllocator], Ubatch | None]:
    return lambda allocator: allocator.split_equal(n, sequential, tail)


# -- S1, S2 ------------------------------------------------------------------------------------


def test_s1_simple_takes_entries_as_they_come() -> None:
    allocator = allocator_of([(0,), (1,), (0,), (2, 0)])
    first, second = allocator.split_simple(3), allocator.split_simple(3)
    assert first is not None
    assert second is not None
    assert (first.n_seqs, first.n_seq_tokens, first.equal_seqs) == (3, 1, False)
    assert (first.idx.tolist(), first.seq_id_unq) == ([0, 1, 2], (0, 1))
    assert (second.idx.tolist(), second.seq_ids, second.seq_id_unq) == ([3], ((0, 2),), (0, 2))
    assert allocator.split_simple(3) is None
    assert allocator.all_used


def test_s2_seq_narrows_to_subsets() -> None:
    sets: Sets = [(0, 1, 2), (3,), (0, 1), (2,), (1,), (0, 1)]
    assert rows(sets, lambda a: a.split_seq(8)) == [[0, 2, 4], [1], [3], [5]]


def test_s2_seq_stops_at_n_and_comes_back() -> None:
    assert rows([(0,), (1,), (0,), (0,)], lambda a: a.split_seq(2)) == [[0, 2], [1], [3]]


def test_s2_seq_is_one_equal_set() -> None:
    ubatch = allocator_of(of_lengths(3)).split_seq(8)
    assert ubatch is not None
    assert (ubatch.n_seqs, ubatch.n_seq_tokens, ubatch.equal_seqs) == (1, 3, True)


# -- S3 ----------------------------------------------------------------------------------------


def test_e1_as_many_of_each_as_the_shortest_has() -> None:
    assert rows(of_lengths(4, 2), equal(8)) == [[0, 1, 4, 5], [2, 3]]


def test_e2_as_many_of_each_as_fit() -> None:
    assert [len(r) for r in rows(of_lengths(5, 5, 5), equal(6))] == [6, 6, 3]


def test_e3_sequential_takes_only_ids_that_follow_each_other() -> None:
    assert rows([(1,), (0,), (2,)] * 2, equal(8, sequential=True)) == [[0, 3, 2, 5], [1, 4]]


def test_s3_sequential_looks_behind_the_entry_it_took_last() -> None:
    # 2 comes before 1 here, but there is another 2 behind
    assert rows([(0,), (2,), (1,), (2,)], equal(8, sequential=True)) == [[0, 2, 1], [3]]
    assert rows([(0,), (2,), (1,)], equal(8, sequential=True)) == [[0, 2], [1]]


def test_e4_more_sets_than_n_make_a_ubatch_of_n_plus_1() -> None:
    assert rows(of_lengths(1, 1, 1, 1), equal(2)) == [[0, 1, 2], [3]]
    assert rows(of_lengths(1, 1, 1, 1), equal(2, sequential=True)) == [[0, 1, 2], [3]]


def test_s3_overlapping_sets_never_share_a_ubatch() -> None:
    assert rows([(0, 1), (1, 2), (2,), (0,)], equal(8)) == [[0, 2], [1, 3]]


def test_e9_sequential_cannot_split_coupled_entries() -> None:
    allocator = allocator_of([(0,), (1, 2)])
    assert allocator.split_all(lambda: allocator.split_equal(8, sequential=True)) is None
    assert (allocator.n_used, allocator.all_used) == (0, False)


def test_split_all_starts_anew() -> None:
    allocator = allocator_of(of_lengths(3))
    allocator.split_simple(1)
    ubatches = allocator.split_all(lambda: allocator.split_simple(2))
    assert ubatches is not None
    assert [u.idx.tolist() for u in ubatches] == [[0, 1], [2]]
    assert allocator.out_ids == [2]


def test_out_ids_are_in_the_order_of_execution() -> None:
    allocator = BatchAllocator(1, 2)
    allocator.init(Batch(tokens=[7] * 4, seq_ids=[[1], [0], [1], [0]], output=[1, 1, 0, 1]))
    assert allocator.split_all(lambda: allocator.split_seq(8)) is not None
    assert (allocator.out_ids, allocator.n_outputs) == ([0, 1, 3], 3)


# -- S4 ----------------------------------------------------------------------------------------


def test_e5_the_last_entries_are_given_back_to_keep_the_tail_whole() -> None:
    assert [len(r) for r in rows(of_lengths(10), equal(8, tail=4))] == [6, 4]


def test_e6_a_set_is_finished_alone_if_its_tail_would_be_cut() -> None:
    assert rows(of_lengths(5, 5), equal(8, tail=4)) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_s4_sets_behind_one_with_a_cut_tail_wait() -> None:
    # length 3 each: 0 is finished, 1 would be left with 1 of its tail of 2, 2 waits with it
    assert keep_tails([3, 4, 9], 3, 12, 2) == [3]
    assert rows(of_lengths(3, 4, 9), equal(12, tail=2)) == [
        [0, 1, 2],
        [3, 4, 5, 6, 7, 8, 9, 10],
        [11, 12, 13, 14, 15],
    ]


def test_s4_a_tail_as_long_as_n_ends_the_process() -> None:
    allocator = allocator_of(of_lengths(10))
    with pytest.raises(CacheUsageError, match="use an n_ubatch above 4"):
        allocator.split_equal(4, sequential=True, n_keep_tail=4)
    assert allocator.n_used == 0


# -- against the rule as it is written ----------------------------------------------------------


def equal_by_rounds(
    sets: list[frozenset[int]], used: set[int], n: int, sequential: bool, tail: int
) -> list[int]:
    """S3 and S4 word for word, entry by entry."""
    taken: list[frozenset[int]] = []
    last = -1
    for i, ids in enumerate(sets):
        if i in used or any(ids & other for other in taken):
            continue
        if sequential and taken and min(ids) != last + 1:
            continue
        taken.append(ids)
        last = min(ids)
        if len(taken) > n:
            break
    left = [[i for i, ids in enumerate(sets) if ids == own and i not in used] for own in taken]
    chosen: list[list[int]] = [[] for _ in taken]
    while all(left):
        for mine, rest in zip(chosen, left, strict=True):
            mine.append(rest.pop(0))
        if (len(chosen[0]) + 1) * len(taken) > n:
            break
    if tail:
        keep = 0
        while keep < len(taken) and not 0 < len(left[keep]) < tail:
            keep += 1
        if keep == 0:
            if len(chosen[0]) + len(left[0]) <= n:
                chosen[0] += left[0]
            else:
                while len(left[0]) < tail:
                    left[0].insert(0, chosen[0].pop())
            keep = 1
        chosen = chosen[:keep]
    return [i for mine in chosen for i in mine]


BATCHES = st.lists(st.frozensets(st.integers(0, 4), min_size=1, max_size=2), min_size=1, max_size=30)
LONE = st.lists(st.integers(0, 4).map(lambda seq: frozenset([seq])), min_size=1, max_size=40)


@given(BATCHES, st.integers(1, 12), st.integers(0, 5))
def test_equal_split_follows_the_rule(sets: list[frozenset[int]], n: int, tail: int) -> None:
    check_against_rounds(sets, n, False, tail)


@given(LONE, st.integers(1, 12), st.integers(0, 5))
def test_sequential_split_follows_the_rule(sets: list[frozenset[int]], n: int, tail: int) -> None:
    check_against_rounds(sets, n, True, tail)


def check_against_rounds(sets: list[frozenset[int]], n: int, sequential: bool, tail: int) -> None:
    tail = tail if tail < n else 0
    allocator = allocator_of([tuple(ids) for ids in sets])
    used: set[int] = set()
    while ubatch := allocator.split_equal(n, sequential, tail):
        expected = equal_by_rounds(sets, used, n, sequential, tail)
        assert ubatch.idx.tolist() == expected
        assert ubatch.n_seqs * ubatch.n_seq_tokens == len(expected)
        used.update(expected)
    assert used == set(range(len(sets)))


@given(LONE, st.integers(2, 12), st.integers(1, 11))
def test_a_tail_never_straddles_two_ubatches(sets: list[frozenset[int]], n: int, tail: int) -> None:
    tail = min(tail, n - 1)
    ubatches = rows([tuple(ids) for ids in sets], equal(n, sequential=True, tail=tail))
    for ids in set(sets):
        mine = [i for i, own in enumerate(sets) if own == ids]
        homes = {k for k, ubatch in enumerate(ubatches) for i in mine[-tail:] if i in ubatch}
        assert len(homes) == 1
