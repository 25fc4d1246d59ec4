"""The probe's indexers: which cells a token may attend to, of those it may see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.batch import Ubatch
from kvsim.caches.hybrid_idx import IdxView
from kvsim.caches.kv_view import KVView
from kvsim.caches.pool_inputs import pool_inputs
from kvsim.errors import CacheUsageError
from kvsim.memory import BoolArray, View
from kvsim.models.cached_rows import Floats, parts_of, rows_of, store_rows
from kvsim.tensors import kpool
from kvsim.tensors import msa_select as msa
from kvsim.tensors.indexer import VARIANTS, head_weights, index_scores, index_vectors, select
from kvsim.tensors.rope import Rope, rope
from kvsim.tensors.topk import top_k

if TYPE_CHECKING:
    from kvsim.models.probe import ProbeNetwork

NORM_EPS = 1e-5


def index_weights(probe: ProbeNetwork, il: int, ubatch: Ubatch, size: int) -> Floats:
    """Weights of the index heads ``[token, head]``. All positive: then scores tie only at 0, where no
    head fires."""
    raw = np.abs(probe.vectors(f"index w {il}", ubatch, probe.model.indexer_n_head))
    return head_weights(raw, size)


def lightning(probe: ProbeNetwork, il: int, ubatch: Ubatch, view: View, mask: BoolArray) -> BoolArray:
    """The lightning indexer: the best ``indexer_top_k`` cells by keys of the cache ``lid``.

    A block without an indexer uses the selection of the nearest one before it.
    """
    assert isinstance(view, KVView)
    spec, size = view.cache.spec, probe.model.indexer_head_size
    deciding = max((owned for owned in spec.map_layer_ids if owned <= il), default=-1)
    if deciding < 0:
        raise CacheUsageError(f"block {il} shares a selection, but no block before it has an indexer")
    variant = VARIANTS[probe.model.arch]
    turn = probe.rotation(spec.layers[spec.map_layer_ids[deciding]], spec)
    assert turn is not None
    q = probe.vectors(f"index q {deciding}", ubatch, probe.model.indexer_n_head, size)
    k = probe.vectors(f"index k {deciding}", ubatch, size)
    q, k = (index_vectors(x, ubatch.pos0, turn, variant) for x in (q, k))
    if deciding == il:
        store_rows(view, il, k[:, None], rotate=False)
    weights = index_weights(probe, deciding, ubatch, size)
    chosen = np.zeros_like(mask)
    for stream, _, rows in parts_of(view.slot):
        keys = rows_of(view).decode_k(deciding, stream, slice(0, view.n_kv)).astype(q.dtype)
        visible = mask[rows]
        scores = index_scores(q[rows], keys, weights[rows], visible)
        chosen[rows] = select(scores, probe.model.indexer_top_k, visible)
        if probe.watch_scores is not None and deciding == il:
            probe.watch_scores(il, stream, rows, scores, chosen[rows])
    return chosen


def blocks(
    probe: ProbeNetwork, il: int, ubatch: Ubatch, view: KVView, index: KVView, mask: BoolArray
) -> BoolArray | None:
    """Block-sparse attention: ``bool[head, token, n_kv]``, cells of the best blocks of positions.

    Only with flash attention and one sequence per stream (MSA); else attention is dense, and index keys
    are not stored.
    """
    model, context = probe.model, probe.context
    if not context.flash_attn or (context.kv_unified and context.n_seq_max > 1):
        return None
    spec, size, n_group = index.cache.spec, model.indexer_head_size, model.indexer_n_head
    turn = probe.rotation(spec.layers[spec.map_layer_ids[il]], spec)
    q = probe.vectors(f"index q {il}", ubatch, n_group, size)
    k = probe.vectors(f"index k {il}", ubatch, 1, size)
    if turn is not None:
        q, k = rope(q, ubatch.pos0, turn), rope(k, ubatch.pos0, turn)
    store_rows(index, il, k, rotate=False)
    block = model.indexer_block_size
    pos_max = max(int(table.pos.max()) for table in view.cache.cells)
    n_pos = msa.padded_positions(pos_max, spec.n_pad, block)
    chosen = np.zeros((n_group, *mask.shape), np.bool_)
    for stream, _, rows in parts_of(index.slot):
        table = view.cache.cells[stream]
        pos = table.pos[: view.n_kv]
        mine = table.has(ubatch.seq_ids[rows.start][0], view.n_kv)
        keys = rows_of(index).decode_k(il, stream, slice(0, view.n_kv)).astype(q.dtype)
        slots = msa.slots_of_positions(pos, mine, n_pos)
        seen = msa.visible_positions(ubatch.pos0[rows], pos, mine, n_pos)
        bias = msa.local_bias(ubatch.pos0[rows], block, model.indexer_local_blocks, n_pos // block)
        best = msa.choose_blocks(
            msa.block_scores(q[rows], keys, slots, seen, block), bias, model.indexer_top_k
        )
        if len(best) == 1:  # decode regime: cells are gathered, not masked
            gathered, count = (part[0] for part in msa.gathered_cells(best, slots, seen, block))
            for group in range(n_group):
                chosen[group, rows.start, gathered[group][count[group]]] = True
        else:
            cells = msa.visible_cells(best, msa.blocks_of_cells(pos, mine, block), mask[rows])
            chosen[:, rows] = cells.swapaxes(0, 1)
    heads = probe.model.layers[il].n_head_kv * 2 // n_group
    return np.repeat(chosen, heads, axis=0)


def pooled(probe: ProbeNetwork, il: int, ubatch: Ubatch, view: IdxView, mask: BoolArray) -> BoolArray:
    """The pooled indexer: the cells of the best pools, and each token's tail."""
    model, size = probe.model, probe.model.indexer_head_size
    key = probe.vectors(f"index k {il}", ubatch, size)
    gate = probe.vectors(f"index gate {il}", ubatch, size)
    if view.layout is None:
        raise CacheUsageError("the probe has no indexer whose keys are not pooled")
    parts = (key,) if model.indexer_kpool_row == 2 else (key, gate)
    store_rows(view, il, kpool.token_rows(*parts)[:, None], rotate=False)
    inputs = pool_inputs(
        view.layout,
        ubatch,
        np.concatenate(view.slot.idxs),
        view.new,
        view.n_new_padded,
        kv_size=view.cache.size,
        n_stream=view.cache.n_stream,
        n_kv=view.n_kv,
    )
    _pool_again(probe, il, view, inputs)
    keys = _rows(view, il, inputs.pool_cells)[:, -size:]
    q = probe.vectors(f"index q {il}", ubatch, model.indexer_n_head, size)
    scores = index_scores(q, keys, index_weights(probe, il, ubatch, size), inputs.pool_mask)
    best = top_k(scores, min(len(inputs.pool_cells), model.indexer_top_k // model.indexer_kpool))
    return kpool.selection_mask(inputs, best, mask)


def _pool_again(probe: ProbeNetwork, il: int, view: IdxView, inputs: kpool.PoolInputs) -> None:
    """Compute the keys of the pools that the ubatch touched, and keep each in the row of its last member."""
    n_new, size = len(inputs.new_first), probe.model.indexer_head_size
    if not n_new:
        return
    members = _rows(view, il, inputs.new_pool_idxs[:n_new].ravel()).reshape(
        n_new, -1, view.cache.spec.layers[0].n_embd_k
    )
    if probe.model.indexer_kpool_by_order:
        turn = Rope(size, sections=probe.model.rope_sections, interleaved=True)  # type: ignore[arg-type]
        where = _places(view, inputs.new_first)
        new = kpool.pool_mean(members[..., :size], np.ones(size), NORM_EPS, where, turn)
    else:
        bias = probe.table(f"index ape {il}", probe.model.indexer_kpool, size)
        new = kpool.pool_gated(members[..., :size], members[..., size : 2 * size], bias)
    reps = inputs.new_pool_rep[:n_new]
    rows = _rows(view, il, reps)
    rows[:, -size:] = new
    for stream, cell, row in zip(*np.divmod(reps, view.cache.size), rows, strict=True):
        rows_of(view).encode_k(il, int(stream), np.array([cell]), row[None])


def _rows(view: KVView, il: int, cells: np.ndarray) -> Floats:
    """Decoded rows of global cells."""
    streams, local = np.divmod(cells, view.cache.size)
    rows = np.empty((len(cells), view.cache.spec.layers[0].n_embd_k))
    for stream in np.unique(streams):
        at = streams == stream
        rows[at] = rows_of(view).decode_k(il, int(stream), local[at])
    return rows


def _places(view: KVView, cells: np.ndarray) -> np.ndarray:
    """Positions t, y, x, t of global cells, ``int32[4, n]``."""
    found = []
    for stream, cell in zip(*np.divmod(cells, view.cache.size), strict=True):
        table = view.cache.cells[int(stream)]
        t, y, x = table.pos[cell], table.y[cell], table.x[cell]
        found.append((t, y, x, t))
    return np.array(found, np.int32).reshape(-1, 4).T
