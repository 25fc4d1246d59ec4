"""DeepSeek-V4: a raw window cache beside compressed rows (``src/llama-kv-cache-dsv4.cpp``).

Every 4 tokens become one row of ``csa`` (and of its indexer ``lid``), every 128 one of ``hca``; tokens
of unfinished blocks wait in rings. Compressed rows have no cells: row ``pos // ratio`` of the
sequence's stream belongs to a block of positions, wherever the tokens sit::

    raw.swa   [..., 5, 6, 7, 8, 9]        the window
    csa       [row 0: 0-3][row 1: 4-7]    ring: 8 9 . .

Positions cannot be removed from the middle, nor shifted: a tail goes only as far back as the rings'
planes reach. Everything is kept per sequence, even if a unified cache was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np

from kvsim.batch import BatchAllocator, Ubatch
from kvsim.caches.attention_leaf import AttentionLeaf, AttentionView
from kvsim.caches.composite import CompositeMemory, Split
from kvsim.caches.dsv4_ring import CompressorRing
from kvsim.caches.dsv4_state import read_state, write_state
from kvsim.caches.iswa import ISWACache, positions
from kvsim.errors import CacheUsageError
from kvsim.memory import (
    BatchContext,
    MemoryContext,
    PrepareFailure,
    SlotInfo,
    UpdateContext,
    View,
)
from kvsim.models.memory_spec import CSA_RATIO
from kvsim.seq_ranges import least
from kvsim.state import StateReader, StateWriter
from kvsim.tensors.compressor import Plan

COMPRESSED = ("csa", "hca", "lid")


class DSV4Cache(CompositeMemory):
    """Parts ``raw`` (an iSWA pair; its base half only keeps books), ``csa``, ``hca``, ``lid``, and a ring for
    each of the last three. ``rs_idx[s]`` is the pending rollback of sequence s, in tokens; ``reach[s]`` how
    far one can really go: the rings' planes hold the last ubatch only."""

    kind = "dsv4"
    positions = "raw"

    def __init__(
        self, raw: ISWACache, compressed: Mapping[str, AttentionLeaf], rings: Mapping[str, CompressorRing]
    ) -> None:
        super().__init__({"raw": raw, **compressed}, raw.n_seq_max)
        self.raw = raw
        self.compressed = dict(compressed)
        self.rings = dict(rings)
        self.n_rs_seq = rings["csa"].spec.n_rs_seq
        self.rs_idx = [0] * self.n_seq_max
        self.reach = [0] * self.n_seq_max
        for cache in (raw.base, raw.swa, *compressed.values()):
            cache.has_mask = False

    # -- preparing changes ---------------------------------------------------------------------

    def splits(self, batch: BatchAllocator, n_ubatch: int, output_all: bool) -> Iterator[Split]:
        """One stream tries the simple split first; else sequences with shared tokens go one by one, and
        independent ones in equal splits that keep a tail together (B1)."""
        several = self.raw.base.n_stream > 1
        if not several:
            yield lambda: batch.split_simple(n_ubatch)
        if batch.has_coupled:
            yield lambda: batch.split_seq(n_ubatch)
        else:
            tail = self.n_rs_seq + 1 if self.n_rs_seq else 0
            yield lambda: batch.split_equal(n_ubatch, sequential=several, n_keep_tail=tail)

    def check_batch(self, batch: BatchAllocator, n_ubatch: int, output_all: bool) -> None:
        """Refuse what ends llama.cpp: while splitting, while planning, or in the graph."""
        if output_all:
            raise CacheUsageError(
                "deepseek4 cannot output the embeddings of all tokens; llama.cpp aborts. Use a context "
                "without embeddings"
            )
        if batch.has_coupled and self.raw.swa.spec.is_quantized_k:
            raise CacheUsageError(
                "tokens shared by several sequences cannot be copied in a quantised cache; llama.cpp aborts. "
                "Use an f16 cache, or decode the tokens once and copy the sequence"
            )
        if self._update_waits():  # what ends it while it prepares must show before the update is done
            for leaf in self.leaves().values():
                leaf.check_update()
            for split in self.splits(batch, n_ubatch, output_all):
                ubatches = batch.split_all(split)
                if ubatches is None:
                    continue
                raw_ubatches = [per_sequence(ubatch) for ubatch in ubatches]
                self._plans(ubatches, raw_ubatches)
                if self._has_room(raw_ubatches):
                    break  # no other split will be tried

    def _update_waits(self) -> bool:
        """Whether copies or shifts will be done before a batch is prepared."""
        if any(ring.pending_copies for ring in self.rings.values()):
            return True
        caches = (self.raw.base, self.raw.swa, *self.compressed.values())
        return any(cache.pending_copies or cache.has_shift for cache in caches)

    def _has_room(self, raw_ubatches: Sequence[Ubatch]) -> bool:
        """Whether both raw caches find slots, tried on copies."""
        trial = self.raw.copy_metadata()
        return all(leaf.prepare(raw_ubatches) for leaf in trial.leaves().values())

    def copy_metadata(self) -> Self:
        """As of every memory; the rings' rows are left out too."""
        states = {name: ring.states for name, ring in self.rings.items()}
        for ring in self.rings.values():
            ring.states = {}
        twin = super().copy_metadata()
        for name, ring in self.rings.items():
            ring.states = states[name]
        return twin

    def _prepare(self, ubatches: Sequence[Ubatch]) -> dict[str, list[Any]] | PrepareFailure | None:
        """Slots in the raw pair, then the plans. A plan that cannot be made raises, nothing has changed."""
        raw_ubatches = [per_sequence(ubatch) for ubatch in ubatches]
        plans = self._plans(ubatches, raw_ubatches)
        raw = self.raw.leaves()
        found = self.raw.base.prepare_all(list(raw.values()), raw_ubatches)
        if not isinstance(found, list):
            return found
        return {"ubatches": raw_ubatches, **plans, **dict(zip(raw, found, strict=True))}

    def _plans(self, ubatches: Sequence[Ubatch], raw_ubatches: Sequence[Ubatch]) -> dict[str, list[Plan]]:
        """What the graph of each ubatch does with each compressor; those of one shape all do the same. Raises
        CacheUsageError where llama.cpp ends, unless it refuses for want of room before that."""
        shapes = {ring.shape: ring for ring in self.rings.values()}
        try:
            for ubatch in ubatches:
                check_unplaced(ubatch)
            plans = {shape: ring.plans(ubatches, self.rs_idx) for shape, ring in shapes.items()}
        except CacheUsageError:
            if self._has_room(raw_ubatches):
                raise
            return {}
        return {name: plans[ring.shape] for name, ring in self.rings.items()}

    def batch_context(self, ubatches: Sequence[Ubatch], slots: Mapping[str, Sequence[Any]]) -> MemoryContext:
        """The prepared batch. Its sequences' pending rollbacks are forgotten here, not at apply (B4)."""
        pending = {s: self.rs_idx[s] for ubatch in ubatches for s in ubatch.seq_id_unq if self.rs_idx[s]}
        for s in pending:
            self.rs_idx[s] = 0
        return DSV4BatchContext(self, ubatches, slots, pending)

    def warn_of_gaps(self, ubatch: Ubatch) -> None:
        """Tell an observer of sequences that attend to compressed rows of positions they never held."""
        if self.observer is None:
            return
        for s in ubatch.seq_id_unq:
            held = positions(self.raw.base, s)
            if held and held[-1] >= CSA_RATIO - 1 and len(set(held)) <= held[-1]:
                self.hazard("compressed-rows-of-nothing", seq=s)

    def init_update(self, optimize: bool = False) -> UpdateContext:
        """The caches' stream copies and shifts, then the rings' copies."""
        works: list[Callable[[], None] | None] = list(super().init_update(optimize).works)
        for ring in self.rings.values():
            copies, ring.pending_copies = ring.pending_copies, []
            if copies:
                works.append(lambda ring=ring, copies=copies: ring.run_copies(copies))  # type: ignore[misc]
        return UpdateContext(works)

    # -- sequence operations -------------------------------------------------------------------

    def clear(self, data: bool) -> None:
        """Compressed rows and rings are zeroed whatever ``data`` says (O6)."""
        self.raw.clear(data)
        self._clear_compressed(-1)

    def _clear_compressed(self, seq: int) -> None:
        """Zero the compressed rows, rings and pending rollback of ``seq`` (-1: of every sequence)."""
        self._warn_of_emptied_copies(seq)
        for name, cache in self.compressed.items():
            if seq < 0:
                cache.clear(True)
                self.rings[name].clear()
            else:
                cache.seq_rm(seq, -1, -1)
                stream = cache.stream_of(seq)
                if cache.store is not None:
                    cache.store.zero_cells(stream, np.arange(cache.size, dtype=np.int32))
                self.rings[name].clear(stream)
        if seq < 0:
            self.rs_idx = [0] * self.n_seq_max
            self.reach = [0] * self.n_seq_max
        else:
            self.rs_idx[seq] = self.reach[seq] = 0

    def _warn_of_emptied_copies(self, seq: int) -> None:
        """The rings of ``seq`` (-1: of every sequence) are zeroed while copies of them are still queued."""
        emptied = {dst for src, dst in self.rings["csa"].pending_copies if seq in (src, -1)}
        if emptied:
            self.hazard("clearing-empties-queued-copy", seqs=sorted(emptied))

    def _is_known(self, seq: int) -> bool:
        return 0 <= seq < self.n_seq_max

    def check_known(self, op: str, seq: int, wildcard: bool = False) -> None:
        """Raise CacheUsageError if there is no such sequence."""
        if not (self._is_known(seq) or (wildcard and seq == -1)):
            raise CacheUsageError(
                f"{op}: sequence {seq} is unknown; llama.cpp aborts. Use an id from 0 to {self.n_seq_max - 1}"
            )

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """A whole sequence, or a tail no longer than the rings can go back, once (O1). Any other range is
        refused, even a harmless one."""
        if p1 >= 0:
            if self.raw.swa.seq_pos_max(seq if self._is_known(seq) else 0) < max(p0, 0):
                self.hazard("refuses-harmless-range", seq=seq, p0=p0, p1=p1)
            return False
        if p0 <= 0:
            self.check_known("seq_rm", seq, wildcard=True)
            self.raw.seq_rm(seq, p0, p1)
            self._clear_compressed(seq)
            return True
        return self._is_known(seq) and self._remove_tail(seq, p0)

    def _remove_tail(self, seq: int, p0: int) -> bool:
        pos_max = self.raw.seq_pos_max(seq)
        if p0 > pos_max:
            return self.raw.seq_rm(seq, p0, -1)
        depth = pos_max - p0 + 1
        if depth > self.n_rs_seq or self.rs_idx[seq]:
            return False
        if depth > self.reach[seq]:
            self.hazard("rollback-beyond-snapshot", seq=seq, depth=depth, reach=self.reach[seq])
        self.raw.seq_rm(seq, p0, -1)
        self.rs_idx[seq] = depth
        return True

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Only whole sequences can be copied (O2). The rings follow at the next update, from plane 0 even if
        a rollback of ``src`` is pending."""
        if p0 > 0 or p1 >= 0:
            raise CacheUsageError(
                f"seq_cp({src}, {dst}, {p0}, {p1}): deepseek4 copies whole sequences only; llama.cpp aborts. "
                f"Copy with p0 = p1 = -1"
            )
        self.check_known("seq_cp", src)
        self.check_known("seq_cp", dst)
        if src != dst and self.rs_idx[src]:
            self.hazard("copy-ignores-rollback", src=src, dst=dst, depth=self.rs_idx[src])
        if src != dst:
            self._warn_of_emptied_copies(dst)
        self.raw.seq_cp(src, dst, p0, p1)
        for name, cache in self.compressed.items():
            cache.seq_cp(src, dst, -1, -1)
            self.rings[name].seq_cp(src, dst)
        if src != dst:
            self.rs_idx[dst] = self.reach[dst] = 0

    def seq_keep(self, seq: int) -> None:
        """Every other sequence is removed and its compressed data zeroed (O3)."""
        self.check_known("seq_keep", seq)
        for other in range(self.n_seq_max):
            if other != seq:
                self.raw.seq_rm(other, -1, -1)
                self._clear_compressed(other)
        self.raw.seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Moves the raw positions only; the next update then ends llama.cpp: the base half has no layer."""
        self.raw.seq_add(seq, p0, p1, delta)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        self.raw.seq_div(seq, p0, p1, d)

    def seq_pos_min(self, seq: int) -> int:
        """The same as the maximum: a sequence can only be continued, so it reaches back no further (O5)."""
        return self.seq_pos_max(seq)

    def seq_pos_max(self, seq: int) -> int:
        return self.raw.seq_pos_max(seq) if self._is_known(seq) else -1

    def seq_range(self, seq: int) -> tuple[int, int]:
        last = self.seq_pos_max(seq)
        return last, last

    @property
    def can_shift(self) -> bool:
        return False

    # -- saved states, pictures ----------------------------------------------------------------

    def state_write(self, io: StateWriter, seq: int = -1, flags: int = 0) -> None:
        write_state(self, io, seq, flags)

    def state_read(self, io: StateReader, seq: int = -1, flags: int = 0) -> None:
        read_state(self, io, seq, flags)

    def memory_breakdown(self) -> dict[str, int]:
        rings = {f"{name}.ring": ring.n_bytes() for name, ring in self.rings.items()}
        return {**super().memory_breakdown(), **rings}

    def _snapshot_extra(self, extra: dict[str, Any]) -> None:
        extra["rs_idx"] = list(self.rs_idx)
        for name, ring in self.rings.items():
            if ring.pending_copies:
                copies = [list(pair) for pair in ring.pending_copies]
                extra.setdefault("pending_copies", {})[f"{name}_state"] = copies


