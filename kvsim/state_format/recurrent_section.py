"""The recurrent part of a state.

docs/spec/state.md 4::

    u32 cells; per cell i32 pos, u32 n, n x i32 owner      (n = 0 in the state of one sequence)
    u32 0 (S is not transposed), u32 blocks
    per block with a state: i32 type, u64 row bytes, rows of r [, u64 row bytes, rows of p]
    per block with a state: i32 type, u64 row bytes, rows of s
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvsim.models.cache_spec import RecurrentSpec
from kvsim.state import StateReader, StateWriter
from kvsim.state_format.form import Form, count, expect_i32, expect_u32, expect_u64

F32 = 0


@dataclass(frozen=True)
class StateCell:
    """One saved state cell; without owners in the state of one sequence."""

    pos: int
    owners: tuple[int, ...]


@dataclass(frozen=True)
class StateRows:
    """The float32 rows of one block: s, or r and behind it p where there is an n-gram history. Each part is
    (bytes of a row, the rows)."""

    parts: tuple[tuple[int, memoryview], ...]

    def write(self, io: StateWriter) -> None:
        io.i32(F32)
        for row_bytes, rows in self.parts:
            io.u64(row_bytes)
            io.raw(bytes(rows))


@dataclass(frozen=True)
class RecurrentSection:
    """The state cells, and the rows of each block that keeps a state. ``n_layer`` counts all blocks."""

    cells: tuple[StateCell, ...]
    n_layer: int
    r: tuple[StateRows, ...]
    s: tuple[StateRows, ...]

    @classmethod
    def parse(cls, io: StateReader, form: Form, spec: RecurrentSpec) -> RecurrentSection:
        n = count(io, "the number of recurrent cells", 8)
        cells = tuple(_cell(io, f"recurrent cell {i} of {n}") for i in range(n))
        expect_u32(io, 0, "the layout of s rows")
        expect_u32(io, len(spec.layers), "the block count of the recurrent part")
        kept = [(il, widths) for il, widths in enumerate(spec.layers) if any(widths)]
        r = tuple(_rows(io, form, n, il, {"r": r, **({"p": p} if p else {})}) for il, (r, _, p) in kept)
        s = tuple(_rows(io, form, n, il, {"s": s}) for il, (_, s, _) in kept)
        return cls(cells, len(spec.layers), r, s)

    def write(self, io: StateWriter) -> None:
        numbers = [n for c in self.cells for n in (c.pos, len(c.owners), *c.owners)]
        io.u32(len(self.cells))
        io.raw(np.array(numbers, "<i4").tobytes())
        io.u32(0)
        io.u32(self.n_layer)
        for rows in (*self.r, *self.s):
            rows.write(io)


def _cell(io: StateReader, what: str) -> StateCell:
    pos, n = io.i32(what), io.u32(what)
    owners = np.frombuffer(io.view(4 * n, f"the {n} owners of {what}"), "<i4").tolist()
    return StateCell(pos, tuple(owners))


def _rows(io: StateReader, form: Form, n: int, il: int, widths: Mapping[str, int]) -> StateRows:
    expect_i32(io, F32, f"the type of the rows of block {il}")
    parts = []
    for part, width in widths.items():
        expect_u64(io, 4 * width, f"the row bytes of {part} of block {il}")
        parts.append((4 * width, form.rows(io, 4 * width * n, f"the rows of {part} of block {il}")))
    return StateRows(tuple(parts))
