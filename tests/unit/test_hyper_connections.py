"""Hyper-connections: what Sinkhorn's iteration guarantees, and where eps enters (spec dsv4.md 4)."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvsim.tensors.hyper_connections import (
    Mixing,
    layer_input,
    mixing_weights,
    next_copies,
    read_weights,
    sinkhorn,
)

logits = arrays(np.float64, (3, 4, 4), elements=st.floats(-4, 4))
# logits within 2 of each other: each round shrinks what is off to tanh(1)^2 < 0.6 of it (Birkhoff's bound)
mild_logits = arrays(np.float64, (3, 4, 4), elements=st.floats(-1, 1))


@given(logits)
def test_columns_sum_to_one_after_any_number_of_rounds(x: np.ndarray) -> None:
    for rounds in (1, 3):
        carried = sinkhorn(x, rounds, eps=1e-9)
        assert (carried > 0).all()
        assert np.allclose(carried.sum(axis=-2), 1, atol=1e-7)


@given(mild_logits)
def test_rows_approach_one_with_more_rounds(x: np.ndarray) -> None:
    off = [np.abs(sinkhorn(x, rounds, eps=1e-12).sum(axis=-1) - 1).max() for rounds in (1, 5, 40)]
    assert off[1] <= off[0] + 1e-9
    assert off[2] < 1e-6


@given(logits)
def test_shifting_the_logits_of_a_source_changes_nothing(x: np.ndarray) -> None:
    shifted = x + np.array([5.0, -3.0, 0.0, 1.0])[:, None]
    assert np.allclose(sinkhorn(x, 3, 1e-6), sinkhorn(shifted, 3, 1e-6))


def test_equal_logits_carry_equally() -> None:
    assert np.allclose(sinkhorn(np.zeros((1, 4, 4)), 20, 0.0), 0.25)


def test_one_round_by_hand_with_a_visible_eps() -> None:
    x = np.log(np.array([[[1.0, 3.0], [1.0, 1.0]]]))
    eps = 0.5
    soft = np.array([[0.25, 0.75], [0.5, 0.5]]) + eps
    assert np.allclose(sinkhorn(x, 1, eps), soft / (soft.sum(axis=0) + eps))


def test_weights_split_into_pre_post_carry() -> None:
    hc, eps = 2, 0.125
    mix = np.zeros((1, 8))
    mix[0, 4:] = [np.log(3), 0, 0, 0]
    bias = np.zeros(8)
    bias[0], bias[2] = 100, -100
    weights = mixing_weights(mix, np.ones(3), bias, hc, iterations=1, eps=eps)
    assert np.allclose(weights.pre, [[1 + eps, 0.5 + eps]])
    assert np.allclose(weights.post, [[0, 1]])  # no eps here
    assert np.allclose(weights.carry, sinkhorn(np.log([[[3.0, 1], [1, 1]]]), 1, eps))


def test_scales_belong_to_their_part() -> None:
    mix = np.ones((1, 8))
    weights = mixing_weights(mix, np.array([2.0, 0.0, 7.0]), np.zeros(8), 2, iterations=1, eps=0.0)
    assert np.allclose(weights.pre, 1 / (1 + np.exp(-2)))
    assert np.allclose(weights.post, 1)
    assert np.allclose(read_weights(mix, np.array([2.0]), np.zeros(1), 0.0), 1 / (1 + np.exp(-2)))


def test_copies_are_read_and_written_by_their_weights() -> None:
    copies = np.array([[[1.0, 2], [10, 20]]])
    mixing = Mixing(
        pre=np.array([[1.0, 0.5]]), post=np.array([[0.0, 2.0]]), carry=np.array([[[1.0, 0.25], [0, 0.75]]])
    )
    assert layer_input(copies, mixing).tolist() == [[6, 12]]
    after = next_copies(copies, np.array([[100.0, 200]]), mixing)
    assert after.tolist() == [[[1, 2], [200 + 0.25 + 7.5, 400 + 0.5 + 15]]]


@given(mild_logits, st.integers(0, 1000))
def test_the_mean_copy_survives_doubly_stochastic_carrying(x: np.ndarray, seed: int) -> None:
    copies = np.random.default_rng(seed).normal(size=(3, 4, 5))
    mixing = Mixing(np.ones((3, 4)), np.zeros((3, 4)), sinkhorn(x, 40, 1e-12))
    after = next_copies(copies, np.ones((3, 5)), mixing)
    assert np.allclose(after.sum(axis=1), copies.sum(axis=1), atol=1e-5)
