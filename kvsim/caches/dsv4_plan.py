"""The compressor plan of DeepSeek-V4: which rows one ubatch reads, writes and keeps.

A compressor turns every ``ratio`` tokens of a sequence into one row. A block rarely begins and ends
in the same ubatch, so each stream keeps its newest tokens in a ring of ``state_size`` rows (token at
position p in row ``p % state_size``), with ``n_rs_seq`` further planes that hold the ring as it was
1, 2, ... tokens earlier. A plan lists indices only; :mod:`kvsim.tensors.compressor` moves the rows.

Index spaces (S = state_size, N = n_stream, T = tokens of the ubatch)::

    read      [ plane 0: N*S rows | T tokens | 1 row "nothing" (overlap only) ]
    snapshot  [ all planes: (1+n_rs_seq)*N*S rows | T tokens ]
    persist   [ T tokens ]  ->  plane 0
    restore   all planes    ->  plane 0

Mirrors ``src/llama-kv-cache-dsv4.cpp: dsv4_build_comp_plan``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.batch import Ubatch
from kvsim.errors import CacheUsageError
from kvsim.memory import IntArray
from kvsim.tensors.compressor import CompressorShape, Plan

MIN_ROWS = 256
"""Compressed rows are read in multiples of this, and never fewer."""


def build_plans(ubatches: Sequence[Ubatch], shape: CompressorShape, rs_idx: Sequence[int]) -> list[Plan]:
    """Plans of the ubatches of one batch, in order.

    ``rs_idx[s]`` is the pending rollback of sequence s. Only the first ubatch that holds s restores
    it; the caller resets the memory's own ``rs_idx`` (spec dsv4.md, B4). Raises as :func:`build_plan`.
    """
    pending = list(rs_idx)
    plans = []
    for ubatch in ubatches:
        plans.append(build_plan(ubatch, shape, pending))
        for seq in ubatch.seq_id_unq:
            pending[seq] = 0
    return plans


def build_plan(ubatch: Ubatch, shape: CompressorShape, rs_idx: Sequence[int]) -> Plan:
    """Plan of one ubatch. Pure: reads nothing but its arguments.

    Raises CacheUsageError where llama.cpp throws: several sequences on one stream, or a sequence
    whose positions skip so far that more than one block of its share is missing.
    """
    if shape.n_stream == 1 and ubatch.n_seqs_unq > 1:
        raise CacheUsageError(
            f"a compressor with one stream got a ubatch of {ubatch.n_seqs_unq} sequences; llama.cpp "
            "throws here. Make the context with n_seq_max of at least the number of sequences"
        )
    pos = ubatch.pos0
    stored = pos >= 0
    n_visible = np.where(stored, (pos + 1) // shape.ratio, 0).astype(np.int32)
    most = int(n_visible.max(initial=0))
    source = _Sources(ubatch, shape)
    blocks = _complete_blocks(ubatch, shape)
    if stored.any():
        blocks += _dummy_blocks(ubatch, shape, [b.seq for b in blocks])
    persist_src, persist_dst = _persist(ubatch, shape)
    restore_src, restore_dst = _restore(ubatch, shape, rs_idx)
    snapshot_src, snapshot_dst = _snapshot(ubatch, shape)
    return Plan(
        n_stream=_graph_streams(ubatch, shape),
        n_kv=max(MIN_ROWS, -(-most // MIN_ROWS) * MIN_ROWS),
        state_pos=pos[stored] % shape.ratio,
        state_persist_src_idxs=persist_src,
        state_persist_dst_idxs=persist_dst,
        state_restore_src_idxs=restore_src,
        state_restore_dst_idxs=restore_dst,
        state_snapshot_src_idxs=snapshot_src,
        state_snapshot_dst_idxs=snapshot_dst,
        state_read_idxs=_reads(blocks, source, shape),
        state_write_idxs=np.array([b.row for b in blocks], np.int32),
        state_write_pos=np.array([max(b.start, 0) for b in blocks], np.int32),
        n_visible=n_visible,
    )


@dataclass(frozen=True)
class _Block:
    """One row to write. A dummy keeps the graph's shape: it reads the token at ``pos`` only."""

    seq: int
    row: int
    start: int
    dummy_pos: int = -1


