"""Findings: the hazards, tried on the real llama.cpp.

A finding is a few operations, what is looked at afterwards, what llama.cpp shows there and what would be
consistent (:mod:`kvsim.lanes.finding_table`). What is looked at:

========== =============================================================================================
answer     what the last operation returned
accepted   whether it returned something else than 0
sequences  how many sequences hold something
can_shift  whether the memory says that positions can be moved
pos S      first and last position of sequence S
held C S   the positions of sequence S in cache C, by cell
saved S    the positions of sequence S in a saved state of it, part by part
cells C    index and position of every cell of cache C
heads C    where the next search begins in each stream of cache C
used C     the cells that each stream of cache C counts as used
logits     whether those of the last decode are those of the same decode after the control operations
rows S     whether the saved state of sequence S is that after the control operations, byte for byte
========== =============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.lanes.llamacpp import EndedError, LlamaCpp
from kvsim.models.context_params import ContextParams
from kvsim.ops import Op
from kvsim.state_format import KVSection

SAME, DIFFERENT = "the same", "different"
ENDS = "llama.cpp ends"

TOLERANCE = 1e-4
"""Logits that differ by less, relative to the largest, count as the same."""


@dataclass(frozen=True)
class Finding:
    """A hazard that can be seen from outside.

    ``model`` is a tiny model, ``params`` its context. ``found`` is what ``looks`` at each of these shows after
    ``ops``, ``wanted`` what would be consistent; ``control``: operations that should come to the same.
    ``seen``: the versions of llama.cpp that were seen to do it, ``gone``: those that do it no more.
    """

    hazard: str
    model: str
    params: ContextParams
    ops: tuple[Op, ...]
    looks: tuple[str, ...]
    found: tuple[Any, ...]
    wanted: tuple[Any, ...]
    control: tuple[Op, ...]
    seen: tuple[str, ...]
    gone: tuple[str, ...] = ()


def shown(finding: Finding, model: Path, lib: Path | None = None) -> tuple[Any, ...]:
    """What llama.cpp shows; :data:`ENDS` for each look if the operations end it."""
    with ExitStack() as opened:

        def after(ops: Sequence[Op]) -> _Shown:
            return _Shown(opened.enter_context(LlamaCpp(model, finding.params, lib)), ops)

        try:
            ours = after(finding.ops)
            control = after(finding.control) if finding.control else None
        except EndedError:
            return (ENDS,) * len(finding.looks)
        return tuple(ours.look(what, control) for what in finding.looks)


class _Shown:
    """llama.cpp after some operations."""

    def __init__(self, live: LlamaCpp, ops: Sequence[Op]) -> None:
        self.live = live
        for op in ops:
            self.answer = live.apply(op, logits=True)

    def look(self, what: str, control: _Shown | None) -> Any:
        name, *args = what.split()
        looks: dict[str, Callable[..., Any]] = {
            "answer": lambda: self.answer.ret,
            "accepted": lambda: bool(self.answer.ret),
            "sequences": lambda: sum(last >= 0 for _, last in self.answer.pos),
            "can_shift": self.live.can_shift,
            "pos": lambda seq: list(self.answer.pos[int(seq)]),
            "held": lambda cache, seq: [pos for _, pos, own in self._cells(cache) if int(seq) in (own or ())],
            "saved": self._saved,
            "cells": lambda cache: [[i, pos] for i, pos, _ in self._cells(cache)],
            "heads": lambda cache: [stream["head"] for stream in self._streams(cache)],
            "used": lambda cache: [stream["used"] for stream in self._streams(cache)],
            "logits": lambda: _told(control is not None and self._same_logits(control)),
            "rows": lambda seq: _told(
                control is not None and self.live.state_bytes(int(seq)) == control.live.state_bytes(int(seq))
            ),
        }
        return looks[name](*args)

    def _streams(self, cache: str) -> list[dict[str, Any]]:
        return [stream for stream in self.live.snapshot()["caches"][cache] if stream is not None]

    def _cells(self, cache: str) -> list[list[Any]]:
        return [cell for stream in self._streams(cache) for cell in stream["cells"]]

    def _saved(self, seq: str) -> list[list[int]]:
        sections = self.live.state(int(seq)).sections.values()
        return [
            [cell.pos for stream in section.streams for cell in stream.cells]
            for section in sections
            if isinstance(section, KVSection)
        ]

    def _same_logits(self, other: _Shown) -> bool:
        ours, theirs = (list(each.answer.logits.values())[-1] for each in (self, other))
        return bool(np.abs(ours - theirs).max() <= TOLERANCE * np.abs(ours).max())


def _told(same: bool) -> str:
    return SAME if same else DIFFERENT
