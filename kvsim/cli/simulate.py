"""``kvsim simulate``: a workload through a server, before there is one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from kvsim.cli.memory import one_model
from kvsim.cli.terminal import check_writable, counted, fail, keep_input, stdout, table
from kvsim.errors import KvsimError
from kvsim.narrate.words import count

if TYPE_CHECKING:
    from kvsim.workload.account import Account
    from kvsim.workload.request import Request
    from kvsim.workload.setup import Setup

TRACE_OPS = 200


def simulate_command(
    workload: Annotated[Path, typer.Argument(help="An Azure trace (CSV) or a Mooncake trace (JSON lines).")],
    arch: Annotated[str, typer.Option(metavar="NAME", help="A model by name, such as gemma3-4b.")] = "",
    gguf: Annotated[Path | None, typer.Option(help="A model file; only its header is read.")] = None,
    n_ctx: Annotated[int, typer.Option(help="Context in tokens; 0 is what the model was trained for.")] = 0,
    parallel: Annotated[int, typer.Option(help="Slots.", min=1)] = 4,
    n_batch: Annotated[int, typer.Option(help="Tokens of a batch.", min=1)] = 2048,
    n_ubatch: Annotated[int, typer.Option(help="Tokens that go through the graph at once.")] = 512,
    unified: Annotated[bool, typer.Option("--unified", help="One buffer for all slots.")] = False,
    swa_full: Annotated[bool, typer.Option("--swa-full", help="Window caches hold the context.")] = False,
    type_k: Annotated[str, typer.Option(help="Type of stored keys.")] = "f16",
    type_v: Annotated[str, typer.Option(help="Type of stored values.")] = "f16",
    policy: Annotated[str, typer.Option(help="slots (llama-server) or paged (blocks, as vLLM).")] = "slots",
    similarity: Annotated[float, typer.Option(help="Part of a prompt a slot must hold to be chosen.")] = 0.1,
    ctx_shift: Annotated[bool, typer.Option("--ctx-shift", help="Full slots forget old tokens.")] = False,
    n_keep: Annotated[int, typer.Option(help="First tokens that a shift keeps.", min=0)] = 0,
    cache_reuse: Annotated[int, typer.Option(help="Shortest chunk to reuse by shifting; 0: none.")] = 0,
    checkpoints: Annotated[int, typer.Option(help="Most checkpoints per slot; 0: none.")] = 32,
    n_params: Annotated[float, typer.Option(help="Parameters; 0: as published, or in the file.")] = 0.0,
    n_active: Annotated[float, typer.Option(help="Of these active per token; 0: the same way.")] = 0.0,
    weight_bytes: Annotated[float, typer.Option(help="Bytes per parameter; 0: 2, or as in the file.")] = 0.0,
    bandwidth: Annotated[float, typer.Option(help="Device: bytes a second.")] = 2.039e12,
    rate: Annotated[float, typer.Option(help="Device: floating-point operations a second.")] = 312e12,
    overhead: Annotated[float, typer.Option(help="Device: seconds per ubatch in any case.")] = 0.5e-3,
    requests: Annotated[int, typer.Option(help="Serve only so many; 0: all.", min=0)] = 0,
    fitted: Annotated[int, typer.Option(help="Make up so many, fitted to the workload.", min=0)] = 0,
    turns: Annotated[float, typer.Option(help="Made up: mean turns of a conversation.")] = 1.0,
    system: Annotated[int, typer.Option(help="Made up: tokens of the shared system prompt.")] = 0,
    seed: Annotated[int, typer.Option(help="Made up: seed.", min=0)] = 0,
    trace: Annotated[Path | None, typer.Option(help="Write an interval as a trace, for the player.")] = None,
    trace_from: Annotated[float, typer.Option(help="Seconds at which the interval begins.")] = 0.0,
    trace_ops: Annotated[int, typer.Option(help="Operations in the interval.", min=1)] = TRACE_OPS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Serve a workload with a simulated server whose caches are kvsim's own.

    Counts are exact for the given policy; seconds come from a simple model of the device (docs/workloads.md).
    Exit status 2: a workload, a model or a setting that cannot be used.
    """
    from kvsim.workload.choose import choose
    from kvsim.workload.setup import FileSetup

    only_with("--fitted", fitted, {"--turns": turns != 1, "--system": system, "--seed": seed})
    only_with("--trace", trace, {"--trace-from": trace_from, "--trace-ops": trace_ops != TRACE_OPS})
    only_with("--ctx-shift", ctx_shift, {"--n-keep": n_keep})
    of_slots = {
        "--similarity": similarity != 0.1, "--ctx-shift": ctx_shift, "--cache-reuse": cache_reuse,
        "--checkpoints": checkpoints != 32, "--swa-full": swa_full, "--trace": trace,
    }  # fmt: skip
    only_with("--policy slots", policy != "paged", of_slots)
    if trace is not None:
        keep_input(workload, trace)
        check_writable(trace)
    try:
        setup = FileSetup(
            **model_settings(arch, gguf),
            n_ctx=n_ctx, parallel=parallel, n_batch=n_batch, n_ubatch=n_ubatch, unified=unified,
            swa_full=swa_full, type_k=type_k, type_v=type_v, policy=policy, similarity=similarity,
            ctx_shift=ctx_shift, n_keep=n_keep, cache_reuse=cache_reuse, checkpoints=checkpoints, n_params=n_params,
            n_active=n_active, weight_bytes=weight_bytes, bandwidth=bandwidth, rate=rate, overhead=overhead,
        )  # fmt: skip
        chosen, n, seconds = choose(workload, requests, fitted, turns, system, seed)
        began = time.perf_counter()
        account = _run(setup, chosen, n, seconds, trace, trace_from, trace_ops)
    except KvsimError as error:
        fail(error)
    except OSError as error:
        fail(f"{trace}: {error.strerror}")
    took = time.perf_counter() - began
    if as_json:
        print(json.dumps({"setup": vars(setup), "bytes": setup.memory_bytes(), **account.to_json()}))
    else:
        print_account(stdout(), setup, account, took)


