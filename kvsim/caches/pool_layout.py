"""Which cells of a sequence make up which pool of the pooled indexer (spec hybrid.md 3.1).

A pool is ``P`` cells whose indexer keys are averaged into one. GLM5-Next pools consecutive positions,
aligned to the sequence's first one; Qwen4-exp every P cells in order, whatever their positions::

    positions   0 1 2 3 4 5 . 7 8 9 10 11     P = 4
    by position [0 1 2 3]         [8 9 10 11]
    by order    [0 1 2 3][4 5 7 8][9 10 11 ..
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvsim.batch import Ubatch
from kvsim.caches.kv import KVCache
from kvsim.caches.kv_view import KVView
from kvsim.errors import CacheUsageError
from kvsim.memory import MAX_SEQ, BoolArray, IntArray, SlotInfo

CLEAN = 2**31 - 1
"""Staleness of a sequence whose pooled keys are all valid."""

POOL_PAD = 64


def pool_starts(pos: IntArray, size: int, by_order: bool) -> IntArray:
    """Indices into a sequence's sorted cells at which a pool begins."""
    n = len(pos)
    if n < size:
        return np.empty(0, np.int32)
    if by_order:
        return np.arange(0, n - size + 1, size, dtype=np.int32)
    steps = np.zeros(n, np.intp)
    np.cumsum(pos[1:] == pos[:-1] + 1, out=steps[1:])
    whole = steps[size - 1 :] - steps[: n - size + 1] == size - 1
    aligned = (pos[: n - size + 1] - pos[0]) % size == 0
    return np.flatnonzero(whole & aligned).astype(np.int32)


@dataclass
class SequencePools:
    """One sequence: its (position, cell) pairs sorted by position then cell, and where pools begin.

    ``shared``: some cell has several owners, so pooled keys cannot be kept. Once set it stays until the
    sequence is rebuilt (L3).
    """

    stream: int
    pos: IntArray
    cells: IntArray
    pools: IntArray
    shared: bool

    def __deepcopy__(self, memo: dict[int, Any]) -> SequencePools:
        return self  # it is made anew where its sequence was edited, and never changed

    @property
    def pos_min(self) -> int:
        return int(self.pos[0]) if len(self.pos) else 0

    def is_of(self, pos: IntArray, cells: IntArray) -> bool:
        """Whether it was made of these."""
        return self.pos.tobytes() == pos.tobytes() and self.cells.tobytes() == cells.tobytes()

    def rank(self, pos: int, cell: int) -> int:
        """Place of a cell among the sequence's cells."""
        lo, hi = np.searchsorted(self.pos, [pos, pos + 1])
        return int(lo + np.searchsorted(self.cells[lo:hi], cell))


