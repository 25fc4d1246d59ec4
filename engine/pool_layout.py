"""Which cells make up which pool of the pooled indexer, found by sorting on the device (spec hybrid.md 3.1).

For every sequence the keys ``(position + 1) * size + cell`` of its cells are sorted; a pool is P of them in a
row. How many pools there are is a shape of the graph, so the host must learn it: :class:`PoolView` asks once
per ubatch, when the shapes of its graph are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from engine.cells import POS
from engine.kv_view import KVView
from engine.rows import WORD_BITS, signed_bit
from engine.sync import read_back, upload
from kvsim.batch import Ubatch
from kvsim.memory import SlotInfo

if TYPE_CHECKING:
    from engine.kv import KVCache

CLEAN = 2**31 - 1
POOL_PAD = 64
NO_KEY = 1 << 62


class PoolLayout:
    """The pools of ``size`` cells of every sequence in ``ids``; what is below is on the device, by sequence.

    ``keys [s, n]`` sorted, NO_KEY behind the last; ``count`` of them; ``starts [s, m]`` where a pool begins
    among them, ``n_pools`` of these are real; ``shared``: some cell has several owners, which stays so until
    the sequence is looked at anew.
    """

    def __init__(self, size: int, by_order: bool) -> None:
        self.size, self.by_order = size, by_order
        self.ids: list[int] = []
        self._safe: bool | None = True
        self.keys = self.count = self.starts = self.n_pools = self.shared = torch.zeros(0)

    @property
    def cache_safe(self) -> bool:
        if self._safe is None:
            self._safe = not bool(read_back(self.shared.any()))
        return self._safe

    def refresh(self, cache: KVCache, stale: Sequence[int]) -> None:
        old = {s: (self.keys[i], self.count[i], self.shared[i]) for i, s in enumerate(self.ids)}
        self.cell_base = cache.size
        self.ids = cache.all_ids()
        self._safe = None if self.ids else True
        if not self.ids:
            return
        self.keys = torch.stack([self._keys(cache, s) for s in self.ids])
        valid = self.keys != NO_KEY
        self.count = valid.sum(1)
        self._find_pools(valid)
        owners = _owner_counts(cache)
        no = torch.zeros((), dtype=torch.bool, device=cache.device)
        shared = []
        for i, s in enumerate(self.ids):
            kept, was_shared = self._kept(i, old[s], valid[i]) if s in old and stale[s] == CLEAN else (0, no)
            if cache.n_stream > 1:
                shared.append(was_shared)
                continue
            rank = torch.arange(valid.shape[1], device=cache.device)
            fresh = valid[i] & (rank >= kept)
            shared.append((fresh & (owners[self.keys[i] % cache.size] > 1)).any() | was_shared)
        self.shared = torch.stack(shared)

    def _keys(self, cache: KVCache, s: int) -> Tensor:
        table, stream, word, bit = cache.table, cache.stream_of(s), s // WORD_BITS, signed_bit(s)
        hi = max(cache.high, 1) if table.minus_one is None else cache.size
        pos, cell = table.planes[POS, stream, :hi].to(torch.int64), table.index[:hi]
        owned = table.seq if table.minus_one is None else table.minus_one.entries
        mine = (owned[word, stream, :hi] & bit) != 0
        keys = [torch.where(mine, (pos + 1) * cache.size + cell, NO_KEY)]
        if table.minus_one is not None:
            ghost = (table.minus_one.ghosts[word, stream] & bit) != 0
            keys.append(torch.where(ghost, cell, NO_KEY))
        return torch.cat(keys).sort().values

    def _pos(self, keys: Tensor) -> Tensor:
        return keys // self.cell_base - 1

    def _find_pools(self, valid: Tensor) -> None:
        """Where pools begin: every P-th cell, or at P consecutive positions aligned to the first one."""
        n, size = valid.shape[1], self.size
        most = max(1, n // size)
        if self.by_order:
            self.n_pools = self.count // size
            self.starts = torch.arange(most, device=valid.device).mul(size).expand(len(self.ids), -1)
            return
        pos = self._pos(self.keys)
        step = (pos[:, 1:] - pos[:, :-1] == 1) & valid[:, 1:]
        steps = torch.nn.functional.pad(step.to(torch.int64).cumsum(1), (1, 0))
        ahead = torch.arange(n, device=valid.device) + size - 1
        inside = (ahead < n) & valid
        end = ahead.clamp(max=n - 1)
        whole = inside & valid[:, end] & (steps[:, end] - steps == size - 1)
        begins = whole & ((pos - pos[:, :1]) % size == 0)
        rank = begins.to(torch.int64).cumsum(1)
        self.n_pools = rank[:, -1]
        wanted = torch.arange(1, most + 1, device=valid.device).expand(len(self.ids), -1).contiguous()
        self.starts = torch.searchsorted(rank, wanted).clamp(max=max(n - 1, 0))

    def _kept(self, i: int, old: tuple[Tensor, Tensor, Tensor], valid: Tensor) -> tuple[Tensor, Tensor]:
        """How many cells are known from last time, and whether sharing is. Nothing, if more than an append
        has happened."""
        keys, count, shared = old
        if not len(keys):
            return torch.zeros_like(count), torch.zeros_like(shared)
        last = keys.gather(0, (count - 1).clamp(min=0)[None])
        appended = (valid & (self.keys[i] > last)).sum()
        same = (
            (count > 0)
            & (self._pos(keys[0]) == self._pos(self.keys[i, 0]))
            & (count + appended == self.count[i])
        )
        return torch.where(same, count, 0), same & shared

    def view(self, cache: KVCache, slot: SlotInfo, ubatch: Ubatch, stale: Sequence[int] | None) -> PoolView:
        return PoolView(cache, slot, ubatch, self, stale)

    def touched(self, rank: Tensor, pos: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """The pool, within its sequence ``row``, that each token falls into, and whether it is complete.
        ``rank``: the tokens' places among the cells of the sequence."""
        if self.by_order:
            pool = rank // self.size
            return pool, pool < self.n_pools[row]
        first = self.keys[row].gather(1, self.starts[row])
        real = torch.arange(first.shape[1], device=first.device) < self.n_pools[row][:, None]
        pool = (real & (self._pos(first) <= pos[:, None])).sum(1) - 1
        at = self.starts[row].gather(1, pool.clamp(min=0)[:, None]) + self.size - 1
        end = self._pos(self.keys[row].gather(1, at.clamp(max=self.keys.shape[1] - 1)))[:, 0]
        return pool, (pool >= 0) & (pos <= end)


