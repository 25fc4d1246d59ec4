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
from typing import NamedTuple

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
    tokens = _Tokens(ubatch)
    stored = [p for p in tokens.pos if p >= 0]
    most = (max(stored, default=-1) + 1) // shape.ratio
    blocks = _complete_blocks(tokens, shape)
    if stored:
        blocks += _dummy_blocks(tokens, shape, [b.seq for b in blocks])
    persist_src, persist_dst = _persist(tokens, shape)
    restore_src, restore_dst = _restore(tokens, shape, rs_idx)
    snapshot_src, snapshot_dst = _snapshot(tokens, shape)
    return Plan(
        n_stream=1 if shape.n_stream == 1 or tokens.coupled else max(1, ubatch.n_seqs_unq),
        n_kv=max(MIN_ROWS, -(-most // MIN_ROWS) * MIN_ROWS),
        state_pos=_ints([p % shape.ratio for p in stored]),
        state_persist_src_idxs=persist_src,
        state_persist_dst_idxs=persist_dst,
        state_restore_src_idxs=restore_src,
        state_restore_dst_idxs=restore_dst,
        state_snapshot_src_idxs=snapshot_src,
        state_snapshot_dst_idxs=snapshot_dst,
        state_read_idxs=_reads(blocks, tokens, shape),
        state_write_idxs=_ints([b.row for b in blocks]),
        state_write_pos=_ints([max(b.start, 0) for b in blocks]),
        n_visible=_ints([(p + 1) // shape.ratio if p >= 0 else 0 for p in tokens.pos]),
    )


NONE: IntArray = np.empty(0, np.int32)


def _ints(values: Sequence[int]) -> IntArray:
    return np.array(values, np.int32) if values else NONE


class _Tokens:
    """A ubatch as lists, which cost less than arrays for the few tokens that it mostly has: ``pos`` and ``ids``
    of every row, ``rows`` of every sequence."""

    def __init__(self, ubatch: Ubatch) -> None:
        self.pos: list[int] = ubatch.pos0.tolist()
        self.ids = ubatch.seq_ids
        self.rows: dict[int, list[int]] = {seq: [] for seq in ubatch.seq_id_unq}
        for i, ids in enumerate(ubatch.seq_ids):
            for seq in ids:
                self.rows[seq].append(i)
        self.coupled = sum(map(len, self.rows.values())) > len(self.pos)
        self.n_seq_tokens = ubatch.n_seq_tokens


class _Block(NamedTuple):
    """One row to write. A dummy keeps the graph's shape: it reads the token at ``dummy_pos`` only."""

    seq: int
    row: int
    start: int
    dummy_pos: int = -1


def _complete_blocks(tokens: _Tokens, shape: CompressorShape) -> list[_Block]:
    """A block for every token that ends one, in token order, then in the order of its sequences."""
    return [
        _Block(seq, shape.stream(seq) * shape.kv_size + p // shape.ratio, p + 1 - shape.ratio)
        for p, ids in zip(tokens.pos, tokens.ids, strict=True)
        if p >= 0 and (p + 1) % shape.ratio == 0
        for seq in ids
    ]


def _dummy_blocks(tokens: _Tokens, shape: CompressorShape, done: list[int]) -> list[_Block]:
    """Blocks that only keep the graph's shape, written to the last row of a stream.

    ``done`` holds the sequence of every complete block. With overlap and no shared tokens every
    sequence must come to the same number of blocks; otherwise one block in all is enough.
    """
    pos = tokens.pos
    if not shape.overlap or tokens.coupled:
        first = next(i for i, p in enumerate(pos) if p >= 0)
        return [] if done else [_dummy(tokens.ids[first][0], pos[first], shape)]
    share = -(-max(1, tokens.n_seq_tokens) // shape.ratio)
    dummies = []
    for seq, rows in tokens.rows.items():
        missing = share - done.count(seq)
        if missing <= 0:
            continue
        first_pos = next((pos[i] for i in rows if pos[i] >= 0), -1)
        if missing > 1 or first_pos < 0:
            raise CacheUsageError(
                f"sequence {seq} completes {done.count(seq)} blocks of {shape.ratio} tokens in this "
                f"ubatch where {share} are due: its positions are not contiguous, and llama.cpp throws. "
                "Decode positions without gaps, starting at 0"
            )
        dummies.append(_dummy(seq, first_pos, shape))
    return dummies


def _dummy(seq: int, pos: int, shape: CompressorShape) -> _Block:
    return _Block(seq, (shape.stream(seq) + 1) * shape.kv_size - 1, 0, dummy_pos=pos)


def _reads(blocks: list[_Block], tokens: _Tokens, shape: CompressorShape) -> IntArray:
    """Read indices: with overlap the previous windows of all blocks, then all blocks themselves.

    A token is read in the ubatch, or else in its sequence's ring. Of a repeated position the last counts.
    """
    if not blocks:
        return NONE
    ratio, size, in_rings = shape.ratio, shape.state_size, shape.ring_rows
    nothing = in_rings + len(tokens.pos)
    fresh = {seq: {tokens.pos[i]: in_rings + i for i in tokens.rows[seq]} for seq in {b.seq for b in blocks}}
    read = []
    for back in (ratio, 0) if shape.overlap else (0,):
        for seq, _, start, dummy_pos in blocks:
            own = fresh[seq]
            if dummy_pos >= 0:
                read.append(np.full(ratio, own[dummy_pos], np.int32))
                continue
            window, ring = range(start - back, start - back + ratio), shape.stream(seq) * size
            read.append(_ints([nothing if p < 0 else own.get(p, ring + p % size) for p in window]))
    return read[0] if len(read) == 1 else np.concatenate(read)


def _persist(tokens: _Tokens, shape: CompressorShape) -> tuple[IntArray, IntArray]:
    """Ring rows that get a token: of those that fall on a row the one at the largest position.

    Of a repeated largest position the first token counts (unlike the reads, where the last does).
    """
    pos, size = tokens.pos, shape.state_size
    best: dict[int, int] = {}
    for seq, own in tokens.rows.items():
        ring = shape.stream(seq) * size
        for i in own:
            row = ring + pos[i] % size
            if pos[i] >= 0 and (row not in best or pos[i] > pos[best[row]]):
                best[row] = i
    rows = sorted(best)
    return _ints([best[row] for row in rows]), _ints(rows)


def _restore(tokens: _Tokens, shape: CompressorShape, rs_idx: Sequence[int]) -> tuple[IntArray, IntArray]:
    """Plane 0 of every stream from the plane of its pending rollback, or onto itself."""
    if shape.n_rs_seq == 0:
        return NONE, NONE
    src = np.arange(shape.ring_rows, dtype=np.int32)
    dst = src.copy()
    for seq in tokens.rows:
        if 0 < rs_idx[seq] <= shape.n_rs_seq:
            first = shape.stream(seq) * shape.state_size
            src[first : first + shape.state_size] += rs_idx[seq] * shape.ring_rows
    return src, dst


def _snapshot(tokens: _Tokens, shape: CompressorShape) -> tuple[IntArray, IntArray]:
    """Planes 1.. of every stream: the ring without the last 1, 2, ... tokens of this ubatch."""
    if shape.n_rs_seq == 0:
        return NONE, NONE
    size, n_rows = shape.state_size, shape.ring_rows
    scratch = n_rows * (1 + shape.n_rs_seq)
    planes = np.arange(n_rows, scratch, dtype=np.int32).reshape(shape.n_rs_seq, shape.n_stream, size)
    dst = planes.swapaxes(0, 1)
    src = dst.copy()
    for seq, rows in tokens.rows.items():
        stream = shape.stream(seq)
        src[stream] = np.arange(stream * size, (stream + 1) * size)
        for back, plane in enumerate(src[stream], start=1):
            for i in rows[: max(0, len(rows) - back)]:
                if tokens.pos[i] >= 0:
                    plane[tokens.pos[i] % size] = scratch + i  # the last token that falls on a row stays
    return src.ravel(), dst.ravel()
