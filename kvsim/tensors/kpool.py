"""The pooled indexer of GLM5-Next and Qwen4-exp: P cells share one index key, and are chosen together.

The cells of a sequence, sorted by position and then cell, are cut into pools of P. GLM5-Next cuts at
positions (P consecutive ones, counted from the sequence's first), Qwen4-exp after every P cells::

    positions 0 1 2 3 4 5 7 8 9 10 11      P = 4
    by position  [0 1 2 3]     [8 9 10 11]
    by order     [0 1 2 3] [4 5 7 8]       9 10 11 wait for a fourth

The pooled key is stored in the row of the pool's last cell and recomputed when a member is written or
an edit may have regrouped the sequence. A token sees the complete pools before it, and the cells after
the last of them, its *tail*, one by one. Cells are stream-local or global (``stream * kv_size + cell``).

Mirrors ``src/llama-memory-hybrid-idx.cpp`` and ``src/models/glm5-next.cpp, qwen4exp.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.batch import Ubatch
from kvsim.memory import BoolArray, IntArray
from kvsim.tensors.norm import rms_norm
from kvsim.tensors.rope import Rope, rope

Floats = NDArray[np.floating[Any]]

CLEAN = 2**31 - 1
"""Staleness of a sequence that no edit has touched: every pooled key stored for it is good."""

POOL_STEP = 64
"""The graph's pool lists are padded to a multiple of this, and the last entry is never a real pool."""


@dataclass(frozen=True)
class PoolShape:
    """``size`` cells per pool, how they are grouped, and the cache they lie in."""

    size: int
    by_order: bool
    kv_size: int
    n_stream: int
    n_seq_max: int


@dataclass(frozen=True)
class SeqPools:
    """The cells of one sequence: ``pos`` and stream-local ``cells``, sorted by (pos, cell), and ``starts``,
    the index of each pool's first cell among them."""

    stream: int
    pos: IntArray
    cells: IntArray
    starts: IntArray

    def members(self, size: int) -> IntArray:
        """Cells ``int32[pool, size]`` of each pool."""
        members: IntArray = self.cells[self.starts[:, None] + np.arange(size)]
        return members

    def ends(self, size: int) -> IntArray:
        """Position of the last member of each pool, ascending."""
        return self.pos[self.starts + size - 1]

    def rank(self, pos: int, cell: int) -> int:
        """Index of a cell of the sequence among its cells."""
        lo, hi = np.searchsorted(self.pos, pos, "left"), np.searchsorted(self.pos, pos, "right")
        return int(lo + np.searchsorted(self.cells[lo:hi], cell))

    def first_at(self, pos: int) -> int:
        """The lowest cell at a position, -1 if there is none."""
        at = np.searchsorted(self.pos, pos)
        return int(self.cells[at]) if at < len(self.pos) and self.pos[at] == pos else -1


Layout = Mapping[int, SeqPools]
"""Pools by sequence id, ascending; pools are numbered in this order."""


def pool_starts(pos: IntArray, size: int, by_order: bool) -> IntArray:
    """Where pools start among sorted positions ``int32[n]`` of a sequence."""
    n_starts = max(0, len(pos) - size + 1)
    at = np.arange(n_starts, dtype=np.int32)
    if by_order:
        return at[::size].copy()
    if not n_starts:
        return at
    aligned = (pos[:n_starts] - pos[0]) % size == 0
    # an aligned run of consecutive positions cannot overlap the next one
    windows = np.lib.stride_tricks.sliding_window_view(pos, size)
    consecutive = (windows - windows[:, :1] == np.arange(size)).all(axis=1)
    starts: IntArray = at[aligned & consecutive]
    return starts