def check_unplaced(ubatch: Ubatch) -> None:
    """Tokens at position -1 have no place in a block, so there are fewer biases than tokens. Those are used
    over and over again if that comes out even; raises CacheUsageError if not, or if a sequence has none but
    such tokens beside others, for which llama.cpp reads beyond the ubatch."""
    if least(ubatch.pos0) >= 0:
        return
    placed = ubatch.pos0 >= 0
    n = int(np.count_nonzero(placed))
    if n == 0:
        return
    if ubatch.n_tokens % n:
        raise CacheUsageError(
            f"{ubatch.n_tokens - n} of {ubatch.n_tokens} tokens of a ubatch are at position -1; deepseek4's "
            "compressors cannot be computed and llama.cpp aborts. Begin sequences at position 0"
        )
    reached = {s for i in np.flatnonzero(placed) for s in ubatch.seq_ids[i]}
    missing = [s for s in ubatch.seq_id_unq if s not in reached]
    if missing and all(len(ids) == 1 for ids in ubatch.seq_ids):
        raise CacheUsageError(
            f"sequence {missing[0]} has nothing but position -1 in a ubatch with other sequences; llama.cpp "
            "reads beyond the end of the ubatch. Begin sequences at position 0"
        )


def per_sequence(ubatch: Ubatch) -> Ubatch:
    """The ubatch as the raw caches are written: a shared token once for each of its sequences, ids ascending
    (B2). Raises CacheUsageError where llama.cpp throws."""
    if all(len(ids) == 1 for ids in ubatch.seq_ids):
        return ubatch
    if ubatch.has_embd:
        raise CacheUsageError(
            "embeddings shared by several sequences are not supported; llama.cpp throws. Decode them once "
            "and copy the sequence"
        )
    rows = [[i for i, ids in enumerate(ubatch.seq_ids) if s in ids] for s in ubatch.seq_id_unq]
    if len({len(part) for part in rows}) > 1:
        raise CacheUsageError(
            f"sequences {', '.join(map(str, ubatch.seq_id_unq))} share tokens but have "
            f"{', '.join(str(len(part)) for part in rows)} tokens in one ubatch; llama.cpp throws. Decode "
            f"the shared tokens in a batch of their own"
        )
    order = np.array([i for part in rows for i in part], np.int32)
    owners = [s for s, part in zip(ubatch.seq_id_unq, rows, strict=True) for _ in part]
    return replace(
        ubatch, pos=ubatch.pos[:, order], seq_ids=tuple((s,) for s in owners),
        output=np.zeros(len(order), np.bool_), idx=ubatch.idx[order],
        tokens=None if ubatch.tokens is None else ubatch.tokens[order],
        n_seq_tokens=len(rows[0]), n_seqs=len(rows), equal_seqs=True,
    )  # fmt: skip