class _Sources:
    """Where the graph finds the token of a sequence at a position: in the ubatch, or in its ring."""

    def __init__(self, ubatch: Ubatch, shape: CompressorShape) -> None:
        self.shape = shape
        self.nothing = shape.ring_rows + ubatch.n_tokens
        self.tokens = {}
        for seq in ubatch.seq_id_unq:
            rows = _rows_of(ubatch, seq)
            order = np.argsort(ubatch.pos0[rows], kind="stable")
            self.tokens[seq] = rows[order], ubatch.pos0[rows][order]

    def __call__(self, seq: int, pos: IntArray) -> IntArray:
        """Read indices of the positions. Of a repeated position the last token counts."""
        ring = self.shape.stream(seq) * self.shape.state_size + pos % self.shape.state_size
        rows, have = self.tokens[seq]
        at = np.searchsorted(have, pos, side="right") - 1
        fresh = (at >= 0) & (have[at] == pos)
        found = np.where(fresh, self.shape.ring_rows + rows[at], ring)
        return np.where(pos < 0, self.nothing, found).astype(np.int32)


def _rows_of(ubatch: Ubatch, seq: int) -> IntArray:
    return np.array([i for i, ids in enumerate(ubatch.seq_ids) if seq in ids], np.int32)


def _coupled(ubatch: Ubatch) -> bool:
    return any(len(ids) > 1 for ids in ubatch.seq_ids)


def _graph_streams(ubatch: Ubatch, shape: CompressorShape) -> int:
    if shape.n_stream == 1 or _coupled(ubatch):
        return 1
    return max(1, ubatch.n_seqs_unq)


def _complete_blocks(ubatch: Ubatch, shape: CompressorShape) -> list[_Block]:
    """A block for every token that ends one, in token order, then in the order of its sequences."""
    blocks = []
    for i in np.flatnonzero((ubatch.pos0 >= 0) & ((ubatch.pos0 + 1) % shape.ratio == 0)):
        pos = int(ubatch.pos0[i])
        for seq in ubatch.seq_ids[i]:
            row = shape.stream(seq) * shape.kv_size + pos // shape.ratio
            blocks.append(_Block(seq, row, pos + 1 - shape.ratio))
    return blocks


