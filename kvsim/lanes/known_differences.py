"""Differences between the library and kvsim that are understood.

Newer versions do some things differently from b11434; and kvsim refuses some things more widely than it must.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Parting(Enum):
    """How the two part."""

    IT_ENDS = "llama.cpp ends, kvsim answers"
    IT_REFUSES = "llama.cpp refuses, kvsim does it"
    WE_REFUSE = "llama.cpp answers, kvsim refuses because it might end"


@dataclass(frozen=True)
class Known:
    """A call at which ``versions`` of llama.cpp and kvsim part, with ``memories`` of these kinds."""

    versions: frozenset[str]
    memories: frozenset[str]
    op: str
    parting: Parting
    applies: Callable[[Mapping[str, Any]], bool]
    what: str


KNOWN = (
    Known(
        frozenset({"b11549"}),
        frozenset({"hybrid_idx"}),
        "seq_cp",
        Parting.IT_ENDS,
        lambda args: args["p0"] > 0 or args["p1"] >= 0,
        "since b11434: a copy must be of the whole sequence (partial seq_cp is not supported)",
    ),
    Known(
        frozenset({"b11549"}),
        frozenset({"recurrent", "hybrid", "hybrid_iswa", "hybrid_idx"}),
        "seq_rm",
        Parting.IT_REFUSES,
        lambda args: args["p0"] > 0,
        "since b11434: a recurrent state that several sequences share is not rolled back for one of them",
    ),
    Known(
        frozenset({"b11549", "b11434", "b11063"}),
        frozenset({"dsv4"}),
        "decode",
        Parting.WE_REFUSE,
        lambda args: -1 in args["pos"],
        "a sequence with nothing but position -1 in a ubatch: llama.cpp reads beyond the ubatch",
    ),
)


def explained(version: str, memory: str, op: str, args: Mapping[str, Any], parting: Parting) -> str:
    """Why the two may part so at this call; empty if nothing is known."""
    for known in KNOWN:
        same = (known.op, known.parting) == (op, parting)
        if same and version in known.versions and memory in known.memories and known.applies(args):
            return known.what
    return ""
