"""``kvsim difftest``: a cache against the reference, by generated operations."""

from __future__ import annotations

import shlex
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from kvsim.cli.simulate import only_with
from kvsim.cli.terminal import DIFFERENT, check_writable, counted, fail, stderr, stdout, under_way
from kvsim.cli.versions import hold_against
from kvsim.errors import KvsimError
from kvsim.narrate.words import count
from kvsim.testing.difftest import SESSION, Campaign, Failure, Shard, run, shrink_failure
from kvsim.testing.match import DifferenceError
from kvsim.testing.pipe import ANSWER_WITHIN
from kvsim.testing.recorded import told, write_failure
from kvsim.testing.report import Report, merged, read_report

SAVED_EVERY = 10
"""Seconds between two writings of the report."""

STOPPED = 130
"""Exit status of what was stopped by Ctrl-C or SIGTERM."""


def difftest_command(
    subject: Annotated[
        str, typer.Option(help="reference (held to the ledger), engine, llamacpp, or module:Class.")
    ] = "reference",
    command: Annotated[
        str, typer.Option("--exec", metavar="CMD", help="A program that speaks docs/protocol.md.")
    ] = "",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="With --exec: for each answer, the greeting included.")
    ] = ANSWER_WITHIN,
    memory: Annotated[str, typer.Option(help="A member of the family, or all.")] = "all",
    config: Annotated[str, typer.Option(help="Only configurations of this name.")] = "",
    seed: Annotated[int, typer.Option(help="What is done depends on it alone.", min=0)] = 1,
    ops: Annotated[int, typer.Option(help="Operations, over all shards.", min=1)] = 100_000,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 1,
    profile: Annotated[str, typer.Option(help="usual, or nasty: tiny caches, faults everywhere.")] = "usual",
    weight: Annotated[
        list[str], typer.Option(metavar="OP=N", help="How often an operation is chosen; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    rows: Annotated[bool, typer.Option("--rows", help="Compare rows, masks, logits, states too.")] = False,
    ray: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Play on a Ray cluster; local starts one here.")
    ] = "",
    shard: Annotated[str, typer.Option(metavar="I/N", help="Do only part I of N.")] = "1/1",
    report: Annotated[
        Path | None, typer.Option(help="Where the report goes; a run goes on where its own report ends.")
    ] = None,
    trace: Annotated[Path, typer.Option(help="Where the trace of a failure goes.")] = Path("failure.jsonl"),
    lane: Annotated[
        str, typer.Option(metavar="llamacpp@A", help="A release of llama.cpp, held --against another.")
    ] = "",
    against: Annotated[
        str, typer.Option(metavar="llamacpp@B", help="The other: a version, a library or a folder.")
    ] = "",
    merge: Annotated[
        list[Path], typer.Option(metavar="FILE", help="Add up the reports of shards, and run nothing.")
    ] = [],  # noqa: B006 - typer copies it
) -> None:
    """Hold a cache against the reference, and the reference against the ledger.

    Stops at the first difference, shrinks the operations that lead there, and saves them as a trace.
    Exit status 0: no difference; 1: one was found; 2: something that cannot be run; 130: stopped.
    """
    other = {"--subject": subject != "reference"}
    here = {"--jobs": jobs != 1}
    session = {
        "--profile": profile != "usual", "--weight": weight, "--rows": rows, "--ray": ray, "--shard": shard != "1/1",
        "--report": report,
    }  # fmt: skip
    _none_beside("--exec", command, other)
    _none_beside("--ray", ray, here)
    _none_beside("--lane or --against", lane or against, {**other, "--exec": command, **here, **session})
    only_with("--exec", command, {"--timeout": timeout != ANSWER_WITHIN})
    if not 0 < timeout < threading.TIMEOUT_MAX:
        fail(f"--timeout {timeout} is no time to wait")
    try:
        if merge:
            whole = merged(merge)
            _print(whole)
            raise typer.Exit(DIFFERENT if whole.failures else 0)
        for written in (trace, report):
            if written is not None:
                check_writable(written)
        if lane or against:
            lanes = lane or "llamacpp", against or "llamacpp"
            n_changes = hold_against(*lanes, memory, config, ops, seed, trace)
            raise typer.Exit(DIFFERENT if n_changes else 0)
        campaign = Campaign(
            subject, _command(command), memory, config, seed, profile, _weights(weight), rows, timeout
        )
        done = _resumed(campaign, report)
        with _ended_by_sigterm():
            failure = _played(campaign, done, ops, _shard(shard), jobs, ray, report)
            found = None if failure is None else _failed(campaign, failure, trace)
        if found is not None:
            done.failures.append(found)
        if report is not None:
            done.write(report)
    except KvsimError as error:
        fail(error)
    except KeyboardInterrupt:
        is_kept = report is not None and report.exists()
        kept = f"; with the same command it goes on where {report} ends" if is_kept else ""
        stderr().print(Text(f"stopped{kept}"))
        raise typer.Exit(STOPPED) from None
    _print(done)
    raise typer.Exit(DIFFERENT if failure else 0)


