"""The pooled indexer of GLM5-Next and Qwen4-exp: P cells share one index key, and are chosen together.

Which cells make a pool is in :mod:`kvsim.caches.pool_layout`; here is what the graph does with pools. The
pooled key is stored in the row of the pool's last cell. A token sees the complete pools before it, and
the cells after the last of them, its *tail*, one by one::

    cells     0 1 2 3 | 4 5 6 7 | 8 9        P = 4
    token 9   pool 0, pool 1 if chosen, and its tail 9, 8
    token 6   pool 0 if chosen, and its tail 6, 5, 4

Cells are stream-local or global (``stream * kv_size + cell``).

Mirrors ``src/llama-memory-hybrid-idx.cpp: set_input_kpool`` and, in ``src/models/``, ``glm5-next.cpp`` and
``qwen4exp.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.batch import Ubatch
from kvsim.caches.pool_layout import PoolLayout, SequencePools
from kvsim.memory import BoolArray, IntArray
from kvsim.tensors.norm import rms_norm
from kvsim.tensors.rope import Rope, rope

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class PoolInputs:
    """What the graph of one ubatch gets. Members and tail cells that don't exist are *none*.

    ``pool_cells [pool]``, ``new_pool_idxs [new, size]``, ``new_pool_rep [new]`` are global cells;
    ``pool_idxs [pool, size]`` and ``tail_idxs [token, size-1]`` (newest first) are stream-local and
    *none* is ``n_kv`` if the selection becomes a mask; if it is gathered they are global and *none* is
    the first cell at the first token's position. ``pool_mask [token, pool]``: complete at the token.
    ``tail_real [token, size-1]``: tail cells that exist. ``new_first``: for each real new pool the global
    cell of its first member.
    """

    pool_cells: IntArray
    pool_idxs: IntArray
    pool_mask: BoolArray
    tail_idxs: IntArray
    tail_real: BoolArray
    new_pool_idxs: IntArray
    new_pool_rep: IntArray
    new_first: IntArray


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
    first = layout.seqs[ubatch.seq_ids[0][0]]
    filler = first.stream * kv_size + _first_at(first, int(ubatch.pos0[0]))
    none = filler if gather else n_kv
    members = _members(layout, kv_size)
    pool_cells = np.full(layout.n_pool, filler, np.int32)
    pool_cells[: len(members)] = members[:, -1]
    pool_idxs = np.full((layout.n_pool, layout.size), none, np.int32)
    pool_idxs[: len(members)] = members if gather else _local_members(layout, ubatch, n_stream, none)
    scratch = _scratch_cells(members[:, -1], n_new_padded - int(new.sum()))
    tails = _tails(layout, ubatch, cells)
    offsets = [layout.seqs[ids[0]].stream * kv_size if gather else 0 for ids in ubatch.seq_ids]
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
        seq, pos = layout.seqs[ids[0]], int(ubatch.pos0[i])
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
        seq, pos = layout.seqs[ids[0]], int(ubatch.pos0[i])
        if layout.by_order:
            rank = seq.rank(pos, int(cells[i]))
            tail = [int(seq.cells[rank - k]) for k in range((rank + 1) % layout.size)]
        else:
            tail = [_first_at(seq, pos - k) for k in range((pos - seq.pos_min + 1) % layout.size)]
        tails[i, : len(tail)] = tail
    return tails


# -- keys and selection ------------------------------------------------------------------------


def token_rows(*parts: Floats) -> Floats:
    """What a token writes: key, with GLM5-Next its gate, and an empty slot for a pooled key."""
    return np.concatenate([*parts, np.zeros_like(parts[0])], axis=-1)


def pool_gated(keys: Floats, gates: Floats, ape: Floats) -> Floats:
    """GLM5-Next: per channel, the members' keys weighted by the softmax of gate + ``ape[size, d]``.

    ``keys, gates [pool, size, d]``.
    """
    logits = gates + ape
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    pooled: Floats = (weights * keys).sum(axis=1) / weights.sum(axis=1)
    return pooled


def pool_mean(keys: Floats, norm: Floats, eps: float, pos: IntArray, rotation: Rope) -> Floats:
    """Qwen4-exp: the mean of the members' raw keys, normed, turned to the first member's position.

    ``keys [pool, size, d]``, ``pos int32[4, pool]``: t, y, x, t of the first member.
    """
    return rope(rms_norm(keys.mean(axis=1), norm, eps), pos, rotation)


def selection_mask(inputs: PoolInputs, top: IntArray, visible: BoolArray) -> BoolArray:
    """Final mask ``[token, cell]``: the members of chosen visible pools and the tail, if attention may look.

    ``top [token, k]`` are the chosen pools, fillers included, ``visible [token, n_kv]`` the ordinary mask.
    """
    n_tokens, n_kv = visible.shape
    shown = np.take_along_axis(inputs.pool_mask, top, axis=1)
    members = np.where(shown[..., None], inputs.pool_idxs[top], n_kv).reshape(n_tokens, -1)
    mask = np.zeros((n_tokens, n_kv + 1), np.bool_)  # the last column takes what doesn't exist
    np.put_along_axis(mask, members, True, axis=1)
    np.put_along_axis(mask, np.where(inputs.tail_real, inputs.tail_idxs, n_kv), True, axis=1)
    return mask[:, :n_kv] & visible


def gathered_selection(inputs: PoolInputs, top: IntArray) -> tuple[IntArray, BoolArray]:
    """Global cells ``[token, k*size + size-1]`` to gather, and which of them count.

    ``top [token, k]`` must be sorted by descending score, so that the visible pools come first.
    """
    n_tokens, k = top.shape
    n_visible = np.minimum(inputs.pool_mask.sum(axis=1), k)
    size = inputs.pool_idxs.shape[1]
    cells = np.concatenate([inputs.pool_idxs[top].reshape(n_tokens, -1), inputs.tail_idxs], axis=1)
    shown = np.repeat(np.arange(k) < n_visible[:, None], size, axis=1)
    return cells, np.concatenate([shown, inputs.tail_real], axis=1)