class RawView(AttentionView):
    """What the graph reads of the raw window cache: with shared tokens, only the stream of the first id."""

    if_undone: Callable[[], None] | None = None

    def undone(self) -> None:
        if self.if_undone is not None:
            self.if_undone()

    def __init__(self, cache: AttentionLeaf, written: SlotInfo, ubatch: Ubatch, base: SlotInfo) -> None:
        first = ubatch.seq_ids[0][0]
        coupled = any(len(ids) > 1 for ids in ubatch.seq_ids)
        part = written.strm.index(cache.stream_of(first)) if coupled else 0
        self.cache, self.ubatch, self.written, self.base = cache, ubatch, written, base
        self.slot = written.part(part) if coupled else written
        self.view = cache.view(self.slot, ubatch)
        self.n_kv = self.view.n_kv

    def mask(self, causal: bool = True) -> Any:
        return self.view.mask(causal)

    def reuse_key(self) -> dict[str, Any]:
        return self.view.reuse_key()

    def describe(self, name: str, record: dict[str, Any]) -> None:
        record["slots"] = {
            "raw.base": self.base.to_json(),
            "raw.swa": self.written.to_json(),
            "raw.swa.read": self.slot.to_json(),
        }
        record["raw_n_kv"] = self.n_kv


class PlanView(View):
    """What the graph does with one compressor."""

    def __init__(self, cache: AttentionLeaf, ring: CompressorRing, plan: Plan) -> None:
        self.cache = cache
        self.ring = ring
        self.plan = plan

    def reuse_key(self) -> dict[str, Any]:
        plan = self.plan
        names = ("state_pos", "state_persist_src_idxs", "state_read_idxs", "state_write_idxs", "n_visible")
        return {
            "n_kv": plan.n_kv,
            "n_stream": plan.n_stream,
            **{name: len(getattr(plan, name)) for name in names},
        }

    def describe(self, name: str, record: dict[str, Any]) -> None:
        record.setdefault("plan", {})[name] = self.plan.to_json()