def _played(
    campaign: Campaign, done: Report, ops: int, shard: Shard, jobs: int, ray: str, path: Path | None
) -> Failure | None:
    """Go on with a campaign; its report is saved now and then, and as of the last session if it is stopped."""
    saved, whole = time.monotonic(), deepcopy(done)
    with counted("operations", len(shard.sessions(ops)) * SESSION) as tell:

        def advance(so_far: Report) -> None:
            nonlocal saved, whole
            tell(so_far.shards[str(shard)] * SESSION)
            whole = deepcopy(so_far)
            if path is not None and time.monotonic() - saved >= SAVED_EVERY:
                saved = time.monotonic()
                whole.write(path)

        try:
            return run(campaign, done, ops, shard, jobs, advance, ray)
        except KeyboardInterrupt:
            if path is not None and whole.shards:
                whole.write(path)
            raise


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM stops as Ctrl-C does: what was done is saved, what was started is ended."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _none_beside(main: str, there: object, options: Mapping[str, object]) -> None:
    """Fail if one of the options is given beside one that leaves it without effect."""
    for name, given in options.items():
        if given and there:
            fail(f"{name} changes nothing beside {main}: leave it out")


def _failed(campaign: Campaign, failure: Failure, trace: Path) -> dict[str, object]:
    """Shrink, save and tell a failure; returns its entry in the report."""
    out = stdout()
    where = f"{failure.info.kind}/{failure.config.name}"
    out.print(Text(f"difference in session {failure.session} on {where}: {failure.error}"))
    _save(failure, campaign.seed, trace)  # the long way, should the process be killed now
    small = _shrunk(campaign, failure)
    if small.ops and not small.shrunk:
        out.print(Text("the same operations did not lead there again: it does not depend on them alone"))
    _save(small, campaign.seed, trace)
    out.print(Text(f"the shortest way there:\n{told(small.error, trace)}"))
    out.print(Text(f"to repeat it: {again(campaign, small)}"))
    return {
        "session": small.session,
        "config": where,
        "verdict": small.error.verdict,
        "what": small.error.what,
        "ops": [op.to_json() for op in small.ops],
    }


def _shrunk(campaign: Campaign, failure: Failure) -> Failure:
    """The failure by the fewest operations; if that is stopped, by as few as were found."""
    shortest = failure
    with under_way("shrinking") as tell:

        def shorter(error: DifferenceError) -> None:
            nonlocal shortest
            shortest = failure.by(error)
            tell(f"{count(len(error.ops), 'operation')} left")

        try:
            return shrink_failure(campaign, failure, shorter)
        except KeyboardInterrupt:
            stderr().print(Text("stopped: fewer operations might do"))
            return shortest


def _save(failure: Failure, seed: int, trace: Path) -> None:
    try:
        write_failure(trace, failure.config, failure.error, seed)
    except OSError as error:
        stderr().print(Text(f"{trace} cannot be written: {error.strerror}"))


def again(campaign: Campaign, failure: Failure) -> str:
    """The command that comes to the same failure: it is in the last of so many sessions."""
    tested = ["--exec", shlex.join(campaign.command)] if campaign.command else ["--subject", campaign.subject]
    if campaign.timeout != ANSWER_WITHIN:
        tested += ["--timeout", f"{campaign.timeout:g}"]
    narrowed = ["--config", campaign.config] if campaign.config else []
    weights = [f"--weight={name}={n}" for name, n in campaign.weights] + ["--rows"] * campaign.rows
    n_ops = (failure.session + 1) * SESSION
    return shlex.join(
        ["kvsim", "difftest", *tested, "--memory", campaign.memory, *narrowed, "--seed", str(campaign.seed),
         "--profile", campaign.profile, *weights, "--shard", f"{failure.session + 1}/{failure.session + 1}",
         "--ops", str(n_ops)]
    )  # fmt: skip


def _resumed(campaign: Campaign, path: Path | None) -> Report:
    """The report to go on with: the one that is there, if it is of this campaign and found nothing."""
    if path is None or not path.exists():
        return Report(campaign.plan)
    report = read_report(path)
    if report.plan != campaign.plan:
        raise KvsimError(
            f"{path} is the report of another campaign: {report.plan}; remove it or name another file"
        )
    if report.failures:
        raise KvsimError(f"{path} ends in a difference; remove it to begin anew")
    return report


def _command(text: str) -> tuple[str, ...]:
    try:
        command = tuple(shlex.split(text))
    except ValueError as error:
        raise KvsimError(f"--exec {text!r} is no command: {error}") from error
    if text and not command:
        raise KvsimError(f"--exec {text!r} names no program")
    return command


def _weights(given: list[str]) -> tuple[tuple[str, int], ...]:
    weights = []
    for text in given:
        name, _, n = text.partition("=")
        if not _counts(n):
            raise KvsimError(f"--weight {text!r} is not of the form seq_cp=20")
        weights.append((name, int(n)))
    return tuple(weights)


def _shard(text: str) -> Shard:
    i, _, n = text.partition("/")
    if not (_counts(i) and _counts(n)):
        raise KvsimError(f"--shard {text!r} is not of the form 3/16")
    return Shard(int(i), int(n))


def _counts(text: str) -> bool:
    """Whether this is a number from 0 on, of a size that anybody means."""
    return text.isascii() and text.isdigit() and len(text) < 10


def _print(report: Report) -> None:
    out = stdout()
    for line in report.lines():
        out.print(Text(line))
    if report.seconds:
        out.print(Text(f"{report.rate:,.0f} operations per second and process"))