def n_padded_pools(n_pools: int) -> int:
    return max(POOL_STEP, -(-(n_pools + 1) // POOL_STEP) * POOL_STEP)


# -- what to recompute -------------------------------------------------------------------------


def new_pools(
    layout: Layout, ubatch: Ubatch, cells: IntArray, shape: PoolShape, stale: Mapping[int, int], safe: bool
) -> BoolArray:
    """Which pools to recompute, ``bool[n_pools]`` in layout order.

    Those with a token of the ubatch (``cells``: the stream-local cell of each token, after placing), those
    that end at or after the position from which their sequence is ``stale`` (give none after the first
    ubatch of a batch), or all if the layout is not ``safe``: a shared cell has one slot for its pooled
    key, but may be the last of a different pool in each of its sequences.
    """
    n_pools = sum(len(seq.starts) for seq in layout.values())
    if not safe:
        return np.ones(n_pools, np.bool_)
    touched = []
    for s, seq in layout.items():
        of_seq = seq.ends(shape.size) >= stale.get(s, CLEAN)
        for i in (i for i, ids in enumerate(ubatch.seq_ids) if s in ids):
            at = _pool_of_token(seq, int(ubatch.pos0[i]), int(cells[i]), shape)
            if at >= 0:
                of_seq[at] = True
        touched.append(of_seq)
    return np.concatenate(touched) if touched else np.ones(0, np.bool_)


def _pool_of_token(seq: SeqPools, pos: int, cell: int, shape: PoolShape) -> int:
    if shape.by_order:
        at = seq.rank(pos, cell) // shape.size
        return at if at < len(seq.starts) else -1
    at = int(np.searchsorted(seq.pos[seq.starts], pos, "right")) - 1
    return at if at >= 0 and pos <= seq.pos[seq.starts[at] + shape.size - 1] else -1


def n_padded_new(n_new: int, n_pools: int, ubatch: Ubatch, shape: PoolShape, safe: bool) -> int:
    """Entries of the list of new pools: a bound on what a ubatch of this size touches, at least 1."""
    if not safe:
        return max(n_pools, 1)
    touched = ubatch.n_tokens // shape.size + ubatch.n_seqs_unq
    most = shape.kv_size // shape.size * shape.n_seq_max
    return max(n_new, 1, min(touched, n_padded_pools(n_pools) - 1, most))


# -- graph inputs ------------------------------------------------------------------------------


@dataclass(frozen=True)
class PoolInputs:
    """What the graph of one ubatch gets. ``none`` marks members and tail cells that don't exist.

    ``pool_cells [pool]``, ``new_pool_idxs [new, size]``, ``new_pool_rep [new]`` are global cells;
    ``pool_idxs [pool, size]`` and ``tail_idxs [token, size-1]`` (newest first) are stream-local and
    ``none`` is ``n_kv`` if the selection becomes a mask; if it is gathered they are global and ``none`` is
    the first cell at the first token's position. ``pool_mask [token, pool]``: complete at the token.
    ``tail_real [token, size-1]``: tail cells that exist. ``new_first``: for each real new pool the global
    cell of its first member.
    """

    n_pools: int
    pool_cells: IntArray
    pool_idxs: IntArray
    pool_mask: BoolArray
    tail_idxs: IntArray
    tail_real: BoolArray
    new_pool_idxs: IntArray
    new_pool_rep: IntArray
    new_first: IntArray
    none: int


def pool_inputs(
    layout: Layout,
    ubatch: Ubatch,
    cells: IntArray,
    shape: PoolShape,
    new: BoolArray,
    safe: bool,
    n_kv: int,
    gather: bool = False,
) -> PoolInputs:
    """Build the inputs; ``new`` is :func:`new_pools`'s answer, the other arguments as there."""
    first = layout[ubatch.seq_ids[0][0]]
    filler = first.stream * shape.kv_size + first.first_at(int(ubatch.pos0[0]))
    none = filler if gather else n_kv
    members = _members(layout, shape)
    n_pools = len(members)
    n_padded = n_padded_pools(n_pools)
    pool_cells = np.full(n_padded, filler, np.int32)
    pool_cells[:n_pools] = members[:, -1]
    pool_idxs = np.full((n_padded, shape.size), none, np.int32)
    pool_idxs[:n_pools] = members if gather else _local_members(layout, ubatch, shape, none)
    n_new = int(new.sum())
    padding = n_padded_new(n_new, n_pools, ubatch, shape, safe) - n_new
    scratch = _scratch_cells(members[:, -1], padding)
    tail_idxs, tail_real = _tails(layout, ubatch, cells, shape, none, gather)
    return PoolInputs(
        n_pools=n_pools,
        pool_cells=pool_cells,
        pool_idxs=pool_idxs,
        pool_mask=_visible_pools(layout, ubatch, cells, shape, n_padded),
        tail_idxs=tail_idxs,
        tail_real=tail_real,
        new_pool_idxs=np.concatenate([members[new], np.repeat(scratch[:, None], shape.size, axis=1)]),
        new_pool_rep=np.concatenate([members[new, -1], scratch]),
        new_first=members[new, 0],
        none=none,
    )


def _members(layout: Layout, shape: PoolShape) -> IntArray:
    """Global cells ``int32[n_pools, size]`` of all pools."""
    parts = [seq.stream * shape.kv_size + seq.members(shape.size) for seq in layout.values()]
    return np.concatenate([np.empty((0, shape.size), np.int32), *parts]).astype(np.int32)


def _local_members(layout: Layout, ubatch: Ubatch, shape: PoolShape, none: int) -> IntArray:
    """Stream-local members; of sequences in streams that the ubatch has nothing of, none at all."""
    parts = [np.empty((0, shape.size), np.int32)]
    for s, seq in layout.items():
        members = seq.members(shape.size)
        absent = shape.n_stream > 1 and s not in ubatch.seq_id_unq
        parts.append(np.full_like(members, none) if absent else members)
    return np.concatenate(parts)


def _scratch_cells(reps: IntArray, n: int) -> IntArray:
    """The lowest ``n`` global cells that hold no pooled key; padding entries write theirs there, unread."""
    free = np.setdiff1d(np.arange(n + len(reps), dtype=np.int32), reps)
    return free[:n]


def _visible_pools(
    layout: Layout, ubatch: Ubatch, cells: IntArray, shape: PoolShape, n_padded: int
) -> BoolArray:
    mask = np.zeros((ubatch.n_tokens, n_padded), np.bool_)
    start = 0
    for s, seq in layout.items():
        ends = seq.ends(shape.size)
        for i in (i for i, ids in enumerate(ubatch.seq_ids) if ids[0] == s):
            pos = int(ubatch.pos0[i])
            if shape.by_order:
                n_visible = min(len(ends), (seq.rank(pos, int(cells[i])) + 1) // shape.size)
            else:
                n_visible = int(np.searchsorted(ends, pos, "right"))
            mask[i, start : start + n_visible] = True
        start += len(ends)
    return mask


def _tails(
    layout: Layout, ubatch: Ubatch, cells: IntArray, shape: PoolShape, none: int, gather: bool
) -> tuple[IntArray, BoolArray]:
    tails = np.full((ubatch.n_tokens, shape.size - 1), -1, np.int32)
    offsets = np.zeros((ubatch.n_tokens, 1), np.int32)
    for i, ids in enumerate(ubatch.seq_ids):
        seq, pos = layout[ids[0]], int(ubatch.pos0[i])
        offsets[i] = seq.stream * shape.kv_size if gather else 0
        if shape.by_order:
            rank = seq.rank(pos, int(cells[i]))
            tail = [int(seq.cells[rank - k]) for k in range((rank + 1) % shape.size)]
        else:
            tail = [seq.first_at(pos - k) for k in range((pos - int(seq.pos[0]) + 1) % shape.size)]
        tails[i, : len(tail)] = tail
    real = tails >= 0
    return np.where(real, tails + offsets, none).astype(np.int32), real


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
