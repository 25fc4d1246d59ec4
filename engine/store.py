"""The rows of a cache on a device, per layer and stream.

::

    k[il]  [stream, cell, row]
    v[il]  [stream, cell, row]    or transposed (without flash attention) [stream, value, cell], or absent

Float types have their own dtype, quantised rows are bytes. States have rows as bytes, in kvsim's order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from engine.codecs import FLOATS, decode, encode, stored_shape
from engine.rope import hadamard, turn
from engine.sync import read_back, upload
from kvsim.errors import CacheUsageError
from kvsim.memory import IntArray
from kvsim.models.cache_spec import CacheSpec, LayerSpec
from kvsim.models.cache_types import CacheType
from kvsim.models.context_params import ResolvedContext
from kvsim.tensors.shift import KeyShift
from kvsim.tensors.store import key_shift

SHIFT_ROWS = 1 << 14
"""Rows turned at a time: what bounds the temporaries of a K-shift."""


class KVStore:
    """Rows for the cells of one cache, zero at first. ``shifts``: how the keys of a layer turn."""

    def __init__(self, spec: CacheSpec, shifts: dict[int, KeyShift], device: torch.device) -> None:
        self.spec, self.shifts, self.device = spec, shifts, device
        self.n_stream, self.size, self.v_trans = spec.n_stream, spec.size, spec.v_trans
        self.layers = {layer.il: layer for layer in spec.layers}
        self.k: dict[int, Tensor] = {}
        self.v: dict[int, Tensor] = {}
        for il, layer in self.layers.items():
            dtype, n = stored_shape(layer.k, layer.n_embd_k)
            self.k[il] = torch.zeros(self.n_stream, self.size, n, dtype=dtype, device=device)
            if layer.v is None:
                continue
            if self.v_trans and layer.v.name not in FLOATS:
                raise CacheUsageError(
                    f"layer {il}: {layer.v.name} values cannot be stored transposed; llama.cpp refuses a "
                    "quantised V cache without flash attention"
                )
            dtype, n = stored_shape(layer.v, layer.n_embd_v)
            shape = (n, self.size) if self.v_trans else (self.size, n)
            self.v[il] = torch.zeros(self.n_stream, *shape, dtype=dtype, device=device)

    @classmethod
    def of(cls, spec: CacheSpec, context: ResolvedContext, device: torch.device) -> KVStore:
        """The store of a cache as specified, with the K-shift of its model."""
        shifts = {layer.il: key_shift(layer, spec, context) for layer in spec.layers if layer.has_rope}
        return cls(spec, shifts, device)

    def _slabs(self) -> Iterator[Tensor]:
        yield from self.k.values()
        yield from self.v.values()

    @property
    def n_bytes(self) -> int:
        return sum(slab.nbytes for slab in self._slabs())

    # -- what a graph does ---------------------------------------------------------------------

    def append(self, il: int, flat: Tensor, k: Tensor, v: Tensor | None = None) -> None:
        """Store keys and values ``float[token, n_embd]`` in the rows ``flat`` (``stream * size + cell``)."""
        layer = self.layers[il]
        self.k[il].flatten(0, 1).index_copy_(0, flat, encode(layer.k, k))
        if v is None or layer.v is None:
            return
        stored = encode(layer.v, v)
        if not self.v_trans:
            self.v[il].flatten(0, 1).index_copy_(0, flat, stored)
        elif self.n_stream == 1:
            self.v[il][0].index_copy_(1, flat, stored.T)
        else:
            columns = torch.arange(stored.shape[1], device=self.device) * self.size
            at = (flat // self.size * (stored.shape[1] * self.size) + flat % self.size)[:, None] + columns
            self.v[il].view(-1).index_copy_(0, at.flatten(), stored.flatten())

    def keys(self, il: int, streams: slice | Tensor, n_kv: int) -> Tensor:
        """Keys of the first cells, ``[P, n_kv, head, head_size]``: a view of float rows, else decoded."""
        layer = self.layers[il]
        return self._values(layer.k, self.k[il][streams, :n_kv], layer.n_head_kv)

    def values(self, il: int, streams: slice | Tensor, n_kv: int) -> Tensor:
        """Values of the first cells, ``[P, n_kv, head, head_size]``."""
        layer = self.layers[il]
        assert layer.v is not None
        if self.v_trans:
            rows = self.v[il][streams, : layer.n_embd_v_own, :n_kv].transpose(1, 2)
        else:
            rows = self.v[il][streams, :n_kv]
        return self._values(layer.v, rows, layer.n_head_kv)

    def gather_k(self, il: int, flat: Tensor) -> Tensor:
        """Keys of the cells ``flat [...]``: ``[..., head, head_size]``."""
        layer = self.layers[il]
        rows = self.k[il].flatten(0, 1).index_select(0, flat.flatten()).unflatten(0, flat.shape)
        return self._values(layer.k, rows, layer.n_head_kv)

    def gather_v(self, il: int, flat: Tensor) -> Tensor:
        layer = self.layers[il]
        assert layer.v is not None
        if self.v_trans:
            stream, cell = flat.flatten() // self.size, flat.flatten() % self.size
            rows = self.v[il][stream, : layer.n_embd_v_own, cell]
        else:
            rows = self.v[il].flatten(0, 1).index_select(0, flat.flatten())
        return self._values(layer.v, rows.unflatten(0, flat.shape), layer.n_head_kv)

    def _values(self, kind: CacheType, rows: Tensor, n_head: int) -> Tensor:
        values = rows if kind.name in FLOATS else decode(kind, rows)
        return values.unflatten(-1, (n_head, -1))

    # -- decoded and encoded, cell by cell, as kvsim's store -----------------------------------

    def decode_k(self, il: int, stream: int, cells: IntArray | slice) -> Tensor:
        """Keys of some cells, ``float32[n, n_embd_k]``."""
        return decode(self.layers[il].k, self.k[il][stream, self._cells(cells)])

    def encode_k(self, il: int, stream: int, cells: IntArray | slice, rows: Tensor) -> None:
        self.k[il][stream, self._cells(cells)] = encode(self.layers[il].k, rows)

    def _cells(self, cells: IntArray | slice) -> Tensor | slice:
        """Cells as an index: a slice if they are one run."""
        if isinstance(cells, slice):
            return cells
        if len(cells) and np.array_equal(cells, np.arange(cells[0], cells[0] + len(cells))):
            return slice(int(cells[0]), int(cells[0]) + len(cells))
        return upload(cells, self.device)

    # -- bytes, as saved states have them ------------------------------------------------------

    def read_k(self, il: int, stream: int, cells: IntArray) -> bytes:
        """Key rows of cells, one after the other."""
        return _bytes(self.k[il][stream, self._cells(cells)])

    def write_k(self, il: int, stream: int, cells: IntArray, data: bytes | memoryview) -> None:
        """Put back what :meth:`read_k` gave: one copy if the cells are a run."""
        slab = self.k[il]
        self.k[il][stream, self._cells(cells)] = self._rows(data, slab.dtype, (len(cells), slab.shape[2]))

    def read_v(self, il: int, stream: int, cells: IntArray) -> bytes:
        """Value rows of cells; transposed: all cells of the first value, then of the second, ..."""
        if not self.v_trans:
            return _bytes(self.v[il][stream, self._cells(cells)])
        own = self.layers[il].n_embd_v_own
        return _bytes(self.v[il][stream, :own][:, self._cells(cells)])

    def write_v(self, il: int, stream: int, cells: IntArray, data: bytes | memoryview) -> None:
        slab = self.v[il]
        if not self.v_trans:
            slab[stream, self._cells(cells)] = self._rows(data, slab.dtype, (len(cells), slab.shape[2]))
        else:
            own = self.layers[il].n_embd_v_own
            slab[stream, :own][:, self._cells(cells)] = self._rows(data, slab.dtype, (own, len(cells)))

    def _rows(self, data: bytes | memoryview, dtype: torch.dtype, shape: tuple[int, int]) -> Tensor:
        raw = upload(np.frombuffer(data, np.uint8), self.device, torch.uint8)
        return raw.view(dtype).view(shape)

    # -- whole cells, all layers ---------------------------------------------------------------

    def zero(self) -> None:
        for slab in self._slabs():
            slab.zero_()

    def zero_cells(self, stream: int, cells: IntArray) -> None:
        """Clear the rows of cells, as after a failed restore."""
        at = self._cells(cells)
        for slab in self.k.values():
            slab[stream, at] = 0
        for slab in self.v.values():
            if self.v_trans:
                slab[stream][:, at] = 0
            else:
                slab[stream, at] = 0

    def zero_where(self, stream: int, cells: Tensor) -> None:
        """Clear the rows of cells that a mask ``bool[n]`` of the first n selects."""
        n = len(cells)
        for slab in self.k.values():
            slab[stream, :n].masked_fill_(cells[:, None], 0)
        for slab in self.v.values():
            if self.v_trans:
                slab[stream, :, :n].masked_fill_(cells, 0)
            else:
                slab[stream, :n].masked_fill_(cells[:, None], 0)

    def copy_stream(self, src: int, dst: int) -> None:
        """Copy all rows of a stream over another."""
        for slab in self._slabs():
            slab[dst].copy_(slab[src])

    def move_cells(self, stream: int, src: Tensor, dst: Tensor) -> None:
        """Copy the rows of cells ``src`` to ``dst``, pairwise; no cell is in both."""
        for slab in self.k.values():
            slab[stream].index_copy_(0, dst, slab[stream].index_select(0, src))
        for slab in self.v.values():
            axis = 1 if self.v_trans else 0
            slab[stream].index_copy_(axis, dst, slab[stream].index_select(axis, src))

    def check_shift(self) -> None:
        """Raise CacheUsageError if the keys of some layer cannot be turned."""
        for key in self.shifts.values():
            key.check()

    def apply_shift(self, shift: Tensor) -> None:
        """Turn all keys by ``shift int32[n_stream, size]`` positions, those of empty and unmoved cells
        too."""
        self.check_shift()
        steps = shift.reshape(-1)
        for il, key in self.shifts.items():
            rows = self.k[il].flatten(0, 1)
            for at in range(0, len(rows), SHIFT_ROWS):
                turn_keys(key, rows[at : at + SHIFT_ROWS], steps[at : at + SHIFT_ROWS])


def turn_keys(key: KeyShift, rows: Tensor, shift: Tensor) -> None:
    """Turn the keys of ``rows`` in place, each by its ``shift``. Rounded types turn in float64: what counts
    is the one rounding at the end."""
    heads = decode(key.kind, rows).unflatten(-1, (key.n_head, key.head_size))
    if key.kind.name != "f32":
        heads = heads.to(torch.float64)
    if key.kind.is_quantized:
        heads = hadamard(turn(hadamard(heads, key.n_rot_k), shift, key.rope), key.n_rot_k)
    else:
        heads = turn(heads, shift, key.rope)
    rows.copy_(encode(key.kind, heads.flatten(1)))


def _bytes(rows: Tensor) -> bytes:
    return read_back(rows.contiguous().view(torch.uint8)).tobytes()


def owner_layer(spec: CacheSpec, il: int) -> LayerSpec:
    """The layer whose rows block ``il`` uses: its own, or the one it shares."""
    return spec.layers[spec.map_layer_ids[il]]
