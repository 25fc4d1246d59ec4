"""The library and kvsim side by side: one operation on both, everything that can be seen compared."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.caches.factory import LeafFactory
from kvsim.context import ABORTED, Context
from kvsim.errors import CacheUsageError
from kvsim.lanes.known_differences import Parting, explained
from kvsim.lanes.llamacpp import EndedError, LlamaCpp, searching_caches
from kvsim.lanes.session import Answer
from kvsim.logs.searches import SEVERAL, Search, read_searches
from kvsim.memory import Snapshot
from kvsim.models.context_params import ContextParams
from kvsim.models.network import MODELS, load_network
from kvsim.ops import STATES, Op
from kvsim.replay import Replayer
from kvsim.state_format import KVSection, RecurrentSection, SavedState, parse_state
from kvsim.state_versions import CURRENT
from kvsim.testing.cache_info import CacheInfo
from kvsim.testing.match import ENDS, DifferenceError

LOGITS_TOLERANCE = 1e-4
"""Largest difference of a logit, relative to the largest of its token, with f32 rows."""

UNSEEN = -1
"""A cell at this position passes for empty in all that llama.cpp shows."""


@dataclass
class Report:
    """What a campaign has done: operations, seconds, answers of decodes, operations by kind, and how many
    tokens' logits were compared, with the largest difference."""

    ops: int = 0
    seconds: float = 0.0
    codes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    logits: int = 0
    worst_logit: float = 0.0

    @property
    def rate(self) -> float:
        return self.ops / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """What a line of a campaign's report says of it."""
        return {
            "ops": self.ops,
            "seconds": round(self.seconds, 3),
            "codes": dict(sorted(self.codes.items())),
            "kinds": dict(sorted(self.kinds.items())),
            "logits": self.logits,
            "worst_logit": self.worst_logit,
        }


@dataclass(frozen=True)
class Wanted:
    """What kvsim answered to an operation: its return value and the reason for it, the pictures before and
    after, the logits by batch entry; and how many operations that were."""

    op: Op
    ret: int | None
    why: str
    before: Snapshot
    after: Snapshot
    rows: dict[int, Any]
    n_ops: int


