"""Orders: of the ids of one token as llama.cpp sees them, and of the results of a decode."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import CacheUsageError
from kvsim.outputs import OutputOrder
from kvsim.seq_order import BUCKET_COUNTS, hash_set_order


@given(st.lists(st.integers(0, 12), max_size=40))
def test_small_ids_come_out_in_reverse_of_first_insertion(ids: list[int]) -> None:
    assert hash_set_order(ids) == tuple(reversed(dict.fromkeys(ids)))


@pytest.mark.parametrize(
    ("ids", "seen"),
    [
        # what GNU libstdc++ prints for a set of these insertions
        ([13, 0, 26, 1], (1, 26, 0, 13)),
        ([0, 13, 26, 1, 14], (14, 1, 26, 13, 0)),
        (range(14), (13, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)),
        (range(15), (14, 13, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)),
        (range(0, 40, 3), (39, 0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36)),
        (
            [40, 27, 14, 1, 5, 18, 31, 13, 0, 26, 39, 2, 15, 28, 41],
            (41, 28, 40, 27, 14, 1, 5, 18, 13, 0, 26, 39, 31, 2, 15),
        ),
    ],
)
def test_order_is_that_of_libstdcxx(ids: list[int], seen: tuple[int, ...]) -> None:
    assert hash_set_order(ids) == seen


@given(st.lists(st.integers(0, 255), max_size=300))
def test_every_id_comes_out_once_and_those_of_a_bucket_together(ids: list[int]) -> None:
    order = hash_set_order(ids)
    assert sorted(order) == sorted(set(ids))
    n_buckets = next(n for n in BUCKET_COUNTS if len(order) <= n)
    buckets = [seq % n_buckets for seq in order]
    runs = [b for i, b in enumerate(buckets) if i == 0 or buckets[i - 1] != b]
    assert len(runs) == len(set(buckets))


def test_growing_turns_the_order_round() -> None:
    assert hash_set_order(range(13)) == tuple(range(12, -1, -1))
    assert hash_set_order(range(14))[1:] == tuple(range(13))


# -- outputs -----------------------------------------------------------------------------------


@given(st.permutations(range(9)), st.integers(0, 9))
def test_results_come_in_the_callers_order(permutation: list[int], n: int) -> None:
    out_ids = permutation[:n]
    order = OutputOrder(out_ids)
    rows = np.array(out_ids)
    order.reorder(rows)
    assert rows.tolist() == sorted(out_ids) == list(order.ids)
    assert [order.row(i) for i in sorted(out_ids)] == list(range(n))


@given(st.permutations(range(7)))
def test_swaps_are_those_of_a_selection_sort(out_ids: list[int]) -> None:
    ids, swaps = list(out_ids), []
    for i in range(len(ids)):
        j = min(range(i, len(ids)), key=ids.__getitem__)
        if j != i:
            ids[i], ids[j] = ids[j], ids[i]
            swaps.append((i, j))
    assert OutputOrder(out_ids).swaps == tuple(swaps)


def test_sparse_outputs_in_order_need_no_swap() -> None:
    order = OutputOrder([2, 5, 9])
    assert (order.swaps, order.row(5), order.row(-1), order.row(-3)) == ((), 1, 2, 0)


@pytest.mark.parametrize(
    ("i", "words"),
    [
        (4, "the result of token 4 was asked for, but the last decode has 2 outputs, of tokens 1, 5"),
        (99, "the result of token 99"),
        (-3, "row -3 from the end"),
    ],
)
def test_asking_for_what_is_no_output_says_what_is(i: int, words: str) -> None:
    with pytest.raises(CacheUsageError, match=words):
        OutputOrder([5, 1]).row(i)
