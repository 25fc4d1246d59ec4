"""The K-shift: keys are stored rotated, so when a cell's position moves its key must turn along.

Every row is treated, also of empty and unmoved cells, as llama.cpp does: with a magnitude other than 1
all keys grow, and quantised rows are decoded, un-spread (Hadamard), turned, spread and encoded again.
What needs no work is passed over: rows that turning by 0 leaves as they are, and blocks of nothing but
zeros, of which one row is turned for all. The rest goes through buffers of a few cells that stay in the
processor's cache; cells of one shift, which lie together, share one table of angles.

Upstream: ``src/llama-kv-cache.cpp: build_rope_shift, build_graph_shift``.
Left out: partial rotation of quantised rows, which llama.cpp's CPU backend cannot do either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import CacheUsageError
from kvsim.memory import IntArray
from kvsim.models.cache_types import CacheType
from kvsim.tensors.codecs import U8, decode, encode
from kvsim.tensors.hadamard import hadamard
from kvsim.tensors.half import brain_to_float, float_to_brain, float_to_half, half_to_float
from kvsim.tensors.rope import Rope, rope

Floats = NDArray[np.floating]
Turn = Callable[[Floats], Floats]
"""Turns what rotates of the keys of some cells, ``[n, n_head, n_rot]``: in place or into a buffer."""

BLOCK_BYTES = 1 << 19
"""Size of a float32 buffer: small enough for the processor's caches, large enough that calls cost nothing."""

_SIGN_AND_INFINITY = {"f32": (0x8000_0000, 0x7F80_0000), "f16": (0x8000, 0x7C00), "bf16": (0x8000, 0x7F80)}

_WIDEN = {"f16": half_to_float, "bf16": brain_to_float}
_NARROW = {"f16": float_to_half, "bf16": float_to_brain}


class _Work:
    """The values of a block, made once for all blocks: new memory costs more than a pass over it."""

    def __init__(self, *shape: int) -> None:
        self.floats = np.empty(shape, np.float32)
        self.doubles, self.more_doubles = np.empty((2, *shape), np.float64)


