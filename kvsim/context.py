"""The decode loop over a memory (``src/llama-context.cpp``; spec/decode.md).

Batch -> validate (-1) -> pending updates -> split and find slots (1) -> for each ubatch:
place, decide the graph, compute (2, -2, -3: its positions are removed again) -> outputs in order
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim import state
from kvsim.batch import Batch, BatchAllocator, Ubatch
from kvsim.caches import kv_hazards
from kvsim.caches.factory import LeafFactory, create_memory
from kvsim.errors import BatchError, CacheUsageError, StateError
from kvsim.events import Event, Observer
from kvsim.graph import GraphCache, GraphDecision
from kvsim.memory import Memory, MemoryContext, MemoryStatus, PrepareFailure, View
from kvsim.models.arch import SEPARATE_INPUTS
from kvsim.models.context_params import ContextParams, ResolvedContext, resolve
from kvsim.models.memory_spec import memory_spec
from kvsim.models.params import ModelParams
from kvsim.outputs import OutputOrder
from kvsim.state_format import older_layouts
from kvsim.state_versions import looks_older

Logits = NDArray[np.float32]

OK, NO_SLOT, ABORTED, BAD_BATCH, ALLOC_FAILED, COMPUTE_FAILED = 0, 1, 2, -1, -2, -3
"""What :meth:`Context.decode` returns."""

FAULTS = {"abort": ABORTED, "alloc": ALLOC_FAILED, "compute": COMPUTE_FAILED}
"""Kinds of faults that can be injected, and the code each leads to."""

FAILED = {
    ABORTED: "was aborted",
    ALLOC_FAILED: "found no memory for its graph",
    COMPUTE_FAILED: "failed to compute",
}


@dataclass(frozen=True)
class Fault:
    """Fail while ubatch ``ubatch`` (from 0) is processed: its graph cannot be allocated (``alloc``), its
    computation is aborted by the caller (``abort``) or fails (``compute``)."""

    ubatch: int
    kind: str = "abort"

    def __post_init__(self) -> None:
        if self.kind not in FAULTS:
            raise CacheUsageError(f"unknown fault {self.kind!r}: use one of {', '.join(FAULTS)}")


@dataclass(frozen=True)
class Failure:
    """Why the last decode failed: its code, a sentence, and what is behind it.

    ``slot`` has the four numbers of a refused placement, ``batch`` the violated rule of a refused batch,
    ``ubatch`` the index of the ubatch that failed to compute, ``refused`` the sequences whose rollback the
    memory refused.
    """

    code: int
    reason: str
    slot: PrepareFailure | None = None
    batch: BatchError | None = None
    ubatch: int | None = None
    refused: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"decode returned {self.code}: {self.reason}"


class Network(Protocol):
    """A model that computes through the memory: the logits ``float32[n_tokens, n_vocab]`` of one ubatch."""

    def run(self, ubatch: Ubatch, views: Mapping[str, View]) -> Logits: ...


@dataclass
class UbatchRecord:
    """One ubatch that reached the graph: ``json`` in the trace format, and the graph decision."""

    json: dict[str, Any]
    graph: GraphDecision


@dataclass
class Context:
    """A model's memory and the loop that decodes through it.

    ``params`` are merged with the model's own values into ``resolved``. ``memory`` is None for models that
    keep nothing. ``network`` computes logits; without it only metadata moves. ``records`` keeps what the
    last decode did when ``recording`` is on.
    """

    model: ModelParams
    params: ContextParams = field(default_factory=ContextParams)
    n_vocab: int | None = None
    network: Network | None = None
    leaves: LeafFactory = field(default_factory=LeafFactory)
    recording: bool = False

    def __post_init__(self) -> None:
        self.resolved: ResolvedContext = resolve(self.model, self.params)
        self._memory = create_memory(self.model, self.resolved, self.leaves)
        self.allocator = BatchAllocator(
            self.model.n_pos_per_embd,
            self.resolved.n_seq_max,
            self.n_vocab,
            allow_mixed=self.model.arch not in SEPARATE_INPUTS,
        )
        self.device_states = state.DeviceStates()
        self.causal_attn = self.resolved.causal_attn
        self.graphs = GraphCache(self.model.arch)
        self.records: list[UbatchRecord] = []
        self.outputs = OutputOrder([])
        self.logits: Logits | None = None
        self.last_failure: Failure | None = None
        self.observer: Observer | None = None
        if self._memory is not None:
            self._memory.init_full()

    @property
    def memory(self) -> Memory:
        """The memory. Raises CacheUsageError for a model that keeps nothing."""
        if self._memory is None:
            raise CacheUsageError(
                f"{self.model.arch} keeps no memory: it sees a whole text at once. Encode instead of decoding"
            )
        return self._memory

    def observe(self, observer: Observer | None) -> None:
        """Tell ``observer`` every event of the context and its memory (None: nobody)."""
        self.observer = observer
        self.memory.observe(observer)

    # -- decoding ------------------------------------------------------------------------------

    def decode(self, batch: Batch, fault: Fault | None = None) -> int:
        """Place and compute a batch. Returns llama.cpp's code; ``last_failure`` says why if not 0.

        0 ok. 1 no slot: no token was placed, but pending updates ran. 2 aborted, -2 out of memory, -3 compute
        failed: the positions of that ubatch are removed, earlier ubatches stay. -1 refused before anything
        changed. Raises CacheUsageError where llama.cpp would end the process.
        """
        self.records = []
        self.last_failure = None
        self.logits = None
        memory = self.memory
        output_all = self.resolved.embeddings
        if batch.n_tokens == 0:
            return self._fail(BAD_BATCH, "the batch is empty")
        try:
            self.allocator.init(batch, memory, output_all)
        except BatchError as err:
            return self._fail(BAD_BATCH, str(err), batch=err)
        if self.observer is not None:
            for pair in kv_hazards.split_histories(memory, self.allocator.coupled):
                self._emit("hazard", id="shared-token-sees-one-history", seqs=list(pair))
        self._check_size(self.allocator.n_tokens)
        memory.check_batch(self.allocator, self.resolved.n_ubatch, output_all)
        self.update()
        prepared = self._prepare(output_all)
        if prepared is None:
            return NO_SLOT
        return self._run(prepared, fault)

    def _check_size(self, n_tokens: int) -> None:
        if n_tokens > self.resolved.n_batch:
            raise CacheUsageError(
                f"a batch of {n_tokens} tokens exceeds n_batch = {self.resolved.n_batch}; llama.cpp aborts. "
                f"Decode it in parts"
            )
        if not self.causal_attn and n_tokens > self.resolved.n_ubatch:
            raise CacheUsageError(
                f"without causal attention a batch must fit one ubatch: {n_tokens} tokens, n_ubatch = "
                f"{self.resolved.n_ubatch}; llama.cpp aborts. Raise n_ubatch or decode in parts"
            )

    def update(self, optimize: bool = False) -> bool:
        """Run pending stream copies and shifts (``memory_update``). Returns whether there was work."""
        work = self.memory.init_update(optimize)
        if work.status is not MemoryStatus.SUCCESS:
            return False
        self.graphs.drop("the memory was updated")
        work.apply()
        self.memory.init_full()
        return True

    def _prepare(self, output_all: bool) -> MemoryContext | None:
        """Slots for the whole batch; one retry after optimising, as llama.cpp does."""
        for attempt in range(2):
            prepared = self.memory.init_batch(self.allocator, self.resolved.n_ubatch, output_all)
            if prepared.status is MemoryStatus.SUCCESS:
                return prepared
            if attempt == 0 and not self.update(optimize=True):
                break
        if prepared.failure is not None:
            self._fail(NO_SLOT, str(prepared.failure), slot=prepared.failure)
        else:
            self._fail(NO_SLOT, self._why_no_split())
        return None

    def _why_no_split(self) -> str:
        pairs = ", ".join(f"{a} and {b}" for a, b in self.allocator.coupled)
        return (
            f"the batch cannot be split: tokens are shared by sequences {pairs}, which live in different "
            f"streams. Decode the tokens once and copy the sequence, or use a unified cache"
        )

    def _run(self, prepared: MemoryContext, fault: Fault | None) -> int:
        allocator = self.allocator
        every = allocator.n_outputs == allocator.n_tokens
        logits: list[Logits] = []
        i = 0
        while True:
            ubatch = prepared.ubatch
            n_outputs = ubatch.n_tokens if every else int(np.count_nonzero(ubatch.output))
            due = fault if fault is not None and fault.ubatch == i else None
            code = self._process(prepared, ubatch, n_outputs, due, logits)
            if code != OK:
                return self._roll_back(ubatch, prepared.views, code, i)
            i += 1
            if not prepared.next():
                break
        self.outputs = OutputOrder(allocator.out_ids)
        if logits:
            self.logits = np.concatenate(logits)
            self.outputs.reorder(self.logits)
        return OK

    def _process(
        self,
        prepared: MemoryContext,
        ubatch: Ubatch,
        n_outputs: int,
        fault: Fault | None,
        logits: list[Logits],
    ) -> int:
        """Place one ubatch and compute it (``process_ubatch``)."""
        if self.observer is not None:
            detail = {"n_tokens": ubatch.n_tokens, "n_seqs": ubatch.n_seqs, "idx": ubatch.idx.tolist()}
            self.observer(Event("split", detail=detail))
            if ubatch.n_tokens > self.resolved.n_ubatch:
                self._emit("hazard", id="ubatch-exceeds-limit", n_tokens=ubatch.n_tokens)
        prepared.apply()
        views = prepared.views
        graph = self.graphs.decide(ubatch, n_outputs, views, self.causal_attn)
        if self.observer is not None:
            self.observer(Event("graph", detail={"reused": graph.reused, "reason": graph.reason}))
        if fault is not None and fault.kind == "alloc":
            self.graphs.drop("the last graph could not be allocated")
            return ALLOC_FAILED
        for view in views.values():
            view.set_inputs()
        if self.recording:
            self.records.append(UbatchRecord(_record(ubatch, views, fault is None), graph))
        if fault is not None:
            return FAULTS[fault.kind]
        if self.network is not None:
            rows = self.network.run(ubatch, views)
            logits.append(rows if n_outputs == ubatch.n_tokens else rows[ubatch.output])
        return OK

    def _roll_back(self, ubatch: Ubatch, views: Mapping[str, View], code: int, i: int) -> int:
        """Remove the failed ubatch's positions of the first sequence of each token (decode.md 4); a memory
        may refuse, and llama.cpp does not look."""
        for view in views.values():
            view.undone()
        first: dict[int, int] = {}
        for ids, pos in zip(ubatch.seq_ids, ubatch.pos0.tolist(), strict=True):
            first[ids[0]] = min(first.get(ids[0], pos), pos)
        refused = []
        for seq, p0 in sorted(first.items()):
            if self.observer is not None and kv_hazards.holds_more(self.memory, ubatch, seq, p0):
                self._emit("hazard", id="rollback-removes-older-tokens", seq=seq, p0=p0)
            accepted = self.memory.seq_rm(seq, p0, -1)
            if not accepted:
                refused.append(seq)
            self._emit("rollback", seq=seq, p0=p0, accepted=accepted)
            if accepted and p0 > 0 and self.observer is not None and memory_depth(self.memory, seq):
                self._emit("hazard", id="rollback-arms-uncomputed", seq=seq)
        if refused:
            self._emit("hazard", id="rollback-refused", seqs=refused)
        shared = sorted({s for ids in ubatch.seq_ids for s in ids[1:]} - set(first))
        if shared:
            self._emit("hazard", id="rollback-first-owner-only", seqs=shared)
        self.outputs = OutputOrder([])
        reason = f"ubatch {i + 1} {FAILED[code]}; its {ubatch.n_tokens} tokens are rolled back"
        if refused:
            reason += f", except those of sequences {', '.join(map(str, refused))}, whose memory refused"
        return self._fail(code, reason, ubatch=i, refused=tuple(refused))

    def _fail(self, code: int, reason: str, **why: Any) -> int:
        self.last_failure = Failure(code, reason, **why)
        return code

    def _emit(self, kind: str, **detail: Any) -> None:
        if self.observer is not None:
            self.observer(Event(kind, detail=detail))

    def logits_of(self, i: int) -> Logits:
        """The logits of batch entry ``i`` (negative: counted from the last output). Raises CacheUsageError if
        that entry asked for none."""
        if self.logits is None:
            raise CacheUsageError("there are no logits: the last decode failed, or there is no network")
        row: Logits = self.logits[self.outputs.row(i)]
        return row

    # -- saved states --------------------------------------------------------------------------

    def state_seq_get(self, seq: int, flags: int = 0) -> bytes:
        """The state of one sequence (``llama_state_seq_get_data_ext``); nothing if the memory refuses to
        write it, with the reason in ``last_failure``."""
        self.last_failure = None
        try:
            data = state.save_sequence(self.memory, seq, flags, self.device_states)
        except StateError as err:
            self._emit("state", what="refused", seq=seq, flags=flags, reason=str(err))
            self._fail(0, str(err))
            return b""
        self._emit("state", what="saved", seq=seq, flags=flags, n_bytes=len(data))
        return data

    def state_seq_set(self, data: bytes, seq: int, flags: int = 0, strict: bool = False) -> int:
        """Restore a sequence; returns the bytes read, or 0 if refused with the reason in ``last_failure``.
        ``strict``: a refused restore leaves the memory as it was."""

        def load() -> int:
            return state.load_sequence(self.memory, data, seq, flags, self.device_states, strict)

        return self._restore(load, data, seq, flags)

    def state_get(self) -> bytes:
        """The whole state (``llama_state_get_data``)."""
        data = state.save_all(self.memory, self.model.arch)
        self._emit("state", what="saved", seq=-1, flags=0, n_bytes=len(data))
        return data

    def state_set(self, data: bytes, strict: bool = False) -> int:
        """Restore the whole state; returns the bytes read, or 0 if refused."""
        return self._restore(lambda: state.load_all(self.memory, data, self.model.arch, strict), data, -1, 0)

    def _restore(self, load: Callable[[], int], data: bytes, seq: int, flags: int) -> int:
        self.last_failure = None
        try:
            n_bytes = load()
        except StateError as err:
            reason = f"{err}{self._if_older(data, flags)}"
            self._emit("state", what="refused", seq=seq, flags=flags, reason=reason)
            return self._fail(0, reason)
        self._emit("state", what="restored", seq=seq, flags=flags, n_bytes=n_bytes)
        return n_bytes

    def _if_older(self, data: bytes, flags: int) -> str:
        """What to add to a refusal if the bytes are of an older llama.cpp, else nothing."""
        spec = memory_spec(self.model, self.resolved)
        if spec is None or flags & state.ON_DEVICE:
            return ""
        older = older_layouts(data, spec, bool(flags & state.PARTIAL_ONLY))
        return f"; {looks_older(older)}" if older else ""


def memory_depth(memory: Memory, seq: int) -> int:
    """How many tokens of ``seq`` a pending rollback takes back; 0 without one."""
    depths = [getattr(part, "rs_idx", None) for part in (memory, *memory.leaves().values())]
    return max((depth[seq] for depth in depths if depth is not None and seq < len(depth)), default=0)


def _record(ubatch: Ubatch, views: Mapping[str, View], ok: bool) -> dict[str, Any]:
    """A ubatch in the trace format."""
    record: dict[str, Any] = {
        "n_tokens": ubatch.n_tokens,
        "n_seq_tokens": ubatch.n_seq_tokens,
        "n_seqs": ubatch.n_seqs,
        "equal": ubatch.equal_seqs,
        "seq_unq": list(ubatch.seq_id_unq),
        "idx": ubatch.idx.tolist(),
    }
    if any(len(ids) > 1 for ids in ubatch.seq_ids):
        record["seq"] = [list(ids) for ids in ubatch.seq_ids]
    for name, view in views.items():
        view.describe(name, record)
    record["ok"] = ok
    return record
