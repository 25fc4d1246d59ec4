"""The rows of a saved state, byte for byte, whatever device they lie on (spec/state.md, sections 2, 4, 5).

Which cells are saved and where they go is each cache's own (``kv_state.py``, ``recurrent_state.py``, and the
engine's); what stands before and between their rows is written once, here. Rows themselves come from a store
as bytes and go back to it; without a store only their sizes count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from kvsim.errors import StateError
from kvsim.memory import IntArray
from kvsim.models.cache_spec import CacheSpec, CompressorSpec, LayerSpec
from kvsim.state import StateReader, StateWriter
from kvsim.tensors.recurrent_store import LayerWidths

F32 = 0
"""GGML's number for float32, the type of all recurrent rows and rings."""

RING_VERSION = 1


class MisfitError(StateError):
    """A state that is complete but does not fit: the caller's clean-up runs (not so when it is cut short)."""


# -- keys and values -------------------------------------------------------------------------------


def write_kv_rows(io: StateWriter, spec: CacheSpec, store: Any, stream: int, cells: IntArray) -> None:
    """Per layer type and width of K and the rows of ``cells``, then the same of V."""
    for value in (int(spec.v_trans), len(spec.layers), spec.n_rot_k, spec.n_rot_v):
        io.u32(value)
    n = len(cells)
    for layer in spec.layers:
        io.i32(layer.k.ggml_id)
        io.u64(layer.row_k)
        io.rows(store and store.read_k(layer.il, stream, cells), n * layer.row_k)
    for layer in spec.layers:
        if layer.v is None:
            continue
        io.i32(layer.v.ggml_id)
        if spec.v_trans:
            io.u32(layer.v.n_bytes)
            io.u32(layer.n_embd_v_own)
        else:
            io.u64(layer.row_v)
        io.rows(store and store.read_v(layer.il, stream, cells), n * _v_bytes(spec, layer))


def read_kv_rows(io: StateReader, spec: CacheSpec, store: Any, stream: int, cells: IntArray) -> None:
    """Check every layer's header; the rows are written to ``cells`` once the whole state was read. Raises
    MisfitError."""
    n = len(cells)
    v_trans, n_layer = io.u32("v_trans"), io.u32("the layer count")
    rotations = io.u32("the key rotation"), io.u32("the value rotation")
    if n_layer != len(spec.layers):
        raise MisfitError(f"the state has {n_layer} layers, the cache {len(spec.layers)}")
    if bool(v_trans) != spec.v_trans:
        raise MisfitError("the state was saved with another V layout (flash attention on or off)")
    own = spec.n_rot_k, spec.n_rot_v
    if rotations != own:
        raise MisfitError(f"the state's rows are rotated by {rotations}, the cache's by {own}")
    for layer in spec.layers:
        _expect(io.i32("a key type"), layer.k.ggml_id, f"key type of layer {layer.il}")
        _expect(io.u64("a key row size"), layer.row_k, f"key row bytes of layer {layer.il}")
        data = io.rows(n * layer.row_k, f"keys of layer {layer.il}")
        if store is not None:
            io.defer(partial(store.write_k, layer.il, stream, cells, data))
    for layer in spec.layers:
        if layer.v is None:
            continue
        _expect(io.i32("a value type"), layer.v.ggml_id, f"value type of layer {layer.il}")
        if spec.v_trans:
            _expect(io.u32("a value size"), layer.v.n_bytes, f"value element size of layer {layer.il}")
            _expect(io.u32("a value width"), layer.n_embd_v_own, f"value width of layer {layer.il}")
        else:
            _expect(io.u64("a value row size"), layer.row_v, f"value row bytes of layer {layer.il}")
        data = io.rows(n * _v_bytes(spec, layer), f"values of layer {layer.il}")
        if store is not None:
            io.defer(partial(store.write_v, layer.il, stream, cells, data))


def _v_bytes(spec: CacheSpec, layer: LayerSpec) -> int:
    """Saved V bytes of one cell: a row, or one element of each transposed row."""
    assert layer.v is not None
    return layer.v.n_bytes * layer.n_embd_v_own if spec.v_trans else layer.row_v


# -- recurrent states ------------------------------------------------------------------------------


def _blocks(layers: Sequence[LayerWidths]) -> Iterator[tuple[int, list[tuple[str, int]]]]:
    """Layer and (part, width) in the order of a state: first r, and p where there is one, of all layers that
    keep a state; then s."""
    kept = [(il, widths) for il, widths in enumerate(layers) if any(widths)]
    for il, (r, _, p) in kept:
        yield il, [("r", r), *([("p", p)] if p else [])]
    for il, (_, s, _) in kept:
        yield il, [("s", s)]