def _dummy_blocks(ubatch: Ubatch, shape: CompressorShape, done: list[int]) -> list[_Block]:
    """Blocks that only keep the graph's shape, written to the last row of a stream.

    ``done`` holds the sequence of every complete block. With overlap and no shared tokens every
    sequence must come to the same number of blocks; otherwise one block in all is enough.
    """
    pos = ubatch.pos0
    if not shape.overlap or _coupled(ubatch):
        first = int(np.flatnonzero(pos >= 0)[0])
        return [] if done else [_dummy(ubatch.seq_ids[first][0], int(pos[first]), shape)]
    share = -(-max(1, ubatch.n_seq_tokens) // shape.ratio)
    dummies = []
    for seq in ubatch.seq_id_unq:
        missing = share - done.count(seq)
        if missing <= 0:
            continue
        rows = _rows_of(ubatch, seq)
        rows = rows[pos[rows] >= 0]
        if missing > 1 or not len(rows):
            raise CacheUsageError(
                f"sequence {seq} completes {done.count(seq)} blocks of {shape.ratio} tokens in this "
                f"ubatch where {share} are due: its positions are not contiguous, and llama.cpp throws. "
                "Decode positions without gaps, starting at 0"
            )
        dummies.append(_dummy(seq, int(pos[rows[0]]), shape))
    return dummies


def _dummy(seq: int, pos: int, shape: CompressorShape) -> _Block:
    return _Block(seq, (shape.stream(seq) + 1) * shape.kv_size - 1, 0, dummy_pos=pos)


def _reads(blocks: list[_Block], source: _Sources, shape: CompressorShape) -> IntArray:
    """Read indices: with overlap the previous windows of all blocks, then all blocks themselves."""

    def windows(back: int) -> list[IntArray]:
        steps = np.arange(shape.ratio, dtype=np.int32)
        return [
            source(b.seq, b.start - back + steps if b.dummy_pos < 0 else np.full_like(steps, b.dummy_pos))
            for b in blocks
        ]

    parts = (windows(shape.ratio) if shape.overlap else []) + windows(0)
    return np.concatenate(parts) if parts else np.empty(0, np.int32)


def _persist(ubatch: Ubatch, shape: CompressorShape) -> tuple[IntArray, IntArray]:
    """Ring rows that get a token: of those that fall on a row the one at the largest position.

    Of a repeated largest position the first token counts (unlike the reads, where the last does).
    """
    best: dict[int, int] = {}
    for i, ids in enumerate(ubatch.seq_ids):
        pos = int(ubatch.pos0[i])
        if pos < 0:
            continue
        for seq in ids:
            row = shape.stream(seq) * shape.state_size + pos % shape.state_size
            if row not in best or pos > ubatch.pos0[best[row]]:
                best[row] = i
    rows = sorted(best)
    return np.array([best[r] for r in rows], np.int32), np.array(rows, np.int32)


def _stream_seqs(ubatch: Ubatch, shape: CompressorShape) -> list[int]:
    """The sequence whose tokens each stream gets, -1 if none. One stream serves any one sequence."""
    if shape.n_stream == 1:
        return [ubatch.seq_id_unq[0] if ubatch.seq_id_unq else -1]
    return [s if s in ubatch.seq_id_unq else -1 for s in range(shape.n_stream)]


def _restore(ubatch: Ubatch, shape: CompressorShape, rs_idx: Sequence[int]) -> tuple[IntArray, IntArray]:
    """Plane 0 of every stream from the plane of its pending rollback, or onto itself."""
    if shape.n_rs_seq == 0:
        return np.empty(0, np.int32), np.empty(0, np.int32)
    n_rows = shape.ring_rows
    planes = [rs_idx[s] if s >= 0 else 0 for s in _stream_seqs(ubatch, shape)]
    planes = [p if p <= shape.n_rs_seq else 0 for p in planes]
    dst = np.arange(n_rows, dtype=np.int32)
    return dst + np.repeat(np.array(planes, np.int32), shape.state_size) * n_rows, dst


def _snapshot(ubatch: Ubatch, shape: CompressorShape) -> tuple[IntArray, IntArray]:
    """Planes 1.. of every stream: the ring without the last 1, 2, ... tokens of this ubatch."""
    n_rows = shape.ring_rows
    scratch = n_rows * (1 + shape.n_rs_seq)
    src, dst = [], []
    for stream, seq in enumerate(_stream_seqs(ubatch, shape)):
        ring = stream * shape.state_size + np.arange(shape.state_size, dtype=np.int32)
        tokens = _rows_of(ubatch, seq) if seq >= 0 else np.empty(0, np.int32)
        for plane in range(1, shape.n_rs_seq + 1):
            here = plane * n_rows + ring
            rows = (ring if len(tokens) else here).copy()
            kept = tokens[: max(0, len(tokens) - plane)]
            kept = kept[ubatch.pos0[kept] >= 0]
            # the last token that falls on a row stays: numpy assigns repeated indices in order
            rows[ubatch.pos0[kept] % shape.state_size] = scratch + kept
            src.append(rows)
            dst.append(here)
    empty = [np.empty(0, np.int32)]
    return np.concatenate(src or empty), np.concatenate(dst or empty)
