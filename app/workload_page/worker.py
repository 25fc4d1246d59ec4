"""The process in which workloads are read and simulated: ``python -m app.workload_page.worker``."""

from __future__ import annotations

import base64
import pickle
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from app.recordings import open_recording
from app.worker import Tell, serve
from app.workload_page.configuration import HeaderSetup, text_of_setup
from app.workload_page.source import Source, requests_of
from kvsim.errors import CacheUsageError, TraceError
from kvsim.player.notes import Note, notes_of
from kvsim.trace import read_trace
from kvsim.workload.account import Account
from kvsim.workload.paged import PagedServer
from kvsim.workload.plan import Limits, Tried, candidates, plan
from kvsim.workload.record import IntervalRecorder
from kvsim.workload.request import Request, WorkloadError
from kvsim.workload.setup import Setup
from kvsim.workload.simulate import Policy, simulate
from kvsim.workload.slot_server import SlotServer

EVERY, PICTURE_EVERY = 0.25, 2.0  # seconds between two words of how far it is; between two curves
POINTS = 512  # of a curve
MOST_OPS, MOST_CELLS = 200, 4_000_000
"""Operations of an interval; fewer where all their pictures together have more cells than that."""


class _ThroughError(Exception):
    """The interval is recorded: the simulation need not go on."""


Requests = tuple[Iterable[Request], int, float]


def read(job: dict[str, Any], tell: Tell) -> None:
    """How many requests a file has, over how many seconds."""
    with _requests(job) as (_, n, seconds):
        tell("summary", n=n, seconds=seconds)


def run(job: dict[str, Any], tell: Tell) -> None:
    """Serve a workload; the account is told now and then, and at the end."""
    with _requests(job) as (requests, n, seconds):
        setup = _setup(job)
        server = setup.server(sample_every=max(seconds / POINTS, 1e-3))
        tell("begin", n=n, bytes=setup.memory_bytes(), sizes=_sizes(server))
        look = _looking(tell, server.account, n)
        account = simulate(requests, server, look=look)
        tell("account", instead=True, complete=True, **account.to_json())


def record(job: dict[str, Any], tell: Tell) -> None:
    """Serve a workload up to the end of an interval, and tell what was done in it as a trace."""
    start, end = job["from"], job["to"]
    with _requests(job) as (requests, n, _), tempfile.TemporaryDirectory() as folder:
        setup = _setup(job)
        server = setup.server(sample_every=60.0)
        if not isinstance(server, SlotServer):
            raise CacheUsageError("the paged policy has none of llama.cpp's cells: there is nothing to play")
        n_cells = sum(_sizes(server).values())  # 0 of a recurrent memory
        most = max(10, min(MOST_OPS, MOST_CELLS // max(1, n_cells)))
        path = Path(folder) / "interval.jsonl.gz"
        tell("begin", n=n)
        look = _looking(tell, server.account, n)
        try:
            with IntervalRecorder(
                server, path, start, most, f"{setup.arch}, from {start:g} s on"
            ) as recorder:

                def both(clock: float) -> None:
                    recorder.look(clock)
                    look(clock)
                    if clock > end or recorder.n_written > most:
                        raise _ThroughError(clock)

                simulate(requests, server, look=both)
        except _ThroughError as through:
            end = min(end, through.args[0])
        if recorder.n_written < 2:  # the picture at the beginning, and no operation
            raise CacheUsageError(
                f"nothing was done between {start:,.1f} s and {end:,.1f} s: choose another time"
            )
        data = path.read_bytes()
        opened = open_recording(data, f"interval at {start:,.1f} s")
        tell(
            "trace",
            data=base64.b64encode(data).decode(),
            payload=opened.payload,
            n=opened.n_steps,
            notes=_notes(data),
            until=end,
        )


def _notes(data: bytes) -> list[tuple[int, Note]]:
    """What a replay has to say about its steps, as far as it comes."""
    found = []
    with suppress(TraceError):
        for note in notes_of(read_trace(data, name="interval")):
            found.append(note)
    return found


def search(job: dict[str, Any], tell: Tell) -> None:
    """Try all configurations of a plan, smallest first."""
    with _requests(job) as (requests, _, _):
        base = _setup(job)
        choices = [
            [dict(zip(names, values, strict=True)) for values in several] for names, several in job["choices"]
        ]
        tell("begin", n=len(candidates(base, choices)))
        found = plan(
            lambda: requests,
            base,
            choices,
            Limits(**job["limits"]),
            lambda tried: _tell_tried(tell, tried),
            whole=True,
        )
        best = None if found.best is None else text_of_setup(found.best.setup)
        tell("plan", best=best, binding=found.binding)


def _tell_tried(tell: Tell, tried: Tried) -> None:
    totals = tried.account.totals
    tell(
        "tried",
        setup=text_of_setup(tried.setup),
        bytes=tried.bytes,
        broken=tried.broken,
        failed=totals.failed_decodes,
        reprocessed=totals.reprocessed / max(1, totals.prompt),
        unserved=(totals.rejected + totals.aborted + totals.truncated) / max(1, totals.requests),
        first_token=tried.account.first_token.quantile(0.99),
    )


@contextmanager
def _requests(job: dict[str, Any]) -> Iterator[Requests]:
    """The workload of a job. An upload lies in a folder of its own meanwhile; errors name the file as the user
    does."""
    source = Source(**job["source"])
    if "data" not in job:
        yield requests_of(source, None)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workload"
        path.write_bytes(base64.b64decode(job["data"]))
        try:
            yield requests_of(source, path)
        except WorkloadError as error:
            raise WorkloadError(error.reason, job["name"], error.line) from None


def _setup(job: dict[str, Any]) -> Setup:
    names = {f.name for f in fields(Setup)}
    header = job.get("header")  # written by the page itself, never by an upload
    return HeaderSetup(
        **{name: value for name, value in job["setup"].items() if name in names},
        header=pickle.loads(base64.b64decode(header)) if header else None,
    )


def _sizes(server: Policy) -> dict[str, int]:
    """Cells of each cache, all streams together."""
    if isinstance(server, PagedServer):
        return {"blocks": server.pool.n_blocks * server.pool.block_size}
    assert isinstance(server, SlotServer)
    return {cache.name: sum(len(table.pos) for table in cache.cells) for cache in server.decoder.caches}


def _looking(tell: Tell, account: Account, n: int) -> Callable[[float], None]:
    """Tells how far a simulation is, now and then."""
    told = pictured = time.monotonic()

    def look(clock: float) -> None:
        nonlocal told, pictured
        now = time.monotonic()
        if now - told < EVERY:
            return
        told = now
        totals = account.totals
        tell("at", instead=True, done=totals.requests, n=n, clock=clock, failed=totals.failed_decodes)
        if now - pictured > PICTURE_EVERY and len(account.samples) > 1:
            pictured = now
            tell("account", instead=True, complete=False, **account.to_json())

    return look


if __name__ == "__main__":
    serve({"read": read, "run": run, "record": record, "search": search})
