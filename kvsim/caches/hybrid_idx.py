"""A hybrid with an indexer: a third cache mirrors the attention cache cell for cell
(``src/llama-memory-hybrid-idx.cpp``).

The indexer takes the slots that attention found, so the two tables can never drift apart. Keys are
pooled (pool_layout.py), and a pooled key is valid only while its pool is made of the same cells: an edit
of a sequence makes its pools *stale* from some position on, until the next batch pools them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kvsim.batch import BatchAllocator, Ubatch
from kvsim.caches.attention_leaf import AttentionLeaf
from kvsim.caches.hybrid import HybridBase
from kvsim.caches.pool_layout import CLEAN, IdxView, all_clean, all_stale
from kvsim.caches.recurrent import RecurrentMemory
from kvsim.errors import CacheUsageError, StateError
from kvsim.memory import BatchContext, MemoryContext, SlotInfo, UpdateContext
from kvsim.state import PARTIAL_ONLY, StateReader

__all__ = ["HybridIdx", "IdxView"]


class HybridIdx(HybridBase):
    """Parts ``attn``, ``recurrent`` and ``idx`` (None for a model without an indexer).

    ``kpool`` cells make a pool (0: keys are not pooled), by position or ``by_order``. A refused or failed
    restore drops the sequence from all three (X3).
    """

    kind = "hybrid_idx"
    not_in_partial = frozenset({"attn", "idx"})

    def __init__(
        self,
        attn: AttentionLeaf,
        recurrent: RecurrentMemory,
        idx: AttentionLeaf | None,
        kpool: int,
        by_order: bool,
    ) -> None:
        super().__init__("attn", attn, recurrent, attn.n_stream)
        self.attn: AttentionLeaf = attn
        self.idx = idx
        self.stale = all_clean()
        self.layout = idx.pool_layout(kpool, by_order) if idx is not None and kpool else None
        if idx is not None:
            idx.has_mask = False
            attn.together = idx.together = (attn, idx)
            self.parts["idx"] = idx

    def prepare_order(self) -> Sequence[str]:
        return ["recurrent", "attn"]

    def mirrored(self) -> Mapping[str, str]:
        return {} if self.idx is None else {"idx": "attn"}

    def check_batch(self, batch: BatchAllocator, n_ubatch: int, output_all: bool) -> None:
        super().check_batch(batch, n_ubatch, output_all)
        if self.attn.spec.ngram_token is None:
            return
        if batch.has_coupled:
            raise CacheUsageError(
                "a token shared by several sequences has no single predecessor, which n-gram embeddings need; "
                "llama.cpp aborts. Decode the tokens for one sequence and copy it"
            )
        if output_all:
            raise CacheUsageError(
                "a model with n-gram embeddings cannot output the embeddings of all tokens; llama.cpp aborts. "
                "Use a context without embeddings"
            )

    def batch_context(self, ubatches: Sequence[Ubatch], slots: Mapping[str, Sequence[Any]]) -> MemoryContext:
        return IdxBatchContext(self, ubatches, slots)

    def init_update(self, optimize: bool = False) -> UpdateContext:
        """As for every composite. Cells at one position rank by their index, so cells that move may make up
        other pools: all are pooled again."""
        moved = self.idx is not None and self.idx.plans_moves(optimize)
        update = super().init_update(optimize)
        if moved:
            update.works.append(partial(self._make_stale, -1, 0))
        return update

    def init_full(self) -> None:
        self.refresh_layout()

    def refresh_layout(self) -> None:
        """Bring the pools up to the cells (L5)."""
        if self.layout is not None and self.idx is not None:
            self.layout.refresh(self.idx, self.stale)

    # -- sequence operations, and what they make stale (3.3) -----------------------------------

    def clear(self, data: bool) -> None:
        super().clear(data)
        self._make_stale(-1, 0)

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """The recurrent part may refuse; then the indexer, then attention (X2)."""
        if not self.recurrent.seq_rm(seq, p0, p1):
            return False
        if self.idx is not None:
            stale = self._regrouped_from(seq, p0)
            self.idx.seq_rm(seq, p0, p1)
            self._make_stale(seq, stale)
            self._rederive_sharing()
        done = self.attn.seq_rm(seq, p0, p1)
        self.compare_halves()
        return done

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        super().seq_cp(src, dst, p0, p1)
        self._make_stale(src, 0)
        self._make_stale(dst, 0)

    def seq_keep(self, seq: int) -> None:
        super().seq_keep(seq)
        self._make_stale(-1, 0)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        self.attn.check_editable("seq_add", seq)
        stale = self._regrouped_from(seq, p0 + delta if delta < 0 else p0)
        super().seq_add(seq, p0, p1, delta)
        self._make_stale(seq, stale)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        super().seq_div(seq, p0, p1, d)
        self._make_stale(seq, 0)

    def _regrouped_from(self, seq: int, p0: int) -> int:
        """From which position an edit at ``p0`` regroups; one at or below the first position, everything."""
        return 0 if self.idx is None or p0 <= self.idx.seq_pos_min(seq) else p0

    def _make_stale(self, seq: int, p0: int) -> None:
        """Lower the staleness of ``seq`` to ``p0``; without an indexer nothing. What concerns every sequence (-1)
        concerns all that it has."""
        if self.idx is None:
            return
        if seq < 0:
            self.stale = all_stale()
        else:
            self.stale[seq] = min(self.stale[seq], max(p0, 0))

    def _rederive_sharing(self) -> None:
        """What was freed may end a sharing that the layout still remembers: every sequence is looked at anew."""
        if self.layout is not None and not self.layout.cache_safe:
            self._make_stale(-1, 0)

    # -- saved states --------------------------------------------------------------------------

    def state_read(self, io: StateReader, seq: int = -1, flags: int = 0) -> None:
        """Attention, recurrent, then the indexer in exactly attention's cells (X3)."""
        partial = bool(flags & PARTIAL_ONLY)
        held = self._holders(seq) if self.observer is not None else []
        try:
            slots: list[SlotInfo | None] = []
            if not partial:
                slots = self.attn.restore(io, seq)
            self.recurrent.state_read(io, seq, flags)
            if not partial and self.idx is not None:
                self.idx.restore(io, seq, mirror=slots)
                self._make_stale(seq, 0)
                self._rederive_sharing()
        except StateError:
            if partial and self.attn.seq_pos_max(max(seq, 0)) >= 0:
                self.hazard("partial-failure-drops-all", seq=seq)
            elif held:
                self.hazard("failed-restore-loses-sequence", seqs=held)
            self.state_drop(seq)
            raise
        self.compare_halves()

    def _holders(self, seq: int) -> list[int]:
        """Which of ``seq`` (-1: of all sequences) hold anything."""
        asked = range(self.n_seq_max) if seq < 0 else [seq]
        parts = self.attn, self.recurrent
        return [s for s in asked if any(part.seq_pos_max(s) >= 0 for part in parts)]

    def state_drop(self, seq: int) -> None:
        """Forget ``seq`` (-1: everything) in all three parts, whatever the recurrent one says (X4)."""
        if seq < 0:
            self.clear(True)
            return
        self.attn.drop_sequence(seq)
        self.recurrent.seq_rm(seq, -1, -1)
        if self.idx is not None:
            self.idx.drop_sequence(seq)
            self._make_stale(seq, 0)
            self._rederive_sharing()

    def _snapshot_extra(self, extra: dict[str, Any]) -> None:
        extra["idx_stale"] = [[s, p] for s, p in enumerate(self.stale[: self.n_seq_max]) if p != CLEAN]


class IdxBatchContext(BatchContext):
    """Refreshes the pools after each ubatch; the first one done, nothing is stale any more."""

    def __init__(
        self, memory: HybridIdx, ubatches: Sequence[Ubatch], slots: Mapping[str, Sequence[Any]]
    ) -> None:
        super().__init__(ubatches, memory.leaves(), slots)
        self._memory = memory
        self._stale = memory.stale[:]

    def apply(self) -> bool:
        done = super().apply()
        memory, layout = self._memory, self._memory.layout
        if layout is None or memory.idx is None:
            return done
        memory.refresh_layout()
        slot = self._slots["idx"][self.i]
        view = layout.view(memory.idx, slot, self.ubatch, self._stale if self.i == 0 else None)
        self._views = {**self._views, "idx": view}
        return done

    def next(self) -> bool:
        if self.i == 0:
            self._memory.stale = all_clean()
        return super().next()
