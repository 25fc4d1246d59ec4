"""A memory under observation: every operation is performed, entered in the ledger, and checked.

After each operation: the memory's own invariants; its picture against a computation from scratch; what every
sequence can read against the ledger; what was refused has changed nothing. During a decode: what every
single token attends to. A difference is explained only by a hazard that was reported for that part and
sequence; the ledger then takes over what the cells hold.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any

from kvsim.batch import Batch
from kvsim.caches.dsv4 import DSV4Cache
from kvsim.caches.kv import KVCache
from kvsim.caches.recurrent import RecurrentMemory
from kvsim.errors import BatchError, CacheUsageError, KvsimError
from kvsim.events import Event, Observer
from kvsim.hazards import HAZARDS
from kvsim.ledger import CONTENT, POSITION, AttentionPart, Entry, Ledger
from kvsim.ledger_states import NO_STATE, Histories, StatePart
from kvsim.memory import Memory, Snapshot
from kvsim.models.memory_spec import CSA_RATIO
from kvsim.ops import Op
from kvsim.replay import Replayer
from kvsim.testing.cache_info import CacheInfo, Config
from kvsim.testing.excuses import (
    ASTRAY,
    COMPRESSED_LATER,
    KEPT,
    LASTING,
    UNDONE,
    carried,
    concerns,
    named_by,
)
from kvsim.testing.ink import InkNetwork, Ran, states_of
from kvsim.testing.ink_cache import InkCache, InkLeaves
from kvsim.testing.look import Held, together
from kvsim.testing.parts import parts_of, state_leaves, window_pair

PROVED = 50
"""After so many operations everything is proved anew, also what has not changed."""

REHEARSED = 64
"""One in so many decodes is prepared on a copy first, and not carried out."""


class CheckError(KvsimError):
    """A memory differs from what it should be, and no hazard explains it."""


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
        self._take(self.context.memory)
        self.ledger = Ledger(parts_of(self.memory, self.histories), config.model.n_pos_per_embd)
        self.events: list[Event] = []
        self.hazards: dict[str, int] = {}
        self.watcher: Observer | None = None
        self._purged: set[str] = set()
        self._astray: set[int] = set()
        self._pair = window_pair(self.memory)
        self._lasting = COMPRESSED_LATER if isinstance(self.memory, DSV4Cache) else set()
        if self._pair is not None:
            self._lasting = self._lasting | {"halves-disagree"}
        self._rowless = {
            name
            for name, leaf in self.memory.leaves().items()
            if isinstance(leaf, KVCache) and leaf.store is None
        }
        self.context.observe(self._listen)
        self.ops: list[Op] = []
        self.states: dict[int, Saved] = {}
        self.refusal: CacheUsageError | None = None
        self.full = False
        self._n_decodes = 0
        self.n_seq_max = self.memory.n_seq_max
        self.n_pos = config.model.n_pos_per_embd
        self.n_batch = self.context.resolved.n_batch
        self.unified = self.context.resolved.kv_unified
        self._look()
        self._before = self.memory.snapshot()

    def _take(self, memory: Memory) -> None:
        """Watch this memory, of which nothing has been seen yet."""
        self.memory = memory
        leaves = memory.leaves()
        self._caches = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, InkCache)}
        self._states = next((leaf for leaf in leaves.values() if isinstance(leaf, RecurrentMemory)), None)
        self._agreed: dict[str, dict[int, Agreed]] = {name: {} for name in self._caches}

    def _look(self) -> None:
        """See what the cells are now: pictures, proofs and the ledger go by that."""
        self._found: dict[str, Held] = {}
        for name, cache in self._caches.items():
            looks = cache.look()
            if name in self.ledger.parts:
                self._found[name] = together(looks)

    def _listen(self, event: Event) -> None:
        if self.watcher is not None:
            self.watcher(event)
        if event.kind == "hazard":
            if event.detail["id"] not in HAZARDS:
                raise CheckError(f"hazard {event.detail['id']!r} is not in the table of hazards")
            self.events.append(event)
            self.hazards[event.detail["id"]] = self.hazards.get(event.detail["id"], 0) + 1
        elif event.kind == "purge":
            self._purged.add(event.cache)

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
        self.events = []
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
        self._look()
        self.memory.check_integrity()
        if len(self.ops) % PROVED == 0:
            for cache in self._caches.values():
                cache.check_everything()
        after = self.memory.snapshot()
        check_picture(after, self._before)
        self._check_refusal(op, ret, after)
        self._before = after
        if op.op == "decode":
            self.network.first += len(op.args["seq"])
        if not self.raised:
            self._enter(op, ret, first)
        self.refine()
        return ret

    def _enter(self, op: Op, ret: int | None, first: int) -> None:
        """Enter the operation in the ledger."""
        if op.op == "decode":
            if ret != -1:
                self.ledger.update()
            for ran in self.network.ran:
                self._check_starts(ran)
                self.ledger.place(op.args, ran.idx, first)
                self._check_reads(ran)
                self._check_compressed(ran)
        elif op.op.startswith("state_"):
            self._enter_state(op, ret or 0)
        elif op.op != "seq_rm" or ret:
            self.ledger.edit(op.op, op.args)
            if op.op == "seq_cp" and op.args["src"] in self._astray:
                self._astray.add(op.args["dst"])

    def _check_starts(self, ran: Ran) -> None:
        """The state that each sequence went on from has seen what the ledger says."""
        part = self.ledger.parts.get("recurrent")
        for start in ran.starts:
            assert isinstance(part, StatePart)
            wanted = part.state(start.seq).history
            if start.history != wanted and not self._explained("recurrent", start.seq):
                raise self._failure(
                    f"recurrent: sequence {start.seq} went on from a state that has seen "
                    f"{self.histories.tokens(start.history)}, not {self.histories.tokens(wanted)}"
                )

    def _check_reads(self, ran: Ran) -> None:
        for read in ran.reads:
            if read.seq in self._astray:
                continue
            part = self.ledger.parts[read.part]
            assert isinstance(part, AttentionPart)
            wanted = part.visible(read.seq, read.pos, read.place)
            if read.seen != wanted and not self._explained(read.part, read.seq):
                raise self._failure(
                    f"{read.part}: the token of sequence {read.seq} at position {read.pos} attends to "
                    f"{read.seen}, the ledger says {wanted} (instance, key turned for)"
                )

    def _check_compressed(self, ran: Ran) -> None:
        """Every compressed row that a token attends to is made of the tokens of its block and of the one
        before. What a hazard has spoiled stays so until the sequence is gone."""
        part = self.ledger.parts.get("raw.base")
        for rows in ran.compressed:
            if rows.seq in self._astray:
                continue
            assert isinstance(part, AttentionPart)
            held = {e.pos: e.instance for e in part.entries(rows.seq)}
            if len(held) < len(part.entries(rows.seq)) or 0 in held.values():
                continue  # repeated positions, or tokens that only the cells have accounted for
            tokens = [held.get(p, -1) for p in range(CSA_RATIO * len(rows.blocks))]
            blocks = [(0,) * CSA_RATIO, *zip(*[iter(tokens)] * CSA_RATIO, strict=True)]
            for j, (found, wanted) in enumerate(zip(rows.blocks, map(add, blocks, blocks[1:]), strict=True)):
                if found != wanted:
                    if not self._explained("csa", rows.seq):
                        raise self._failure(
                            f"csa: row {j} of sequence {rows.seq} is made of {list(found)}, not of "
                            f"{list(wanted)}"
                        )
                    self._astray.add(rows.seq)
                    break

    # -- saved states --------------------------------------------------------------------------

    def _enter_state(self, op: Op, ret: int) -> None:
        slot = op.args["slot"]
        if op.op.endswith("_get"):
            seqs = range(self.n_seq_max) if op.op == "state_get" else [op.args["seq"]]
            parts = {name: part.save(seqs) for name, part in self.ledger.parts.items()}
            astray = [Event("hazard", detail={"id": ASTRAY, "seq": s}) for s in self._astray & set(seqs)]
            self.states[slot] = Saved(op, parts, self.events + astray)
            return
        saved = self.states[slot]
        self.events = [*self.events, *(carried(event, op.args.get("seq")) for event in saved.hazards)]
        restored = state_leaves(self.memory, op.args.get("flags", 0))
        if ret == 0 or state_leaves(self.memory, saved.op.args.get("flags", 0)) != restored:
            return  # a hazard speaks of a state that was read with flags that name other parts
        into = self._restored_as(saved.op, op)
        kept = {event.cache for event in self.events if event.detail["id"] == KEPT}
        for name in restored:
            if name not in kept:  # there the sequence is as it was, and shares the rows that it shared
                self.ledger.parts[name].restore(saved.parts[name], into)
        if self._pair is not None and (kept or self._pair[0] not in restored):
            self._astray.update(s for s in into.values() if not self._fits(s))

    def _restored_as(self, saved: Op, op: Op) -> dict[int, int]:
        """Which sequence each saved one becomes. A state that is read as the whole (sequence -1) replaces
        everything, and one of a single sequence brings its own id."""
        if op.op == "state_seq_set" and op.args["seq"] >= 0:
            return {saved.args["seq"]: op.args["seq"]}
        self.ledger.edit("clear", {})
        return {s: s for s in (range(self.n_seq_max) if saved.op == "state_get" else [saved.args["seq"]])}

    def _fits(self, seq: int) -> bool:
        """Whether the window part holds nothing but what the other part holds too. A partial state, which
        only the ledger can tell, may be of another sequence or of another time; and an empty part of a state
        leaves the window as it was."""
        full, swa = (self.ledger.parts[name] for name in self._pair or ())
        assert isinstance(full, AttentionPart)
        assert isinstance(swa, AttentionPart)
        return {(e.pos, e.instance) for e in swa.entries(seq)} <= {
            (e.pos, e.instance) for e in full.entries(seq)
        }

    def forget_state(self, slot: int) -> None:
        """Drop a saved state, so that a long run does not keep them all."""
        del self.states[slot], self.replayer.saved[slot]

    # -- refinement ----------------------------------------------------------------------------

    def refine(self) -> None:
        """Compare every part and sequence with the ledger."""
        for event in self.events:
            hazard = event.detail["id"]
            if hazard in LASTING or hazard in self._lasting:
                named = named_by(event)
                self._astray |= set(range(self.n_seq_max)) if -1 in named else named
        found = self._found
        standing = self._refine_states()
        adopted = self._astray | {seq for name in found for seq in self._differing(name, found[name])}
        for name in found if adopted else ():
            part = self.ledger.parts[name]
            assert isinstance(part, AttentionPart)
            part.adopt(found[name], adopted, rows=name not in self._rowless)
        if self._pair is not None:
            full, swa = (found[name] for name in self._pair)
            new = adopted - self._astray
            self._astray |= {seq for seq in new if _positions(swa, seq) - _positions(full, seq)}
        if self._astray:
            self._astray &= standing.union(*found.values())

    def _refine_states(self) -> set[int]:
        """Compare what the recurrent states have seen. Returns the sequences that have one."""
        part = self.ledger.parts.get("recurrent")
        if not isinstance(part, StatePart) or self._states is None:
            return set()
        found = states_of(self._states)
        for seq in [s for s in part.held if s >= self.n_seq_max]:
            del part.held[seq]  # a hazard has said that such a sequence is ignored
        for seq in range(self.n_seq_max):
            state, wanted = found.get(seq, NO_STATE), part.state(seq)
            if state == wanted or state.history == wanted.history == 0:  # nothing seen: it stands nowhere
                if self._explained("recurrent", seq, "state-skips-positions"):
                    part.adopt(seq, state)
                continue
            if not self._explained("recurrent", seq):
                raise self._failure(
                    f"recurrent: the state of sequence {seq} stands at {state.pos} and has seen "
                    f"{self.histories.tokens(state.history)}; it should stand at {wanted.pos} and have seen "
                    f"{self.histories.tokens(wanted.history)}"
                )
            part.adopt(seq, state)
        return set(found)

    def _differing(self, name: str, found: Held) -> Iterator[int]:
        """The sequences, but for those astray, for which one attention cache must be believed, since a hazard
        has explained it."""
        part = self.ledger.parts[name]
        assert isinstance(part, AttentionPart)
        agreed, rows = self._agreed[name], name not in self._rowless
        for seq in (found.keys() | part.held.keys()) - self._astray:
            entries, cells = part.held.get(seq, NOTHING_HELD), found.get(seq, NOTHING_HELD)
            if not _agree_as_before(agreed.get(seq), entries, cells, rows):
                missing, extra = part.difference(seq, cells, rows)
                if missing or extra:
                    if not self._explained(name, seq):
                        raise self._failure(
                            f"{name}: sequence {seq} should hold {_text(missing)} and does not; "
                            f"it holds {_text(extra)} and should not"
                        )
                    yield seq
                    continue
            agreed[seq] = entries, len(entries), cells
            if self.events and len(entries) != len(cells) and self._explained(name, seq):
                yield seq  # its positions may start anew: what the window has forgotten is out of reach

    def _explained(self, part: str, seq: int, hazard: str | None = None) -> bool:
        """Whether a hazard (or the one named) was reported for this part and sequence."""
        if hazard is None and seq in self._astray:
            return True
        if not self.events:
            return False
        return any(concerns(e, part, seq) for e in self.events if hazard in (None, e.detail["id"]))

    # -- refusals ------------------------------------------------------------------------------

    def _check_refusal(self, op: Op, ret: int | None, after: Snapshot) -> None:
        refused = self.raised or (op.op == "decode" and ret == -1) or (op.op == "seq_rm" and ret == 0)
        if refused or op.op in ("state_get", "state_seq_get"):
            if after != self._before:
                raise self._failure(f"{op.op} was refused or only reads, and yet changed the memory")
        elif op.op == "decode" and ret == 1:
            self._check_no_trace(self._before, after)

    def _twin(self) -> Checked:
        """The same world with a memory and a ledger of its own, for trying something."""
        twin = copy.copy(self)
        self.context.observe(None)
        twin.context = copy.copy(self.context)
        specs = [cache.spec for cache in self._caches.values()]
        twin.context._memory = copy.deepcopy(self.memory, {id(spec): spec for spec in specs})
        twin._take(twin.context.memory)
        twin.context.graphs = copy.deepcopy(self.context.graphs)
        self.context.observe(self._listen)
        twin.ledger = copy.deepcopy(self.ledger)
        twin.events, twin.hazards, twin.watcher = [], {}, None
        twin._purged, twin._astray = set(), set(self._astray)
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
        self._look()
        after = self.memory.snapshot()
        self._check_no_trace(self._before, after)
        self._before = after
        self.refine()

    def _check_no_trace(self, before: Snapshot, after: Snapshot) -> None:
        """Equal but for heads, for what the update has done, and for what a preparation does not put back:
        purges (the ledger knows what may be missing) and cells at position -1."""
        purged = self._purged | {event.cache for event in self.events if event.detail["id"] == UNDONE}
        for name, streams in after.caches.items():
            if name in purged:
                continue
            for old, new in zip(before.caches[name], streams, strict=True):
                if _unturned(old["cells"]) != _unturned(new["cells"]) or old["used"] != new["used"]:
                    raise self._failure(f"{name}: a batch that was not placed has changed the cells")

    def _failure(self, text: str) -> CheckError:
        met = ", ".join(event.detail["id"] for event in self.events) or "none"
        return CheckError(
            f"after operation {len(self.ops) - 1}, {self.ops[-1]}: {text}. Hazards reported: {met}"
        )


def _positions(held: Mapping[int, Sequence[Entry]], seq: int) -> Counter[int]:
    return Counter(e.pos for e in held.get(seq, ()))


NOTHING_HELD: list[Entry] = []

Agreed = tuple[list[Entry], int, list[Entry]]
"""What a ledger holds of a sequence, how much that is, and what the cells hold. The ledger's list is replaced, or
grows."""


def _agree_as_before(before: Agreed | None, entries: list[Entry], cells: list[Entry], rows: bool) -> bool:
    """Whether ledger and cells, which agreed before, have since but got the same at their ends: the window, which
    may have forgotten what was before, only moves on."""
    if before is None or before[0] is not entries:
        return False
    _, n, known = before
    if cells is known:
        return n == len(entries)
    key = CONTENT if rows else POSITION
    new = cells[len(known) :]
    return cells[: len(known)] == known and list(map(key, new)) == list(map(key, entries[n:]))


def check_picture(snapshot: Snapshot, before: Snapshot) -> None:
    """What a picture says twice must agree. What has not changed since ``before`` did."""
    for name, streams in snapshot.caches.items():
        for stream, record in enumerate(streams):
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


def _text(entries: Sequence[Entry]) -> str:
    if not entries:
        return "nothing"
    return ", ".join(
        f"position {e.pos} (instance {e.instance}, key turned for {e.turned}, {e.pending:+d} pending)"
        for e in entries[:4]
    ) + (f" and {len(entries) - 4} more" if len(entries) > 4 else "")
