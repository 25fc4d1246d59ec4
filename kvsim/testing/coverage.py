"""What a campaign has reached: facts, the rules of the specification behind them, and how many states.

A *fact* is something that was seen to happen, in a few words: ``seq_rm=0``, ``slot wraps``,
``hazard:copy-ignores-range``. A rule of docs/spec counts as covered once one of its facts was seen.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvsim.events import Event
from kvsim.ops import Op

RULES: dict[str, tuple[str, ...]] = {
    **{f"batch {rule}": (f"batch:{rule}",) for rule in ("V2", "V6", "V7", "V8", "V9", "V10", "V12")},
    "batch S3": ("split of several sequences",),
    "batch E4": ("hazard:ubatch-exceeds-limit",),
    "batch E7": ("repeated position placed",),
    "batch A3": ("embeddings placed",),
    "cells R1": ("clear",),
    "cells R7": ("free by seq_rm",),
    "cells R9": ("free by seq_keep",),
    "cells R14": ("free by seq_add",),
    "cells R15": ("hazard:division-turns-backwards",),
    "cells R16": ("hazard:cell-keeps-old-token",),
    "cells R21": ("hazard:position-minus-one",),
    "kv_cache F1": ("slot wraps", "slot with gaps"),
    "kv_cache F2": ("slot refused",),
    "kv_cache P2": ("hazard:purge-survives-refusal",),
    "kv_cache P3": ("hazard:heads-exchanged",),
    "kv_cache A3": ("shared token placed",),
    "kv_cache A4": ("purge",),
    "kv_cache A5": ("head",),
    "kv_cache O1": ("seq_rm=1",),
    "kv_cache O3": ("seq_add ends", "seq_div ends"),
    "kv_cache O4": ("hazard:shift-moves-other-owners",),
    "kv_cache O6": ("share",),
    "kv_cache O7": ("hazard:keep-spares-other-streams",),
    "kv_cache 5": ("copy_queued",),
    "kv_cache 7": ("k_shift",),
    "kv_cache 8": ("stream_copy",),
    "iswa 3": ("split of several sequences", "decode=1"),
    "iswa surprise 2": ("hazard:trimmed-past-window",),
    "iswa surprise 5": ("hazard:partial-state-alone",),
    "decode B1": ("decode=2", "decode=-2", "decode=-3"),
    "decode B2": ("hazard:rollback-first-owner-only",),
    "decode B3": ("hazard:rollback-refused",),
    "decode B4": ("hazard:window-forgets-sequence",),
    "hybrid H3": ("seq_rm=0",),
    "hybrid H5": ("hazard:halves-disagree",),
    "hybrid H7": ("hazard:half-restored", "hazard:failed-restore-loses-sequence"),
    "hybrid H8": ("hazard:remove-any-refused",),
    "hybrid 4": ("hazard:state-keeps-removed",),
    "recurrent R1": ("seq_rm=0",),
    "recurrent R3": ("rollback of a state",),
    "recurrent R5": ("free by seq_rm",),
    "recurrent R6": ("hazard:state-copy-ignores-range",),
    "recurrent R7": ("free by seq_keep",),
    "recurrent R8": ("hazard:state-moves-for-all-owners",),
    "recurrent R10": ("free by clear",),
    "recurrent R11": ("hazard:rollback-beyond-snapshot",),
    "recurrent R13": ("hazard:rollback-consumed-early",),
    "state W1": ("state saved",),
    "state W4": ("hazard:save-before-shift", "hazard:save-before-copy"),
    "state Rd1": ("state refused",),
    "state Rd4": ("purge",),
    "state Rd5": ("damaged state refused",),
    "state Rc3": ("state restored",),
    "state Rc4": ("hazard:failed-restore-loses-sequence",),
}
"""Rules of docs/spec (file and label) -> the facts that show one at work."""


_HYBRID = frozenset({"hybrid", "hybrid_iswa", "hybrid_idx"})
_STATES = _HYBRID | {"recurrent"}
_ATTENTION = _HYBRID | {"kv", "iswa", "dsa", "dsa_iswa", "msa", "dsv4"}
_WINDOW = frozenset({"iswa", "dsa_iswa", "hybrid_iswa", "dsv4"})
_EVERY = _STATES | _ATTENTION

_MEMBERS = {
    "batch": _EVERY,
    "decode": _EVERY,
    "state": _EVERY,
    "cells": _ATTENTION,
    "kv_cache": _ATTENTION,
    "iswa": _WINDOW,
    "hybrid": _HYBRID,
    "recurrent": _STATES,
    **dict.fromkeys(("kv_cache P2", "kv_cache A4", "decode B4", "state Rd4"), _WINDOW),
    **dict.fromkeys(("decode B2", "state W4", "state Rd1", "state Rd5"), _ATTENTION),
    **dict.fromkeys(("state Rc3", "state Rc4"), _STATES),
    "decode B3": _STATES | {"dsv4"},
}
"""The members of the family that a rule concerns, by its file, or by file and label where others than the
file's."""


def rules_of(memories: Iterable[str]) -> list[str]:
    """The rules that concern any of these members of the family."""
    played = set(memories)
    return [rule for rule in RULES if played & (_MEMBERS.get(rule) or _MEMBERS[rule.split()[0]])]