def model_settings(arch: str, gguf: Path | None) -> dict[str, str]:
    """The model as settings of a FileSetup. Fails unless it is one."""
    one = one_model(arch, gguf)
    return {"arch": one} if isinstance(one, str) else {"arch": one.stem, "gguf": str(one)}


def only_with(needed: str, there: object, options: Mapping[str, object]) -> None:
    """Fail if one of the options is given though what it belongs to is not there."""
    for name, given in options.items():
        if given and not there:
            fail(f"{name} changes nothing without {needed}: leave it out, or give {needed} too")


def _run(
    setup: Setup,
    requests: Iterable[Request],
    n: int,
    seconds: float,
    trace: Path | None,
    start: float,
    ops: int,
) -> Account:
    from contextlib import ExitStack

    from kvsim.workload.record import IntervalRecorder
    from kvsim.workload.simulate import simulate
    from kvsim.workload.slot_server import SlotServer

    server = setup.server(sample_every=max(seconds / 512, 1e-3))
    with ExitStack() as stack:
        report = stack.enter_context(counted("requests received", n))
        look: Any = lambda clock: None  # noqa: E731
        if trace is not None:
            assert isinstance(server, SlotServer)
            try:
                recorder = stack.enter_context(IntervalRecorder(server, trace, start, ops, setup.arch))
            except ValueError as error:
                fail(error)
            look = recorder.look
        return simulate(requests, server, report, look)


def print_account(out: Console, setup: Setup, account: Account, took: float) -> None:
    """The summary as tables."""
    totals = account.totals
    rate = totals.requests / took if took else 0.0
    served = f"{count(totals.requests, 'request')} in {account.samples[-1].time:,.1f} simulated seconds"
    out.print(
        Text(f"{setup.arch}, {setup.policy}: {served} ({took:.1f} s here, {rate:,.0f} requests a second)")
    )
    counts = [
        ("requests", f"{totals.requests:,}", "finished", f"{totals.finished:,}"),
        ("", "", "cut short", f"{totals.truncated:,}"),
        ("", "", "rejected, aborted", f"{totals.rejected:,}, {totals.aborted:,}"),
        ("prompt tokens", f"{totals.prompt:,}", "reused", f"{totals.reused:,}"),
        ("", "", "computed", f"{totals.computed:,}"),
        ("", "", "reprocessed", f"{totals.reprocessed:,}"),
        ("", "", "refused", f"{totals.refused:,}"),
        ("answer tokens", f"{totals.answer:,}", "generated", f"{totals.generated:,}"),
        ("", "", "cut off", f"{totals.cut:,}"),
        ("decodes", f"{totals.decodes:,}", "failed", f"{totals.failed_decodes:,}"),
        ("", "", "cells searched", f"{totals.searched:,}"),
        ("", "", "window cells reclaimed", f"{totals.reclaimed:,}"),
        ("", "", "shifts, idle slots purged", f"{totals.shifts:,}, {totals.purged_slots:,}"),
        ("", "", "rollbacks, tokens taken back", f"{totals.rollbacks:,}, {totals.taken_back:,}"),
        ("", "", "checkpoints, restored", f"{totals.checkpoints:,}, {totals.restored:,}"),
        ("", "", "preempted, computed again", f"{totals.preempted:,}, {totals.again:,}"),
    ]
    for line in table(counts, left=1):
        out.print(Text(line))
    times: list[tuple[str, ...]] = [("seconds", "mean", "p50", "p90", "p99", "max")]
    for name, each in (
        ("waiting", account.wait), ("to first token", account.first_token), ("to the end", account.latency),
    ):  # fmt: skip
        times.append((name, *(f"{value:.3f}" for key, value in each.to_json().items() if key != "n")))
    out.print()
    for line in table(times):
        out.print(Text(line))
    out.print()
    out.print(Text("peak cells: " + ", ".join(f"{name} {n:,}" for name, n in account.peak.items())))
    for reason, n in account.reasons.most_common():
        out.print(Text(f"not reused, {reason}: {n:,}"))
    for reason, n in account.reprocessed.most_common():
        out.print(Text(f"tokens reprocessed, {reason}: {n:,}"))
    for failure in account.failures[:3]:
        place = f"{failure.asked} cells of {failure.cache} asked for, {failure.free} free"
        out.print(
            Text(
                f"failed decode at {failure.time:.3f} s: {place}, {failure.reclaimable} reclaimable, "
                f"largest hole {failure.largest_hole}"
            )
        )
