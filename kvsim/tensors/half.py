"""The two 16-bit float types by float32 bit arithmetic, in cache-sized blocks.

numpy converts f16 one value at a time. Here blocks that stay in the second-level cache go through a few
vectorised passes each, in a third of the time, with the same results::

    f16   s|eeeee|mmmmmmmmmm                   the exponent counts from 2^-15,
    bf16  s|eeeeeeee|mmmmmmm                   here from 2^-127, as in f32
    f32   s|eeeeeeee|mmmmmmmmmm0000000000000   112 lower than in f16

What the passes cannot do (infinities and NaN; f16 results below the smallest normal one, or too large for
it) is left to ``astype``. Intermediate words are kept from call to call: new memory costs more than a pass.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]

BLOCK = 1 << 15
"""Values converted at a time."""

FEW = 1 << 12
"""Below this many values ``astype`` is faster than a dozen passes."""

PIECE = 256
"""Values that ``astype`` takes over together where one of them is below the normal ones."""

_INFINITY = 0x7C00
_SIGN = 0x8000
_REBIAS = np.float32(2.0**112)
_SMALLEST_NORMAL = np.float32(2.0**-14)
_ROUNDS_TO_INFINITY = np.float32(65520)
_HALF_ULP_LESS_REBIAS = np.uint32((0x0FFF - (112 << 23)) % (1 << 32))
_PIECES = np.arange(0, BLOCK, PIECE)


class _Words(threading.local):
    """Two blocks of intermediate words for each thread."""

    def __init__(self) -> None:
        self.first, self.second = np.empty((2, BLOCK), np.uint32)


_words = _Words()


def _blocks(n: int) -> Iterator[slice]:
    return (slice(at, min(at + BLOCK, n)) for at in range(0, n, BLOCK))


def _flat(out: NDArray[Any]) -> NDArray[Any]:
    """A view of ``out``; of an array that is not contiguous there is none, and a copy would lose the results."""
    if not out.flags.c_contiguous:
        raise ValueError("the array to convert into must be contiguous")
    return out.reshape(-1)


# -- f16 -------------------------------------------------------------------------------------------


def half_to_float(bits: U16, out: F32 | None = None) -> F32:
    """The values of f16 ``bits``: a new array of the same shape, or ``out``, which is contiguous."""
    if out is None:
        out = np.empty(bits.shape, np.float32)
    if bits.size < FEW:
        out[...] = bits.view(np.float16)
        return out
    source, target = np.ascontiguousarray(bits).reshape(-1), _flat(out)
    for block in _blocks(len(source)):
        _widen(source[block], target[block])
    return out


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
def float_to_half(values: F32, out: U16 | None = None) -> U16:
    """``values`` rounded to f16, to nearest, ties to even: bits, in a new array of the same shape, or in
    ``out``, which is contiguous."""
    if out is None:
        out = np.empty(values.shape, np.uint16)
    if values.size < FEW:
        out.view(np.float16)[...] = values
        return out
    source, target = np.ascontiguousarray(values).reshape(-1), _flat(out)
    for block in _blocks(len(source)):
        _narrow(source[block], target[block])
    return out


def _narrow(values: F32, out: U16) -> None:
    words, other = _words.first[: len(values)], _words.second[: len(values)]
    magnitude = np.abs(values, out=other.view(np.float32))
    if not magnitude.max() < _ROUNDS_TO_INFINITY:  # NaN compares false
        out.view(np.float16)[...] = values
        return
    starts = _PIECES[: -(-len(values) // PIECE)]
    with_tiny = starts[np.minimum.reduceat(magnitude, starts) < _SMALLEST_NORMAL]
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
    for at in with_tiny.tolist():
        out[at : at + PIECE].view(np.float16)[...] = values[at : at + PIECE]


# -- bf16 ------------------------------------------------------------------------------------------


def brain_to_float(bits: U16, out: F32 | None = None) -> F32:
    """The values of bf16 ``bits``, as :func:`half_to_float`."""
    if out is None:
        out = np.empty(bits.shape, np.float32)
    words = out.view(np.uint32)
    np.copyto(words, bits)
    np.left_shift(words, 16, out=words)
    return out


def float_to_brain(values: F32, out: U16 | None = None) -> U16:
    """``values`` rounded to bf16, as :func:`float_to_half`; NaN become quiet and keep their upper bits."""
    if out is None:
        out = np.empty(values.shape, np.uint16)
    source, target = np.ascontiguousarray(values).reshape(-1), _flat(out)
    for block in _blocks(len(source)):
        _cut(source[block], target[block])
    return out


def _cut(values: F32, out: U16) -> None:
    bits, words = values.view(np.uint32), _words.first[: len(values)]
    np.right_shift(bits, 16, out=words)
    np.bitwise_and(words, 1, out=words)  # odd: a tie rounds up
    np.add(words, bits, out=words)
    np.add(words, 0x7FFF, out=words)
    np.right_shift(words, 16, out=words)
    np.copyto(out, words, casting="unsafe")
    if np.isnan(values.max()):
        nan = np.isnan(values)
        out[nan] = bits[nan] >> 16 | 64
