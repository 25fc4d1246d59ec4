"""What a finished comparison shows: lanes as rows of marks, differences by operation, both pictures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from app.compare.tell import KINDS
from app.task import Task

AGREES, DIFFERS, HAZARD, MISSING = "adh."


@dataclass(frozen=True)
class Lane:
    """A row of the strip: a mark per operation, and why it ended before the last, if it did."""

    name: str
    what: str
    marks: str
    end: str = ""


def comparison(task: Task, name: str, source: str) -> str:
    """The page's picture as JSON; the subject is called ``name``, and ``source`` made the recording."""
    pictures = task.of_kind("pictures")[0]
    rows = lanes(task, name, source)
    subject = rows[-1]
    met = {m["i"]: m["hazards"] for m in task.of_kind("mark") if m["lane"] == "ledger" and "hazards" in m}
    marks = [m for m in task.of_kind("mark") if m["lane"] == _subject(task)]
    found = {m["i"]: m for m in marks if m.get("n")}
    broken = bool(marks) and "broken" in marks[-1]
    ended = len(marks) - broken if subject.end else None
    return json.dumps(
        {
            "name": name,
            "lanes": [{"name": lane.name, "what": lane.what, "marks": lane.marks} for lane in rows],
            "reference": _payload(pictures["reference"]),
            "subject": _payload(pictures["subject"]),
            "differs": {i: {key: m[key] for key in ("n", "rows", "kinds")} for i, m in found.items()},
            "hazards": met,
            "kinds": [kind for kind, _ in KINDS],
            "ended": ended,
            "end": subject.end,
        },
        separators=(",", ":"),
    )


def first_difference(task: Task) -> int | None:
    """The operation at which the subject parts from the reference, by a field or by going no further."""
    marks = [m for m in task.of_kind("mark") if m["lane"] == _subject(task)]
    found = next((m["i"] for m in marks if m.get("n") or m.get("broken")), None)
    ended = any(m["lane"] == _subject(task) for m in task.of_kind("end"))
    return len(marks) if found is None and ended and marks else found


def lanes(task: Task, name: str, source: str) -> list[Lane]:
    """The strip's rows, the subject last."""
    n = task.of_kind("begin")[0]["operations"]
    ends = {m["lane"]: m["text"] for m in task.of_kind("end")}
    told = {
        "reference": ("kvsim", "reference"),
        "ledger": ("ledger", "what should hold"),
        "engine": ("engine", "torch, cpu"),
        "llamacpp": ("llama.cpp", "live"),
        "subject": (name, "subject"),
    }
    rows = [Lane("recording", source, AGREES * n)]
    for lane in task.of_kind("begin")[0]["lanes"]:
        title, what = told[lane]
        marks = [_mark(m) for m in task.of_kind("mark") if m["lane"] == lane]
        end = ends.get(lane, "")
        if end and marks and lane == "subject" and marks[-1] != DIFFERS:
            marks.append(DIFFERS)
        rows.append(Lane(title, what if marks else "not here", "".join(marks).ljust(n, MISSING)[:n], end))
    return rows


def _subject(task: Task) -> str:
    last: str = task.of_kind("begin")[0]["lanes"][-1]
    return last


def _mark(message: dict[str, Any]) -> str:
    return (
        DIFFERS if message.get("n") or message.get("broken") else HAZARD if message.get("hazards") else AGREES
    )


def _payload(text: str) -> Any:
    return json.loads(text) if text else None
