"""Which rows a DeepSeek-V4 compressor reads, writes and keeps for one ubatch (spec dsv4.md 4).

A plan depends on positions alone, which the host has, so it is made there without asking the device. All is
worked out on the flat list of (token, sequence) pairs, sorted in one way or another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvsim.batch import Ubatch
from kvsim.errors import CacheUsageError
from kvsim.memory import IntArray
from kvsim.tensors.compressor import CompressorShape, Plan

READ_STEP = 256
"""Compressed rows are read in multiples of this."""


def build_plans(ubatches: Sequence[Ubatch], shape: CompressorShape, rs_idx: Sequence[int]) -> list[Plan]:
    """Plans of the ubatches of one batch; the first one with a sequence restores its pending rollback.

    Raises CacheUsageError where llama.cpp throws: several sequences on one stream, positions with gaps.
    """
    pending = dict(enumerate(rs_idx))
    plans = []
    for ubatch in ubatches:
        plans.append(_Planner(ubatch, shape, pending).plan())
        pending.update(dict.fromkeys(ubatch.seq_id_unq, 0))
    return plans


def _ints(values: object) -> IntArray:
    return np.asarray(values, np.int32)


class _Planner:
    def __init__(self, ubatch: Ubatch, shape: CompressorShape, pending: dict[int, int]) -> None:
        if shape.n_stream == 1 and ubatch.n_seqs_unq > 1:
            raise CacheUsageError(
                f"{ubatch.n_seqs_unq} sequences in one ubatch, but the compressor has one stream; llama.cpp "
                "throws. Make the context with a larger n_seq_max"
            )
        self.ubatch, self.shape, self.pending = ubatch, shape, pending
        lengths = [len(ids) for ids in ubatch.seq_ids]
        self.token = np.repeat(np.arange(ubatch.n_tokens), lengths)
        self.seq = np.array([s for ids in ubatch.seq_ids for s in ids])
        self.pos = ubatch.pos0[self.token].astype(np.int64)
        self.stream = self.seq if shape.n_stream > 1 else np.zeros_like(self.seq)
        self.coupled = max(lengths) > 1
        # of a repeated position the last token is read
        order = np.lexsort((self.token, self.pos, self.seq))
        self.sorted_keys = self._key(self.seq[order], self.pos[order])
        self.sorted_tokens = self.token[order]

    @staticmethod
    def _key(seq: IntArray | int, pos: np.ndarray) -> np.ndarray:
        return np.asarray(seq, np.int64) * (1 << 33) + pos

    def plan(self) -> Plan:
        shape, pos = self.shape, self.ubatch.pos0
        stored = pos >= 0
        n_visible = np.where(stored, (pos + 1) // shape.ratio, 0)
        most = int(n_visible.max(initial=0))
        seqs, rows, starts, dummies = self._blocks()
        persist = self._persist()
        restore = self._restore()
        snapshot = self._snapshot()
        n_graph = 1 if shape.n_stream == 1 or self.coupled else max(1, self.ubatch.n_seqs_unq)
        return Plan(
            n_stream=n_graph,
            n_kv=max(1, -(-most // READ_STEP)) * READ_STEP,
            state_pos=_ints(pos[stored] % shape.ratio),
            state_persist_src_idxs=persist[0], state_persist_dst_idxs=persist[1],
            state_restore_src_idxs=restore[0], state_restore_dst_idxs=restore[1],
            state_snapshot_src_idxs=snapshot[0], state_snapshot_dst_idxs=snapshot[1],
            state_read_idxs=self._reads(seqs, starts, dummies),
            state_write_idxs=rows,
            state_write_pos=np.maximum(starts, 0),
            n_visible=_ints(n_visible),
        )  # fmt: skip

    # -- rows to write -------------------------------------------------------------------------

    def _blocks(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Sequence, row, first position and dummy position (-1: a real block) of every row to write."""
        shape = self.shape
        ends = (self.pos >= 0) & ((self.pos + 1) % shape.ratio == 0)
        seqs = self.seq[ends]
        rows = self.stream[ends] * shape.kv_size + self.pos[ends] // shape.ratio
        starts = self.pos[ends] + 1 - shape.ratio
        extra = self._dummies(seqs) if (self.pos >= 0).any() else []
        dummy_seqs = np.array([s for s, _ in extra], np.int64)
        last_rows = ((dummy_seqs if shape.n_stream > 1 else dummy_seqs * 0) + 1) * shape.kv_size - 1
        dummy_pos = np.concatenate([np.full(len(seqs), -1), [p for _, p in extra]])
        return (
            _ints(np.concatenate([seqs, dummy_seqs])),
            _ints(np.concatenate([rows, last_rows])),
            _ints(np.concatenate([starts, np.zeros(len(extra), np.int64)])),
            _ints(dummy_pos),
        )

    def _dummies(self, done: np.ndarray) -> list[tuple[int, int]]:
        """Blocks that keep the graph's shape: with overlap one for each sequence that has completed one block
        less than its share, else one in all if none was completed."""
        shape = self.shape
        if not shape.overlap or self.coupled:
            first = int(np.argmax(self.pos >= 0))
            return [] if len(done) else [(int(self.seq[first]), int(self.pos[first]))]
        share = -(-max(1, self.ubatch.n_seq_tokens) // shape.ratio)
        dummies = []
        for s in self.ubatch.seq_id_unq:
            missing = share - int((done == s).sum())
            own = self.pos[(self.seq == s) & (self.pos >= 0)]
            if missing > 1 or (missing == 1 and not len(own)):
                raise CacheUsageError(
                    f"sequence {s} should complete {share} blocks of {shape.ratio} tokens in this ubatch, "
                    f"{missing} of them are missing: its positions have gaps, and llama.cpp throws. Decode "
                    "without gaps, from 0"
                )
            if missing == 1:
                dummies.append((s, int(own[0])))
        return dummies

    # -- rows to read --------------------------------------------------------------------------

    def _reads(self, seqs: IntArray, starts: IntArray, dummies: IntArray) -> IntArray:
        """Of all blocks the window before (with overlap), then their own."""
        shape, steps = self.shape, np.arange(self.shape.ratio)
        parts = []
        for back in (shape.ratio, 0) if shape.overlap else (0,):
            own = starts[:, None].astype(np.int64) - back + steps
            parts.append(np.where(dummies[:, None] >= 0, dummies[:, None], own))
        pos = np.concatenate(parts)
        return self._sources(np.tile(seqs, len(parts))[:, None] + 0 * pos, pos).reshape(-1)

    def _sources(self, seq: np.ndarray, pos: np.ndarray) -> IntArray:
        """Where the token of a sequence at a position is read: in the ubatch, its ring, or "nothing"."""
        shape = self.shape
        stream = seq if shape.n_stream > 1 else 0 * seq
        ring = stream * shape.state_size + pos % shape.state_size
        keys = self._key(seq, pos)
        at = np.searchsorted(self.sorted_keys, keys, side="right") - 1
        fresh = (at >= 0) & (self.sorted_keys[at] == keys)
        found = np.where(fresh, shape.ring_rows + self.sorted_tokens[at], ring)
        return _ints(np.where(pos < 0, shape.ring_rows + self.ubatch.n_tokens, found))

    # -- rings ---------------------------------------------------------------------------------

    def _persist(self) -> tuple[IntArray, IntArray]:
        """Each ring row that gets a token: the one at the largest position, of equal ones the first."""
        stored = self.pos >= 0
        rows = (self.stream * self.shape.state_size + self.pos % self.shape.state_size)[stored]
        order = np.lexsort((self.token[stored], -self.pos[stored], rows))
        dst, first = np.unique(rows[order], return_index=True)
        return _ints(self.token[stored][order][first]), _ints(dst)

    def _stream_seqs(self) -> list[int]:
        """The sequence whose tokens each stream gets, -1: none."""
        unq = self.ubatch.seq_id_unq
        if self.shape.n_stream == 1:
            return [unq[0] if unq else -1]
        return [s if s in unq else -1 for s in range(self.shape.n_stream)]

    def _restore(self) -> tuple[IntArray, IntArray]:
        """Plane 0 from the plane of a pending rollback, or onto itself."""
        shape = self.shape
        if not shape.n_rs_seq:
            return _ints([]), _ints([])
        depth = np.array([self.pending[s] if s >= 0 else 0 for s in self._stream_seqs()])
        depth[depth > shape.n_rs_seq] = 0
        dst = np.arange(shape.ring_rows)
        return _ints(dst + np.repeat(depth, shape.state_size) * shape.ring_rows), _ints(dst)

    def _snapshot(self) -> tuple[IntArray, IntArray]:
        """Planes 1.. of every stream: the ring without the last 1, 2, ... tokens."""
        shape = self.shape
        planes = np.arange(1, shape.n_rs_seq + 1)
        streams = np.arange(shape.n_stream)
        ring = streams[:, None, None] * shape.state_size + np.arange(shape.state_size)
        dst = planes[:, None] * shape.ring_rows + ring  # [stream, plane, row]
        src = np.broadcast_to(ring, dst.shape).copy()
        for stream, seq in enumerate(self._stream_seqs()):
            if seq < 0:
                src[stream] = dst[stream]
                continue
            own = self.seq == seq
            tokens, pos = self.token[own], self.pos[own]
            for plane in planes:
                kept = slice(0, max(0, len(tokens) - plane))
                stored = pos[kept] >= 0
                newest_first = np.flatnonzero(stored)[::-1]
                rows, last = np.unique(pos[kept][newest_first] % shape.state_size, return_index=True)
                scratch = shape.ring_rows * (1 + shape.n_rs_seq)
                src[stream, plane - 1, rows] = scratch + tokens[kept][newest_first][last]
        return _ints(src.reshape(-1)), _ints(dst.reshape(-1))
