"""Attention masks (kv_cache.md 6), against the rule written out cell by cell."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.models.arch import NonCausal
from kvsim.models.params import SwaType
from kvsim.tensors.mask import SMALL, attention_mask, mask_values


def masked_swa(kind: SwaType, w: int, p0: int, p1: int) -> bool:
    if kind is SwaType.STANDARD:
        return p1 - p0 >= w
    if kind is SwaType.CHUNKED:
        return p0 < p1 // w * w
    if kind is SwaType.SYMMETRIC:
        return abs(p1 - p0) > w // 2
    return False


def by_rule(cells, rows, kind, w, causal, non_causal, two_d):
    """One cell at a time. ``cells``: (pos, owners, x, y); ``rows``: (pos, seq, x, y)."""
    if non_causal is NonCausal.SWA_ONLY and kind is SwaType.NONE:
        causal = True
    out = np.zeros((len(rows), len(cells)), bool)
    for i, (p1, s, x1, y1) in enumerate(rows):
        lowest = min(p for p, t, *_ in rows if t == s)
        for j, (p0, owners, x, y) in enumerate(cells):
            ok = p0 != -1 and s in owners
            if causal:
                ok &= p0 <= p1 and not (two_d and p0 == p1 and (y > y1 or (y == y1 and x > x1)))
            in_span = not causal and non_causal is NonCausal.SWA_FULL and p0 >= lowest
            out[i, j] = ok and (in_span or not masked_swa(kind, w, p0, p1))
    return out


SEQS = (0, 1, 65)
cell = st.tuples(st.integers(-1, 20), st.sets(st.sampled_from(SEQS)), st.integers(0, 2), st.integers(0, 2))
row = st.tuples(st.integers(-1, 20), st.sampled_from(SEQS), st.integers(0, 2), st.integers(0, 2))


@given(
    st.lists(cell, min_size=1, max_size=12),
    st.lists(row, min_size=1, max_size=6),
    st.sampled_from(SwaType),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from(NonCausal),
    st.booleans(),
)
def test_equals_the_rule(cells, rows, kind, w, causal, non_causal, two_d):
    row_pos, row_seq, row_x, row_y = map(np.array, zip(*rows, strict=True))
    wanted = by_rule(cells, rows, kind, w, causal, non_causal, two_d)
    for n in (len(cells), SMALL + 1):  # a large mask is computed in another way
        pos, seq = np.full(n, -1, np.int32), np.zeros((2, n), np.uint64)
        x, y = np.zeros(n, np.int32), np.zeros(n, np.int32)
        for j, (p, owners, x[j], y[j]) in enumerate(cells):
            pos[j] = p
            for s in owners:
                seq[s // 64, j] |= np.uint64(1 << s % 64)
        got = attention_mask(
            pos, seq, row_pos.astype(np.int32), row_seq.astype(np.int32),
            swa_type=kind, n_swa=w, causal=causal, non_causal=non_causal,
            cell_xy=(x, y) if two_d else None, row_xy=(row_x, row_y) if two_d else None,
        )  # fmt: skip
        assert np.array_equal(got[:, : len(cells)], wanted)
        assert not got[:, len(cells) :].any()


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


BITS = np.array([[1, 1, 2, 0, 3]], np.uint64)  # owners 0, 0, 1, none, both
POS = ints(0, 1, 0, -1, 2)


def test_causal_by_sequence() -> None:
    mask = attention_mask(POS, BITS, ints(1, 2, 2), ints(0, 0, 1))
    assert mask.tolist() == [[True, True, False, False, False], [True, True, False, False, True],
                             [False, False, True, False, True]]  # fmt: skip


def test_an_id_that_no_word_holds_sees_nothing() -> None:
    assert not attention_mask(POS, BITS, ints(5), ints(64)).any()


@pytest.mark.parametrize(
    ("kind", "positions"),
    [(SwaType.STANDARD, [6, 7, 8, 9]), (SwaType.CHUNKED, [8, 9]), (SwaType.SYMMETRIC, [7, 8, 9])],
)
def test_windows_of_4_seen_from_9(kind: SwaType, positions: list[int]) -> None:
    pos = np.arange(12, dtype=np.int32)
    mask = attention_mask(pos, np.ones((1, 12), np.uint64), ints(9), ints(0), swa_type=kind, n_swa=4)
    assert np.flatnonzero(mask[0]).tolist() == positions


def test_values_are_zero_or_minus_infinity() -> None:
    values = mask_values(np.array([[True, False]]))
    assert values.dtype == np.float32
    assert values.tolist() == [[0.0, -np.inf]]


def test_alibi_values_are_distances() -> None:
    values = mask_values(np.array([[True, True, False]]), (ints(2, 9, 4), ints(5)))
    assert values.tolist() == [[-3.0, -4.0, -np.inf]]
