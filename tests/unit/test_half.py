"""f16 by bit arithmetic is what numpy's own conversion gives, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.tensors.half import BLOCK, FEW, brain_to_float, float_to_brain, float_to_half, half_to_float

EVERY_HALF = np.arange(1 << 16, dtype=np.uint16)
WIDE = EVERY_HALF.view(np.float16).astype(np.float32)
FINITE = np.sort(WIDE[np.isfinite(WIDE)])
MIDPOINTS = (FINITE[1:] / 2 + FINITE[:-1] / 2).astype(np.float32)


def by_numpy(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).view(np.uint16)


@pytest.mark.parametrize("bits", [EVERY_HALF, EVERY_HALF[np.isfinite(WIDE)], EVERY_HALF[:3]])
def test_every_half_widens_exactly(bits: np.ndarray) -> None:
    want = bits.view(np.float16).astype(np.float32)
    assert np.array_equal(half_to_float(bits).view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("toward", [-np.inf, None, np.inf], ids=["below", "tie", "above"])
@pytest.mark.parametrize("limit", [np.inf, 60000], ids=["with overflow", "ordinary"])
def test_ties_round_to_even_and_neighbours_to_the_nearest(toward: float | None, limit: float) -> None:
    values = MIDPOINTS if toward is None else np.nextafter(MIDPOINTS, np.float32(toward))
    values = values[np.abs(values) < limit]
    assert len(values) > FEW
    assert np.array_equal(float_to_half(values), by_numpy(values))


@pytest.mark.parametrize("scale", [1e-8, 3e-5, 1.0, 3e4])
def test_random_values(scale: float) -> None:
    values = (np.random.default_rng(0).normal(size=(3, BLOCK)) * scale).astype(np.float32)
    assert np.array_equal(float_to_half(values[:, ::2]), by_numpy(values[:, ::2]))


def test_infinities_and_nan_survive() -> None:
    values = np.resize(np.array([1, np.inf, -np.inf, np.nan, 1e30], np.float32), 2 * FEW)
    back = half_to_float(float_to_half(values))[:5]
    assert back[0] == 1
    assert back[[1, 2, 4]].tolist() == [np.inf, -np.inf, np.inf]
    assert np.isnan(back[3])


def test_results_go_where_they_are_wanted() -> None:
    values = np.arange(2 * FEW, dtype=np.float32)
    bits, back = np.empty(2 * FEW, np.uint16), np.empty(2 * FEW, np.float32)
    for narrow, widen, exact in ((float_to_half, half_to_float, 2048), (float_to_brain, brain_to_float, 256)):
        assert narrow(values, out=bits) is bits
        assert widen(bits, out=back) is back
        assert np.array_equal(back[: exact + 1], values[: exact + 1])
        assert back[exact + 1] == exact  # halfway to the next: to the even one
    with pytest.raises(ValueError, match="must be contiguous"):
        float_to_half(values, out=np.empty(4 * FEW, np.uint16)[::2])


def test_nothing_to_convert() -> None:
    assert float_to_half(np.empty((0, 4), np.float32)).shape == (0, 4)
    assert half_to_float(np.empty((2, 0), np.uint16)).shape == (2, 0)
