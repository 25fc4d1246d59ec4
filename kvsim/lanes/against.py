"""Two releases of llama.cpp beside each other: the same random operations, and what they do differently.

kvsim has no part in it. Compared are the answers, the position ranges and what the slot search prints before
it looks; states by size only if both write the same layout. A change is shrunk, and both recordings of it can
be written as traces. Two changes of one memory, operation and kind count as one: the first is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvsim.lanes.campaign import CONFIGURATIONS, SESSION, memory_of
from kvsim.lanes.choose import operations
from kvsim.lanes.library import LaneError
from kvsim.lanes.llamacpp import EndedError, LlamaCpp
from kvsim.lanes.picture import Pictures
from kvsim.lanes.session import Answer
from kvsim.lanes.subject import tiny_file
from kvsim.logs.searches import read_searches
from kvsim.models.context_params import ContextParams
from kvsim.models.tiny import TINY
from kvsim.ops import STATES, Op
from kvsim.testing import generate
from kvsim.testing.cache_info import CacheInfo
from kvsim.testing.match import ENDS
from kvsim.testing.shrink import shrink
from kvsim.trace import Step, TraceWriter
from kvsim.trace.describe import header_of
from kvsim.trace.unseen import LIVE_UNSEEN


@dataclass(frozen=True)
class Change:
    """The fewest operations after which two versions differ, at the last of them, and how."""

    memory: str
    model: str
    params: ContextParams
    ops: list[Op]
    kind: str
    what: str


class Versions:
    """Two libraries with the same model and context; what operations are chosen for."""

    def __init__(self, model: str, params: ContextParams, libs: Sequence[Path | None]) -> None:
        self.model, self.params = model, params
        self.lanes: list[LlamaCpp] = []
        try:
            for lib in libs:
                self.lanes.append(LlamaCpp(tiny_file(model), params, lib))
        except LaneError:
            self.close()
            raise
        one, other = self.lanes
        self.info = CacheInfo(one.spec.kind, (), partial=True)
        self.n_seq_max, self.n_batch = one.n_seq_max, one.resolved.n_batch
        self.unified, self.n_pos = one.resolved.kv_unified, one.model.n_pos_per_embd
        self.n_vocab, self.tokens_only = one.n_vocab, False
        self.same_order = one.ids_reversed is other.ids_reversed
        self.same_layout = one.layout is other.layout
        self.blind = False
        self._begin()

    def _begin(self) -> None:
        self.refused = False
        self.states: dict[int, Op] = {}
        self.next_token = 0
        self._pos = [(-1, -1)] * self.n_seq_max

    def renew(self) -> None:
        """Fresh contexts on both."""
        for lane in self.lanes:
            lane.renew()
        self._begin()

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()

    def span(self, seq: int) -> tuple[int, int]:
        return self._pos[seq] if 0 <= seq < self.n_seq_max else (-1, -1)

    @property
    def saved(self) -> Sequence[Op]:
        return list(self.states.values())

    def perform(self, op: Op) -> tuple[str, str]:
        """Let both perform ``op``: the kind of difference and the difference, both empty if there is none.
        What ends one of them is tried in a copy, and done by none."""
        self.next_token += 1
        if ENDS in (tried := [_attempt(lane, op) for lane in self.lanes]):
            self.refused = True
            return ("", "") if tried[0] == tried[1] else ("end", self._told("answers", tried))
        self.refused = False
        answers = [lane.apply(op) for lane in self.lanes]
        self._pos = [(int(lo), int(hi)) for lo, hi in answers[0].pos]
        if op.op in ("state_get", "state_seq_get"):
            self.states[op.args["slot"]] = op
        return self._apart(op, answers)

    def _apart(self, op: Op, answers: Sequence[Answer]) -> tuple[str, str]:
        sizes = self.same_layout or op.op not in STATES
        rets = [answer.ret if sizes else bool(answer.ret) for answer in answers]
        if rets[0] != rets[1]:
            return "answer", self._told("answers", rets)
        spans = [[list(span) for span in answer.pos] for answer in answers]
        if spans[0] != spans[1]:
            return "positions", self._told("has positions", spans)
        searches = [
            [
                (log.stream, log.size, log.n_swa, log.head, log.used, log.marks())
                for log in read_searches(a.log)
            ]
            for a in answers
        ]
        if searches[0] != searches[1]:
            first = next((pair for pair in zip(*searches, strict=False) if pair[0] != pair[1]), searches)
            return "cells", self._told("searched in", first)
        return "", ""

    def _told(self, verb: str, values: Sequence[object]) -> str:
        pairs = zip(self.lanes, values, strict=True)
        return ", ".join(f"llama.cpp {lane.version} {verb} {value}" for lane, value in pairs)


def _attempt(lane: LlamaCpp, op: Op) -> str | None:
    try:
        lane.attempt(op)
    except EndedError:
        return ENDS
    return None


def changes(
    libs: Sequence[Path | None], memory: str, n_ops: int, seed: int, config: str = ""
) -> Iterator[Change | LaneError]:
    """The changes between two libraries that ``n_ops`` operations come to on a memory (``all``: on each), in
    the contexts of the campaign (``config``: in that one). Raises LaneError for a context that is not known.

    A model that one of them does not load gives the LaneError instead.
    """
    if config and config not in CONFIGURATIONS:
        raise LaneError(f"unknown context {config!r}: give one of {', '.join(CONFIGURATIONS)}")
    known: dict[str, set[tuple[str, str]]] = {}
    contexts = {name: params for name, params in CONFIGURATIONS.items() if config in ("", name)}
    for model in TINY:
        kind = memory_of(model)
        if memory not in ("all", kind):
            continue
        models = [name for name in TINY if memory_of(name) == kind]
        each = -(-n_ops // (len(models) * len(contexts)))
        for k, params in enumerate(contexts.values()):
            try:
                yield from _changes(model, params, libs, each, seed * 1000 + k, known.setdefault(kind, set()))
            except LaneError as error:
                yield error
                break


def _changes(
    model: str, params: ContextParams, libs: Sequence[Path | None], n_ops: int, seed: int,
    known: set[tuple[str, str]],
) -> Iterator[Change]:  # fmt: skip
    pick = generate.SeededPicker(seed)
    sides = Versions(model, params, libs)
    try:
        while n_ops > 0:
            done, kind = _session(sides, pick, min(SESSION, n_ops))
            n_ops -= len(done)
            about = (done[-1].op, kind)
            if kind and about not in known:
                known.add(about)
                ops = shrink(done, lambda ops: _differs(sides, ops, about))  # noqa: B023 - over before the next
                what = _replayed(sides, ops)[1]
                yield Change(sides.info.kind, model, params, ops, kind, what)
            sides.renew()
    finally:
        sides.close()


def _session(sides: Versions, pick: generate.Picker, n_ops: int) -> tuple[list[Op], str]:
    """Random operations up to the first difference, and its kind."""
    done: list[Op] = []
    for op in operations(sides, pick):
        done.append(op)
        kind, _ = sides.perform(op)
        if kind or len(done) == n_ops:
            return done, kind
    raise AssertionError("operations never end")


def _differs(sides: Versions, ops: Sequence[Op], about: tuple[str, str]) -> bool:
    return bool(ops) and (ops[-1].op, _replayed(sides, ops)[0]) == about


def _replayed(sides: Versions, ops: Sequence[Op]) -> tuple[str, str]:
    """What differs at the last operation; nothing if they differ before, or a state was never saved."""
    sides.renew()
    for i, op in enumerate(ops):
        if op.op.endswith("_set") and op.args["slot"] not in sides.states:
            return "", ""
        found = sides.perform(op)
        if found[0]:
            return found if i == len(ops) - 1 else ("", "")
    return "", ""


def write_change(change: Change, libs: Sequence[Path | None], stem: Path) -> list[Path]:
    """Both recordings of a change: ``<stem>.<version>.jsonl``. What ends a version is left out."""
    written = []
    for lib in libs:
        with LlamaCpp(tiny_file(change.model), change.params, lib) as lane:
            header = header_of(
                lane.model, change.params, name=change.model, source=f"llama.cpp {lane.version}"
            )
            header.config["live"] = {"version": header.source, "unseen": list(LIVE_UNSEEN)}
            header = replace(header, config={**header.config, "change": change.what})
            pictures = Pictures(lane, header)
            path = stem.with_name(f"{stem.name}.{lane.version}.jsonl")
            with TraceWriter(path, header) as writer:
                writer.write(Step(0, "init", {}, None, None, pictures.take(), {}))
                for i, op in enumerate(change.ops, 1):
                    if _attempt(lane, op) == ENDS:
                        break
                    ret = lane.apply(op).ret
                    extra = {"size": ret} if op.op.endswith("_get") else {}
                    ubatches: list[dict[str, object]] | None = [] if op.op == "decode" else None
                    writer.write(Step(i, op.op, op.args, ret, ubatches, pictures.take(), extra))
            written.append(path)
    return written