def unreached(facts: Mapping[str, int], memories: Iterable[str]) -> list[str]:
    """The rules of these members of the family of which no fact was seen."""
    return [rule for rule in rules_of(memories) if not any(facts.get(fact) for fact in RULES[rule])]


class Watcher:
    """Collects facts: attach :meth:`event` as an observer, call :meth:`operation` after each operation."""

    def __init__(self) -> None:
        self.facts: Counter[str] = Counter()

    def event(self, event: Event) -> None:
        """Note what a memory tells."""
        self.facts[_fact(event)] += 1

    def operation(self, op: Op, answer: int | str | None, rule: str | None = None) -> None:
        """Note an operation and its answer ("ends": llama.cpp would have ended); ``rule`` is what a refused
        batch violated."""
        self.facts[_said(op, answer)] += 1
        if rule is not None:
            self.facts[f"batch:{rule}"] += 1
        if op.op == "decode" and answer == 0:
            for fact in _batch_facts(op.args):
                self.facts[fact] += 1


def _said(op: Op, answer: int | str | None) -> str:
    if answer == "ends":
        return f"{op.op} ends"
    if op.op in ("decode", "seq_rm"):
        return f"{op.op}={answer}"
    damaged = "truncate" in op.args or "xor0" in op.args
    return "damaged state refused" if damaged and answer == 0 else op.op


def _fact(event: Event) -> str:
    kind, detail = event.kind, event.detail
    if kind == "hazard":
        return f"hazard:{detail['id']}"
    if kind == "free":
        return f"free by {detail['reason']}"
    if kind == "slot" and not detail["found"]:
        return "slot refused"
    if kind == "slot" and len(event.cells):
        first, last, n = int(event.cells[0]), int(event.cells[-1]), len(event.cells)
        return "slot wraps" if last < first else "slot with gaps" if last - first + 1 > n else "slot"
    if kind == "split" and detail["n_seqs"] > 1:
        return "split of several sequences"
    if kind == "rollback" and "depth" in detail:
        return "rollback of a state refused" if detail["refused"] else "rollback of a state"
    if kind == "state":
        return f"state {detail['what']}"
    return kind


def _batch_facts(args: Mapping[str, Any]) -> Iterator[str]:
    if args["tokens"] is None:
        yield "embeddings placed"
    if any(len(ids) > 1 for ids in args["seq"]):
        yield "shared token placed"
    seen: set[tuple[int, int]] = set()
    for ids, pos in zip(args["seq"], args["pos"], strict=False):
        if (ids[0], pos) in seen:
            yield "repeated position placed"
        seen.add((ids[0], pos))


class StateSketch:
    """Counts distinct states in constant memory, by the ``KEPT`` smallest of their 64-bit fingerprints.

    Exact up to that many, an estimate (within a few per cent) beyond. Sketches of several runs can be merged.
    """

    KEPT = 1024

    def __init__(self, smallest: Iterable[int] = ()) -> None:
        self.smallest = sorted(set(smallest))[: self.KEPT]
        self._last: dict[str, tuple[Any, list[int]]] = {}

    def add(self, picture: Mapping[str, Any]) -> None:
        """Count this picture, tokens left aside: who sits where, at which position."""
        value = _mix(hash((*self._streams(picture["caches"]), _states(picture["recurrent"]))))
        full = len(self.smallest) == self.KEPT
        if full and value >= self.smallest[-1]:
            return
        at = bisect.bisect_left(self.smallest, value)
        if at < len(self.smallest) and self.smallest[at] == value:
            return
        self.smallest.insert(at, value)
        del self.smallest[self.KEPT :]

    def _streams(self, caches: Mapping[str, Any]) -> Iterator[int]:
        """The fingerprint of every stream; of those that are the very same records, the ones they had."""
        for name, streams in caches.items():
            before, values = self._last.get(name, (None, []))
            if before is not streams:
                known = dict(zip(map(id, before or ()), values, strict=True))
                values = [known.get(id(stream)) or _fingerprint(stream) for stream in streams]
                self._last[name] = streams, values
            yield from values

    def merge(self, other: StateSketch) -> None:
        self.smallest = sorted({*self.smallest, *other.smallest})[: self.KEPT]

    @property
    def n_states(self) -> int:
        """How many distinct states were seen."""
        if len(self.smallest) < self.KEPT:
            return len(self.smallest)
        return int((self.KEPT - 1) * 2**64 / self.smallest[-1])


def _fingerprint(stream: Mapping[str, Any]) -> int:
    return hash((stream["head"], *[(c[0], c[1], *c[2], -2, c[3]) for c in stream["cells"]]))


def _states(recurrent: Mapping[str, Any] | None) -> tuple[Any, ...]:
    if recurrent is None:
        return ()
    cells = tuple((c[1], c[2], c[3], c[4], *c[5]) for c in recurrent["cells"])
    return (recurrent["head"], tuple(recurrent["rs_idx"]), cells)


def _mix(value: int) -> int:
    """Spread a hash over 64 bits (the finaliser of splitmix64)."""
    value &= 2**64 - 1
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
    return value ^ (value >> 31)