class DSV4BatchContext(BatchContext):
    """Places ubatches in the raw pair; the compressed parts only follow their plans."""

    def __init__(
        self,
        memory: DSV4Cache,
        ubatches: Sequence[Ubatch],
        slots: Mapping[str, Sequence[Any]],
        rollbacks: Mapping[int, int],
    ) -> None:
        super().__init__(ubatches, memory.leaves(), slots)
        self._memory = memory
        self._rollbacks = dict(rollbacks)

    def apply(self) -> bool:
        memory, i = self._memory, self.i
        raw_ubatch = self._slots["ubatches"][i]
        base, swa = memory.raw.leaves()
        written: dict[str, SlotInfo] = {name: self._slots[name][i] for name in (base, swa)}
        for name, leaf in memory.raw.leaves().items():
            leaf.apply_ubatch(written[name], raw_ubatch)
        memory.warn_of_gaps(self.ubatch)
        for s in self.ubatch.seq_id_unq:
            memory.reach[s] = sum(s in ids for ids in self.ubatch.seq_ids)
        raw = RawView(memory.raw.swa, written[swa], self.ubatch, written[base])
        raw.if_undone = partial(self._lose_rollbacks, dict(self._rollbacks))
        for s in self.ubatch.seq_id_unq:
            self._rollbacks.pop(s, None)
        self._views = {"raw": raw}
        for name in COMPRESSED:
            self._views[name] = PlanView(memory.compressed[name], memory.rings[name], self._slots[name][i])
        return True

    def _lose_rollbacks(self, pending: Mapping[int, int]) -> None:
        """The ubatch failed: its tokens are in no plane, and rollbacks that it or a later one was to carry
        out are forgotten all the same."""
        for s in self.ubatch.seq_id_unq:
            self._memory.reach[s] = 0
        for s, depth in pending.items():
            self._memory.hazard("rollback-consumed-early", seq=s, depth=depth)
