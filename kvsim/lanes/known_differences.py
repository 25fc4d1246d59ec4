"""Differences between the library and kvsim that are understood.

Newer versions do some things differently from b11434; and kvsim refuses some things more widely than it must.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Known:
    """A call that one side answers and that ends the other. ``ends``: whether it ends llama.cpp, and kvsim
    answers it; else kvsim refuses it. ``versions``: of llama.cpp."""

    versions: frozenset[str]
    memory: str
    op: str
    applies: Callable[[Mapping[str, Any]], bool]
    ends: bool
    what: str


KNOWN = (
    Known(
        frozenset({"b11549"}),
        "hybrid_idx",
        "seq_cp",
        lambda args: args["p0"] > 0 or args["p1"] >= 0,
        True,
        "since b11434: a copy must be of the whole sequence (partial seq_cp is not supported)",
    ),
    Known(
        frozenset({"b11549", "b11434"}),
        "dsv4",
        "decode",
        lambda args: -1 in args["pos"],
        False,
        "a batch that begins at position -1 ends llama.cpp from three tokens on; kvsim refuses it always",
    ),
    Known(
        frozenset({"b11549", "b11434"}),
        "dsv4",
        "state_seq_get",
        lambda args: args["seq"] > 0,
        False,
        "a context of one sequence saves nothing of a sequence it does not know; kvsim refuses always",
    ),
)


def explained(version: str, memory: str, op: str, args: Mapping[str, Any], ends: bool) -> str:
    """Why a call may end one side only (llama.cpp if ``ends``); empty if nothing is known."""
    for known in KNOWN:
        same = version in known.versions and (known.memory, known.op, known.ends) == (memory, op, ends)
        if same and known.applies(args):
            return known.what
    return ""