@dataclass(frozen=True)
class KeyShift:
    """How the keys of one layer turn: rows of ``n_head`` heads of ``head_size`` values of type ``kind``,
    each turned as ``rope`` says. ``n_rot_k`` is the size of the Hadamard rotation of quantised rows."""

    kind: CacheType
    n_head: int
    head_size: int
    rope: Rope
    n_rot_k: int = 0

    def check(self) -> None:
        """Raise CacheUsageError for what ends llama.cpp: quantised rows without a Hadamard rotation, or
        of which only a part is rotated."""
        if not self.kind.is_quantized:
            return
        if not self.n_rot_k:
            raise CacheUsageError(
                f"keys stored as {self.kind.name} cannot be shifted without a Hadamard rotation (head "
                f"size {self.head_size} is no multiple of 64, or rotation is off): llama.cpp crashes. Use f16"
            )
        if self.rope.n_rot != self.head_size:
            raise CacheUsageError(
                f"keys stored as {self.kind.name} with {self.rope.n_rot} of {self.head_size} dimensions "
                f"rotated cannot be shifted; llama.cpp's CPU backend aborts. Use f16 keys"
            )

    def apply(self, rows: U8, shift: IntArray) -> None:
        """Turn ``rows`` (contiguous ``uint8[n, row_bytes]``, in place) by ``shift`` positions (``int32[n]``).

        Raises as :meth:`check`, before anything has changed.
        """
        self.check()
        step = min(max(1, BLOCK_BYTES // (4 * self.n_head * self.head_size)), len(rows))
        work = _Work(step, self.n_head, self.head_size)
        known: dict[int, Turn] = {}
        for at in range(0, len(rows), step or 1):
            block, by = rows[at : at + step], shift[at : at + step]
            first = int(by[0])
            if not bool((by == first).all()):
                self._turn_mixed(block, by, work)
            elif first != 0 or not self._identity_changes_nothing(block):
                if first not in known:
                    known[first] = self._turn_by(by[:1], work)
                self._turn_alike(block, known[first], work)

    def _turn_mixed(self, block: U8, by: IntArray, work: _Work) -> None:
        """Each row by its own shift."""
        moved = np.flatnonzero(by)
        if self._identity_changes_nothing(block[by == 0]):
            rows = block[moved]
            self._turn_block(rows, self._turn_by(by[moved], work), work)
            block[moved] = rows
        else:
            self._turn_block(block, self._turn_by(by, work), work)

    def _turn_alike(self, block: U8, turn: Turn, work: _Work) -> None:
        """All rows by one shift. Rows of nothing become what one of them becomes."""
        if not self._holds_nothing(block):
            self._turn_block(block, turn, work)
        else:
            row = block[:1].copy()
            self._turn_block(row, turn, work)
            block[...] = row

    @cached_property
    def _zeros(self) -> U8:
        return encode(self.kind.name, np.zeros(self.n_head * self.head_size, np.float32))

    def _holds_nothing(self, block: U8) -> bool:
        """Whether no row was ever written: zero bytes, or, once quantised rows were turned, their zeros."""
        if block[0].any() and not bool((block[0] == self._zeros).all()):
            return False  # one row tells, mostly
        return not block.any() or bool((block == self._zeros).all())

    def _identity_changes_nothing(self, block: U8) -> bool:
        """Turning by 0 leaves floats alone, bit for bit, unless there are negative zeros (0 * -x is -0),
        infinities or NaN."""
        if self.kind.is_quantized or self.rope.magnitude != 1:
            return False
        bits = block.view(f"u{self.kind.n_bytes}")
        sign, infinity = _SIGN_AND_INFINITY[self.kind.name]
        return not bool((bits == sign).any()) and int((bits & (sign - 1)).max(initial=0)) < infinity

    def _turn_by(self, shift: IntArray, work: _Work) -> Turn:
        """What turns cells by ``shift``: n values, or one for any number of cells."""
        if self.kind.name == "f32":
            return turn_by(self.rope, shift, self.n_head, work.floats)
        turn = turn_by(self.rope, shift, self.n_head, work.more_doubles)
        if not self.kind.is_quantized:
            return turn
        if len(shift) > 1:
            return lambda heads: hadamard(turn(hadamard(heads, self.n_rot_k)), self.n_rot_k)
        # spread, turn, spread is linear: one matrix, found by doing it to the unit vectors
        units = np.eye(self.head_size)
        turned = rope(hadamard(units, self.n_rot_k), np.repeat(shift, len(units)), self.rope)
        matrix = hadamard(turned, self.n_rot_k)

        def turn_all(heads: Floats) -> Floats:
            into: Floats = work.more_doubles[: len(heads)]
            np.matmul(heads.reshape(-1, self.head_size), matrix, out=into.reshape(-1, self.head_size))
            return into

        return turn_all

    @np.errstate(invalid="ignore")  # a row may hold infinities
    def _turn_block(self, block: U8, turn: Turn, work: _Work) -> None:
        """All but f32 in float64, so that the one rounding that counts, the last, comes out as recorded."""
        n, kind, rotated = len(block), self.kind, slice(self.rope.offset, self.rope.offset + self.rope.n_rot)
        if kind.name == "f32":
            turn(block.view(np.float32).reshape(n, self.n_head, self.head_size)[..., rotated])
            return
        values = work.floats[:n]
        if kind.is_quantized:
            values[...] = decode(kind.name, block).reshape(values.shape)
        else:
            _WIDEN[kind.name](block.view(np.uint16).reshape(values.shape), out=values)
        doubles = work.doubles[:n, :, rotated]
        np.copyto(doubles, values[..., rotated])
        np.copyto(values[..., rotated], turn(doubles), casting="same_kind")
        if kind.is_quantized:
            block[...] = encode(kind.name, values.reshape(n, -1))
        else:
            _NARROW[kind.name](values.reshape(n, -1), out=block.view(np.uint16))


def turn_by(params: Rope, shift: IntArray, n_head: int, work: Floats) -> Turn:
    """What turns, in place, ``[n, n_head, n_rot]`` values of the type of ``work`` by ``shift``: n values, or
    one for any number of cells. ``work`` has room for as many heads, and may be overwritten."""
    distinct, which = np.unique(shift, return_inverse=True)
    cos, sin = (table.astype(work.dtype)[which][:, None] for table in params.cos_sin(distinct))

    def for_heads(table: NDArray[Any]) -> NDArray[Any]:
        """A table repeated for every head, so that whole rows multiply in one run."""
        return np.repeat(table, n_head, axis=1)

    if not params.pairs_halves:
        # A pair of neighbours is a complex number: one multiplication, in one pass.
        factor = for_heads(cos + np.complex64(1j) * sin)

        def turn_neighbours(heads: Floats) -> Floats:
            pairs = heads.view(factor.dtype)
            np.multiply(pairs, factor, out=pairs)
            return heads

        return turn_neighbours

    # x = x * (cos, cos) + swapped halves of x * (-sin, sin), each pass over whole rows.
    straight = for_heads(np.concatenate([cos, cos], axis=-1))
    across = for_heads(np.concatenate([-sin, sin], axis=-1))
    half = params.n_rot // 2

    def turn_halves(heads: Floats) -> Floats:
        swapped = work[: len(heads), :, : params.n_rot]
        swapped[..., :half], swapped[..., half:] = heads[..., half:], heads[..., :half]
        np.multiply(swapped, across, out=swapped)
        np.multiply(heads, straight, out=heads)
        np.add(heads, swapped, out=heads)
        return heads

    return turn_halves
