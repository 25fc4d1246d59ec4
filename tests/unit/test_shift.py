"""The K-shift: rows turn as if they had been stored at the new position (kv_cache.md 5)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import CacheUsageError
from kvsim.models.cache_types import CACHE_TYPES, cache_type
from kvsim.tensors import shift as shift_module
from kvsim.tensors.codecs import decode, encode
from kvsim.tensors.hadamard import hadamard
from kvsim.tensors.rope import Rope, rope
from kvsim.tensors.shift import KeyShift

RNG = np.random.default_rng(1)
FLOATS = ("f32", "f16", "bf16")
QUANTISED = tuple(name for name, kind in CACHE_TYPES.items() if kind.is_quantized)


def shifted(kind: str, values: np.ndarray, by: list[int], rotation: Rope, n_head: int = 1, n_rot_k: int = 0):
    raw = encode(kind, values)
    KeyShift(cache_type(kind), n_head, values.shape[1] // n_head, rotation, n_rot_k).apply(
        raw, np.array(by, np.int32)
    )
    return raw


@pytest.mark.parametrize("neox", [False, True], ids=["norm", "neox"])
@pytest.mark.parametrize("offset", [0, 4])
def test_a_shift_is_a_move_of_the_position(neox: bool, offset: int) -> None:
    """Storing at 3 and shifting by 4 is storing at 7; blocks of one shift and of many agree."""
    rotation = Rope(n_rot=8, offset=offset, neox=neox)
    x = RNG.normal(size=(40, 2, 12)).astype(np.float32)
    positions, by = np.arange(40), np.where(np.arange(40) < 30, 4, np.arange(40) % 5)
    stored = rope(x, positions, rotation).reshape(40, 24)
    got = decode("f32", shifted("f32", stored, by.tolist(), rotation, n_head=2))
    assert got.reshape(x.shape) == pytest.approx(rope(x, positions + by, rotation), abs=1e-5)


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_keys_turn_behind_their_hadamard_rotation(kind: str) -> None:
    rotation = Rope(n_rot=64, neox=True)
    key = RNG.normal(size=(1, 64))
    got = decode(kind, shifted(kind, hadamard(key, 64), [9], rotation, n_rot_k=64))
    want = hadamard(rope(key, [9], rotation), 64)
    assert np.abs(got - want).max() < 0.5  # 4 bits: two roundings of about 0.2
    plain = np.abs(got - hadamard(key, 64)).max()
    assert plain > 1.0


@given(st.lists(st.sampled_from([0, 0, 0, -3, 5, 70]), min_size=1, max_size=30), st.sampled_from(FLOATS))
def test_block_size_does_not_matter(by: list[int], kind: str) -> None:
    """Blocks that are skipped, turned at once, or row by row give the same bytes as single rows."""
    values = RNG.normal(size=(len(by), 8)).astype(np.float32)
    whole = shifted(kind, values, by, Rope(n_rot=8))
    single = np.concatenate(
        [shifted(kind, values[i : i + 1], by[i : i + 1], Rope(n_rot=8)) for i in range(len(by))]
    )
    assert np.array_equal(whole, single)


@pytest.mark.parametrize("kind", FLOATS)
def test_turning_by_zero_keeps_ordinary_rows(kind: str) -> None:
    raw = encode(kind, RNG.normal(size=(5, 8)))
    again = raw.copy()
    KeyShift(cache_type(kind), 1, 8, Rope(n_rot=8)).apply(again, np.zeros(5, np.int32))
    assert np.array_equal(raw, again)


@pytest.mark.parametrize("kind", FLOATS)
def test_turning_by_zero_is_a_turn(kind: str) -> None:
    """-0 * 1 - (-1) * 0 is +0: the row must not be skipped."""
    got = decode(kind, shifted(kind, np.array([[-0.0, -1.0]]), [0], Rope(n_rot=2)))
    assert not np.signbit(got[0, 0])


def test_infinity_spreads_over_its_pair() -> None:
    got = decode("f16", shifted("f16", np.array([[np.inf, 1.0, 2.0, 3.0]]), [0], Rope(n_rot=4)))
    assert np.isnan(got[0, 1])
    assert got[0, 2:].tolist() == [2.0, 3.0]


def test_a_magnitude_grows_every_key() -> None:
    """kv_cache.md 11.5: also cells with shift 0, at every shift."""
    got = decode("f32", shifted("f32", np.ones((2, 4)), [0, 1], Rope(n_rot=4, attn_factor=1.5)))
    assert got[0].tolist() == [1.5] * 4
    assert np.hypot(got[1, 0], got[1, 1]) == pytest.approx(1.5 * np.sqrt(2))


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("by", [0, 7])
def test_rows_never_written_take_the_short_way(kind: str, by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero bytes become the encoding of zeros, as the long way gives them, and stay so."""
    key = KeyShift(cache_type(kind), 1, 64, Rope(n_rot=64), 64)
    short = np.zeros((3, cache_type(kind).row_bytes(64)), np.uint8)
    key.apply(short, np.full(3, by, np.int32))
    twice = short.copy()
    key.apply(twice, np.full(3, by, np.int32))
    assert np.array_equal(short, twice)
    monkeypatch.setattr(KeyShift, "_holds_nothing", lambda self, block: False)
    long = np.zeros_like(short)
    key.apply(long, np.full(3, by, np.int32))
    assert np.array_equal(short, long)


def test_rows_of_many_blocks_all_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shift_module, "BLOCK_BYTES", 64)  # two rows of 8
    values = np.tile(np.eye(8, dtype=np.float32)[:1], (7, 1))
    got = decode("f32", shifted("f32", values, [2] * 7, Rope(n_rot=8)))
    assert got[:, 0].tolist() == pytest.approx([np.cos(2)] * 7)


def test_missing_hadamard_matrix_is_refused() -> None:
    """kv_cache.md 11.2."""
    with pytest.raises(CacheUsageError, match="without a Hadamard rotation"):
        shifted("q8_0", np.ones((1, 32)), [1], Rope(n_rot=32))


def test_partly_rotated_quantised_rows_are_refused() -> None:
    with pytest.raises(CacheUsageError, match="32 of 64 dimensions"):
        shifted("q8_0", np.ones((1, 64)), [1], Rope(n_rot=32), n_rot_k=64)
