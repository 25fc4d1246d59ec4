"""The attention part of a state.

docs/spec/state.md 2::

    u32 streams
    per stream: u32 cells; if any:
      per cell  i32 pos, u32 n, [i32 x, i32 y, i32 token], n x i32 owner
      u32 V transposed, u32 layers, [u32 rotation of K, u32 rotation of V]
      per layer i32 type, u64 row bytes, rows of K
      per layer i32 type, u64 row bytes, rows of V      (transposed: i32 type, u32 bytes, u32 values)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.models.cache_spec import CacheSpec, LayerSpec
from kvsim.state import StateReader, StateWriter
from kvsim.state_format.form import Form, count, expect_i32, expect_u32, expect_u64


@dataclass(frozen=True)
class Cell:
    """One saved cell. ``ext`` is (x, y, token), as far as the layout and the cache keep it."""

    pos: int
    owners: tuple[int, ...]
    ext: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rows:
    """The rows of one tensor, as bytes, behind the numbers that describe them."""

    type_id: int
    shape: tuple[int, ...]
    """(bytes of a row,), or of a transposed V (bytes of a value, values of a row)."""
    data: memoryview

    def write(self, io: StateWriter) -> None:
        io.i32(self.type_id)
        if len(self.shape) == 1:
            io.u64(self.shape[0])
        else:
            for n in self.shape:
                io.u32(n)
        io.raw(bytes(self.data))


@dataclass(frozen=True)
class KVStream:
    """The cells of one stream and their rows; ``rotations`` are (K's, V's), None where not recorded."""

    cells: tuple[Cell, ...]
    v_trans: bool = False
    rotations: tuple[int, int] | None = None
    k: tuple[Rows, ...] = ()
    v: tuple[Rows, ...] = ()

    @classmethod
    def parse(cls, io: StateReader, form: Form, spec: CacheSpec, where: str) -> KVStream:
        ext = form.layout.ext if spec.has_cell_ext else ()
        n = count(io, f"the cell count of {where}", 8 + 4 * len(ext))
        if not n:
            return cls(())
        cells = tuple(_cell(io, len(ext), f"cell {i} of {n} of {where}") for i in range(n))
        expect_u32(io, int(spec.v_trans), f"the V layout of {where}")
        expect_u32(io, len(spec.layers), f"the layer count of {where}")
        rotations = None
        if form.layout.has_rotation:
            rotations = spec.n_rot_k, spec.n_rot_v
            for size, what in zip(rotations, ("K", "V"), strict=True):
                expect_u32(io, size, f"the rotation of {what} of {where}")
        k = tuple(_k_rows(io, form, layer, n, where) for layer in spec.layers)
        v = tuple(_v_rows(io, form, layer, n, spec.v_trans, where) for layer in spec.layers if layer.v)
        return cls(cells, spec.v_trans, rotations, k, v)

    def write(self, io: StateWriter) -> None:
        io.u32(len(self.cells))
        if not self.cells:
            return
        numbers = [n for c in self.cells for n in (c.pos, len(c.owners), *c.ext, *c.owners)]
        io.raw(np.array(numbers, "<i4").tobytes())
        for n in (int(self.v_trans), len(self.k), *(self.rotations or ())):
            io.u32(n)
        for rows in (*self.k, *self.v):
            rows.write(io)


@dataclass(frozen=True)
class KVSection:
    """One attention cache."""

    streams: tuple[KVStream, ...]

    @classmethod
    def parse(cls, io: StateReader, form: Form, spec: CacheSpec, name: str) -> KVSection:
        expect_u32(io, spec.n_stream, f"the stream count of {name!r}")
        return cls(
            tuple(KVStream.parse(io, form, spec, f"{name!r} stream {s}") for s in range(spec.n_stream))
        )

    def write(self, io: StateWriter) -> None:
        io.u32(len(self.streams))
        for stream in self.streams:
            stream.write(io)


def _cell(io: StateReader, n_ext: int, what: str) -> Cell:
    pos = io.i32(what)
    at = io.at
    n = io.u32(what)
    ext = tuple([io.i32(what) for _ in range(n_ext)])
    return Cell(pos, _owners(io, n, at, what), ext)


def _owners(io: StateReader, n: int, at: int, what: str) -> tuple[int, ...]:
    return tuple(np.frombuffer(io.view(4 * n, f"the {n} owners (byte {at}) of {what}"), "<i4").tolist())


def _k_rows(io: StateReader, form: Form, layer: LayerSpec, n: int, where: str) -> Rows:
    what = f"of K of block {layer.il} of {where}"
    expect_i32(io, layer.k.ggml_id, f"the type {what}")
    expect_u64(io, layer.row_k, f"the row bytes {what}")
    return Rows(layer.k.ggml_id, (layer.row_k,), form.rows(io, n * layer.row_k, f"the rows {what}"))


def _v_rows(io: StateReader, form: Form, layer: LayerSpec, n: int, v_trans: bool, where: str) -> Rows:
    assert layer.v is not None
    what = f"of V of block {layer.il} of {where}"
    expect_i32(io, layer.v.ggml_id, f"the type {what}")
    if not v_trans:
        expect_u64(io, layer.row_v, f"the row bytes {what}")
        return Rows(layer.v.ggml_id, (layer.row_v,), form.rows(io, n * layer.row_v, f"the rows {what}"))
    expect_u32(io, layer.v.n_bytes, f"the value bytes {what}")
    expect_u32(io, layer.n_embd_v_own, f"the row width {what}")
    shape = layer.v.n_bytes, layer.n_embd_v_own
    return Rows(layer.v.ggml_id, shape, form.rows(io, n * shape[0] * shape[1], f"the values {what}"))
