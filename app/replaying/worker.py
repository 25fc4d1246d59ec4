"""The process in which bundled recordings are read and checked: ``python -m app.replaying.worker``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from app.check import Check, check
from app.recordings import open_recording, trace_of
from app.worker import Tell, serve

EVERY = 0.25
"""Seconds between two words of how far it is."""


def replay(job: dict[str, Any], tell: Tell) -> None:
    """Read the recording at ``path``, tell it, then check it and tell that too."""
    path, name = Path(job["path"]), job["name"]
    opened = open_recording(path, name)
    found = {"payload": opened.payload, "n_steps": opened.n_steps, "error": opened.error}
    found["telling"] = opened.telling
    tell("opened", header=opened.header.to_json(), **found)
    checking({**job, "n_steps": opened.n_steps}, tell)


def checking(job: dict[str, Any], tell: Tell) -> None:
    """Check the first ``n_steps`` operations of the recording at ``path``; tell what is found as it is found."""
    result, told = Check(), time.monotonic()
    for result in check(trace_of(Path(job["path"]), job["name"]), job["n_steps"]):
        now = time.monotonic()
        if now - told > EVERY:
            told = now
            tell("compared", instead=True, **_found(result))
    tell("checked", **_found(result), error=result.error, notes=list(result.notes.items()))


def _found(result: Check) -> dict[str, Any]:
    return {"done": result.done, "differences": result.differences, "first": result.first}


if __name__ == "__main__":
    serve({"replay": replay})
