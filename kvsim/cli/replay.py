"""``kvsim replay``: perform recorded operations on our own memory and compare."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, TaskID
from rich.text import Text

from kvsim.cli.differences import explain, explain_failure, explain_hazards
from kvsim.cli.outcome import COUNTS, Outcome, counts, replay_one
from kvsim.cli.terminal import DIFFERENT, UNUSABLE, beside, find_traces, progress, stdout
from kvsim.narrate.words import count


def replay_command(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Traces, or folders of them.")],
    explained: Annotated[
        bool, typer.Option("--explain", help="Show the hazards met, and the first difference by cell.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")] = False,
) -> None:
    """Replay recordings on kvsim and count the fields that differ.

    One line a trace, then the sum. A hazard is an operation on which llama.cpp quietly does what no
    caller wants; it is no difference. Exit status 0: no difference, 1: some, 2: unusable input.
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
    if as_json:
        print(json.dumps({"traces": [outcome.to_json() for outcome in outcomes], **counts(outcomes)}))
    elif len(outcomes) > 1:
        stdout().print(_line(count(len(outcomes), "trace"), counts(outcomes), width))
    raise typer.Exit(_status(outcomes))


def _advance(bar: Progress, task: TaskID, before: int, read: int) -> None:
    bar.update(task, completed=before + read)


def _status(outcomes: list[Outcome]) -> int:
    if any(outcome.error for outcome in outcomes):
        return UNUSABLE
    return DIFFERENT if any(outcome.differences for outcome in outcomes) else 0


def _print_outcome(bar: Progress, outcome: Outcome, explained: bool, width: int) -> None:
    if outcome.error is not None:
        bar.console.print(Text(outcome.error))
        return
    out = beside(bar)
    out.print(_line(outcome.path, counts([outcome]), width))
    if explained:
        explain_hazards(out, outcome.met)
        if outcome.failure is not None:
            explain_failure(out, outcome.failure, outcome.differences)
        if outcome.first is not None:
            explain(out, outcome.first)


def _line(name: str, numbers: dict[str, int], width: int) -> Text:
    named = {what: what[:-1] if numbers[what] == 1 else what for what in COUNTS}
    columns = "  ".join(f"{numbers[what]:>6,} {named[what]:<{len(what)}}" for what in COUNTS)
    return Text(f"{name:<{width}}  {columns}".rstrip(), "bold red" if numbers["differences"] else "")
