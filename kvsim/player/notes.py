"""What a replay has to say about a step, beside what the recording shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvsim.events import Event, Recorder
from kvsim.hazards import HAZARDS
from kvsim.replay import replay_beside
from kvsim.trace import Trace

Note = dict[str, Any]


def notes_of(trace: Trace) -> Iterator[tuple[int, Note]]:
    """Replay a recording; for every operation that met a hazard or rebuilt a graph, its number and note.

    Raises TraceError where the recording cannot be replayed.
    """
    recorder = Recorder()
    for recorded, _ in replay_beside(trace, observer=recorder):
        note = note_of(recorder.take())
        if note:
            yield recorded.i, note


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
