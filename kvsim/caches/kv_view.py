"""What the graph of one ubatch sees of a KV cache: lengths, indices, masks (``llama_kv_cache_context``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.batch import Ubatch
from kvsim.caches.attention_leaf import AttentionView
from kvsim.cell_index import ranges
from kvsim.memory import BoolArray, IntArray, SlotInfo
from kvsim.tensors.mask import attention_mask

if TYPE_CHECKING:
    from kvsim.caches.kv import KVCache


class KVView(AttentionView):
    """Valid until the next change of the cache. ``n_kv`` is taken right after the ubatch was placed."""

    def __init__(self, cache: KVCache, slot: SlotInfo, ubatch: Ubatch) -> None:
        self.cache = cache
        self.slot = slot
        self.ubatch = ubatch
        self.n_kv = cache.get_n_kv(slot)

    def k_idxs(self) -> IntArray:
        """Destination row of each token, over all streams: ``stream * size + cell``."""
        size, slot = self.cache.size, self.slot
        return np.concatenate(
            [np.int64(stream * size) + part for stream, part in zip(slot.strm, slot.idxs, strict=True)]
        )

    def v_idxs(self, n_embd_v: int) -> IntArray:
        """Destination of each V row; transposed, of each of its ``n_embd_v`` scalars, token by token."""
        if not self.cache.spec.v_trans:
            return self.k_idxs()
        size = self.cache.size
        columns = np.arange(n_embd_v, dtype=np.int64) * size
        return np.concatenate(
            [
                (np.int64(stream * size * n_embd_v) + part[:, None] + columns).ravel()
                for stream, part in zip(self.slot.strm, self.slot.idxs, strict=True)
            ]
        )

    def mask(self, causal: bool = True) -> BoolArray:
        """``bool[n_tokens, n_kv]``: which cells of its stream each row may attend to (section 6)."""
        n = self.ubatch.n_tokens // self.n_stream
        rows = []
        for local, stream in enumerate(self.slot.strm):
            rows.append(self._stream_mask(stream, slice(local * n, (local + 1) * n), causal))
        return np.concatenate(rows) if len(rows) > 1 else rows[0]

    def _stream_mask(self, stream: int, rows: slice, causal: bool) -> BoolArray:
        spec, ub, cells, n = self.cache.spec, self.ubatch, self.cache.cells[stream], self.n_kv
        two_d = ub.n_pos >= 3
        return attention_mask(
            cells.pos[:n],
            cells.seq[:, :n],
            ub.pos0[rows],
            np.array([ids[0] for ids in ub.seq_ids[rows]], np.int32),
            swa_type=spec.swa_type,
            n_swa=spec.n_swa,
            causal=causal,
            non_causal=spec.non_causal,
            cell_xy=(cells.x[:n], cells.y[:n]) if two_d else None,
            row_xy=(ub.pos[2, rows], ub.pos[1, rows]) if two_d else None,
        )

    def prev_tokens(self, n: int) -> IntArray:
        """The ``n`` tokens before each row, ``int32[n_tokens, n]``, oldest first, -1 where there is none
        (``get_prev_tokens``). The ubatch itself is visible."""
        ub = self.ubatch
        out = np.full((ub.n_tokens, n), -1, np.int32)
        text_only = ub.tokens is not None and not ub.has_embd
        for s in dict.fromkeys(ids[0] for ids in ub.seq_ids):
            rows = np.array([i for i, ids in enumerate(ub.seq_ids) if ids[0] == s], np.int64)
            table = self.cache.cells[self.cache.stream_of(s)]
            positions, cells = table.by_position(s)
            for d in range(1, n + 1):
                before = ub.pos0[rows] - d if text_only else _positions_back(ub.pos0[rows], d)
                at = np.searchsorted(positions, before, side="right")
                found = (before >= 0) & (at > 0)
                out[rows[found], n - d] = table.tok[cells[at[found] - 1]]
        return out

    def describe(self, name: str, record: dict[str, Any]) -> None:
        record.setdefault("slots", {})[name] = {**self.slot.to_json(), "n_kv": self.n_kv}
        if self.cache.has_mask:
            record.setdefault("mask", {})[name] = [ranges(row) for row in self.mask()]


def _positions_back(pos: IntArray, d: int) -> IntArray:
    """The position of the entry ``d`` earlier in the ubatch, or that far before its first one."""
    rank = np.arange(len(pos)) - d
    return np.where(rank >= 0, pos[np.maximum(rank, 0)], pos[0] + rank)
