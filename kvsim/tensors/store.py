"""The rows of a cache: keys and values per layer and stream, as the bytes llama.cpp keeps.

::

    K       [stream, cell, row bytes]
    V       [stream, cell, row bytes]                 or, transposed (without flash attention),
            [stream, value, cell, element bytes]      or absent (MLA: V is a part of K)

Two ways in and out: bytes, in the order saved states have them (``read_k``, ``write_k``, ...), and
decoded values (``decode_k``, ``encode_k``, ...). Cells are an index array or a slice, of one stream.

Upstream: ``src/llama-kv-cache.cpp: llama_kv_cache, get_k, get_v, cpy_k, cpy_v, state_read_data``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from kvsim.errors import CacheUsageError
from kvsim.memory import IntArray
from kvsim.models.cache_spec import CacheSpec, LayerSpec
from kvsim.models.context_params import ResolvedContext
from kvsim.models.params import RopeType
from kvsim.tensors.codecs import F32, U8, decode, encode
from kvsim.tensors.rope import Rope
from kvsim.tensors.shift import KeyShift

Cells = IntArray | slice

MOVE_BLOCK = 256
"""Rows gathered at a time when single cells are moved."""

RUN_BYTES = 4096
"""From this length of the average run on, runs are copied one by one."""


class KVStore:
    """Rows for the cells of one cache. Everything is zero at first.

    ``layers`` are those that own storage; ``il`` is the name of a layer in every call. ``shifts`` says how
    a layer's keys turn when positions move; a layer without an entry does not rotate.
    """

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        n_stream: int,
        size: int,
        v_trans: bool,
        shifts: Mapping[int, KeyShift] | None = None,
    ) -> None:
        for layer in layers:
            if v_trans and layer.v is not None and layer.v.is_quantized:
                raise CacheUsageError(
                    f"layer {layer.il}: values of type {layer.v.name} cannot be stored transposed; llama.cpp "
                    f"refuses a quantised V cache without flash attention. Turn that on, or use f16"
                )
        self.layers = {layer.il: layer for layer in layers}
        self.n_stream, self.size, self.v_trans = n_stream, size, v_trans
        self.shifts = dict(shifts or {})
        self.k: dict[int, U8] = {il: self._slab(size, la.row_k) for il, la in self.layers.items()}
        self.v: dict[int, U8] = {
            il: self._slab(la.n_embd_v, size, la.v.n_bytes) if v_trans else self._slab(size, la.row_v)
            for il, la in self.layers.items()
            if la.v is not None
        }

    @classmethod
    def of(cls, spec: CacheSpec, context: ResolvedContext) -> KVStore:
        """The store of a cache as specified, with the K-shift of its model."""
        shifts = {layer.il: key_shift(layer, spec, context) for layer in spec.layers if layer.has_rope}
        return cls(spec.layers, spec.n_stream, spec.size, spec.v_trans, shifts)

    def _slab(self, *shape: int) -> U8:
        return np.zeros((self.n_stream, *shape), np.uint8)

    def _slabs(self) -> Iterator[U8]:
        yield from self.k.values()
        yield from self.v.values()

    @property
    def n_bytes(self) -> int:
        """Bytes of all rows."""
        return sum(slab.nbytes for slab in self._slabs())

    # -- values --------------------------------------------------------------------------------

    def decode_k(self, il: int, stream: int, cells: Cells) -> F32:
        """Keys of some cells, ``float32[n, n_embd_k]``."""
        return decode(self.layers[il].k.name, self.k[il][stream, cells])

    def encode_k(self, il: int, stream: int, cells: Cells, rows: ArrayLike) -> None:
        """Store keys, ``float[n, n_embd_k]``, rounding to the type of the cache."""
        self.k[il][stream, cells] = encode(self.layers[il].k.name, rows)

    def decode_v(self, il: int, stream: int, cells: Cells) -> F32:
        """Values of some cells, ``float32[n, n_embd_v]`` of the layer's own width. KeyError without V."""
        slab, kind = self.v[il], self._v_type(il)
        if not self.v_trans:
            return decode(kind, slab[stream, cells])
        own = slab[stream, : self.layers[il].n_embd_v_own]
        return decode(kind, own[:, cells])[..., 0].T

    def encode_v(self, il: int, stream: int, cells: Cells, rows: ArrayLike) -> None:
        """Store values, ``float[n, n_embd_v]`` of the layer's own width. KeyError without V."""
        slab, kind = self.v[il], self._v_type(il)
        if not self.v_trans:
            slab[stream, cells] = encode(kind, rows)
        else:
            columns = np.asarray(rows, np.float32).T[..., None]
            slab[stream, : self.layers[il].n_embd_v_own][:, cells] = encode(kind, columns)

    def _v_type(self, il: int) -> str:
        kind = self.layers[il].v
        assert kind is not None
        return kind.name

    # -- bytes, as saved states have them ------------------------------------------------------

    def read_k(self, il: int, stream: int, cells: IntArray) -> bytes:
        """Key rows of cells, one after the other."""
        return bytes(self.k[il][stream, cells].data)

    def write_k(self, il: int, stream: int, cells: IntArray, data: bytes) -> None:
        """Put back what :meth:`read_k` gave, into as many cells. ValueError if the length differs."""
        self.k[il][stream, cells] = np.frombuffer(data, np.uint8).reshape(len(cells), self.layers[il].row_k)

    def read_v(self, il: int, stream: int, cells: IntArray) -> bytes:
        """Value rows of cells; transposed: all cells of the first value, then of the second, ..."""
        slab = self.v[il][stream]
        rows = slab[: self.layers[il].n_embd_v_own][:, cells] if self.v_trans else slab[cells]
        return bytes(rows.data)

    def write_v(self, il: int, stream: int, cells: IntArray, data: bytes) -> None:
        """Put back what :meth:`read_v` gave, into as many cells. ValueError if the length differs."""
        raw = np.frombuffer(data, np.uint8)
        if not self.v_trans:
            self.v[il][stream, cells] = raw.reshape(len(cells), self.layers[il].row_v)
        else:
            own = self.layers[il].n_embd_v_own
            self.v[il][stream, :own][:, cells] = raw.reshape(own, len(cells), self.v[il].shape[-1])

    # -- whole cells, all layers ---------------------------------------------------------------

    def zero(self) -> None:
        """Clear every row of every stream."""
        for slab in self._slabs():
            slab.fill(0)

    def zero_cells(self, stream: int, cells: Cells) -> None:
        """Clear the rows of cells, as after a failed restore (``state_clear``)."""
        for slab in self.k.values():
            slab[stream, cells] = 0
        for slab in self.v.values():
            if self.v_trans:
                slab[stream][:, cells] = 0
            else:
                slab[stream, cells] = 0

    def copy_stream(self, src: int, dst: int) -> None:
        """Copy all rows of a stream over another (the data part of a seq_cp between streams)."""
        for slab in self._slabs():
            np.copyto(slab[dst], slab[src])

    def move_cells(self, stream: int, src: IntArray, dst: IntArray) -> None:
        """Copy the rows of cells ``src`` to ``dst``, pairwise (defragmentation).

        Raises CacheUsageError, before anything has changed, if a cell is both read and written.
        """
        read = np.zeros(self.size, np.bool_)
        read[src] = True
        if bool(read[dst].any()):
            raise CacheUsageError(
                "a cell is source and destination at once: give the moves in separate calls"
            )
        for slab in self.k.values():
            _move(slab[stream], src, dst)
        for slab in self.v.values():
            if self.v_trans:
                slab[stream][:, dst] = slab[stream][:, src]
            else:
                _move(slab[stream], src, dst)

    def check_shift(self) -> None:
        """Raise CacheUsageError if the keys of some layer cannot be turned (see :class:`KeyShift`)."""
        for key in self.shifts.values():
            key.check()

    def apply_shift(self, shift: IntArray) -> None:
        """Turn all keys by ``shift int32[n_stream, size]`` positions (0 for cells that did not move).

        Raises CacheUsageError, before anything has changed, if the keys cannot be turned.
        """
        self.check_shift()
        for il, key in self.shifts.items():
            key.apply(self.k[il].reshape(self.n_stream * self.size, -1), shift.reshape(-1))


