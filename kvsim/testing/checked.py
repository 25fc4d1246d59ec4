"""A memory under observation: every operation is performed, entered in the ledger, and checked.

After each operation: the memory's own invariants; its picture against a computation from scratch; what every
sequence can read against the ledger; what was refused has changed nothing. During a decode: what every
single token attends to. A difference is explained only by a hazard that was reported for that part and
sequence; the ledger then takes over what the cells hold.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsim.batch import Batch
from kvsim.errors import BatchError, CacheUsageError
from kvsim.events import Event, Observer
from kvsim.hazards import HAZARDS
from kvsim.ledger import AttentionPart, Ledger
from kvsim.ledger_states import Histories
from kvsim.memory import Snapshot
from kvsim.ops import Op
from kvsim.replay import Replayer
from kvsim.testing.cache_info import CacheInfo, Config
from kvsim.testing.decoded import check_compressed, check_reads, check_starts
from kvsim.testing.excuses import ASTRAY, KEPT, UNDONE, CheckError, Excuses, carried, lasting_in
from kvsim.testing.ink import InkNetwork
from kvsim.testing.ink_cache import InkLeaves
from kvsim.testing.parts import parts_of, state_leaves
from kvsim.testing.refinement import Refinement

__all__ = ["CheckError", "Checked", "Saved", "check_picture"]

PROVED = 50
"""After so many operations everything is proved anew, also what has not changed."""

REHEARSED = 64
"""One in so many decodes is prepared on a copy first, and not carried out."""


@dataclass
class Saved:
    """A saved state: the operation that made it, the ledger's account, and hazards met while saving."""

    op: Op
    parts: dict[str, Any]
    hazards: list[Event] = field(default_factory=list)


