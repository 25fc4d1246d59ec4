"""Row codecs: block layouts, rounding, and agreement with the gguf package where it has the type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kvsim.errors import CacheUsageError
from kvsim.models.cache_types import CACHE_TYPES, cache_type
from kvsim.tensors.codecs import decode, encode, encode_iq4_nl_for_model_file

QUANTISED = [name for name, kind in CACHE_TYPES.items() if kind.is_quantized]
blocks = hnp.arrays(np.float32, (3, 64), elements=st.floats(-1e4, 1e4, width=32))


def half(*values: float) -> list[int]:
    return list(np.array(values, np.float16).tobytes())


def ramp(low: float, step: float) -> np.ndarray:
    return (low + step * np.arange(32)).astype(np.float32)


def test_q8_0_layout() -> None:
    """d = max/127, then 32 signed bytes."""
    x = np.zeros(32)
    x[0], x[1], x[31] = 127.0, -3.0, 64.0
    assert encode("q8_0", x).tolist() == half(1.0) + [127, 253] + [0] * 29 + [64]


def test_q4_0_layout() -> None:
    """The largest value becomes quant 0; byte j holds value j low and value j+16 high."""
    x = np.zeros(32)
    x[0], x[1], x[16] = -8.0, 7.0, 3.0
    assert encode("q4_0", x).tolist() == half(1.0) + [0x0 | 11 << 4, 0x8F] + [0x88] * 14


def test_q4_1_layout() -> None:
    x = np.zeros(32)
    x[0], x[1], x[17] = 15.0, 1.0, 2.0
    assert encode("q4_1", x).tolist() == half(1.0, 0.0) + [15, 1 | 2 << 4] + [0] * 14


def test_q5_0_layout() -> None:
    """The fifth bits: bit j of a little-endian word is value j."""
    x = np.zeros(32)
    x[0], x[31] = -16.0, -1.0  # quants 0, 15; the others 16
    assert encode("q5_0", x).tolist() == half(1.0) + [0xFE, 0xFF, 0xFF, 0x7F] + [0] * 15 + [0xF0]


def test_q5_1_layout() -> None:
    x = ramp(0, 1)
    low = [j | j << 4 for j in range(16)]
    assert encode("q5_1", x).tolist() == [*half(1.0, 0.0), 0, 0, 0xFF, 0xFF, *low]


def test_iq4_nl_layout() -> None:
    """Quants are places in a code book that is finer near zero."""
    x = np.zeros(32)
    x[0], x[1], x[16] = -127.0, 113.0, -49.0
    raw = encode("iq4_nl", x)
    assert raw.tolist() == half(1.0) + [0 | 4 << 4, 15 | 8 << 4] + [0x88] * 14
    assert decode("iq4_nl", raw)[[0, 1, 2, 16]].tolist() == [-127.0, 113.0, 1.0, -49.0]


@pytest.mark.parametrize(
    ("x", "bits"),
    [
        (1.0, 0x3F80),
        (1 + 2**-8, 0x3F80),
        (1 + 3 * 2**-8, 0x3F82),
        (-2.0, 0xC000),
        (np.inf, 0x7F80),
        (-0.0, 0x8000),
    ],
)
def test_bf16_rounds_to_nearest_even(x: float, bits: int) -> None:
    assert encode("bf16", [x]).view(np.uint16).tolist() == [bits]


def test_bf16_keeps_nan() -> None:
    signalling = np.array([0x7F800001], np.uint32).view(np.float32)
    assert encode("bf16", signalling).view(np.uint16).tolist() == [0x7FC0]


def test_f16_overflows_to_infinity() -> None:
    assert decode("f16", encode("f16", [65520.0, 65519.0, 1e-8])).tolist() == [np.inf, 65504.0, 0.0]


@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_zeros_stay_zero(kind: str) -> None:
    assert not decode(kind, encode(kind, np.zeros(64))).any()


@pytest.mark.parametrize(("kind", "scale"), [("q4_0", [0, 0x80]), ("q5_0", [0, 0x80]), ("q8_0", [0, 0])])
def test_scale_of_zeros(kind: str, scale: list[int]) -> None:
    """Signed types get -0, whatever the signs of the zeros (goldens: all-zero rows)."""
    for zero in (0.0, -0.0):
        assert encode(kind, np.full(32, zero))[:2].tolist() == scale


@pytest.mark.parametrize(
    ("kind", "steps"), [("q8_0", 254), ("q4_0", 14), ("q4_1", 15), ("q5_0", 30), ("q5_1", 31)]
)
@given(x=blocks)
def test_error_is_at_most_a_step(kind: str, steps: int, x: np.ndarray) -> None:
    back = decode(kind, encode(kind, x))
    grouped = x.reshape(-1, 32)
    largest = np.abs(grouped).max(axis=1, keepdims=True)
    width = grouped.max(axis=1, keepdims=True) - grouped.min(axis=1, keepdims=True)
    span = width if kind.endswith("_1") else 2 * largest
    error = np.abs(back.reshape(-1, 32) - grouped)
    rounding_of_scale = 2**-10 * largest + 1e-6 * steps  # f16, or its smallest steps
    assert (error <= span / steps + 2 * rounding_of_scale).all()


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q5_0", "f16", "bf16"])
@given(x=blocks)
def test_encoding_again_changes_nothing(kind: str, x: np.ndarray) -> None:
    once = decode(kind, encode(kind, x))
    assert np.array_equal(decode(kind, encode(kind, once)), once)


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_bytes_are_those_of_gguf(kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    quant: Any = gguf.GGMLQuantizationType[kind.upper()]
    x = np.random.default_rng(5).normal(size=(50, 128)).astype(np.float32)
    raw = encode(kind, x)
    assert np.array_equal(raw, gguf.quants.quantize(x, quant).view(np.uint8))
    assert np.array_equal(decode(kind, raw), gguf.quants.dequantize(raw, quant))


def test_iq4_nl_decodes_as_gguf_does() -> None:
    gguf = pytest.importorskip("gguf")
    raw = encode("iq4_nl", np.random.default_rng(5).normal(size=(50, 128)))
    assert np.array_equal(
        decode("iq4_nl", raw), gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.IQ4_NL)
    )


def test_model_file_encoder_fits_better() -> None:
    """It tries many scales; what it minimises is the error weighted by x^2."""
    x = np.random.default_rng(5).normal(size=(200, 32)).astype(np.float32)
    cache, file = (decode("iq4_nl", raw) for raw in (encode("iq4_nl", x), encode_iq4_nl_for_model_file(x)))
    assert np.square(x * (file - x)).sum() < 0.95 * np.square(x * (cache - x)).sum()


@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_any_leading_shape(kind: str) -> None:
    x = np.random.default_rng(5).normal(size=(2, 3, 64)).astype(np.float32)
    raw = encode(kind, x)
    assert raw.shape == (2, 3, cache_type(kind).row_bytes(64))
    assert np.array_equal(decode(kind, raw)[1, 2], decode(kind, encode(kind, x[1, 2])))
    assert encode(kind, np.zeros((0, 64))).shape == (0, cache_type(kind).row_bytes(64))


@pytest.mark.parametrize("kind", QUANTISED)
def test_a_broken_block_is_refused(kind: str) -> None:
    with pytest.raises(CacheUsageError, match="row of 40 values"):
        encode(kind, np.zeros(40))
    with pytest.raises(ValueError, match="5 bytes are no whole number"):
        decode(kind, np.zeros(5, np.uint8))


def test_unknown_types_are_refused() -> None:
    with pytest.raises(CacheUsageError, match="q2_k"):
        encode("q2_k", np.zeros(32))
