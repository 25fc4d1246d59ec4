"""The cost model by hand: bytes and FLOPs of a tiny model's passes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import CacheUsageError
from kvsim.models.context_params import ContextParams
from kvsim.models.known import KNOWN, known_model
from kvsim.workload.cost import PARAMETERS, CostModel, Device, Weights, _seen

# llama3-8b: 32 layers of 8 KV heads, 128 wide, K and V of two bytes
CELL = 32 * 2 * 8 * 128 * 2
ATTENTION = 4 * 4096 * 32


def cost_of(
    arch: str = "llama3-8b", bandwidth: float = 1e30, rate: float = 1e30, n_ubatch: int = 512
) -> CostModel:
    params = ContextParams(n_ctx=8192, n_ubatch=n_ubatch, swa_full=False)
    return CostModel(known_model(arch), params, Weights(8e9, 6e9, 2.0), Device(bandwidth, rate, 0.0))


def test_bytes_bound_a_step() -> None:
    """One token after 99: all weights, 100 cells read, one written."""
    assert cost_of(bandwidth=1.0).seconds([(99, 1)]) == 16e9 + CELL * 101


def test_flops_bound_a_prompt() -> None:
    """Three tokens see 1, 2 and 3 cells; every one takes two operations per active parameter."""
    assert cost_of(rate=1.0).seconds([(0, 3)]) == 3 * 2 * 6e9 + ATTENTION * 6


def test_weights_are_read_once_per_ubatch() -> None:
    """1,000 tokens are two ubatches; the last 488 see all 1,000 cells, which are counted for both."""
    assert cost_of(bandwidth=1.0).seconds([(0, 1000)]) == 2 * 16e9 + CELL * (2 * 1000 + 1000)


def test_overhead_is_per_ubatch() -> None:
    params = ContextParams(n_ctx=8192)
    cost = CostModel(known_model("llama3-8b"), params, Weights(1, 1), Device(1e30, 1e30, 0.25))
    assert cost.seconds([(0, 513), (0, 1)]) == pytest.approx(0.5)


def test_a_window_hides_cells() -> None:
    """gemma3-4b: 5 full layers and 29 with a window of 1,024; 4 KV heads, 256 wide."""
    row = 2 * 4 * 256 * 2
    seconds = cost_of("gemma3-4b", bandwidth=1.0).seconds([(4999, 1)])
    assert seconds == 16e9 + row * (5 * 5001 + 29 * 1025)


def test_a_recurrent_state_costs_the_same_at_any_length() -> None:
    cost = cost_of("mamba-130m", bandwidth=1.0)
    state = 2 * 4 * 24 * (3 * 1536 + 16 * 1536)
    assert cost.seconds([(0, 1)]) == cost.seconds([(5000, 1)]) == 16e9 + state


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=5), st.integers(1, 20), st.booleans())
def test_steps_are_passes(starts: list[int], n: int, windowed: bool) -> None:
    """To the last bit, so that a simulation does not depend on how many steps are made at once."""
    cost = cost_of("gemma3-4b" if windowed else "llama3-8b", 1e12, 1e14)
    passes = [cost.seconds([(start + i, 1) for start in starts]) for i in range(n)]
    assert np.array_equal(cost.step_seconds(starts, n), passes)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 40))
def test_cells_seen_are_a_sum(start: int, n: int, window: int) -> None:
    assert _seen(start, n, window) == sum(min(start + i + 1, window) for i in range(n))


def test_every_known_model_has_parameters() -> None:
    assert set(PARAMETERS) == set(KNOWN)
    with pytest.raises(CacheUsageError, match="--n-params"):
        Weights.of("other")


@pytest.mark.parametrize("number", [0, -1, math.nan, math.inf, 1e308, 1e-308])
def test_devices_and_weights_that_cannot_be_are_refused(number: float) -> None:
    for name in ("bandwidth", "rate"):
        with pytest.raises(CacheUsageError, match="positive"):
            Device(**{name: number})
    if not 0 <= number < 1:
        with pytest.raises(CacheUsageError, match="s per ubatch cannot be"):
            Device(overhead=number)
        with pytest.raises(CacheUsageError, match="no more active than all"):
            Weights(number, 1)
    if number != 1e-308:
        with pytest.raises(CacheUsageError, match="no more active than all"):
            Weights(8e9, number)
        with pytest.raises(CacheUsageError, match="1024 bytes each"):
            Weights(8e9, 8e9, number)
