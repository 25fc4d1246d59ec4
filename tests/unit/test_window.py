"""Sliding windows (spec kv_cache.md, section 6): which keys a query no longer sees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim import window
from kvsim.models.params import SwaType

KEYS = np.arange(12, dtype=np.int32)


@pytest.mark.parametrize(
    ("swa", "query", "seen"),
    [
        (SwaType.NONE, 9, list(range(12))),
        (SwaType.STANDARD, 9, [6, 7, 8, 9, 10, 11]),
        (SwaType.STANDARD, 3, list(range(12))),
        (SwaType.CHUNKED, 7, [4, 5, 6, 7, 8, 9, 10, 11]),
        (SwaType.CHUNKED, 8, [8, 9, 10, 11]),
        (SwaType.SYMMETRIC, 5, [3, 4, 5, 6, 7]),
    ],
)
def test_what_a_query_sees_with_a_window_of_4(swa: SwaType, query: int, seen: list[int]) -> None:
    assert np.flatnonzero(~window.masked(swa, 4, KEYS, query)).tolist() == seen


def test_a_symmetric_window_of_odd_width_is_halved_downwards() -> None:
    assert np.flatnonzero(~window.masked(SwaType.SYMMETRIC, 5, KEYS, 5)).tolist() == [3, 4, 5, 6, 7]


def test_keys_and_queries_are_broadcast() -> None:
    hidden = window.masked(SwaType.STANDARD, 2, KEYS[None, :3], np.array([[2], [3]], np.int32))
    assert hidden.tolist() == [[True, False, False], [True, True, False]]


@given(
    st.sampled_from([SwaType.STANDARD, SwaType.CHUNKED, SwaType.SYMMETRIC]),
    st.integers(1, 20),
    st.integers(0, 60),
)
def test_the_start_of_a_window_is_the_first_position_that_is_seen(
    swa: SwaType, n_swa: int, query: int
) -> None:
    start = window.window_start(swa, n_swa, query)
    keys = np.arange(query + 1, dtype=np.int32)
    assert np.flatnonzero(~window.masked(swa, n_swa, keys, query)).tolist() == list(
        range(max(start, 0), query + 1)
    )


def test_without_a_window_nothing_is_out_of_reach() -> None:
    assert window.window_start(SwaType.NONE, 4, 10**6) < -(10**9)
