"""What the replay of a trace came to: counts, the first difference, the hazards met."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvsim.errors import TraceError
from kvsim.events import Event, Recorder
from kvsim.narrate.calls import call
from kvsim.replay import replay_beside
from kvsim.trace import MISSING, Difference, Header, Step, compare_step, read_trace

COUNTS = ("operations", "decodes", "differences", "hazards")
"""What is counted, each a plural that ends in s."""


@dataclass(frozen=True)
class Parting:
    """The first step on which recording and replay differ."""

    header: Header
    recorded: Step
    computed: Step
    found: list[Difference]

    def to_json(self) -> dict[str, Any]:
        differences = [
            {key: value for key, value in vars(difference).items() if value is not MISSING}
            for difference in self.found
        ]
        return {"i": self.recorded.i, "op": self.recorded.op, "differences": differences}


@dataclass
class Meeting:
    """A hazard that was met: first by operation ``i``, and by ``operations`` in all."""

    i: int
    call: str
    operations: int = 0


@dataclass
class Outcome:
    """One trace, replayed. ``differences`` counts fields over all steps; ``met`` is by hazard id;
    ``failure`` is what the tester found, if it saved the trace."""

    path: str
    operations: int = 0
    decodes: int = 0
    differences: int = 0
    first: Parting | None = None
    met: dict[str, Meeting] = field(default_factory=dict)
    failure: dict[str, str] | None = None
    error: str | None = None

    @property
    def hazards(self) -> int:
        return sum(meeting.operations for meeting in self.met.values())

    def add(self, header: Header, recorded: Step, computed: Step, events: Iterable[Event]) -> None:
        """Count one step."""
        found = compare_step(recorded, computed)
        self.operations += 1
        self.decodes += recorded.op == "decode"
        self.differences += len(found)
        if found and self.first is None:
            self.first = Parting(header, recorded, computed, found)
        for hazard in {event.detail["id"]: None for event in events if event.kind == "hazard"}:
            self.met.setdefault(hazard, Meeting(recorded.i, call(recorded))).operations += 1

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            **counts([self]),
            "first": None if self.first is None else self.first.to_json(),
            "met": {name: {"operations": m.operations, "first": m.i} for name, m in self.met.items()},
            **({} if self.failure is None else {"failure": self.failure}),
            "error": self.error,
        }


def counts(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """The sums over several traces."""
    outcomes = list(outcomes)
    return {name: sum(getattr(outcome, name) for outcome in outcomes) for name in COUNTS}


def replay_one(path: Path, report: Callable[[int], object]) -> Outcome:
    """Replay one trace; ``report`` is told the bytes read so far. Memory does not grow with the trace."""
    outcome, recorder = Outcome(str(path)), Recorder()
    try:
        trace = read_trace(path)
        outcome.failure = trace.header.failure
        for recorded, computed in replay_beside(trace, observer=recorder):
            outcome.add(trace.header, recorded, computed, recorder.take())
            report(trace.bytes_read)
    except TraceError as error:
        outcome.error = str(error)
    return outcome