class Pair:
    """The library and kvsim with the same model and parameters; what :mod:`kvsim.testing.generate` asks of a
    world."""

    def __init__(self, model: Path, params: ContextParams, lib: Path | None = None) -> None:
        self.model_path, self.params, self.lib = model, params, lib
        self.live = LlamaCpp(model, params, lib)
        self.report = Report()
        self.refused = False  # whether the last operation would have ended llama.cpp
        self.ops: list[Op] = []
        self._n_starts = 0
        self.start()

    def start(self) -> None:
        """Both sides anew."""
        self._n_starts += 1
        self._waiting: Wanted | None = None
        if self.live.is_alive:
            self.live.renew()
        else:
            self.live.close()
            self.live = LlamaCpp(self.model_path, self.params, self.lib)
        arch = self.live.model.arch
        network = None
        if arch in MODELS and self.params.type_k == "f32":
            _, network = load_network(self.model_path, self.live.resolved.flash_attn)
        self.ours = Context(
            self.live.model,
            self.params,
            self.live.n_vocab,
            network=network,
            leaves=LeafFactory(data=network is not None),
            recording=network is not None,
        )
        self.replayer = Replayer(self.ours)
        self.n_seq_max, self.n_pos = self.live.n_seq_max, self.live.model.n_pos_per_embd
        self.n_batch, self.unified = self.ours.resolved.n_batch, self.ours.resolved.kv_unified
        self.info = CacheInfo(self.ours.memory.kind, (), partial=True)
        self.states: dict[int, Op] = {}
        self.n_vocab, self.tokens_only = self.live.n_vocab, network is not None
        self.same_layout, self.same_order = self.live.layout is CURRENT, self.live.ids_reversed
        self.before = self.ours.memory.snapshot()
        self.blind = False  # whether llama.cpp has NaN in its rows
        self.ops = []

    def close(self) -> None:
        self.live.close()

    # -- what generators ask -------------------------------------------------------------------

    def span(self, seq: int) -> tuple[int, int]:
        lo, hi = self.before.pos.get(str(seq), (-1, -1))
        return lo, hi

    @property
    def next_token(self) -> int:
        return self.report.ops

    @property
    def saved(self) -> Sequence[Op]:
        return list(self.states.values())

    # -- one operation -------------------------------------------------------------------------

    def perform(self, op: Op, look: bool = False) -> int | None:
        """Perform ``op`` on both sides and compare; kvsim's answer. Raises DifferenceError."""
        ret = self.begin(op)
        self.settle()
        if look:
            self.look()
        return ret

    def begin(self, op: Op) -> int | None:
        """Perform ``op`` here and ask llama.cpp for it; kvsim's answer. Its own is compared when the next
        operation begins, or at :meth:`settle`: so both sides work at the same time."""
        self.ops.append(op)
        self.report.ops += 1
        self.report.kinds[op.op] += 1
        self.refused = False
        if self._known(op, Parting.IT_ENDS):
            self.settle()
            self._must_end(op, "this version ends")
            return None
        try:
            ret = self.replayer.apply(op.op, op.args)
        except CacheUsageError as error:
            n_starts = self._n_starts
            self.settle()
            if self._n_starts == n_starts:
                self._must_end(op, f"kvsim refuses: {error}")
            return None
        wanted = self._wanted(op, ret)
        n_starts = self._n_starts
        self.settle()
        if self._n_starts == n_starts:
            self.live.send(op, logits=self.ours.network is not None)
            self._waiting = wanted
        return ret

    def _wanted(self, op: Op, ret: int | None) -> Wanted:
        """What llama.cpp must answer, after ``op`` was performed here."""
        before, self.before = self.before, self.ours.memory.snapshot()
        rows = {}
        if op.op == "decode":
            self.blind = self.blind or sees_nothing(self.ours)
            if ret == 0 and self.ours.network is not None and not self.blind:
                rows = {i: self.ours.logits_of(i) for i, out in enumerate(op.args["out"]) if out}
        elif op.op == "clear" and op.args["data"]:
            self.blind = False
        elif op.op in ("state_get", "state_seq_get"):
            self.states[op.args["slot"]] = op
        why = f" ({self.ours.last_failure})" if self.ours.last_failure else ""
        return Wanted(op, ret, why, before, self.before, rows, len(self.ops))

    def settle(self) -> None:
        """Wait for llama.cpp's answer to what was begun, and compare it. Raises DifferenceError."""
        wanted, self._waiting = self._waiting, None
        if wanted is None:
            return
        op, ret = wanted.op, wanted.ret
        try:
            answer = self.live.receive()
        except EndedError as error:
            raise self.difference(f"{error}; kvsim answered {ret!r}", wanted) from error
        if op.op == "decode":
            self.report.codes[str(answer.ret)] += 1
        if (answer.ret, ret) == (0, 1) and self._known(op, Parting.IT_REFUSES):
            self.start()
            return
        if not self._same_answer(op, answer.ret, ret):
            raise self.difference(f"llama.cpp answered {answer.ret!r}, kvsim {ret!r}{wanted.why}", wanted)
        if op.op == "decode":
            self._compare_searches(answer, wanted)
            self._compare_logits(answer, wanted)
        for seq, span in enumerate(answer.pos):
            ours = wanted.after.pos[str(seq)]
            if list(span) != ours:
                raise self.difference(f"sequence {seq} spans {list(span)}, in kvsim {ours}", wanted)

    def _same_answer(self, op: Op, theirs: int | None, ours: int | None) -> bool:
        """States in an older layout have other sizes."""
        if op.op in STATES and not self.same_layout:
            return bool(theirs) == bool(ours)
        return theirs == ours

    def difference(self, what: str, wanted: Wanted | None = None) -> DifferenceError:
        ops = self.ops if wanted is None else self.ops[: wanted.n_ops]
        return DifferenceError("llama.cpp", "differs", what, ops)

    def alone(self, op: Op) -> bool:
        """Whether both would answer the same to ``op``, or both refuse; neither does it."""
        self.settle()
        twin = copy.deepcopy(self.replayer)
        try:
            ours: int | str | None = twin.apply(op.op, op.args)
        except CacheUsageError:
            ours = ENDS
        try:
            theirs: int | str | None = self.live.attempt(op).ret
        except EndedError:
            theirs = ENDS
        return ours == theirs

    def _must_end(self, op: Op, why: str) -> None:
        """What ends llama.cpp is tried in a copy of it, and neither side does it. An abort that was asked for
        may come before the end: then it is tried without."""
        self.refused = True
        self.report.codes["ends"] += 1
        try:
            answer = self.live.attempt(op)
            if answer.ret == ABORTED and "abort_at_ubatch" in op.args:
                args = {name: value for name, value in op.args.items() if name != "abort_at_ubatch"}
                answer = self.live.attempt(replace(op, args=args))
        except EndedError:
            self.ops.pop()
            return
        if not self._known(op, Parting.WE_REFUSE):
            raise self.difference(f"llama.cpp answered {answer.ret!r}; {why}")
        self.ops.pop()

    def _known(self, op: Op, parting: Parting) -> bool:
        """Whether it is known that the two part here."""
        why = explained(self.live.version, self.info.kind, op.op, op.args, parting)
        if why:
            self.report.kinds[f"known: {why}"] += 1
        return bool(why)

    # -- comparing -----------------------------------------------------------------------------

    def _compare_searches(self, answer: Answer, wanted: Wanted) -> None:
        """The first print of each cache that can be told from those before it is of the time before."""
        caches = self.live.spec.caches
        names: dict[tuple[int, int], str] = {}
        for name in searching_caches(self.live.spec):
            names.setdefault((caches[name].size, caches[name].n_swa), name)
        seen = set()
        for log in read_searches(answer.log):
            name = names.get((log.size, log.n_swa), "")
            if (name, log.stream) in seen or not name:
                continue
            seen.add((name, log.stream))
            what = _search_apart(log, wanted.before.caches[name][log.stream])
            if what:
                raise self.difference(f"{name!r} stream {log.stream}: {what}", wanted)

    def _compare_logits(self, answer: Answer, wanted: Wanted) -> None:
        for i, ours in wanted.rows.items():
            row = answer.logits[i]
            self.report.logits += 1
            error = float(np.abs(row - ours).max() / np.abs(row).max())
            self.report.worst_logit = max(self.report.worst_logit, error)
            if not error <= LOGITS_TOLERANCE:
                what = f"logits of batch entry {i} differ by {error:.3g}, allowed {LOGITS_TOLERANCE}"
                raise self.difference(what, wanted)

    def look(self) -> None:
        """Every cell that can be seen, and the whole saved state without its rows."""
        self.report.kinds["looks"] += 1
        try:
            ours = _records(parse_state(self.ours.state_get(), self.live.spec))
        except CacheUsageError:
            return  # such a state cannot be saved; that it ends llama.cpp is tried elsewhere
        shown, state = self.live.look()
        if state is None:
            raise self.difference("llama.cpp ends when the whole state is saved, kvsim saves it")
        theirs = _records(state)
        if ours != theirs:
            name = next(n for n in theirs if ours[n] != theirs[n])
            raise self.difference(f"saved {name!r}: {theirs[name]} and in kvsim {ours[name]}")
        for name, streams in shown["caches"].items():
            for s, seen in enumerate(streams):
                picture = self.before.caches[name][s]
                wanted = self._visible(picture)
                if seen is not None and seen != wanted:
                    raise self.difference(f"{name!r} stream {s}: {seen} and in kvsim {wanted}")

    def _visible(self, picture: dict[str, Any]) -> dict[str, Any]:
        """Our picture of a stream, as far as llama.cpp shows it."""
        cells = [
            [i, pos, own if len(own) == 1 else [seq for seq in own if seq < self.n_seq_max]]
            for i, pos, own, *_ in picture["cells"]
            if pos != UNSEEN
        ]
        return {"head": picture["head"], "used": picture["used"], "cells": cells}


