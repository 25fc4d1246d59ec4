"""What the graph of one ubatch sees of a cache: lengths on the host, indices and masks on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from engine.cells import POS, TOK, X, Y
from engine.mask import attention_mask
from engine.sync import read_back, upload
from kvsim.batch import Ubatch
from kvsim.caches.attention_leaf import AttentionView

if TYPE_CHECKING:
    from engine.kv import DeviceSlot, KVCache


class KVView(AttentionView):
    """Valid until the next change of the cache."""

    def __init__(self, cache: KVCache, slot: DeviceSlot, ubatch: Ubatch) -> None:
        self.cache = cache
        self.slot: DeviceSlot = slot
        self.ubatch = ubatch
        self.n_kv = cache.n_kv_of(slot)

    @property
    def streams(self) -> slice | Tensor:
        """The streams as an index."""
        return self.cache.table.streams_at(self.slot.strm)

    def k_idxs(self) -> Tensor:
        """Destination row of each token, over all streams: ``stream * size + cell``."""
        return self.slot.flat

    def v_idxs(self, n_embd_v: int) -> Tensor:
        """Destination of each V row; transposed, of each of its ``n_embd_v`` scalars, token by token."""
        flat, size = self.slot.flat, self.cache.size
        if not self.cache.spec.v_trans:
            return flat
        columns = torch.arange(n_embd_v, device=flat.device) * size
        return ((flat // size * (size * n_embd_v) + flat % size)[:, None] + columns).flatten()

    def mask(self, causal: bool = True) -> Tensor:
        """``bool[n_tokens, n_kv]``: which cells of its stream each row may attend to."""
        table, where, n = self.cache.table, self.streams, self.n_kv
        two_d = self.ubatch.n_pos >= 3
        seen = attention_mask(
            table.planes[POS, where, None, :n],
            table.seq[:, where, None, :n],
            self.slot.rows,
            self.cache.spec,
            causal,
            (table.planes[X, where, None, :n], table.planes[Y, where, None, :n]) if two_d else None,
        )
        return seen.flatten(0, 1)

    def prev_tokens(self, n: int) -> Tensor:
        """The ``n`` tokens before each row, ``int32[n_tokens, n]``, oldest first, -1 where there is none. Of
        cells at one position the last counts."""
        ub, rows, table, size = self.ubatch, self.slot.rows, self.cache.table, self.cache.size
        hi = self.n_kv
        where = self.streams
        pos, tok = table.planes[POS, where, None, :hi], table.planes[TOK, where, None, :hi]
        own = attention_mask(pos, table.seq[:, where, None, :hi], rows, self.cache.spec, owners_only=True)
        key = torch.where(own & (pos >= 0), pos.to(torch.int64) * size + table.index[:hi], -1)
        text_only = ub.tokens is not None and not ub.has_embd
        out = []
        for d in range(n, 0, -1):
            before = ub.pos0.astype(np.int64) - d if text_only else _positions_back(ub, d)
            limit = upload(before, self.cache.device).view(rows.n_parts, -1, 1)
            best = torch.where(key < (limit + 1) * size, key, -1).amax(-1, keepdim=True)
            found = tok.expand(-1, best.shape[1], -1).gather(2, best.clamp(min=0) % size)
            out.append(torch.where((best >= 0) & (limit >= 0), found, -1).flatten())
        return torch.stack(out, 1).to(torch.int32)

    def describe(self, name: str, record: dict[str, Any]) -> None:
        record.setdefault("slots", {})[name] = {**self.slot.to_json(), "n_kv": self.n_kv}
        if self.cache.has_mask:
            record.setdefault("mask", {})[name] = [_ranges(row) for row in read_back(self.mask())]


def _positions_back(ubatch: Ubatch, d: int) -> np.ndarray:
    """Per row, the position of the entry of its sequence ``d`` earlier in the ubatch, or that far before the
    first."""
    out = np.empty(ubatch.n_tokens, np.int64)
    first = np.array([ids[0] for ids in ubatch.seq_ids])
    for s in set(first.tolist()):
        rows = np.flatnonzero(first == s)
        pos = ubatch.pos0[rows].astype(np.int64)
        rank = np.arange(len(rows)) - d
        out[rows] = np.where(rank >= 0, pos[np.maximum(rank, 0)], pos[0] + rank)
    return out


def _ranges(row: np.ndarray) -> list[int]:
    """The true cells of a row as half-open ranges ``[a, b, c, d, ...]``."""
    edges = np.flatnonzero(np.diff(row.astype(np.int8), prepend=0, append=0))
    return edges.tolist()
