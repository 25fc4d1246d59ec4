"""``kvsim replay``: perform recorded operations on our own memory and compare."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress, TaskID
from rich.text import Text

from kvsim.cli.explain import explain
from kvsim.cli.terminal import DIFFERENT, UNUSABLE, beside, find_traces, progress, stdout
from kvsim.errors import TraceError
from kvsim.replay import replay_beside
from kvsim.trace import MISSING, Difference, Header, Step, compare_step, read_trace


@dataclass(frozen=True)
class Parting:
    """The first step on which recording and replay differ."""

    header: Header
    recorded: Step
    computed: Step
    found: list[Difference]

    def to_json(self) -> dict[str, Any]:
        return {
            "i": self.recorded.i,
            "op": self.recorded.op,
            "differences": [
                {key: value for key, value in vars(difference).items() if value is not MISSING}
                for difference in self.found
            ],
        }


@dataclass
class Outcome:
    """What the replay of one trace, or of many, came to. ``differences`` counts fields over all steps."""

    path: str
    operations: int = 0
    decodes: int = 0
    differences: int = 0
    first: Parting | None = None
    error: str | None = None

    def counts(self) -> dict[str, int]:
        return {k: getattr(self, k) for k in ("operations", "decodes", "differences")}

    def to_json(self) -> dict[str, Any]:
        first = None if self.first is None else self.first.to_json()
        return {"path": self.path, **self.counts(), "first": first, "error": self.error}


def replay_command(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Traces, or folders of them.")],
    explained: Annotated[bool, typer.Option("--explain", help="Show the first difference by cell.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")] = False,
) -> None:
    """Replay recordings on kvsim and count the fields that differ.

    One line a trace, then the sum. Exit status 0: no difference, 1: some, 2: input that cannot be used.
    """
    files = find_traces(paths)
    sizes = [path.stat().st_size for path in files]
    outcomes, width = [], max(len(str(path)) for path in files)
    with progress(sum(sizes)) as bar:
        task = bar.add_task("replaying", total=sum(sizes))
        for i, path in enumerate(files):
            outcome = replay_one(path, partial(_advance, bar, task, sum(sizes[:i])))
            outcomes.append(outcome)
            if not as_json:
                _print_outcome(bar, outcome, explained, width)
    total = _total(outcomes)
    if as_json:
        print(json.dumps({"traces": [outcome.to_json() for outcome in outcomes], **total.counts()}))
    elif len(outcomes) > 1:
        stdout().print(_line(total, width))
    raise typer.Exit(_status(outcomes))


def replay_one(path: Path, report: Callable[[int], object]) -> Outcome:
    """Replay one trace; ``report`` is told the bytes read so far. Memory does not grow with the trace."""
    outcome = Outcome(str(path))
    try:
        trace = read_trace(path)
        for recorded, computed in replay_beside(trace):
            found = compare_step(recorded, computed)
            outcome.operations += 1
            outcome.decodes += recorded.op == "decode"
            outcome.differences += len(found)
            if found and outcome.first is None:
                outcome.first = Parting(trace.header, recorded, computed, found)
            report(trace.bytes_read)
    except TraceError as error:
        outcome.error = str(error)
    return outcome


def _advance(bar: Progress, task: TaskID, before: int, read: int) -> None:
    bar.update(task, completed=before + read)


def _total(outcomes: list[Outcome]) -> Outcome:
    total = Outcome(f"{len(outcomes)} traces")
    for outcome in outcomes:
        total.operations += outcome.operations
        total.decodes += outcome.decodes
        total.differences += outcome.differences
    return total


def _status(outcomes: list[Outcome]) -> int:
    if any(outcome.error for outcome in outcomes):
        return UNUSABLE
    return DIFFERENT if any(outcome.differences for outcome in outcomes) else 0


def _print_outcome(bar: Progress, outcome: Outcome, explained: bool, width: int) -> None:
    if outcome.error is not None:
        bar.console.print(Text(outcome.error))
        return
    out = beside(bar)
    out.print(_line(outcome, width))
    if explained and outcome.first is not None:
        first = outcome.first
        explain(out, first.header, first.recorded, first.computed, first.found)


def _line(outcome: Outcome, width: int) -> Text:
    counts = f"{outcome.operations:>7,} operations {outcome.decodes:>6,} decodes"
    style = "bold red" if outcome.differences else ""
    return Text(f"{outcome.path:<{width}} {counts} {outcome.differences:>7,} differences", style)
