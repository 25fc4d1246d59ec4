"""A recording held against our own reference, step by step, with what the reference has to say about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kvsim.errors import KvsimError
from kvsim.events import Event, Recorder
from kvsim.hazards import HAZARDS
from kvsim.replay import replay_beside
from kvsim.trace import Trace, compare_step

Note = dict[str, Any]


@dataclass
class Check:
    """How far a check has come: ``done`` steps compared, ``differences`` fields that differ.

    ``first`` is the first operation with a difference. ``notes`` has, per step, the hazards the operation met
    and why the graph was reused or rebuilt. ``error`` says why the replay could not go on.
    """

    done: int = 0
    differences: int = 0
    first: int | None = None
    notes: dict[int, Note] = field(default_factory=dict)
    error: str = ""


def check(trace: Trace, n_steps: int) -> Iterator[Check]:
    """Replay the first ``n_steps`` operations; yields the growing result after each."""
    result, recorder = Check(), Recorder()
    try:
        for recorded, computed in replay_beside(trace, observer=recorder):
            found = len(compare_step(recorded, computed))
            result.differences += found
            if found and result.first is None:
                result.first = recorded.i
            note = note_of(recorder.take())
            if note:
                result.notes[recorded.i] = note
            result.done += 1
            yield result
            if result.done >= n_steps:
                return
    except KvsimError as error:
        result.error = str(error)
        yield result


def note_of(events: list[Event]) -> Note:
    """What the player shows beside a step, from the events of its replay."""
    note: Note = {}
    met = dict.fromkeys(event.detail["id"] for event in events if event.kind == "hazard")
    if met:
        note["hazards"] = [_hazard(name) for name in met]
    graphs = [event.detail for event in events if event.kind == "graph"]
    if graphs:
        rebuilt = [g["reason"].replace("->", "→") for g in graphs if not g["reused"]]
        note["graph"] = _graph(len(graphs), rebuilt)
    return note


def _hazard(name: str) -> dict[str, str]:
    title = name.replace("-", " ")
    hazard = HAZARDS.get(name)
    if hazard is None:
        return {"title": title, "text": "", "consistent": ""}
    return {"title": title, "text": hazard.happens, "consistent": hazard.instead}


def _graph(n: int, rebuilt: list[str]) -> str:
    if not rebuilt:
        return "reused" if n == 1 else f"reused {n} times"
    told = f"rebuilt: {rebuilt[-1]}"
    return told if n == 1 else f"reused {n - len(rebuilt)} of {n}; {told}"
