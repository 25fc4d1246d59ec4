"""Rotary embedding: pairing, partial rotation, frequencies, YaRN, M-RoPE."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import CacheUsageError
from kvsim.tensors.rope import Rope, rope


def rotated(x: list[float], pos: int, **params: Any) -> list[float]:
    return np.round(rope(np.array([x], float), [pos], Rope(**params))[0], 6).tolist()


def test_norm_turns_neighbours() -> None:
    c0, s0, c1, s1 = math.cos(3), math.sin(3), math.cos(0.03), math.sin(0.03)
    got = rotated([1, 0, 0, 1], 3, n_rot=4)
    assert got == pytest.approx([c0, s0, -s1, c1], abs=1e-6)


def test_neox_turns_halves() -> None:
    c0, s0, c1, s1 = math.cos(3), math.sin(3), math.cos(0.03), math.sin(0.03)
    got = rotated([1, 0, 0, 1], 3, n_rot=4, neox=True)
    assert got == pytest.approx([c0, -s1, s0, c1], abs=1e-6)


def test_partial_rotation_leaves_the_rest() -> None:
    got = rotated([7, 8, 1, 0, 9], 1, n_rot=2, offset=2)
    assert got == pytest.approx([7, 8, math.cos(1), math.sin(1), 9], abs=1e-6)


def test_frequencies_take_base_factors_and_scale() -> None:
    params = Rope(n_rot=4, base=100.0, scale=0.5, factors=(2.0, 4.0))
    assert params.frequencies() == pytest.approx([0.5 / 2, 0.5 * 0.1 / 4])


def test_yarn_mixes_and_grows() -> None:
    """Low pairs keep the trained frequency, high ones are interpolated; all values grow alike."""
    params = Rope(n_rot=64, scale=0.25, ext_factor=1.0, n_ctx_orig=4096)
    plain = Rope(n_rot=64).frequencies()
    assert params.frequencies()[0] == pytest.approx(plain[0])
    assert params.frequencies()[-1] == pytest.approx(plain[-1] / 4)
    assert params.magnitude == pytest.approx(1 + 0.1 * math.log(4))


@pytest.mark.parametrize(
    ("interleaved", "used"),
    [(False, [0, 0, 1, 1, 2, 2, 3, 0]), (True, [0, 1, 2, 0, 1, 2, 3, 0])],
    ids=["sections", "interleaved"],
)
def test_mrope_chooses_a_position_per_pair(interleaved: bool, used: list[int]) -> None:
    """With pairs 2 t, 2 y, 2 x, 1 extra and 8 pairs in all, the choice repeats after 7."""
    params = Rope(n_rot=16, sections=(2, 2, 2, 1), interleaved=interleaved)
    assert params.section_of_pair().tolist() == used
    cos, _ = params.cos_sin([[10], [20], [30], [40]])
    angle = np.array([10, 20, 30, 40])[used] * params.frequencies()
    assert cos[0] == pytest.approx(np.cos(angle))


def test_mrope_of_text_is_neox() -> None:
    x = np.arange(16.0).reshape(2, 8)
    sections = Rope(n_rot=8, sections=(1, 1, 1, 1))
    assert np.array_equal(rope(x, [[5, 6]] * 4, sections), rope(x, [5, 6], Rope(n_rot=8, neox=True)))


@given(st.integers(-500, 500), st.integers(-500, 500), st.booleans(), st.integers(0, 2))
def test_rotations_add_up(a: int, b: int, neox: bool, offset: int) -> None:
    params = Rope(n_rot=6, offset=offset, neox=neox)
    x = np.arange(16.0).reshape(1, 2, 8)
    assert rope(rope(x, [a], params), [b], params) == pytest.approx(rope(x, [a + b], params))


def test_scores_depend_on_distance_only() -> None:
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 1, 16))
    params = Rope(n_rot=16)
    near = rope(q, [9], params)[0] @ rope(k, [4], params)[0]
    far = rope(q, [1009], params)[0] @ rope(k, [1004], params)[0]
    assert near == pytest.approx(far)


def test_type_is_kept() -> None:
    assert rope(np.ones((1, 4), np.float32), [1], Rope(n_rot=4)).dtype == np.float32


@pytest.mark.parametrize(
    ("params", "message"),
    [({"n_rot": 3}, "even"), ({"n_rot": 0}, "even"), ({"n_rot": 4, "ext_factor": 1.0}, "n_ctx_orig")],
)
def test_impossible_rotations_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(CacheUsageError, match=message):
        Rope(**params)


def test_a_head_too_small_is_refused() -> None:
    with pytest.raises(CacheUsageError, match="4 values from 2 of a head of 4"):
        rope(np.ones((1, 4)), [1], Rope(n_rot=4, offset=2))
