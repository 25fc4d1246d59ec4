"""A run as a trace, and the scene of one: which memory, and what is done to it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from app.playground.line_text import line_of
from app.playground.lines import MOST_LINES
from app.playground.run import Live
from app.playground.setup import MAX_CELLS, Setup, SetupError
from kvsim.errors import KvsimError, TraceError
from kvsim.models.known import KNOWN
from kvsim.models.tiny import TINY
from kvsim.ops import Op
from kvsim.trace import Header, Step, TraceWriter, read_trace


@dataclass(frozen=True)
class Scene:
    """A memory and what is done to it. ``setup`` is None for the header of a foreign trace; ``error`` says
    why the rest of a file could not be used."""

    setup: Setup | None
    header: Header
    lines: list[str]
    error: str = ""


def trace_bytes(header: Header, steps: Iterable[Step]) -> bytes:
    """The run as a ``.jsonl.gz``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl.gz"
        with TraceWriter(path, header) as writer:
            for step in steps:
                writer.write(step)
        return path.read_bytes()


def scene_of_trace(data: bytes, name: str) -> Scene:
    """The operations of a trace as lines, as far as it can be read; rows that were read for checking are left
    out, since they change nothing.

    Raises TraceError if not even the first operation can be used, SetupError for more cells than the page
    plays with.
    """
    trace = read_trace(data, name=name)
    header = trace.header
    n_cells = sum(cache["size"] * cache["n_stream"] for cache in header.caches.values())
    if n_cells > MAX_CELLS:
        raise SetupError(f"{name} has {n_cells:,} cells in all caches; this page plays with {MAX_CELLS:,}")
    ops: list[Op] = []
    error = ""
    try:
        for step in trace:
            if step.op not in ("init", "rows"):
                ops.append(Op(step.op, step.args))
            if len(ops) > MOST_LINES:
                error = f"{name}: only the first {MOST_LINES} operations are taken over"
                break
    except TraceError as damage:
        if not ops:
            raise
        error = str(damage)
    lines = lines_of(header, ops[:MOST_LINES])
    return Scene(setup_of(header), header, lines, error)


def lines_of(header: Header, ops: Iterable[Op]) -> list[str]:
    """Operations as lines, performed meanwhile: where a sequence ends decides how a decode is written. Those
    after one that cannot be done are written as if it had changed nothing."""
    live, lines = Live(header), []
    saves: dict[int, int] = {}
    for op in ops:
        memory = live.context.memory
        ends = {seq: memory.seq_pos_max(seq) for seq in range(live.context.resolved.n_seq_max)}
        lines.append(line_of(op, ends, saves))
        try:
            live.step(op)
        except KvsimError:
            continue
    return lines


def setup_of(header: Header) -> Setup | None:
    """The setup that gives this header, None if the page could not have made it."""
    if header.source != "kvsim" or header.model not in {*TINY, *KNOWN}:
        return None
    params = header.config["params"]
    unified = params["kv_unified"]
    setup = Setup(
        header.model,
        params["n_ctx"] // (1 if unified else params["n_seq_max"]),
        params["n_ubatch"],
        params["n_seq_max"],
        unified,
        params["type_k"],
        params["type_v"],
        full_window=params["swa_full"],
        snapshots=params["n_rs_seq"],
    )
    for tried in (setup, replace(setup, window=header.hparams["n_swa"])):
        try:
            if tried.header.config == header.config:
                return tried
        except KvsimError:
            continue
    return None
