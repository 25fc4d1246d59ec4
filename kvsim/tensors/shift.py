"""The K-shift: keys are stored rotated, so when a cell's position moves its key must turn along.

Every row is treated, also of empty and unmoved cells, as llama.cpp does: with a magnitude other than 1
all keys grow, and quantised rows are decoded, un-spread (Hadamard), turned, spread and encoded again.
Rows go through a buffer of a few cells that stays in the processor's cache; cells of one shift, which
lie together, share one table of angles.

Upstream: ``src/llama-kv-cache.cpp: build_rope_shift, build_graph_shift``.
Left out: partial rotation of quantised rows, which llama.cpp's CPU backend cannot do either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import CacheUsageError
from kvsim.memory import IntArray
from kvsim.models.cache_types import CacheType
from kvsim.tensors.codecs import U8, decode, encode
from kvsim.tensors.hadamard import hadamard
from kvsim.tensors.rope import Rope

Floats = NDArray[np.floating]
Turn = Callable[[Floats], None]

BLOCK_BYTES = 1 << 19
"""Size of the float32 buffer: a share of the second-level cache."""

_SIGN_AND_INFINITY = {"f32": (0x8000_0000, 0x7F80_0000), "f16": (0x8000, 0x7C00), "bf16": (0x8000, 0x7F80)}


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
        """Turn ``rows`` (``uint8[n, row_bytes]``, in place) by ``shift`` positions (``int32[n]``).

        Raises as :meth:`check`, before anything has changed.
        """
        self.check()
        step = max(1, BLOCK_BYTES // (4 * self.n_head * self.head_size))
        known: dict[int, Turn] = {}
        for at in range(0, len(rows), step):
            block, by = rows[at : at + step], shift[at : at + step]
            first = int(by[0])
            uniform = bool((by == first).all())
            if self.kind.is_quantized and self._holds_nothing(block):
                block[...] = self._zero_row()
            elif not uniform:
                self._turn_block(block, self._turn_by(by))
            elif first != 0 or not self._identity_changes_nothing(block):
                if first not in known:
                    known[first] = self._turn_by(by[:1])
                self._turn_block(block, known[first])

    def _turn_by(self, shift: IntArray) -> Turn:
        precision = np.float32 if self.kind.name == "f32" else np.float64
        return turn_by(self.rope, shift, self.n_head, np.dtype(precision))

    def _zero_row(self) -> U8:
        return encode(self.kind.name, np.zeros(self.n_head * self.head_size, np.float32))

    def _holds_nothing(self, block: U8) -> bool:
        """Whether no row was ever written: then all become the encoding of zeros, however they turn."""
        return not block.any() or bool((block == self._zero_row()).all())

    def _identity_changes_nothing(self, block: U8) -> bool:
        """Turning by 0 leaves floats alone, bit for bit, unless there are negative zeros (0 * -x is -0),
        infinities or NaN."""
        if self.kind.is_quantized or self.rope.magnitude != 1:
            return False
        bits = block.view(f"u{self.kind.n_bytes}")
        sign, infinity = _SIGN_AND_INFINITY[self.kind.name]
        return not bool((bits == sign).any()) and int((bits & (sign - 1)).max(initial=0)) < infinity

    def _turn_block(self, block: U8, turn: Turn) -> None:
        if self.kind.name == "f32":
            turn(self._heads(block.view(np.float32)))
            return
        # In float64, so that the one rounding that counts, the last, comes out as recorded.
        values: Floats = decode(self.kind.name, block).astype(np.float64)
        if self.kind.is_quantized:
            values = hadamard(values, self.n_rot_k)
        turn(self._heads(values))
        if self.kind.is_quantized:
            values = hadamard(values, self.n_rot_k)
        block[...] = encode(self.kind.name, values)

    def _heads(self, values: Floats) -> Floats:
        return values.reshape(len(values), self.n_head, self.head_size)


def turn_by(rope: Rope, shift: IntArray, n_head: int, precision: np.dtype[np.floating]) -> Turn:
    """What turns ``heads[n, n_head, head_size]`` in place by ``shift`` (n values, or one for all)."""
    cos, sin = rope.cos_sin(shift)
    width = slice(rope.offset, rope.offset + rope.n_rot)

    def for_heads(*parts: NDArray[Any]) -> NDArray[Any]:
        """A table repeated for every head, so that whole rows multiply in one run."""
        return np.repeat(np.concatenate(parts, axis=-1)[:, None], n_head, axis=1)

    if not rope.pairs_halves:
        # A pair of neighbours is a complex number: one multiplication, in one pass.
        complex_type = np.result_type(precision, np.complex64)
        factor = for_heads(cos + 1j * sin).astype(complex_type)

        def turn_neighbours(heads: Floats) -> None:
            pairs = heads[..., width].view(complex_type)
            with np.errstate(invalid="ignore"):  # a row may hold infinities
                np.multiply(pairs, factor, out=pairs)

        return turn_neighbours

    # x = x * (cos, cos) + swapped halves of x * (-sin, sin), in three passes.
    straight = for_heads(cos, cos).astype(precision)
    across = for_heads(-sin, sin).astype(precision).reshape(-1, n_head, 2, rope.n_rot // 2)

    def turn_halves(heads: Floats) -> None:
        part = heads[..., width]
        halves = part.reshape(len(heads), n_head, 2, rope.n_rot // 2)  # a view
        with np.errstate(invalid="ignore"):
            crossed = halves[:, :, ::-1] * across
            np.multiply(part, straight, out=part)
            np.add(halves, crossed, out=halves)

    return turn_halves
