"""A network that writes ink instead of keys (:mod:`kvsim.testing.ink_cache`) and notes what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from kvsim.batch import Ubatch
from kvsim.caches.dsv4 import PlanView, RawView, per_sequence
from kvsim.caches.kv import KVCache
from kvsim.caches.kv_view import KVView
from kvsim.caches.recurrent import RecurrentMemory, RecurrentView
from kvsim.ledger_states import Histories, State
from kvsim.memory import IntArray, View
from kvsim.tensors.compressor import CompressorShape
from kvsim.tensors.recurrent_store import RecurrentStore
from kvsim.testing.ink_cache import InkStore

NOTHING = np.zeros(1, np.int32)
"""What a plan reads where there is no token."""


def inked(store: RecurrentStore) -> tuple[str, int]:
    """The part and layer whose rows carry the histories: a state if there is one, else (LFM2 keeps none) the
    convolution's."""
    return next((part, il) for part in "sr" for il, rows in store.rows[part].items() if rows.shape[1])


def states_of(memory: RecurrentMemory) -> dict[int, State]:
    """Where the state of each sequence stands, and what it has seen: the row that its next token reads."""
    store = memory.store
    assert store is not None
    part, il = inked(store)
    rows = store.rows[part][il][:, 0]
    states = {}
    for seq in range(memory.n_seq_max):
        cell = memory.cells.cell_of(seq)
        if cell >= 0:
            src = memory.cells.src[cell]
            history = int(rows[memory.rs_idx[seq] * memory.size + src]) if src >= 0 else 0
            states[seq] = State(memory.cells.pos[cell], history)
    return states


@dataclass
class Read:
    """What one row of a ubatch attended to in one cache: sorted (instance, turned)."""

    part: str
    seq: int
    pos: int
    place: tuple[int, int]
    seen: list[tuple[int, int]]


@dataclass
class Start:
    """What the state of one sequence had seen before a ubatch."""

    seq: int
    history: int


@dataclass
class Rows:
    """The compressed rows that the tokens of a sequence attend to, each as the instances it was made from: the
    last token sees them all, those before it the first ones."""

    seq: int
    blocks: list[tuple[int, ...]]


@dataclass
class Ran:
    """A ubatch that was computed: its rows' batch indices, and what they read."""

    idx: list[int]
    reads: list[Read] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    compressed: list[Rows] = field(default_factory=list)