def _owner_counts(cache: KVCache) -> Tensor:
    """How many owners each cell of stream 0 has: none, one, or at least two."""
    words = cache.table.seq[:, 0]
    count = torch.zeros(cache.size, dtype=torch.int64, device=words.device)
    for word in words:
        count += (word != 0).to(torch.int64) + ((word & (word - 1)) != 0).to(torch.int64)
    return count


class PoolView(KVView):
    """The indexer's cells, which pools there are, and which of them this ubatch pools again: ``new bool[s,
    m]``."""

    def __init__(
        self, cache: KVCache, slot: SlotInfo, ubatch: Ubatch, layout: PoolLayout, stale: Sequence[int] | None
    ) -> None:
        super().__init__(cache, cache.known_slot(slot, ubatch), ubatch)
        self.layout = layout
        self.new = self._find_new(stale)
        self._numbers: tuple[int, int, bool] | None = None

    def _find_new(self, stale: Sequence[int] | None) -> Tensor:
        layout, ub, device = self.layout, self.ubatch, self.cache.device
        n, most = layout.starts.shape
        real = torch.arange(most, device=device) < layout.n_pools[:, None]
        new = torch.zeros(n, most + 1, dtype=torch.bool, device=device)  # the last column takes what is none
        if stale is not None:
            bound = upload([stale[s] for s in layout.ids], device)[:, None]
            ends = layout._pos(
                layout.keys.gather(1, (layout.starts + layout.size - 1).clamp(max=layout.keys.shape[1] - 1))
            )
            new[:, :-1] = real & (ends >= bound) & (bound != CLEAN)
        row_of = {s: i for i, s in enumerate(layout.ids)}
        pairs = np.array([(i, row_of[s]) for i, ids in enumerate(ub.seq_ids) for s in ids])
        token, row = upload(pairs.T, device)
        pos = self.slot.rows.packed[0, token]
        key = (pos + 1) * self.cache.size + self.slot.flat[token] % self.cache.size
        rank = (layout.keys[row] < key[:, None]).sum(1)
        pool, complete = layout.touched(rank, pos, row)
        new.view(-1).index_fill_(0, row * (most + 1) + torch.where(complete, pool, most), True)
        return torch.where(layout.shared.any(), real, new[:, :-1] & real)

    def numbers(self) -> tuple[int, int, bool]:
        """Real pools, those pooled again, and whether pooled keys can be kept. Asks the device once."""
        if self._numbers is None:
            layout = self.layout
            asked = torch.stack([layout.n_pools.sum(), self.new.sum(), layout.shared.any().to(torch.int64)])
            n_real, n_new, shared = read_back(asked).tolist()
            self._numbers = n_real, n_new, not shared
        return self._numbers

    @property
    def n_pool(self) -> int:
        """Pools in the graph: padded, and the last one is never real."""
        return max(POOL_PAD, -(-(self.numbers()[0] + 1) // POOL_PAD) * POOL_PAD)

    @property
    def n_new_padded(self) -> int:
        """Entries of the new-pool list in the graph: a bound that repeats from step to step."""
        _, n_new, safe = self.numbers()
        if not safe:
            return max(n_new, 1)
        size, ub = self.layout.size, self.ubatch
        most = self.cache.size // size * self.cache.n_seq_max
        return max(n_new, 1, min(ub.n_tokens // size + ub.n_seqs_unq, self.n_pool - 1, most))

    def reuse_key(self) -> dict[str, Any]:
        return {**super().reuse_key(), "pools": self.n_pool, "new pools": self.n_new_padded}
