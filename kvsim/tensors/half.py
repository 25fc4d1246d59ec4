"""Half precision by float32 bit arithmetic: what ``astype`` gives, in a third of its time.

numpy converts f16 one value at a time. Here blocks that stay in the second-level cache go through a few
vectorised passes each::

    f16   s|eeeee|mmmmmmmmmm                   the exponent counts from 2^-15,
    f32   s|eeeeeeee|mmmmmmmmmm0000000000000   here from 2^-127: 112 lower

What the passes cannot do (infinities and NaN; results below the smallest normal f16, or too large for
it) is left to ``astype``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]

BLOCK = 1 << 15
"""Values converted at a time."""

FEW = 1 << 12
"""Below this many values ``astype`` is faster than a dozen passes."""

_INFINITY = 0x7C00
_SIGN = 0x8000
_REBIAS = np.float32(2.0**112)
_SMALLEST_NORMAL = np.float32(2.0**-14)
_ROUNDS_TO_INFINITY = np.float32(65520)
_HALF_ULP_LESS_REBIAS = np.uint32((0x0FFF - (112 << 23)) % (1 << 32))


def half_to_float(bits: U16) -> F32:
    """The values of f16 ``bits``, a new array of the same shape."""
    if bits.size < FEW:
        return bits.view(np.float16).astype(np.float32)
    source = np.ascontiguousarray(bits).reshape(-1)
    out = np.empty(len(source), np.float32)
    for at in range(0, len(source), BLOCK):
        _widen(source[at : at + BLOCK], out[at : at + BLOCK])
    return out.reshape(bits.shape)


def _widen(bits: U16, out: F32) -> None:
    signed, words = bits.view(np.int16), out.view(np.int32)
    if int(signed.max()) >= _INFINITY or int(bits.max()) >= _INFINITY | _SIGN:
        out[...] = bits.view(np.float16)
        return
    np.copyto(words, signed)  # spreads the sign over the upper half
    np.left_shift(words, 13, out=words)
    np.bitwise_and(words, ~(7 << 28), out=words)  # of the spread signs only the top one stays
    np.multiply(out, _REBIAS, out=out)


@np.errstate(over="ignore")  # what is too large becomes infinite
def float_to_half(values: F32) -> U16:
    """``values`` rounded to f16, to nearest, ties to even: bits, a new array of the same shape."""
    if values.size < FEW:
        return values.astype(np.float16).view(np.uint16)
    source = np.ascontiguousarray(values).reshape(-1)
    out = np.empty(len(source), np.uint16)
    first, second = np.empty((2, min(BLOCK, len(source))), np.uint32)
    for at in range(0, len(source), BLOCK):
        block = source[at : at + BLOCK]
        _narrow(block, out[at : at + BLOCK], first[: len(block)], second[: len(block)])
    return out.reshape(values.shape)


def _narrow(values: F32, out: U16, words: NDArray[np.uint32], other: NDArray[np.uint32]) -> None:
    magnitude = np.abs(values, out=other.view(np.float32))
    if not magnitude.max() < _ROUNDS_TO_INFINITY:  # NaN compares false
        out[...] = values.astype(np.float16).view(np.uint16)
        return
    tiny = np.flatnonzero(magnitude < _SMALLEST_NORMAL)
    bits = values.view(np.uint32)
    np.right_shift(bits, 13, out=words)
    np.bitwise_and(words, 1, out=words)  # odd: a tie rounds up
    np.add(words, bits, out=words)
    np.add(words, _HALF_ULP_LESS_REBIAS, out=words)
    np.right_shift(words, 13, out=words)
    np.right_shift(bits, 16, out=other)
    np.bitwise_and(other, _SIGN, out=other)
    np.bitwise_or(words, other, out=words)
    np.copyto(out, words, casting="unsafe")  # drops what is above the sign
    if len(tiny):
        out[tiny] = values[tiny].astype(np.float16).view(np.uint16)
