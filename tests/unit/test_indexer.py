"""The lightning indexer: scores, selection, variants, shared layers (spec dsa.md)."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.errors import CacheUsageError
from kvsim.tensors.hadamard import hadamard
from kvsim.tensors.indexer import (
    VARIANTS,
    IndexerVariant,
    chosen,
    deciding_layers,
    head_weights,
    index_scores,
    index_vectors,
    select,
)
from kvsim.tensors.rope import Rope

rng = np.random.default_rng(5)
EVERY = np.ones((1, 2), np.bool_)


def test_i4_weights_are_scaled_once() -> None:
    assert head_weights(np.array([[8.0, -4.0, 0.0, 2.0]]), 16).tolist() == [[1.0, -0.5, 0.0, 0.25]]


def test_i5_relu_comes_before_the_weight() -> None:
    q = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    keys = np.array([[3.0, -5.0], [-2.0, 4.0]])
    weights = np.array([[0.5, -1.0]])
    assert index_scores(q, keys, weights, EVERY).tolist() == [[1.5, -4.0]]


def test_i5_masked_cells_score_minus_infinity() -> None:
    scores = index_scores(np.ones((1, 1, 2)), np.ones((2, 2)), np.ones((1, 1)), np.array([[True, False]]))
    assert scores.tolist() == [[2.0, -np.inf]]


def test_edge1_fewer_cells_than_k_is_dense() -> None:
    visible = np.tril(np.ones((5, 5), np.bool_))
    scores = np.where(visible, rng.normal(size=(5, 5)), -np.inf)
    assert (select(scores, 8, visible) == visible).all()


def test_edge2_all_weights_negative_never_selects_a_masked_cell() -> None:
    visible = np.array([[True, True, True, False, False]])
    scores = index_scores(np.ones((1, 1, 2)), np.arange(10.0).reshape(5, 2), -np.ones((1, 1)), visible)
    assert select(scores, 2, visible).tolist() == [[True, True, False, False, False]]


def test_edge3_few_visible_cells_are_exactly_those_left() -> None:
    visible = np.array([[False, True, False, True, False, False]])
    scores = np.where(visible, 0.0, -np.inf)
    assert (select(scores, 4, visible) == visible).all()


def test_edge5_hadamard_leaves_scores_as_they_are() -> None:
    q, k, w = rng.normal(size=(3, 2, 64)), rng.normal(size=(7, 64)), rng.normal(size=(3, 2))
    pos, rotation, visible = np.arange(7, dtype=np.int32), Rope(32), np.ones((3, 7), np.bool_)
    turned = [
        index_scores(index_vectors(q, pos[:3], rotation, v), index_vectors(k, pos, rotation, v), w, visible)
        for v in (VARIANTS["glm-dsa"], VARIANTS["hy_v4"])
    ]
    plain = IndexerVariant(neox=False, hadamard=False)
    without = index_scores(
        index_vectors(q, pos[:3], rotation, plain), index_vectors(k, pos, rotation, plain), w, visible
    )
    assert np.abs(turned[0] - without).max() < 1e-5
    assert np.abs(turned[1] - without).max() > 0.1  # other dimensions are rotated


def test_i9_hy_v4_rotates_only_the_trailing_dimensions() -> None:
    x = rng.normal(size=(2, 64))
    y = index_vectors(x, np.array([3, 4], np.int32), Rope(16), VARIANTS["hy_v4"])
    assert (y[:, :48] == x[:, :48]).all()
    assert (y[:, 48:] != x[:, 48:]).all()


def test_i1_pairing_differs_by_architecture() -> None:
    x = np.zeros((1, 64))
    x[0, 0] = 1.0
    pos = np.array([1], np.int32)
    quarter = Rope(4, base=1.0, scale=np.pi / 2)  # every pair turns a quarter at position 1
    hit = {
        name: int(np.argmax(np.abs(hadamard(index_vectors(x, pos, quarter, VARIANTS[name]), 64))))
        for name in ("deepseek32", "glm-dsa")
    }
    assert hit == {"deepseek32": 2, "glm-dsa": 1}


def test_i8_layers_share_the_nearest_selection_before_them() -> None:
    assert deciding_layers([True, True, False, False, True, False]) == [0, 1, 1, 1, 4, 4]
    with pytest.raises(CacheUsageError, match="layer 0 shares its selection"):
        deciding_layers([False, True])


def test_chosen_marks_a_set_per_row() -> None:
    assert chosen(np.array([[2, 0], [1, 1]]), 3).tolist() == [[True, False, True], [False, True, False]]
