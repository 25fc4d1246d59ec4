"""Interleaved windows: a base cache without window beside a window cache (``src/llama-kv-cache-iswa.cpp``).

The window cache is small and reuses the cells that its window has passed::

    base   0 1 2 3 4 5 6 7 8 9 . .        everything
    swa    8 9 2 3 4 5 6 7                what the next token can still see, and a little more

Positions are those of the window cache, because they say how far back a sequence can still resume.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.batch import BatchAllocator
from kvsim.caches.composite import CompositeMemory, Split
from kvsim.caches.kv import KVCache
from kvsim.memory import position_range


class ISWACache(CompositeMemory):
    """Parts ``base`` (layers that see everything) and ``swa`` (layers with a window), prepared in that order."""

    kind = "iswa"
    positions = "swa"
    not_in_partial = frozenset({"base"})

    def __init__(self, base: KVCache, swa: KVCache, unified: bool) -> None:
        super().__init__({"base": base, "swa": swa}, base.n_seq_max)
        self.base = base
        self.swa = swa
        self.unified = unified

    def splits(self, batch: BatchAllocator, n_ubatch: int, output_all: bool) -> Iterator[Split]:
        yield from window_splits(batch, n_ubatch, self.unified)

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        done = super().seq_rm(seq, p0, p1)
        warn_if_window_lost(self, self.base, self.swa, seq, p0, p1)
        return done

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        super().seq_add(seq, p0, p1, delta)
        if delta and not self.can_shift:
            self.hazard("shift-although-cannot", seq=seq)


def window_splits(batch: BatchAllocator, n_ubatch: int, unified: bool) -> Iterator[Split]:
    """Unified caches try the simple split first, then equal ones; streams need equal ones of consecutive
    sequences from the start (iswa.md rule 3)."""
    if unified:
        yield lambda: batch.split_simple(n_ubatch)
    yield lambda: batch.split_equal(n_ubatch, sequential=not unified)


def warn_if_window_lost(
    memory: CompositeMemory, base: KVCache, swa: KVCache, seq: int, p0: int, p1: int
) -> None:
    """A removal back past the window empties the window cache while the base keeps its part: the next batch
    may then start anywhere (iswa.md surprise 2)."""
    if memory.observer is None or seq < 0 or swa.seq_pos_max(seq) >= 0:
        return
    if base.seq_pos_max(seq) >= 0:
        lo, hi = position_range(p0, p1)
        memory.hazard("trimmed-past-window", seq=seq, p0=lo, p1=hi, base_max=base.seq_pos_max(seq))