def _search_apart(log: Search, ours: dict[str, Any]) -> str:
    """Where a print of the slot search differs from our picture of that stream; empty if it does not."""
    cells = log.marks()
    wanted = {
        i: (pos, owners[0] if len(owners) == 1 else SEVERAL)
        for i, pos, owners, *_ in ours["cells"]
        if pos != UNSEEN
    }
    if cells is None:
        return "what was printed cannot be read"
    if cells != wanted:
        both = sorted(set(cells.items()) ^ set(wanted.items()))
        return f"cells differ, first at {both[0]}: {cells} and in kvsim {wanted}"
    if (log.head, log.used) != (ours["head"], ours["used"]):
        return f"head and used {(log.head, log.used)}, in kvsim {(ours['head'], ours['used'])}"
    return ""


def sees_nothing(context: Context) -> bool:
    """Whether a token of the last decode attends to nothing at all, not even itself.

    It is at position -1, or took a cell that a window had passed and is purged with the positions before
    it. llama.cpp computes NaN then, which stay in the rows until these are cleared; kvsim computes 0.
    """
    return any([] in rows for record in context.records for rows in record.json.get("mask", {}).values())


def _records(state: SavedState) -> dict[str, Any]:
    """What a saved state says, without rows."""
    found: dict[str, Any] = {}
    for name, section in state.sections.items():
        if isinstance(section, KVSection):
            found[name] = [stream.cells for stream in section.streams]
        elif isinstance(section, RecurrentSection):
            found[name] = section.cells
    return found
