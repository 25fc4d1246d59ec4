"""What a replay has to say about a step, beside what the recording shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvsim.events import Event, Recorder
from kvsim.hazards import HAZARDS
from kvsim.narrate.verdicts import failed
from kvsim.replay import replay_beside
from kvsim.trace import MISSING, Difference, Trace, compare_step
from kvsim.trace.cellmap import cell_in_words

Note = dict[str, Any]

SHOWN = 6
"""Most fields of a step of which both sides are told."""


def notes_of(trace: Trace) -> Iterator[tuple[int, Note]]:
    """Replay a recording; for every operation that met a hazard, rebuilt a graph or differs, its number and note.

    Raises TraceError where the recording cannot be replayed.
    """
    recorder, failure = Recorder(), trace.header.failure
    i, note = 0, Note()
    for recorded, computed in replay_beside(trace, observer=recorder):
        i, note = recorded.i, note_of(recorder.take(), compare_step(recorded, computed), failure)
        if note:
            yield i, note
    if failure is not None and "apart" not in note:
        yield i, note | failure_note(failure)


def note_of(
    events: list[Event], found: Sequence[Difference] = (), failure: Mapping[str, str] | None = None
) -> Note:
    """What the player shows beside a step: from the events of its replay, and both sides of what it ``found``
    to differ; ``failure`` is what the tester says of the recording."""
    note: Note = {}
    if found:
        note["apart"] = _apart(found, failure)
    met = dict.fromkeys(event.detail["id"] for event in events if event.kind == "hazard")
    if met:
        note["hazards"] = [_hazard(name) for name in met]
    graphs = [event.detail for event in events if event.kind == "graph"]
    if graphs:
        rebuilt = [g["reason"].replace("->", "→") for g in graphs if not g["reused"]]
        note["graph"] = _graph(len(graphs), rebuilt)
    return note


def failure_note(failure: Mapping[str, str]) -> Note:
    """What the tester says of the last step, where its picture is the reference's own."""
    return {"apart": {"title": failed(failure["subject"], failure["verdict"]), "text": failure["what"]}}


def _apart(found: Sequence[Difference], failure: Mapping[str, str] | None) -> dict[str, Any]:
    title, here = "Differs from the reference", "recorded"
    if failure is not None:
        title, here = failed(failure["subject"], failure["verdict"]), failure["subject"]
    rows = [[_place(d.path), _words(d.path, d.recorded), _words(d.path, d.computed)] for d in found[:SHOWN]]
    return {"title": title, "sides": [here, "reference"], "rows": rows, "more": max(len(found) - SHOWN, 0)}


def _place(path: str) -> str:
    return path.removeprefix("after.").removeprefix("caches.")


def _words(path: str, value: Any) -> str:
    value = None if value is MISSING else value
    if ".caches." in path and ".cells[" in path:
        return cell_in_words(value)
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


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
