"""Which difference which hazard excuses, and for how long."""

from __future__ import annotations

from dataclasses import replace

from kvsim.events import Event
from kvsim.hazard_table import CONTENT
from kvsim.hazards import HAZARDS
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