def write_recurrent_rows(
    io: StateWriter, layers: Sequence[LayerWidths], store: Any, rows: Sequence[int]
) -> None:
    """The rows ``rows`` of every part, per layer."""
    io.u32(0)  # S is not transposed
    io.u32(len(layers))
    for il, parts in _blocks(layers):
        io.i32(F32)
        for part, width in parts:
            io.u64(4 * width)
            io.rows(store and store.read(part, il, rows), 4 * width * len(rows))


def read_recurrent_rows(
    io: StateReader, layers: Sequence[LayerWidths], store: Any, first: int, count: int
) -> None:
    """Check every layer's header; the rows go to the ``count`` rows from ``first`` on once the whole state was
    read. Raises MisfitError."""
    transposed, n_layer = io.u32("the layout of S"), io.u32("the layer count")
    _expect(n_layer, len(layers), "the number of layers")
    _expect(transposed, 0, "the layout of S")
    for il, parts in _blocks(layers):
        _expect(io.i32("a row type"), F32, f"the type of {parts[0][0]} rows in layer {il}")
        for part, width in parts:
            _expect(io.u64("a row size"), 4 * width, f"the bytes of a {part} row in layer {il}")
            data = io.rows(4 * width * count, f"{part} rows of layer {il}")
            if store is not None and width:
                io.defer(partial(store.write, part, il, first, data))


# -- rings of a compressor -------------------------------------------------------------------------

RING_PARTS = ("kv", "score")


def write_ring(
    io: StateWriter,
    spec: CompressorSpec,
    streams: Sequence[int],
    read: Callable[[int, str, int], bytes] | None,
) -> None:
    """The rings of ``streams``; ``read(block, part, stream)`` has their bytes, where there are numbers."""
    for value in _ring_header(spec, len(streams)):
        io.u32(value)
    row = 4 * spec.n_embd_state
    for il in spec.layers:
        io.u32(il)
        for part in RING_PARTS:
            write_tensor_head(io, F32, spec.n_embd_state, spec.state_size, row)
            for stream in streams:
                io.rows(read and read(il, part, stream), spec.state_size * row)


def read_ring(
    io: StateReader,
    spec: CompressorSpec,
    streams: Sequence[int],
    write: Callable[[int, str, int, bytes | memoryview], None] | None,
) -> None:
    """Check the rings' headers; ``write(block, part, stream, bytes)`` is called once the whole state was read.
    Raises StateError on a mismatch."""
    found = [io.u32("the ring header") for _ in range(6)]
    wanted = _ring_header(spec, len(streams))
    if found != wanted:
        raise StateError(f"ring of ratio {spec.ratio}: header {found} in the state, {wanted} expected")
    row = 4 * spec.n_embd_state
    for il in spec.layers:
        expect_block(io, il)
        for part in RING_PARTS:
            read_tensor_head(io, F32, spec.n_embd_state, spec.state_size, row)
            for stream in streams:
                data = io.rows(spec.state_size * row, f"ring rows of block {il}")
                if write is not None:
                    io.defer(partial(write, il, part, stream, data))


def _ring_header(spec: CompressorSpec, n_streams: int) -> list[int]:
    return [RING_VERSION, spec.ratio, spec.state_size, spec.n_embd_state, n_streams, len(spec.layers)]


def write_tensor_head(io: StateWriter, type_id: int, width: int, n_rows: int, row_bytes: int) -> None:
    """What stands before the rows of a tensor in a DSV4 state."""
    io.i32(type_id)
    for value in (width, n_rows, row_bytes):
        io.u64(value)


def read_tensor_head(io: StateReader, type_id: int, width: int, n_rows: int, row_bytes: int) -> None:
    found = (io.i32("a tensor type"), *(io.u64("a tensor size") for _ in range(3)))
    if found != (type_id, width, n_rows, row_bytes):
        raise StateError(f"tensor is {found} in the state, {(type_id, width, n_rows, row_bytes)} expected")


def expect_block(io: StateReader, il: int) -> None:
    found = io.u32("a block index")
    if found != il:
        raise StateError(f"the state goes on with block {found}, block {il} was expected")


def _expect(found: int, wanted: int, what: str) -> None:
    if found != wanted:
        raise MisfitError(f"{what} is {found} in the state, {wanted} in the memory")
