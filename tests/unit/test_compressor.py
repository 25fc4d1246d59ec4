"""DeepSeek-V4's compressors, against the formula over whole sequences (spec dsv4.md 2)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from kvsim.batch import Ubatch
from kvsim.caches.dsv4_plan import build_plan
from kvsim.tensors.compressor import (
    CompressorShape,
    CompressorState,
    add_position_bias,
    finish_rows,
    run_plan,
    visible_rows,
    weighted_rows,
)
from kvsim.tensors.rope import Rope

D = 3


def shape(overlap: bool, n_rs_seq: int = 0, ratio: int = 4) -> CompressorShape:
    return CompressorShape(ratio, overlap, 2 * ratio if overlap else ratio, 64, 1, n_rs_seq)


def empty(s: CompressorShape) -> CompressorState:
    rows = s.ring_rows * (1 + s.n_rs_seq)
    width = 2 * D if s.overlap else D
    return CompressorState(s, np.zeros((rows, width)), np.zeros((rows, width)))


def run(p0: int, p1: int) -> Ubatch:
    n = p1 - p0
    return Ubatch(
        pos=np.arange(p0, p1, dtype=np.int32)[None],
        seq_ids=((0,),) * n,
        output=np.zeros(n, np.bool_),
        idx=np.arange(n, dtype=np.int32),
        tokens=None,
        has_embd=False,
        n_seq_tokens=1,
        n_seqs=n,
        equal_seqs=False,
        seq_id_unq=(0,),
    )


def tokens(n: int, overlap: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    width = 2 * D if overlap else D
    return rng.normal(size=(n, width)), rng.normal(size=(n, width))


def block(kv: np.ndarray, score: np.ndarray, a: int, overlap: bool, ratio: int = 4) -> np.ndarray:
    """The formula for the block that starts at ``a``, over a whole sequence."""
    if not overlap:
        v, z = kv[a : a + ratio], score[a : a + ratio]
    else:
        before = slice(max(0, a - ratio), a)
        v = np.concatenate([kv[before, :D], kv[a : a + ratio, D:]])
        z = np.concatenate([score[before, :D], score[a : a + ratio, D:]])
    w = np.exp(z)
    return (w * v).sum(0) / w.sum(0)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("cuts", [[0, 16], [0, 3, 4, 5, 11, 16], list(range(17))])
def test_rows_do_not_depend_on_how_tokens_are_cut_into_ubatches(overlap: bool, cuts: list[int]) -> None:
    kv, score = tokens(16, overlap)
    state, cache = empty(shape(overlap)), np.zeros((64, D))
    for p0, p1 in pairwise(cuts):
        plan = build_plan(run(p0, p1), state.shape, [0])
        cache[plan.state_write_idxs] = run_plan(state, plan, kv[p0:p1], score[p0:p1])
    want = [block(kv, score, a, overlap) for a in range(0, 16, 4)]
    assert np.allclose(cache[:4], want)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("back", [1, 2])
def test_rollback_within_the_last_ubatch_is_exact(overlap: bool, back: int) -> None:
    """Rejected tokens leave no trace: the blocks after equal those of a sequence that never had them."""
    kv, score = tokens(14, overlap)
    rejected, _ = tokens(14, overlap, seed=1)
    kept = 10 - back
    drafted = np.concatenate([kv[:kept], rejected[kept:10]])
    state = empty(shape(overlap, n_rs_seq=2))
    for p0, p1 in ((0, 5), (5, 10)):
        run_plan(state, build_plan(run(p0, p1), state.shape, [0]), drafted[p0:p1], score[p0:p1])
    plan = build_plan(run(kept, 14), state.shape, [back])
    rows = run_plan(state, plan, kv[kept:], score[kept:])
    for row, start in zip(rows, plan.state_write_pos, strict=True):
        assert np.allclose(row, block(kv, score, int(start), overlap))
    assert 8 in plan.state_write_pos


def test_snapshots_are_taken_before_the_ubatch_is_kept() -> None:
    kv, score = tokens(6, True)
    state = empty(shape(True, n_rs_seq=1))
    run_plan(state, build_plan(run(0, 6), state.shape, [0]), kv, score)
    assert (state.kv[:6] == kv).all()
    assert (state.kv[8:13] == kv[:5]).all()
    assert (state.kv[13] == 0).all()


def test_before_the_first_block_nothing_counts() -> None:
    values = np.concatenate([np.full((1, 4, 1), 9.0), np.ones((1, 4, 1))], axis=1)
    scores = np.concatenate([np.full((1, 4, 1), -np.inf), np.zeros((1, 4, 1))], axis=1)
    assert weighted_rows(values, scores).tolist() == [[1.0]]


def test_bias_belongs_to_the_place_in_the_block() -> None:
    biased = add_position_bias(np.zeros((3, 1)), np.array([[1.0], [2.0]]), np.array([1, 0, 1]))
    assert biased[:, 0].tolist() == [2, 1, 2]


def test_row_is_normed_then_turned_in_its_trailing_dimensions() -> None:
    quarter = Rope(2, offset=2, base=1.0, scale=np.pi / 2)
    row = finish_rows(
        np.array([[2.0, 2, 2, -2]]), np.array([1]), np.array([1.0, 2, 3, 3]), 0.0, quarter, n_hadamard=0
    )
    assert row == pytest.approx(np.array([[1, 2, 3, 3]]))
    mixed = finish_rows(np.array([[1.0, 1, 1, 1]]), np.array([0]), np.ones(4), 0.0, quarter, n_hadamard=4)
    assert mixed == pytest.approx(np.array([[2, 0, 0, 0]]))


def test_the_last_token_of_a_block_sees_its_row() -> None:
    plan = build_plan(run(2, 5), shape(True), [0])
    assert visible_rows(plan.n_visible, 2).tolist() == [[False, False], [True, False], [True, False]]