class Checked:
    """A context with ink in its rows, beside the ledger.

    :meth:`perform` raises CheckError at the first difference. ``hazards`` counts the ids met, ``ops`` is the
    log, ``refusal`` what the last operation was refused with because it would have ended llama.cpp, ``full``
    whether it found no room. ``watcher`` is told every event.
    """

    def __init__(self, info: CacheInfo, config: Config) -> None:
        self.info = info
        self.config = config
        self.histories = Histories()
        self.network = InkNetwork(self.histories)
        self.context = config.context(InkLeaves(sizes=config.sizes), self.network)
        self.replayer = Replayer(self.context)
        self.memory = self.context.memory
        self.ledger = Ledger(parts_of(self.memory, self.histories), config.model.n_pos_per_embd)
        self.hazards: dict[str, int] = {}
        self.watcher: Observer | None = None
        self.ops: list[Op] = []
        self.n_seq_max = self.memory.n_seq_max
        self.n_pos = config.model.n_pos_per_embd
        self.n_batch = self.context.resolved.n_batch
        self.unified = self.context.resolved.kv_unified
        self._excuses = Excuses(self.ops, self.n_seq_max, lasting_in(self.memory))
        self._refinement = Refinement(self.memory, self.ledger, self._excuses)
        self.states: dict[int, Saved] = {}
        self.refusal: CacheUsageError | None = None
        self.full = False
        self._n_decodes = 0
        self._purged: set[str] = set()
        self.context.observe(self._listen)
        self._before = self.memory.snapshot()

    def _listen(self, event: Event) -> None:
        if self.watcher is not None:
            self.watcher(event)
        if event.kind == "hazard":
            if event.detail["id"] not in HAZARDS:
                raise CheckError(f"hazard {event.detail['id']!r} is not in the table of hazards")
            self._excuses.events.append(event)
            self.hazards[event.detail["id"]] = self.hazards.get(event.detail["id"], 0) + 1
        elif event.kind == "purge":
            self._purged.add(event.cache)

    @property
    def events(self) -> Sequence[Event]:
        """The hazards that concern the last operation."""
        return self._excuses.events

    @property
    def raised(self) -> bool:
        """Whether the last operation would have ended llama.cpp."""
        return self.refusal is not None

    @property
    def picture(self) -> Snapshot:
        """What the memory held after the last operation."""
        return self._before

    # -- what generators ask -------------------------------------------------------------------

    def span(self, seq: int) -> tuple[int, int]:
        if seq >= self.n_seq_max:
            return (-1, -1)
        lo, hi = self._before.pos[str(seq)]
        return (lo, hi)

    @property
    def next_token(self) -> int:
        return self.network.first

    @property
    def saved(self) -> Sequence[Op]:
        return [state.op for state in self.states.values()]

    # -- one operation -------------------------------------------------------------------------

    def perform(self, op: Op) -> int | None:
        """Perform and check one operation; returns what it answered (None if llama.cpp would have ended)."""
        self.ops.append(op)
        self._excuses.events = []
        self._purged = set()
        if op.op == "decode":
            self._n_decodes += 1
            if self._n_decodes % REHEARSED == 0:
                self._twin()._rehearse(op)
        self.network.ran = []
        first = self.network.first
        self.refusal, self.full = None, False
        ret: int | None = None
        try:
            ret = self.replayer.apply(op.op, op.args)
        except CacheUsageError as refusal:
            self.refusal = refusal
        self.full = op.op == "decode" and ret == 1
        self._refinement.look()
        self.memory.check_integrity()
        if len(self.ops) % PROVED == 0:
            for cache in self._refinement.caches.values():
                cache.check_everything()
        after = self.memory.snapshot()
        check_picture(after, self._before)
        self._check_refusal(op, ret, after)
        self._before = after
        if op.op == "decode":
            self.network.first += len(op.args["seq"])
        if not self.raised:
            self._enter(op, ret, first)
        self._refinement.compare()
        return ret

    def _enter(self, op: Op, ret: int | None, first: int) -> None:
        """Enter the operation in the ledger."""
        if op.op == "decode":
            if ret != -1:
                self.ledger.update()
            for ran in self.network.ran:
                check_starts(ran, self.ledger, self._excuses)
                self.ledger.place(op.args, ran.idx, first)
                check_reads(ran, self.ledger, self._excuses)
                check_compressed(ran, self.ledger, self._excuses)
        elif op.op.startswith("state_"):
            self._enter_state(op, ret or 0)
        elif op.op != "seq_rm" or ret:
            self.ledger.edit(op.op, op.args)
            if op.op == "seq_cp" and op.args["src"] in self._excuses.astray:
                self._excuses.astray.add(op.args["dst"])

    # -- saved states --------------------------------------------------------------------------

    def _enter_state(self, op: Op, ret: int) -> None:
        slot = op.args["slot"]
        if op.op.endswith("_get"):
            seqs = range(self.n_seq_max) if op.op == "state_get" else [op.args["seq"]]
            parts = {name: part.save(seqs) for name, part in self.ledger.parts.items()}
            astray = [
                Event("hazard", detail={"id": ASTRAY, "seq": s}) for s in self._excuses.astray & set(seqs)
            ]
            self.states[slot] = Saved(op, parts, [*self.events, *astray])
            return
        saved = self.states[slot]
        self._excuses.events += [carried(event, op.args.get("seq")) for event in saved.hazards]
        restored = state_leaves(self.memory, op.args.get("flags", 0))
        if ret == 0 or state_leaves(self.memory, saved.op.args.get("flags", 0)) != restored:
            return  # a hazard speaks of a state that was read with flags that name other parts
        into = self._restored_as(saved.op, op)
        kept = {event.cache for event in self.events if event.detail["id"] == KEPT}
        for name in restored:
            if name not in kept:  # there the sequence is as it was, and shares the rows that it shared
                self.ledger.parts[name].restore(saved.parts[name], into)
        pair = self._refinement.pair
        if pair is not None and (kept or pair[0] not in restored):
            self._excuses.astray.update(s for s in into.values() if not self._fits(s, *pair))

    def _restored_as(self, saved: Op, op: Op) -> dict[int, int]:
        """Which sequence each saved one becomes. A state that is read as the whole (sequence -1) replaces
        everything, and one of a single sequence brings its own id."""
        if op.op == "state_seq_set" and op.args["seq"] >= 0:
            return {saved.args["seq"]: op.args["seq"]}
        self.ledger.edit("clear", {})
        return {s: s for s in (range(self.n_seq_max) if saved.op == "state_get" else [saved.args["seq"]])}

    def _fits(self, seq: int, full: str, swa: str) -> bool:
        """Whether the window part holds nothing but what the other part holds too. A partial state, which
        only the ledger can tell, may be of another sequence or of another time; and an empty part of a state
        leaves the window as it was."""
        held = []
        for part in (self.ledger.parts[swa], self.ledger.parts[full]):
            assert isinstance(part, AttentionPart)
            held.append({(e.pos, e.instance) for e in part.entries(seq)})
        return held[0] <= held[1]

    def forget_state(self, slot: int) -> None:
        """Drop a saved state, so that a long run does not keep them all."""
        del self.states[slot], self.replayer.saved[slot]

    # -- refusals ------------------------------------------------------------------------------

    def _check_refusal(self, op: Op, ret: int | None, after: Snapshot) -> None:
        refused = self.raised or (op.op == "decode" and ret == -1) or (op.op == "seq_rm" and ret == 0)
        if refused or op.op in ("state_get", "state_seq_get"):
            if after != self._before:
                raise self._excuses.failure(f"{op.op} was refused or only reads, and yet changed the memory")
        elif op.op == "decode" and ret == 1:
            self._check_no_trace(self._before, after)

    def _twin(self) -> Checked:
        """The same world with a memory and a ledger of its own, for trying something."""
        twin = copy.copy(self)
        self.context.observe(None)
        twin.context = copy.copy(self.context)
        specs = [cache.spec for cache in self._refinement.caches.values()]
        twin.context._memory = copy.deepcopy(self.memory, {id(spec): spec for spec in specs})
        twin.memory = twin.context.memory
        twin.context.graphs = copy.deepcopy(self.context.graphs)
        self.context.observe(self._listen)
        twin.ledger = copy.deepcopy(self.ledger)
        twin.hazards, twin.watcher, twin._purged = {}, None, set()
        twin._excuses = self._excuses.twin()
        twin._refinement = Refinement(twin.memory, twin.ledger, twin._excuses)
        twin.context.observe(twin._listen)
        return twin

    def _rehearse(self, op: Op) -> None:
        """Prepare a batch and throw it away: nothing may have changed but what llama.cpp changes too. This is
        done on a copy, because it does leave a little."""
        args = op.args
        if args["tokens"] is None:
            return
        try:
            self.context.allocator.init(
                Batch(args["tokens"], pos=args["pos"], seq_ids=args["seq"], output=args["out"]), self.memory
            )
            self.memory.check_batch(self.context.allocator, self.context.resolved.n_ubatch, False)
            self.context.update()
            self.ledger.update()
            self.memory.init_batch(self.context.allocator, self.context.resolved.n_ubatch)
        except (BatchError, CacheUsageError):
            pass
        self._refinement.look()
        after = self.memory.snapshot()
        self._check_no_trace(self._before, after)
        self._before = after
        self._refinement.compare()

    def _check_no_trace(self, before: Snapshot, after: Snapshot) -> None:
        """Equal but for heads, for what the update has done, and for what a preparation does not put back:
        purges (the ledger knows what may be missing) and cells at position -1."""
        purged = self._purged | {event.cache for event in self.events if event.detail["id"] == UNDONE}
        for name, streams in after.caches.items():
            if name in purged:
                continue
            for old, new in zip(before.caches[name], streams, strict=True):
                if new is old:
                    continue
                if _unturned(old["cells"]) != _unturned(new["cells"]) or old["used"] != new["used"]:
                    raise self._excuses.failure(f"{name}: a batch that was not placed has changed the cells")


def check_picture(snapshot: Snapshot, before: Snapshot) -> None:
    """What a picture says twice must agree. What has not changed since ``before`` did."""
    for name, streams in snapshot.caches.items():
        for stream, record in enumerate(streams if streams is not before.caches[name] else ()):
            if record is before.caches[name][stream]:
                continue
            cells = record["cells"]
            if record["used"] != len(cells):
                raise CheckError(
                    f"{name}[{stream}]: {record['used']} cells counted as used, {len(cells)} listed"
                )
            if not record["has_shift"] and any(cell[3] for cell in cells):
                raise CheckError(f"{name}[{stream}]: a shift is pending, but has_shift says none")
            if any(cell[1] == -1 and cell[3] for cell in cells):
                raise CheckError(f"{name}[{stream}]: an empty cell has a pending shift")


def _unturned(cells: Iterable[Sequence[Any]]) -> list[Any]:
    return [(cell[0], cell[1], cell[2], *cell[4:]) for cell in cells]
