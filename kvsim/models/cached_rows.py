"""Writing a ubatch's keys and values into a cache, and attending to what the cache holds.

Source: ``src/llama-graph.cpp: build_attn``, ``src/llama-kv-cache.cpp: cpy_k, cpy_v, get_k, get_v``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.caches.attention_leaf import AttentionView
from kvsim.errors import CacheUsageError
from kvsim.memory import BoolArray, IntArray, SlotInfo
from kvsim.models.cache_spec import LayerSpec
from kvsim.tensors.attention import attention_weights, weighted_values
from kvsim.tensors.flash import as_operand, flash_attention
from kvsim.tensors.hadamard import hadamard
from kvsim.tensors.store import KVStore

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Read:
    """What the tokens ``rows`` of a ubatch attended to in block ``il``, in one stream of one cache.

    ``q [token, head, dim]`` and ``k [column, kv head, dim]`` as they met; ``mask`` is ``bool[token, column]``
    or ``bool[head, token, column]``. The first ``n_cells`` columns are cells, further ones the compressed
    rows of the cache ``compressed``.
    """

    il: int
    cache: str
    stream: int
    rows: slice
    q: Floats
    k: Floats
    mask: BoolArray
    scale: float
    softcap: float
    n_cells: int
    compressed: str | None = None

    def weights(self) -> Floats:
        """The softmax of the scores, ``[head, token, column]``."""
        return attention_weights(self.q, self.k, self.mask, scale=self.scale, softcap=self.softcap)


Watch = Callable[[Read], object]
"""Told every :class:`Read` of a network, before it is computed."""


def rows_of(view: AttentionView) -> KVStore:
    """The rows behind a view. Raises CacheUsageError if the cache keeps metadata only."""
    store: KVStore | None = view.cache.store
    if store is None:
        raise CacheUsageError("the cache has no rows to compute with: make it with LeafFactory(data=True)")
    return store


def parts_of(slot: SlotInfo) -> Iterator[tuple[int, IntArray, slice]]:
    """Stream, cells and token rows of each part of a ubatch: its tokens are grouped by stream."""
    start = 0
    for stream, cells in zip(slot.strm, slot.idxs, strict=True):
        yield stream, cells, slice(start, start + len(cells))
        start += len(cells)


def owner_of(view: AttentionView, il: int) -> LayerSpec:
    """The layer whose rows block ``il`` uses: its own, or the one it shares."""
    spec = view.cache.spec
    return spec.layers[spec.map_layer_ids[il]]


def store_rows(
    view: AttentionView,
    il: int,
    k: Floats,
    v: Floats | None = None,
    rotate: bool = True,
    slot: SlotInfo | None = None,
) -> None:
    """Store ``k`` and ``v [token, kv head, dim]``, spread by the cache's Hadamard rotations.

    Nothing is stored for a block that shares another one's rows, and no ``v`` in a cache of keys only.
    ``rotate`` False: the rows go in as they are (latent rows and index keys). ``slot`` replaces the
    view's, where a ubatch is written to other cells than it reads.
    """
    spec, store = view.cache.spec, rows_of(view)
    if owner_of(view, il).il != il:
        return
    k = hadamard(k, spec.n_rot_k) if spec.n_rot_k and rotate else k
    for stream, cells, rows in parts_of(slot or view.slot):
        store.encode_k(il, stream, cells, k[rows].reshape(len(cells), -1))
        if v is not None:
            spread = hadamard(v[rows], spec.n_rot_v) if spec.n_rot_v else v[rows]
            store.encode_v(il, stream, cells, spread.reshape(len(cells), -1))


def attend_rows(
    view: AttentionView,
    il: int,
    q: Floats,
    mask: BoolArray,
    *,
    scale: float,
    softcap: float = 0.0,
    flash_attn: bool = False,
    n_latent: int = 0,
    rotate: bool = True,
    watch: Watch | None = None,
) -> Floats:
    """What ``q [token, head, dim]`` attends to, ``[token, head, dim of v]``.

    ``mask`` is ``bool[token, n_kv]`` or ``bool[head, token, n_kv]`` over the cells of each token's stream.
    A cache of keys only gives the first ``n_latent`` values of a key for its value. ``rotate`` as for
    :func:`store_rows`.
    """
    spec, store, owner = view.cache.spec, rows_of(view), owner_of(view, il)
    q = hadamard(q, spec.n_rot_k) if spec.n_rot_k and rotate else q
    n_back = spec.n_rot_v if owner.v else 0
    seen = slice(0, view.n_kv)
    outs = []
    for stream, _, rows in parts_of(view.slot):
        k = store.decode_k(owner.il, stream, seen).reshape(view.n_kv, owner.n_head_kv, -1)
        if owner.v is None:
            v = k[..., :n_latent]
        else:
            v = store.decode_v(owner.il, stream, seen).reshape(view.n_kv, owner.n_head_kv, -1)
        seen_mask = mask[..., rows, :]
        if watch is not None:
            name = view.cache.name
            watch(Read(il, name, stream, rows, q[rows], k, seen_mask, scale, softcap, view.n_kv))
        outs.append(rounded_attention(owner, q[rows], k, v, seen_mask, scale, softcap, flash_attn))
    out = np.concatenate(outs)
    return hadamard(out, n_back) if n_back else out


def rounded_attention(
    layer: LayerSpec,
    q: Floats,
    k: Floats,
    v: Floats,
    mask: BoolArray,
    scale: float,
    softcap: float = 0.0,
    flash_attn: bool = False,
) -> Floats:
    """Attention with the roundings of llama.cpp's CPU backend for rows of the layer's types."""
    type_k = layer.k.name
    type_v = layer.v.name if layer.v else type_k
    if flash_attn:
        return flash_attention(q, k, v, mask, scale=scale, type_k=type_k, type_v=type_v, softcap=softcap)
    q, k, v = as_operand(q, type_k), k.astype(q.dtype), v.astype(q.dtype)
    weights = attention_weights(q, k, mask, scale=scale, softcap=softcap)
    return weighted_values(as_operand(weights, type_v), v)
