"""The process in which lanes and campaigns run: ``python -m app.compare.worker``."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from app.compare import lanes, tell
from app.worker import Tell, serve
from kvsim.errors import KvsimError
from kvsim.narrate.calls import call
from kvsim.ops import Op
from kvsim.player.payload import Packer
from kvsim.testing.difftest import attempt
from kvsim.testing.museum import Find, contestants, hunt
from kvsim.testing.mutants import MUTANTS
from kvsim.testing.recorded import steps_of, write_steps
from kvsim.testing.shrink import shrink
from kvsim.trace import Header, Step, read_trace
from kvsim.trace.describe import header_of


def compare(job: dict[str, Any], tell_: Tell) -> None:
    """Perform a trace on every lane. ``trace``: its bytes in base64; ``subject``: a mutant, ``engine`` or
    ``llamacpp``, which comes last."""
    trace = read_trace(base64.b64decode(job["trace"]), name=job["name"])
    header, recorded = trace.header, list(trace)
    made = dict(lanes.BESIDE)
    last = made.pop(job["subject"], None)
    made[job["subject"] if last else "subject"] = last or partial(lanes.mutant, job["subject"])
    tell_("begin", operations=len(recorded), lanes=["reference", *made])
    known, reference = _lane("reference", lanes.reference(header, recorded), header, tell_)
    subject = ""
    for name, performed in made.items():
        _, subject = _lane(name, performed(header, known), header, tell_)
    tell_("pictures", reference=reference, subject=subject)


def _lane(name: str, marks: Iterator[lanes.Mark], header: Header, tell_: Tell) -> tuple[list[Step], str]:
    """Tell a lane's marks; its steps, and its picture for the player."""
    steps: list[Step] = []
    several = sum(cache["n_stream"] for cache in header.caches.values()) > 1
    try:
        for mark in marks:
            if mark.step is not None:
                steps.append(mark.step)
            found: dict[str, Any] = {"i": mark.i}
            if mark.differences:
                found["n"] = len(mark.differences)
                found["kinds"] = tell.kinds_of(mark.differences)
                found["rows"] = tell.rows_of(mark.differences, several)
            if mark.hazards:
                found["hazards"] = mark.hazards
            if mark.broken:
                found["broken"] = True
            tell_("mark", lane=name, **found)
    except KvsimError as error:
        tell_("end", lane=name, text=str(error))
    return steps, _packed(header, steps) if steps else ""


def _packed(header: Header, steps: Sequence[Step]) -> str:
    packer = Packer(header)
    for step in steps:
        packer.add(step)
    return json.dumps(packer.payload(), separators=(",", ":"))


def campaign(job: dict[str, Any], tell_: Tell) -> None:
    """Hunt a planted mutant, then shrink the way to it: the trace is told as bytes in base64."""
    mutant = MUTANTS[job["mutant"]]
    find = hunt(mutant, job["seed"], progress=lambda n, where: tell_("round", ops=n, where=where))
    if find is None:
        tell_("missed")
        return
    where = f"{find.info.kind}/{find.config.name}"
    told = {"what": find.error.what, "verdict": find.error.verdict}
    tell_("found", ops=find.n_ops, length=len(find.error.ops), where=where, **told)
    ops = _shrunk(find, tell_)
    error = attempt(find.info, find.config, contestants(mutant), ops)
    assert error is not None
    header = header_of(
        find.config.model,
        find.config.params,
        sizes=find.config.sizes,
        name=find.config.name,
        seed=job["seed"],
    )
    calls = [call(Step(i, op.op, op.args, None, None, {})) for i, op in enumerate(ops)]
    tell_("shortest", trace=_trace(header, find, ops), ops=calls, what=error.what)


def _shrunk(find: Find, tell_: Tell) -> list[Op]:
    shortest = len(find.error.ops)

    def fails(ops: Sequence[Op]) -> bool:
        nonlocal shortest
        failing = attempt(find.info, find.config, contestants(find.mutant), ops) is not None
        if failing and len(ops) < shortest:
            shortest = len(ops)
            tell_("shrunk", length=shortest)
        return failing

    return shrink(find.error.ops, fails)


def _trace(header: Header, find: Find, ops: Sequence[Op]) -> str:
    """The operations as the reference performs them, as a trace in base64."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shrunk.jsonl.gz"
        write_steps(path, header, steps_of(find.config, ops))
        return base64.b64encode(path.read_bytes()).decode()


if __name__ == "__main__":
    serve({"compare": compare, "campaign": campaign})
