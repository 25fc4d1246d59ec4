"""Row codecs: float rows to ggml bytes and back, for every type a cache may store.

The quantised types store blocks of 32 values. A block is a scale ``d`` (f16), for the ``_1`` types a
minimum ``m`` (f16), for the 5-bit types a word with the fifth bits, then the quants; of the 4-bit
quants, byte j holds value j in its low half and value j+16 in its high half::

    q8_0 d|32      q4_0 d|16      q4_1 d|m|16      q5_0 d|4|16      q5_1 d|m|4|16      iq4_nl d|16

One small numpy implementation serves all types. ``gguf.quants`` has no iq4_nl encoder, and is an optional
dependency that the caches must not need. Sizes of rows: :mod:`kvsim.models.cache_types`.

numpy starts anew on every row of a view, which costs more than 32 values do. So quants are gathered into
one run first, and nibbles move as 64-bit words, a block being four of them.

Upstream: ``ggml/src/ggml-quants.c: quantize_row_*_ref``, ``dequantize_row_*``.
Left out: the quantisers' importance matrix (caches never use one).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvsim.models.cache_types import cache_type
from kvsim.tensors.half import brain_to_float, float_to_brain, float_to_half, half_to_float

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

IQ4_NL_CODES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32
)
_IQ4_NL_EDGES = (IQ4_NL_CODES[1:] + IQ4_NL_CODES[:-1]) / 2
_IQ4_NL_REACH = 256
_IQ4_NL_NEAREST = np.searchsorted(
    _IQ4_NL_EDGES, np.arange(-_IQ4_NL_REACH, _IQ4_NL_REACH) / 2, side="right"
).astype(np.uint8)
"""The nearest code of a value by its whole number of halves: all edges are multiples of a half."""
_IQ4_NL_SMALLEST = 1e-15  # a block whose largest magnitude is below this counts as zero


def encode(type_name: str, rows: ArrayLike) -> U8:
    """Encode ``float[..., n]`` as a cache stores it: ``uint8[..., row_bytes(n)]``.

    Values round in float32 arithmetic, scales to f16 last. The quants of an all-zero iq4_nl block are
    unspecified in llama.cpp; here they are the code nearest to 0.
    Raises CacheUsageError for an unknown type, or a row that is no whole number of blocks.
    """
    x = np.asarray(rows, np.float32)
    kind = cache_type(type_name)
    n_bytes = kind.row_bytes(x.shape[-1])
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // kind.block, kind.block)
    with np.errstate(over="ignore", invalid="ignore"):
        return _ENCODERS[type_name](blocks).reshape(*x.shape[:-1], n_bytes)


def decode(type_name: str, raw: U8) -> F32:
    """Decode ``uint8[..., n_bytes]`` to ``float32[..., n]``.

    Raises CacheUsageError for an unknown type, ValueError for bytes that are no whole number of blocks.
    """
    kind = cache_type(type_name)
    if raw.shape[-1] % kind.n_bytes:
        raise ValueError(f"{raw.shape[-1]} bytes are no whole number of {type_name} blocks of {kind.n_bytes}")
    n_blocks = raw.shape[-1] // kind.n_bytes
    blocks = np.ascontiguousarray(raw).reshape(*raw.shape[:-1], n_blocks, kind.n_bytes)
    return _DECODERS[type_name](blocks).reshape(*raw.shape[:-1], n_blocks * kind.block)


# -- float types: a block is one value -------------------------------------------------------------


def _bytes_of(values: NDArray[np.generic]) -> U8:
    return np.ascontiguousarray(values).view(np.uint8)


# -- the fields of a quantised block ---------------------------------------------------------------


def _half(scale: F32) -> U8:
    return float_to_half(scale).view(np.uint8)


def _unhalf(raw: U8) -> F32:
    return half_to_float(np.ascontiguousarray(raw).view(np.uint16))


def _inverse(d: F32) -> F32:
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)


def _nibbles(q: U8) -> U8:
    """Pack quants ``uint8[..., 32]``, of which the low 4 bits count, into ``uint8[..., 16]``."""
    words = (q & np.uint8(15)).view(np.uint64)
    packed = np.empty((*q.shape[:-1], 2), np.uint64)
    for half in range(2):
        np.left_shift(words[..., 2 + half], 4, out=packed[..., half])
        np.bitwise_or(packed[..., half], words[..., half], out=packed[..., half])
    return packed.view(np.uint8)


def _unnibble(raw: U8) -> U8:
    packed = np.ascontiguousarray(raw).view(np.uint64)
    words = np.empty((*raw.shape[:-1], 4), np.uint64)
    words[..., :2] = packed
    np.right_shift(packed, 4, out=words[..., 2:])
    q = words.view(np.uint8)
    return np.bitwise_and(q, np.uint8(15), out=q)


def _fifth_bits(q: U8) -> U8:
    packed = np.packbits(q.reshape(-1) >> np.uint8(4), bitorder="little")
    return packed.reshape(*q.shape[:-1], 4)


def _unfifth(raw: U8) -> U8:
    bits = np.unpackbits(np.ascontiguousarray(raw).reshape(-1), bitorder="little")
    return (bits << np.uint8(4)).reshape(*raw.shape[:-1], 32)


def _scaled(q: NDArray[np.generic], d: F32, offset: int = 0) -> F32:
    """``(q - offset) * d`` for quants ``[..., 32]`` of whole numbers."""
    values = np.ascontiguousarray(q).astype(np.float32)
    if offset:
        np.subtract(values, np.float32(offset), out=values)
    return np.multiply(values, d, out=values)


def _largest(x: F32) -> F32:
    """The value of largest magnitude of each block, with its sign; the first if there are several."""
    return _pick(x, np.abs(x).argmax(axis=-1)) + np.float32(0)  # a block of zeros has +0, whatever the signs


def _pick(x: F32, at: NDArray[np.intp]) -> F32:
    """One value of each block, ``[..., 1]``."""
    flat = np.ascontiguousarray(x).reshape(-1)
    picked: F32 = flat[np.arange(0, flat.size, x.shape[-1]) + at.reshape(-1)]
    return picked.reshape(*at.shape, 1)


# -- encoders: blocks [..., 32] -> bytes -----------------------------------------------------------


def _encode_q8_0(x: F32) -> U8:
    d: F32 = np.divide(np.abs(_largest(x)), np.float32(127))
    scaled = x * _inverse(d)
    q = np.rint(scaled, out=scaled).astype(np.int8)
    return np.concatenate([_half(d), q.view(np.uint8)], axis=-1)


def _quants(top: int, scaled: F32, offset: int) -> U8:
    """Quants ``scaled + offset``, halves rounded up, at most ``top``; overwrites ``scaled``."""
    np.add(scaled, np.float32(offset + 0.5), out=scaled)
    return np.minimum(scaled, np.float32(top), out=scaled).astype(np.uint8)


def _encode_signed(x: F32, bits: int) -> U8:
    """q4_0 and q5_0: the value of largest magnitude becomes the lowest quant."""
    middle = 1 << (bits - 1)
    d = _largest(x) / np.float32(-middle)
    q = _quants(2 * middle - 1, x * _inverse(d), middle)
    return np.concatenate([_half(d), *([_fifth_bits(q)] if bits == 5 else []), _nibbles(q)], axis=-1)


def _encode_affine(x: F32, bits: int) -> U8:
    """q4_1 and q5_1: quants run from the minimum to the maximum."""
    top = (1 << bits) - 1
    # The first smallest and largest value: of -0 and +0, which are equal, the sign of the first counts.
    low, high = _pick(x, x.argmin(axis=-1)), _pick(x, x.argmax(axis=-1))
    d = (high - low) / np.float32(top)
    above = x - low
    q = _quants(top, np.multiply(above, _inverse(d), out=above), 0)
    fifth = [_fifth_bits(q)] if bits == 5 else []
    return np.concatenate([_half(d), _half(low), *fifth, _nibbles(q)], axis=-1)


def _nearest_code(x: F32) -> U8:
    halves = x * np.float32(2)
    np.floor(halves, out=halves)
    np.clip(halves, -_IQ4_NL_REACH, _IQ4_NL_REACH - 1, out=halves)
    np.add(halves, np.float32(_IQ4_NL_REACH), out=halves)
    codes: U8 = np.take(_IQ4_NL_NEAREST, halves.astype(np.uint16), mode="clip")  # NaN becomes any number
    return codes


def _fit(x: F32, q: U8) -> tuple[F32, F32]:
    """Sums that fit a scale to codes, weighted by x^2: (sum w q x, sum w q q) of each block, ``[..., 1]``.

    In order, each product added before it is rounded (fused multiply-add): so value by value, of all blocks.
    """
    n = x.size // x.shape[-1]
    values = np.ascontiguousarray(x.reshape(n, x.shape[-1]).T)
    quants = np.ascontiguousarray(q.reshape(n, x.shape[-1]).T)
    weight, product = np.empty((2, n), np.float64)
    qx, qq = np.zeros((2, n), np.float32)
    codes = np.take(IQ4_NL_CODES, quants)
    for value, code, weighted in zip(values, codes, values * values * codes, strict=True):
        np.copyto(weight, weighted)
        for total, factor in ((qx, value), (qq, code)):
            np.multiply(weight, factor, out=product)
            np.add(product, total, out=product)
            np.copyto(total, product, casting="same_kind")
    shape = (*x.shape[:-1], 1)
    return qx.reshape(shape), qq.reshape(shape)


def _encode_iq4_nl(x: F32) -> U8:
    """As a cache writes it: one guess of the scale, and quants that belong to the guess."""
    largest = _largest(x)
    zero = np.abs(largest) < _IQ4_NL_SMALLEST
    q = _nearest_code(x * _inverse(np.where(zero, 0, largest / IQ4_NL_CODES[0]).astype(np.float32)))
    qx, qq = _fit(x, q)
    d = np.where(zero, 0, qx * _inverse(qq)).astype(np.float32)
    return np.concatenate([_half(d), _nibbles(q)], axis=-1)


def encode_iq4_nl_for_model_file(rows: ArrayLike) -> U8:
    """Encode rows as the model-file quantiser does: 16 guesses of the scale, quants from the best.

    The only type for which a cache and a model file hold different bytes. ``float[..., n]`` to
    ``uint8[..., row_bytes(n)]``; refusals as :func:`encode`. Upstream: ``quantize_iq4_nl``.
    """
    x = np.asarray(rows, np.float32)
    n_bytes = cache_type("iq4_nl").row_bytes(x.shape[-1])
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // 32, 32)
    largest = _largest(blocks)
    zero = np.abs(largest) < _IQ4_NL_SMALLEST
    qx, qq = _fit(blocks, _nearest_code(blocks * _inverse(largest / -IQ4_NL_CODES[0])))
    d = qx * _inverse(qq)
    best = d * qx
    for step in range(-7, 8):
        inverse = (np.float32(step) + IQ4_NL_CODES[0]) * np.float32(1) / np.where(zero, 1, largest)
        qx, qq = _fit(blocks, _nearest_code(blocks * inverse))
        better = (qq > 0) & (qx * qx > best * qq)
        d = np.where(better, qx * _inverse(qq), d)
        best = np.where(better, d * qx, best)
    d = np.where(zero, 0, d).astype(np.float32)
    q = _nearest_code(blocks * _inverse(d))
    return np.concatenate([_half(d), _nibbles(q)], axis=-1).reshape(*x.shape[:-1], n_bytes)


_ENCODERS: dict[str, Callable[[F32], U8]] = {
    "f32": _bytes_of,
    "f16": _half,
    "bf16": lambda x: float_to_brain(x).view(np.uint8),
    "q8_0": _encode_q8_0,
    "q4_0": lambda x: _encode_signed(x, 4),
    "q4_1": lambda x: _encode_affine(x, 4),
    "q5_0": lambda x: _encode_signed(x, 5),
    "q5_1": lambda x: _encode_affine(x, 5),
    "iq4_nl": _encode_iq4_nl,
}

_DECODERS: dict[str, Callable[[U8], F32]] = {
    "f32": lambda raw: raw.view(np.float32),
    "f16": _unhalf,
    "bf16": lambda raw: brain_to_float(raw.view(np.uint16)),
    "q8_0": lambda raw: _scaled(raw[..., 2:].view(np.int8), _unhalf(raw[..., :2])),
    "q4_0": lambda raw: _scaled(_unnibble(raw[..., 2:]), _unhalf(raw[..., :2]), 8),
    "q4_1": lambda raw: _scaled(_unnibble(raw[..., 4:]), _unhalf(raw[..., :2])) + _unhalf(raw[..., 2:4]),
    "q5_0": lambda raw: _scaled(_five_bits(raw[..., 2:]), _unhalf(raw[..., :2]), 16),
    "q5_1": lambda raw: _scaled(_five_bits(raw[..., 4:]), _unhalf(raw[..., :2])) + _unhalf(raw[..., 2:4]),
    "iq4_nl": lambda raw: IQ4_NL_CODES[_unnibble(raw[..., 2:])] * _unhalf(raw[..., :2]),
}


def _five_bits(raw: U8) -> U8:
    """Quants of ``fifth bits | nibbles``."""
    return _unnibble(raw[..., 4:]) | _unfifth(raw[..., :4])