class InkNetwork:
    """Writes ink instead of keys, and notes what each token attends to.

    Entry ``i`` of a batch becomes instance ``first + i``; set ``first`` before each decode.
    """

    def __init__(self, histories: Histories) -> None:
        self.histories = histories
        self.first = 1
        self.ran: list[Ran] = []
        self._blocks: list[tuple[int, ...]] = [()]
        self._numbers: dict[tuple[int, ...], int] = {}

    def run(self, ubatch: Ubatch, views: Mapping[str, View]) -> NDArray[np.float32]:
        instances = ubatch.idx + self.first
        ran = Ran(ubatch.idx.tolist())
        for name, view in views.items():
            if isinstance(view, KVView):
                if view.cache.store is not None:
                    self._write(view, instances)
                    if view.cache.has_mask:
                        self._attend(name, view, ran)
            elif isinstance(view, PlanView):
                self._compress(name, view, ubatch, instances, ran)
            elif isinstance(view, RawView):
                self._attend_raw(view, instances, ran)
            elif isinstance(view, RecurrentView):
                self._remember(view, ubatch, instances, ran)
        self.ran.append(ran)
        return np.zeros((ubatch.n_tokens, 1), np.float32)

    def _remember(self, view: RecurrentView, ubatch: Ubatch, instances: IntArray, ran: Ran) -> None:
        """Advance the states: each row of the first layer's state holds the number of its history."""
        memory, n_seqs, length = view.memory, ubatch.n_seqs, ubatch.n_seq_tokens
        store = memory.store
        assert store is not None
        part, il = inked(store)
        start = store.initial_states(part, il, view.head, view.rs_z, view.s_copy, n_seqs)[:, 0]
        n_planes = min(length, memory.n_rs_seq + 1)
        planes = np.zeros((n_planes, n_seqs, 1), np.float32)
        for k in range(n_seqs):
            history = int(start[k])
            ran.starts.append(Start(ubatch.seq_ids[k * length][0], history))
            for t in range(length):
                history = self.histories.after(history, int(instances[k * length + t]))
                back = length - 1 - t
                if back < n_planes:
                    planes[back, k, 0] = history
        store.write_states(part, il, view.head, planes)

    def _write(self, view: KVView, instances: IntArray) -> None:
        store = view.cache.store
        assert isinstance(store, InkStore)
        store.write(view.k_idxs(), instances, view.ubatch.pos0)

    def _attend_raw(self, view: RawView, instances: IntArray, ran: Ran) -> None:
        """DeepSeek-V4 writes a shared token once per sequence, and reads the stream of the first one."""
        assert isinstance(view.cache, KVCache)
        assert isinstance(view.view, KVView)
        if view.slot is view.written:  # no token is shared
            self._write(view.view, instances)
        else:
            written = KVView(view.cache, view.written, per_sequence(view.ubatch))
            self._write(written, written.ubatch.idx + self.first)
        self._attend(view.cache.name, view.view, ran)

    def _compress(self, name: str, view: PlanView, ubatch: Ubatch, instances: IntArray, ran: Ran) -> None:
        """Follow the plan with instances in place of values: a compressed row holds the number of the tuple
        it was made from (``src/models/deepseek4.cpp``; the order is that of the graph)."""
        ring, plan, cache = view.ring, view.plan, view.cache
        store = cache.store
        assert isinstance(store, InkStore)
        kept = next(iter(ring.states.values())).kv[:, 0]
        if len(plan.state_restore_dst_idxs):
            kept[plan.state_restore_dst_idxs] = kept[plan.state_restore_src_idxs]
        sources = np.concatenate(
            (kept[: ring.shape.ring_rows], instances, NOTHING), dtype=np.int32, casting="unsafe"
        )
        read = tuple(sources.take(plan.state_read_idxs).tolist())
        for at, block in zip(plan.state_write_idxs.tolist(), _blocks(read, ring.shape), strict=True):
            stream, row = divmod(at, cache.size)
            store.instance[stream, row] = self._number(block)
        if len(plan.state_snapshot_dst_idxs):
            rows = np.concatenate((kept, instances))
            kept[plan.state_snapshot_dst_idxs] = rows[plan.state_snapshot_src_idxs]
        persisted = zip(
            plan.state_persist_dst_idxs.tolist(), plan.state_persist_src_idxs.tolist(), strict=True
        )
        for row, token in persisted:
            kept[row] = instances[token]
        if name != "csa":
            return
        most: dict[int, int] = {}
        for ids, n in zip(ubatch.seq_ids, plan.n_visible.tolist(), strict=True):
            most[ids[0]] = max(n, most.get(ids[0], 0))
        for seq, n in most.items():
            numbers = store.instance[cache.stream_of(seq), :n].tolist()
            ran.compressed.append(Rows(seq, [self._blocks[k] for k in numbers]))

    def _number(self, block: tuple[int, ...]) -> int:
        """The number of a tuple of instances; number 0 is a row that was never written."""
        if block not in self._numbers:
            self._numbers[block] = len(self._blocks)
            self._blocks.append(block)
        return self._numbers[block]

    def _attend(self, name: str, view: KVView, ran: Ran) -> None:
        store, ubatch = view.cache.store, view.ubatch
        assert isinstance(store, InkStore)
        mask = view.mask().tolist()
        pos = ubatch.pos0.tolist()
        two_d = ubatch.n_pos >= 3
        per_stream = ubatch.n_tokens // view.n_stream
        for local, stream in enumerate(view.slot.strm):
            pairs = list(map(tuple, store.ink[stream, : view.n_kv].tolist()))
            for i in range(local * per_stream, (local + 1) * per_stream):
                seen = sorted(compress(pairs, mask[i]))
                place = (int(ubatch.pos[1, i]), int(ubatch.pos[2, i])) if two_d else (0, 0)
                ran.reads.append(Read(name, ubatch.seq_ids[i][0], pos[i], place, seen))


def _blocks(read: tuple[int, ...], shape: CompressorShape) -> list[tuple[int, ...]]:
    """What was read for each block, oldest first. With overlap the tokens before all the blocks come ahead of their
    own."""
    ratio = shape.ratio
    if not shape.overlap:
        return [read[i : i + ratio] for i in range(0, len(read), ratio)]
    half = len(read) // 2
    return [read[i : i + ratio] + read[half + i : half + i + ratio] for i in range(0, half, ratio)]
