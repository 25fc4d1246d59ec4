"""What a layer of a model needs of the memory, and how the caches give it.

A model computes a ubatch layer by layer and knows nothing of cells: an attention layer hands over the
queries, keys and values of the ubatch's tokens and gets back what they attend to; a recurrent layer asks
for the states of its sequences and hands over the new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim.batch import Ubatch
from kvsim.caches.kv_view import KVView
from kvsim.caches.recurrent import RecurrentView
from kvsim.errors import CacheUsageError
from kvsim.memory import BoolArray, View
from kvsim.models.cache_spec import LayerSpec
from kvsim.tensors.attention import attention_weights, weighted_values
from kvsim.tensors.flash import as_operand, flash_attention
from kvsim.tensors.hadamard import hadamard
from kvsim.tensors.recurrent_store import RecurrentStore
from kvsim.tensors.store import KVStore

Floats = NDArray[np.floating[Any]]


class LayerMemory(Protocol):
    """The memory as a layer sees it, for one ubatch of ``n_seqs`` sets of ``n_seq_tokens`` tokens.

    ``n_planes`` is how many states of each sequence to hand over: the newest, and those some tokens
    before it that a rollback may ask for.
    """

    n_seqs: int
    n_seq_tokens: int
    n_planes: int

    def attend(self, il: int, q: Floats, k: Floats, v: Floats, scale: float, softcap: float = 0.0) -> Floats:
        """Store ``k`` and ``v [token, kv head, dim]``, and give what ``q [token, head, dim]`` attends to."""
        ...

    def states(self, il: int, part: str) -> Floats:
        """The states ``[n_seqs, width]`` the sequences start from; ``part`` is "r" or "s"."""
        ...

    def write_states(self, il: int, part: str, snapshots: Sequence[Floats]) -> None:
        """Store the newest states ``[n_seqs, ...]`` and, after it, older ones."""
        ...


class CachedLayers:
    """The caches of a memory, as the views of one ubatch show them. Their leaves must hold rows.

    Source: ``src/llama-graph.cpp: build_attn, build_rs``.
    """

    def __init__(
        self, ubatch: Ubatch, views: Mapping[str, View], flash_attn: bool, causal: bool = True
    ) -> None:
        self.n_seqs = ubatch.n_seqs
        self.n_seq_tokens = ubatch.n_seq_tokens
        self.flash_attn = flash_attn
        self.causal = causal
        self._kv = [view for view in views.values() if isinstance(view, KVView)]
        self._recurrent = next((view for view in views.values() if isinstance(view, RecurrentView)), None)
        self.n_planes = 1 + (self._recurrent.memory.n_rs_seq if self._recurrent else 0)

    # -- attention -----------------------------------------------------------------------------

    def attend(self, il: int, q: Floats, k: Floats, v: Floats, scale: float, softcap: float = 0.0) -> Floats:
        view = self._view_of(il)
        spec = view.cache.spec
        owner = spec.layers[spec.map_layer_ids[il]]
        store = _rows_of(view)
        if spec.n_rot_k:
            q, k = hadamard(q, spec.n_rot_k), hadamard(k, spec.n_rot_k)
        if spec.n_rot_v:
            v = hadamard(v, spec.n_rot_v)
        mask = view.mask(self.causal)
        out = np.empty((*q.shape[:2], v.shape[-1]), q.dtype)
        for stream, cells, rows in _by_stream(view):
            if owner.il == il:
                store.encode_k(il, stream, cells, k[rows].reshape(len(cells), -1))
                store.encode_v(il, stream, cells, v[rows].reshape(len(cells), -1))
            seen = slice(0, view.n_kv)
            keys = store.decode_k(owner.il, stream, seen).reshape(view.n_kv, *k.shape[1:])
            values = store.decode_v(owner.il, stream, seen).reshape(view.n_kv, *v.shape[1:])
            out[rows] = self._attention(owner, q[rows], keys, values, mask[rows], scale, softcap)
        return hadamard(out, spec.n_rot_v) if spec.n_rot_v else out

    def _attention(
        self, layer: LayerSpec, q: Floats, k: Floats, v: Floats, mask: BoolArray, scale: float, softcap: float
    ) -> Floats:
        """Attention with the roundings of the CPU backend."""
        assert layer.v is not None
        type_k, type_v = layer.k.name, layer.v.name
        if self.flash_attn:
            return flash_attention(q, k, v, mask, scale=scale, type_k=type_k, type_v=type_v, softcap=softcap)
        q, k, v = as_operand(q, type_k), k.astype(q.dtype), v.astype(q.dtype)
        weights = attention_weights(q, k, mask, scale=scale, softcap=softcap)
        return weighted_values(as_operand(weights, type_v), v)

    def _view_of(self, il: int) -> KVView:
        for view in self._kv:
            if il in view.cache.spec.map_layer_ids:
                return view
        raise CacheUsageError(f"no cache holds block {il}: the model and its memory do not fit together")

    # -- recurrent states ----------------------------------------------------------------------

    def states(self, il: int, part: str) -> Floats:
        view, store = self._states()
        return store.initial_states(part, il, view.head, view.rs_z, view.s_copy, view.n_seqs)

    def write_states(self, il: int, part: str, snapshots: Sequence[Floats]) -> None:
        view, store = self._states()
        planes = np.stack([snapshot.reshape(view.n_seqs, -1) for snapshot in snapshots])
        store.write_states(part, il, view.head, planes.astype(np.float32))

    def _states(self) -> tuple[RecurrentView, RecurrentStore]:
        if self._recurrent is None or self._recurrent.memory.store is None:
            raise CacheUsageError("the memory keeps no recurrent states: make it with LeafFactory(data=True)")
        return self._recurrent, self._recurrent.memory.store


def _rows_of(view: KVView) -> KVStore:
    if view.cache.store is None:
        raise CacheUsageError("the cache has no rows to compute with: make it with LeafFactory(data=True)")
    return view.cache.store


def _by_stream(view: KVView) -> Iterator[tuple[int, NDArray[np.int32], slice]]:
    """Stream, cells and token rows of each part of a ubatch: its tokens are grouped by stream."""
    start = 0
    for stream, cells in zip(view.slot.strm, view.slot.idxs, strict=True):
        yield stream, cells, slice(start, start + len(cells))
        start += len(cells)
