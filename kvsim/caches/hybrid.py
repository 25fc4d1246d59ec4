"""Attention beside recurrent states: the two must agree on what a sequence holds, and cannot always
(``src/llama-memory-hybrid.cpp``, ``src/llama-memory-hybrid-iswa.cpp``).

A recurrent state cannot forget a token in the middle, so it is asked first and may refuse::

    attn        0 1 2 3 4 5      seq_rm(s, 3, -1): the state stands at 5 and keeps no snapshot
    recurrent   [state at 5]     -> False, and attention is not touched
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvsim.batch import BatchAllocator
from kvsim.caches.attention_leaf import AttentionLeaf
from kvsim.caches.composite import CompositeMemory, Split
from kvsim.caches.iswa import ISWACache
from kvsim.caches.recurrent import RecurrentMemory
from kvsim.errors import CacheUsageError
from kvsim.memory import Memory
from kvsim.state import StateReader


class HybridBase(CompositeMemory):
    """What every hybrid has in common: an attention part and ``recurrent``, in that order."""

    restore_may_end = True  # in the recurrent part, when attention is restored already

    def __init__(self, attention: str, attn: Memory, recurrent: RecurrentMemory, n_stream: int) -> None:
        super().__init__({attention: attn, "recurrent": recurrent}, recurrent.n_seq_max)
        self.attn = attn
        self.recurrent = recurrent
        self.n_stream = n_stream

    def splits(self, batch: BatchAllocator, n_ubatch: int, output_all: bool) -> Iterator[Split]:
        """Equal splits that keep the tail of a sequence in one ubatch, so that a rollback can reach it; one
        sequence after the other if every token is an output (H1)."""
        if output_all:
            yield lambda: batch.split_seq(n_ubatch)
        else:
            tail = self.recurrent.keep_tail
            yield lambda: batch.split_equal(n_ubatch, sequential=self.n_stream > 1, n_keep_tail=tail)

    def check_batch(self, batch: BatchAllocator, n_ubatch: int, output_all: bool) -> None:
        if output_all and self.n_stream > 1 and batch.has_coupled:
            raise CacheUsageError(
                "with all tokens as outputs, tokens shared by several sequences cannot be split over streams; "
                "llama.cpp aborts. Use a unified cache, or decode the tokens once and copy the sequence"
            )

    def prepare_order(self) -> Sequence[str]:
        """The recurrent part first: it is the one that refuses for reasons of its own."""
        return ["recurrent", *self.attn.leaves()]

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """False, and nothing changed, if the recurrent part refuses (H3). ``seq`` -1 is always refused."""
        done = self.recurrent.seq_rm(seq, p0, p1) and self.attn.seq_rm(seq, p0, p1)
        self.compare_halves()
        return done

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        super().seq_cp(src, dst, p0, p1)
        self.compare_halves()

    def seq_keep(self, seq: int) -> None:
        super().seq_keep(seq)
        self.compare_halves()

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        super().seq_add(seq, p0, p1, delta)
        self.compare_halves()

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        super().seq_div(seq, p0, p1, d)
        self.compare_halves()

    def state_read(self, io: StateReader, seq: int = -1, flags: int = 0) -> None:
        try:
            super().state_read(io, seq, flags)
        finally:
            self.compare_halves()

    def compare_halves(self) -> None:
        """Tell an observer of sequences that end elsewhere in attention than in their state (surprise 1)."""
        if self.observer is None:
            return
        apart = [
            s for s in range(self.n_seq_max)
            if self.attn.seq_pos_max(s) != self.recurrent.seq_pos_max(s)
        ]  # fmt: skip
        if apart:
            self.hazard("halves-disagree", seqs=apart)

    def seq_pos_min(self, seq: int) -> int:
        return max(self.attn.seq_pos_min(seq), self.recurrent.seq_pos_min(seq))

    def seq_pos_max(self, seq: int) -> int:
        return min(self.attn.seq_pos_max(seq), self.recurrent.seq_pos_max(seq))

    def seq_range(self, seq: int) -> tuple[int, int]:
        (lo, hi), (first, last) = self.attn.seq_range(seq), self.recurrent.seq_range(seq)
        return max(lo, first), min(hi, last)

    @property
    def can_shift(self) -> bool:
        return self.attn.can_shift


class HybridMemory(HybridBase):
    """One attention cache ``attn`` and the recurrent states. A failed restore of the states clears the
    attention sequence too, if it was read (H7)."""

    kind = "hybrid"
    not_in_partial = frozenset({"attn"})
    undoes_restore = True

    def __init__(self, attn: AttentionLeaf, recurrent: RecurrentMemory) -> None:
        super().__init__("attn", attn, recurrent, attn.n_stream)


class HybridISWA(HybridBase):
    """An iSWA pair and the recurrent states. A failed restore of the states is not undone."""

    kind = "hybrid_iswa"

    def __init__(self, iswa: ISWACache, recurrent: RecurrentMemory) -> None:
        super().__init__("iswa", iswa, recurrent, iswa.base.n_stream)
