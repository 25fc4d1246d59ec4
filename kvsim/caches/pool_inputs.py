"""What the graph of one ubatch gets to know about the pools of its sequences.

Which cells make a pool is in :mod:`kvsim.caches.pool_layout`, what the graph does with the inputs in
:mod:`kvsim.tensors.kpool`. Mirrors ``src/llama-memory-hybrid-idx.cpp: set_input_kpool``.
"""

from __future__ import annotations

import numpy as np

from kvsim.batch import Ubatch
from kvsim.caches.pool_layout import PoolLayout, SequencePools
from kvsim.memory import BoolArray, IntArray
from kvsim.tensors.kpool import PoolInputs


def pool_inputs(
    layout: PoolLayout,
    ubatch: Ubatch,
    cells: IntArray,
    new: BoolArray,
    n_new_padded: int,
    *,
    kv_size: int,
    n_stream: int,
    n_kv: int,
    gather: bool = False,
) -> PoolInputs:
    """Build the inputs of one ubatch, after it was placed and the layout refreshed.

    ``cells`` are the stream-local cells of its tokens; ``new`` and ``n_new_padded`` the layout's answers
    to which pools are pooled again; ``kv_size`` and ``n_stream`` those of the indexer's cache.
    """
    first = layout.of(ubatch.seq_ids[0][0])
    filler = first.stream * kv_size + _first_at(first, int(ubatch.pos0[0]))
    none = filler if gather else n_kv
    members = _members(layout, kv_size)
    pool_cells = np.full(layout.n_pool, filler, np.int32)
    pool_cells[: len(members)] = members[:, -1]
    pool_idxs = np.full((layout.n_pool, layout.size), none, np.int32)
    pool_idxs[: len(members)] = members if gather else _local_members(layout, ubatch, n_stream, none)
    scratch = _scratch_cells(members[:, -1], n_new_padded - int(new.sum()))
    tails = _tails(layout, ubatch, cells)
    offsets = [layout.of(ids[0]).stream * kv_size if gather else 0 for ids in ubatch.seq_ids]
    tail_idxs = np.where(tails >= 0, tails + np.array(offsets, np.int32)[:, None], none)
    return PoolInputs(
        pool_cells=pool_cells,
        pool_idxs=pool_idxs,
        pool_mask=_visible_pools(layout, ubatch, cells),
        tail_idxs=tail_idxs.astype(np.int32),
        tail_real=tails >= 0,
        new_pool_idxs=np.concatenate([members[new], np.repeat(scratch[:, None], layout.size, axis=1)]),
        new_pool_rep=np.concatenate([members[new, -1], scratch]),
        new_first=members[new, 0],
    )


def _local(seq: SequencePools, size: int) -> IntArray:
    """Stream-local cells ``int32[pool, size]`` of the pools of one sequence."""
    members: IntArray = seq.cells[seq.pools[:, None] + np.arange(size)].astype(np.int32)
    return members


def _members(layout: PoolLayout, kv_size: int) -> IntArray:
    """Global cells of all pools, ``int32[n_real, size]``."""
    parts = [seq.stream * kv_size + _local(seq, layout.size) for seq in layout.seqs.values()]
    return np.concatenate(parts).astype(np.int32)


def _local_members(layout: PoolLayout, ubatch: Ubatch, n_stream: int, none: int) -> IntArray:
    """Stream-local members; of sequences in streams that the ubatch has nothing of, none at all."""
    parts = []
    for s, seq in layout.seqs.items():
        members = _local(seq, layout.size)
        absent = n_stream > 1 and s not in ubatch.seq_id_unq
        parts.append(np.full_like(members, none) if absent else members)
    return np.concatenate(parts)


def _scratch_cells(reps: IntArray, n: int) -> IntArray:
    """The lowest ``n`` global cells that hold no pooled key; padding entries write theirs there, unread."""
    free = np.setdiff1d(np.arange(n + len(reps), dtype=np.int32), reps)
    return free[:n]


def _first_at(seq: SequencePools, pos: int) -> int:
    """The lowest cell at a position, -1 if there is none."""
    at = np.searchsorted(seq.pos, pos)
    return int(seq.cells[at]) if at < len(seq.pos) and seq.pos[at] == pos else -1


def _visible_pools(layout: PoolLayout, ubatch: Ubatch, cells: IntArray) -> BoolArray:
    mask = np.zeros((ubatch.n_tokens, layout.n_pool), np.bool_)
    first = layout.first_pool()
    for i, ids in enumerate(ubatch.seq_ids):
        seq, pos = layout.of(ids[0]), int(ubatch.pos0[i])
        if layout.by_order:
            n_visible = min(len(seq.pools), (seq.rank(pos, int(cells[i])) + 1) // layout.size)
        else:
            n_visible = int(np.searchsorted(seq.pos[seq.pools + layout.size - 1], pos, "right"))
        mask[i, first[ids[0]] : first[ids[0]] + n_visible] = True
    return mask


def _tails(layout: PoolLayout, ubatch: Ubatch, cells: IntArray) -> IntArray:
    """Stream-local tail cells ``int32[token, size-1]``, newest first, -1 where there is none."""
    tails = np.full((ubatch.n_tokens, layout.size - 1), -1, np.int32)
    for i, ids in enumerate(ubatch.seq_ids):
        seq, pos = layout.of(ids[0]), int(ubatch.pos0[i])
        if layout.by_order:
            rank = seq.rank(pos, int(cells[i]))
            tail = [int(seq.cells[rank - k]) for k in range((rank + 1) % layout.size)]
        else:
            tail = [_first_at(seq, pos - k) for k in range((pos - seq.pos_min + 1) % layout.size)]
        tails[i, : len(tail)] = tail
    return tails
