"""A recording held against our own reference, step by step, with what the reference has to say about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvsim.errors import KvsimError
from kvsim.events import Recorder
from kvsim.player.notes import Note, failure_note, note_of
from kvsim.replay import replay_beside
from kvsim.trace import Trace, compare_step


@dataclass
class Check:
    """How far a check has come: ``done`` steps compared, ``differences`` fields that differ.

    ``first`` is the first operation with a difference. ``notes`` has, per step, the hazards the operation met,
    why the graph was reused or rebuilt, and both sides of what differs. ``error`` says why the replay could not go on.
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
            found = compare_step(recorded, computed)
            result.differences += len(found)
            if found and result.first is None:
                result.first = recorded.i
            note = note_of(recorder.take(), found, trace.header.failure)
            result.done += 1
            if trace.header.failure and result.done == n_steps and not found:
                note |= failure_note(trace.header.failure)
            if note:
                result.notes[recorded.i] = note
            yield result
            if result.done >= n_steps:
                return
    except KvsimError as error:
        result.error = str(error)
        yield result