@dataclass
class PoolLayout:
    """The pools of every sequence of a cache, numbered by sequence, then start (L4)."""

    size: int
    by_order: bool
    seqs: dict[int, SequencePools] = field(default_factory=dict)
    cache_safe: bool = True
    n_real: int = 0

    @property
    def n_pool(self) -> int:
        """Pools in the graph: padded, and the last one is never real."""
        return max(POOL_PAD, -(-(self.n_real + 1) // POOL_PAD) * POOL_PAD)

    def refresh(self, cache: KVCache, stale: Sequence[int]) -> None:
        """Bring the layout up to the cells, rebuilding sequences that were edited (L1)."""
        present = {s for table in cache.cells for s in table.sequences() if s < cache.known_ids()}
        for s in sorted(present.union(self.seqs)):
            entry = self._sequence(cache, s, stale[s])
            if entry is None:
                self.seqs.pop(s, None)
            else:
                self.seqs[s] = entry
        self.seqs = dict(sorted(self.seqs.items()))  # pools are numbered in this order
        self.n_real = sum(len(seq.pools) for seq in self.seqs.values())
        self.cache_safe = not any(seq.shared for seq in self.seqs.values())

    def _sequence(self, cache: KVCache, s: int, stale: int) -> SequencePools | None:
        stream = cache.stream_of(s)
        table = cache.cells[stream]
        pos, cells = table.by_position(s)
        if not len(pos):
            return None
        old = self.seqs.get(s)
        if old is not None and stale == CLEAN and old.is_of(pos, cells):
            return old
        kept = 0
        shared = False
        if old is not None and stale == CLEAN and old.pos_min == int(pos[0]):
            last = (int(old.pos[-1]), int(old.cells[-1]))
            appended = int(np.count_nonzero((pos > last[0]) | ((pos == last[0]) & (cells > last[1]))))
            if len(old.pos) + appended == len(pos):
                kept, shared = len(old.pos), old.shared
        if cache.n_stream == 1 and not shared:
            shared = bool((_owner_counts(table.seq[:, cells[kept:]]) > 1).any())
        return SequencePools(stream, pos, cells, pool_starts(pos, self.size, self.by_order), shared)

    def of(self, s: int) -> SequencePools:
        """The pools of a sequence; of one whose cells are gone by the time it is asked for (placing a token into
        a cell that only this cache had in use can do that), none."""
        nothing = np.empty(0, np.int32)
        return self.seqs.get(s) or SequencePools(0, nothing, nothing, nothing, False)

    def first_pool(self) -> dict[int, int]:
        """Number of each sequence's first pool."""
        starts, n = {}, 0
        for s in sorted(self.seqs):
            starts[s] = n
            n += len(self.seqs[s].pools)
        return starts

    def new_pools(self, ubatch: Ubatch, slot: SlotInfo, stale: Sequence[int] | None) -> BoolArray:
        """Which pools the ubatch must pool again, ``bool[n_real]``: all if not safe; else those its tokens
        touch, and with ``stale`` (the first ubatch of a batch) those that an edit made stale (3.2)."""
        if not self.cache_safe:
            return np.ones(self.n_real, np.bool_)
        new = np.zeros(self.n_real, np.bool_)
        first = self.first_pool()
        if stale is not None:
            for s, seq in self.seqs.items():
                if stale[s] != CLEAN:
                    ends = seq.pos[seq.pools + self.size - 1]
                    new[first[s] + int(np.searchsorted(ends, stale[s])) : first[s] + len(ends)] = True
        cells = np.concatenate(slot.idxs)
        for i, ids in enumerate(ubatch.seq_ids):
            for s in ids:
                pool = self._pool_of(self.of(s), int(ubatch.pos0[i]), int(cells[i]))
                if pool >= 0:
                    new[first[s] + pool] = True
        return new

    def view(self, cache: KVCache, slot: SlotInfo, ubatch: Ubatch, stale: Sequence[int] | None) -> IdxView:
        """What the graph of a placed ubatch sees, the layout having been refreshed."""
        view = IdxView(cache, slot, ubatch)
        view.layout = self
        view.new = self.new_pools(ubatch, slot, stale)
        view.n_new_padded = self.n_new_padded(int(view.new.sum()), ubatch, cache)
        return view

    def _pool_of(self, seq: SequencePools, pos: int, cell: int) -> int:
        """Number, within the sequence, of the complete pool that a token falls into; -1 if none."""
        if self.by_order:
            rank = seq.rank(pos, cell)
            if rank == len(seq.cells) or int(seq.cells[rank]) != cell:
                raise CacheUsageError(
                    f"the index has lost cell {cell} (position {pos}) of the token that was just placed, since it "
                    "holds other cells than the attention cache; llama.cpp aborts. Clear both before going on"
                )
            pool = rank // self.size
            return pool if pool < len(seq.pools) else -1
        at = int(np.searchsorted(seq.pos[seq.pools], pos, side="right")) - 1
        return at if at >= 0 and pos <= int(seq.pos[seq.pools[at] + self.size - 1]) else -1

    def n_new_padded(self, n_new: int, ubatch: Ubatch, cache: KVCache) -> int:
        """Entries of the new-pool list in the graph: a bound that repeats from step to step."""
        if not self.cache_safe:
            return max(n_new, 1)
        most = cache.size // self.size * cache.n_seq_max
        return max(n_new, 1, min(ubatch.n_tokens // self.size + ubatch.n_seqs_unq, self.n_pool - 1, most))


def _owner_counts(words: object) -> IntArray:
    return np.bitwise_count(words).sum(axis=0)  # type: ignore[call-overload,no-any-return]


def all_clean() -> array[int]:
    """Staleness of every possible sequence in a fresh memory."""
    return array("i", (CLEAN,)) * MAX_SEQ


def all_stale() -> array[int]:
    """The same after an edit of everything."""
    return array("i", (0,)) * MAX_SEQ


class IdxView(KVView):
    """The indexer's cells, and with pooling which pools there are and which are pooled again now."""

    layout: PoolLayout | None = None
    new: BoolArray
    n_new_padded = 0

    def reuse_key(self) -> dict[str, Any]:
        if self.layout is None:
            return super().reuse_key()
        return {**super().reuse_key(), "pools": self.layout.n_pool, "new pools": self.n_new_padded}
