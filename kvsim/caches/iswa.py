"""Interleaved windows: a base cache without window beside a window cache (``src/llama-kv-cache-iswa.cpp``).

The window cache is small and reuses the cells that its window has passed::

    base   0 1 2 3 4 5 6 7 8 9 . .        everything
    swa    8 9 2 3 4 5 6 7                what the next token can still see, and a little more

Positions are those of the window cache, because they say how far back a sequence can still resume.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kvsim import window
from kvsim.batch import BatchAllocator
from kvsim.caches.attention_leaf import AttentionLeaf
from kvsim.caches.composite import CompositeMemory, Split
from kvsim.cells import CellTable
from kvsim.state import PARTIAL_ONLY, StateReader


class WindowPair(CompositeMemory):
    """A memory with a cache that sees everything, ``full``, beside a window cache, ``swa``.

    It tells an observer when an edit reaches back past what the window cache still holds: the next token
    would attend to positions that only ``full`` has (iswa.md surprises 2 and 5).
    """

    full: AttentionLeaf
    swa: AttentionLeaf
    unified: bool

    def splits(self, batch: BatchAllocator, n_ubatch: int, output_all: bool) -> Iterator[Split]:
        """Unified caches try the simple split first, then equal ones; streams need equal ones of consecutive
        sequences from the start (iswa.md rule 3)."""
        if self.unified:
            yield lambda: batch.split_simple(n_ubatch)
        yield lambda: batch.split_equal(n_ubatch, sequential=not self.unified)

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        done = super().seq_rm(seq, p0, p1)
        self._warn_if_window_lost(seq)
        return done

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        super().seq_cp(src, dst, p0, p1)
        self._warn_if_window_lost(dst)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        super().seq_add(seq, p0, p1, delta)
        if self.observer is not None and delta and not self.can_shift and self.full.seq_pos_max(seq) >= 0:
            self.hazard("shift-although-cannot", seq=seq)
        self._warn_if_window_lost(seq)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        super().seq_div(seq, p0, p1, d)
        if self.observer is not None and d != 1 and not self.can_shift and self.full.seq_pos_max(seq) >= 0:
            self.hazard("shift-although-cannot", seq=seq)
        self._warn_if_window_lost(seq)

    def state_read(self, io: StateReader, seq: int = -1, flags: int = 0) -> None:
        """As every composite. A state of the window alone fits only beside the rest it was taken from."""
        super().state_read(io, seq, flags)
        if self.observer is not None and flags & PARTIAL_ONLY and seq >= 0:
            beyond = Counter(positions(self.swa, seq)) - Counter(positions(self.full, seq))
            if beyond:
                self.hazard("partial-state-alone", seq=seq, positions=sorted(beyond))
            elif self.full.seq_pos_max(seq) > self.swa.seq_pos_max(seq):
                self.hazard("base-keeps-later-positions", seq=seq)

    def _warn_if_window_lost(self, seq: int) -> None:
        if self.observer is None:
            return
        for s in [seq] if seq >= 0 else [s for table in self.full.cells for s in table.sequences()]:
            lost = lost_to_window(self.full, self.swa, s)
            if lost or self.swa.seq_pos_max(s) < self.full.seq_pos_max(s):
                self.hazard("trimmed-past-window", seq=s, lost=lost)


def positions(cache: AttentionLeaf, seq: int, start: int = 0) -> list[int]:
    """The positions of ``seq`` from ``start`` on, ascending; each as often as cells hold it."""
    table: CellTable = cache.cells[cache.stream_of(seq)]
    return table.positions(seq, start)


def lost_to_window(full: AttentionLeaf, swa: AttentionLeaf, seq: int) -> list[int]:
    """Positions of ``seq`` that its next token attends to and only ``full`` still has."""
    start = window.window_start(swa.spec.swa_type, swa.spec.n_swa, full.seq_pos_max(seq) + 1)
    attended, held = positions(full, seq, start), positions(swa, seq, start)
    return [] if attended == held else sorted(Counter(attended) - Counter(held))


class ISWACache(WindowPair):
    """Parts ``base`` (layers that see everything) and ``swa`` (layers with a window), in this order."""

    kind = "iswa"
    positions = "swa"
    not_in_partial = frozenset({"base"})

    def __init__(self, base: AttentionLeaf, swa: AttentionLeaf, unified: bool) -> None:
        super().__init__({"base": base, "swa": swa}, base.n_seq_max)
        self.base = self.full = base
        self.swa = swa
        self.unified = unified