def layer_rope(layer: LayerSpec, spec: CacheSpec, context: ResolvedContext) -> Rope:
    """How the keys of a layer rotate. Three or four positions a token (M-RoPE) are not in it: a shift has one."""
    return Rope(
        n_rot=layer.n_rot,
        offset=layer.rope_offset,
        neox=spec.rope_type is not RopeType.NORM,
        base=layer.freq_base,
        scale=layer.freq_scale,
        factors=layer.factors,
        ext_factor=context.yarn_ext_factor,
        attn_factor=context.yarn_attn_factor,
        beta_fast=context.yarn_beta_fast,
        beta_slow=context.yarn_beta_slow,
        n_ctx_orig=context.n_ctx_orig_yarn,
    )


def key_shift(layer: LayerSpec, spec: CacheSpec, context: ResolvedContext) -> KeyShift:
    """How the keys of a layer turn."""
    rope = layer_rope(layer, spec, context)
    return KeyShift(layer.k, layer.n_head_kv, layer.n_embd_head_k, rope, spec.n_rot_k)


def _move(rows: U8, src: IntArray, dst: IntArray) -> None:
    """Copy rows: run by run if they lie together, else gathered and scattered some at a time."""
    width = rows.shape[1]
    starts = np.concatenate([[0], np.flatnonzero((np.diff(src) != 1) | (np.diff(dst) != 1)) + 1])
    if len(src) * width >= RUN_BYTES * len(starts):
        memory = rows.reshape(-1).data  # a slice of it costs less than one of the array
        reads, writes = src[starts].tolist(), dst[starts].tolist()
        lengths = np.diff([*starts, len(src)]).tolist()
        for read, write, n in zip(reads, writes, lengths, strict=True):
            memory[write * width : (write + n) * width] = memory[read * width : (read + n) * width]
        return
    whole = rows.view(f"V{width}")[:, 0]  # numpy copies an item at once, a row value by value
    for at in range(0, len(src), MOVE_BLOCK):
        whole[dst[at : at + MOVE_BLOCK]] = whole[src[at : at + MOVE_BLOCK]]
