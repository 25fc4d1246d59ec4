"""Which difference which hazard excuses, and for how long."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from kvsim.caches.dsv4 import DSV4Cache
from kvsim.errors import KvsimError
from kvsim.events import Event
from kvsim.hazard_table import CONTENT
from kvsim.hazards import HAZARDS
from kvsim.memory import Memory
from kvsim.ops import Op
from kvsim.testing.parts import window_pair
from kvsim.trace.header import MEMORIES

ASTRAY = "partial-state-alone"
LASTING = {
    ASTRAY,
    "state-knows-last-position-only",
    "state-position-below-zero",
    "base-keeps-later-positions",
    "half-restored",
    "position-minus-one",
    "cell-keeps-old-owner",
}
"""Hazards after which a sequence is astray: its parts disagree, or its cells are half alive. What comes of it
cannot be told in advance, until it is gone from every part."""

COMPRESSED_LATER = {
    "clearing-empties-queued-copy",
    "compressed-rows-of-nothing",
    "copy-ignores-rollback",
    "empty-state-removes-nothing",
    "restore-under-queued-copy",
    "rollback-arms-uncomputed",
    "rollback-beyond-snapshot",
    "rollback-consumed-early",
    "rollback-first-owner-only",
    "rollback-refused",
    "save-before-copy",
    "shared-token-sees-one-history",
}
"""Hazards after which the rings of DeepSeek-V4 hold something else than the sequence; the difference shows
when a block is completed."""

KEPT = "empty-state-removes-nothing"
"""After this a restore has changed nothing."""

UNDONE = "undo-misses-position-minus-one"

_LEAF_NAMES = {name for names in MEMORIES.values() for name in names} | {"recurrent"}


def concerns(event: Event, part: str, seq: int) -> bool:
    """Whether a hazard explains a difference in this part and sequence. One that names no sequence speaks of
    all, one that is not about content of none."""
    if HAZARDS[event.detail["id"]].kind != CONTENT:
        return False
    if event.cache in _LEAF_NAMES and event.cache != part:
        return False
    named = named_by(event)
    return not named or -1 in named or seq in named


def named_by(event: Event) -> set[int]:
    """The sequences that a hazard speaks of; -1 for every one."""
    named: set[int] = set()
    for key in ("seq", "seqs", "others", "src", "dst", "streams"):
        value = event.detail.get(key, ())
        named.update([value] if isinstance(value, int) else value)
    return named


def carried(event: Event, into: int | None) -> Event:
    """A hazard met while saving, as it concerns the sequence that the state is restored into (None: all)."""
    detail = {"id": event.detail["id"], "seq": -1 if into is None else into}
    return replace(event, detail=detail)


def lasting_in(memory: Memory) -> AbstractSet[str]:
    """The hazards after which a sequence of this memory is astray."""
    lasting = LASTING | COMPRESSED_LATER if isinstance(memory, DSV4Cache) else LASTING
    return lasting if window_pair(memory) is None else lasting | {"halves-disagree"}


class CheckError(KvsimError):
    """A memory differs from what it should be, and no hazard explains it."""


class Excuses:
    """The hazards that concern the last of ``ops``, and the sequences that are astray since an earlier one.

    ``lasting``: the hazards after which, in this memory, a sequence is astray. Whoever sees that it is gone, or
    that it went astray otherwise, says so in ``astray``.
    """

    def __init__(self, ops: Sequence[Op], n_seq_max: int, lasting: AbstractSet[str]) -> None:
        self.ops = ops
        self.events: list[Event] = []
        self.astray: set[int] = set()
        self._n_seq_max = n_seq_max
        self._lasting = lasting

    def twin(self) -> Excuses:
        """For the same sequences in a memory of its own, where no hazard was met yet."""
        twin = copy.copy(self)
        twin.events, twin.astray = [], set(self.astray)
        return twin

    def explained(self, part: str, seq: int, hazard: str | None = None) -> bool:
        """Whether a hazard (or the one named) was reported for this part and sequence."""
        if hazard is None and seq in self.astray:
            return True
        if not self.events:
            return False
        return any(concerns(e, part, seq) for e in self.events if hazard in (None, e.detail["id"]))

    def go_astray(self) -> None:
        """Of the sequences that a lasting hazard names nothing can be told any more."""
        for event in self.events:
            if event.detail["id"] in self._lasting:
                named = named_by(event)
                self.astray |= set(range(self._n_seq_max)) if -1 in named else named

    def failure(self, text: str) -> CheckError:
        """What nothing explains, as an error that says where it was found."""
        met = ", ".join(event.detail["id"] for event in self.events) or "none"
        return CheckError(
            f"after operation {len(self.ops) - 1}, {self.ops[-1]}: {text}. Hazards reported: {met}"
        )
