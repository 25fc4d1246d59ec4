"""Selecting the k best, and the order in which llama.cpp lists them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvsim.tensors.topk import LOWEST, heap_top_k, top_k

# few distinct values, so that ties are common
scores = st.lists(st.sampled_from([-np.inf, -1.5, 0.0, 0.0, 0.25, 3.0]), min_size=1, max_size=40)


@given(scores, st.integers(0, 45))
def test_both_hold_the_k_best(values: list[float], k: int) -> None:
    row = np.array(values, np.float32)
    want = sorted(values, reverse=True)[:k]
    for found in (top_k(row, k), heap_top_k(row, k)):
        assert len(set(found.tolist())) == min(k, len(row))
        assert sorted(row[found].tolist(), reverse=True) == want


@given(scores, st.integers(1, 45))
def test_same_visible_set_whatever_the_ties(values: list[float], k: int) -> None:
    row = np.array(values, np.float32)
    fast, listed = top_k(row, k), heap_top_k(row, k)
    assert {i for i in fast if row[i] > LOWEST} == {i for i in listed if row[i] > LOWEST}


@given(scores, st.integers(2, 45))
def test_listed_in_descending_order_with_the_first_two_swapped(values: list[float], k: int) -> None:
    row = np.array(values, np.float32)
    listed = row[heap_top_k(row, k)].tolist()
    listed[:2] = listed[:2][::-1]
    assert listed == sorted(listed, reverse=True)


def test_ties_are_listed_as_the_gnu_library_does() -> None:
    # answers of std::partial_sort, then the first two swapped
    assert heap_top_k(np.zeros(4), 3).tolist() == [1, 0, 2]
    assert heap_top_k(np.array([0, 0, 0, 0, 1]), 3).tolist() == [1, 4, 0]
    assert heap_top_k(np.array([2, 2, 1, 2, 3, 3, 1, 3, 2, 2]), 6).tolist() == [7, 4, 5, 1, 3, 0]


def test_rows_are_independent_and_k_is_clipped() -> None:
    batch = np.array([[[1, 3, 2]], [[9, 8, 7]]], np.float32)
    assert [set(r) for r in top_k(batch, 2).reshape(2, 2).tolist()] == [{1, 2}, {0, 1}]
    assert heap_top_k(batch, 5).shape == (2, 1, 3)
    assert top_k(batch, 0).shape == (2, 1, 0)
