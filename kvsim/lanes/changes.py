"""What newer versions of llama.cpp do differently from b11434, the version that kvsim follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Change:
    """A call that ends a newer version, and did not end b11434."""

    version: str
    memory: str
    op: str
    applies: Callable[[dict[str, Any]], bool]
    what: str


CHANGES = (
    Change(
        "b11549",
        "hybrid_idx",
        "seq_cp",
        lambda a: a["p0"] > 0 or a["p1"] >= 0,
        "a copy must be of the whole sequence (partial seq_cp is not supported)",
    ),
)


def explained(version: str, memory: str, op: str, args: dict[str, Any]) -> str:
    """The change by which a call that we answer ends ``version``; empty if none is known."""
    for change in CHANGES:
        if (change.version, change.memory, change.op) == (version, memory, op) and change.applies(args):
            return change.what
    return ""
