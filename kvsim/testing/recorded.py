"""Operations on a configuration as a trace: what the reference makes of them, and where a subject parted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kvsim.caches.factory import LeafFactory
from kvsim.errors import CacheUsageError, TraceError
from kvsim.ops import Op
from kvsim.replay import Replayer
from kvsim.testing.cache_info import Config
from kvsim.testing.match import ENDS, DifferenceError
from kvsim.trace import Header, Step, TraceWriter, read_trace
from kvsim.trace.describe import header_of
from kvsim.trace.header import LONGEST_FAILURE

LISTED = 40
"""Most operations that a message lists."""


def steps_of(config: Config, ops: Iterable[Op]) -> Iterator[Step]:
    """What the reference makes of the operations, as steps of a trace, without what would end llama.cpp."""
    context = config.context(LeafFactory(sizes=config.sizes), recording=True)
    replayer = Replayer(context)
    i = 0
    for op in (Op("init"), *ops):
        try:
            ret = replayer.apply(op.op, op.args)
        except CacheUsageError:
            continue
        ubatches = [record.json for record in context.records] if op.op == "decode" else None
        extra = {"size": ret} if op.op.endswith("_get") else {}
        yield Step(i, op.op, op.args, ret, ubatches, context.memory.snapshot().to_json(), extra)
        i += 1


def write_steps(path: str | os.PathLike[str], header: Header, steps: Iterable[Step]) -> None:
    """Write a trace."""
    with TraceWriter(path, header) as writer:
        for step in steps:
            writer.write(step)


def write_failure(
    path: str | os.PathLike[str],
    config: Config,
    error: DifferenceError,
    seed: int = 0,
) -> None:
    """Write the operations of ``error`` as a trace whose last step is the subject's.

    All steps before it are the reference's, so a replay differs in the last one alone, and shows both sides
    there. Where the subject showed no picture of cells, or one that cannot be read, the last step is the
    reference's too, and only the header (``config.failure``) says what the subject did instead.
    """
    header = header_of(config.model, config.params, sizes=config.sizes, name=config.name, seed=seed)
    failure = {
        "subject": error.subject,
        "verdict": error.verdict,
        "operation": str(error.ops[-1]) if error.ops else "init",
        "what": error.what,
    }
    said = {name: _printable(text) for name, text in failure.items()}
    header = replace(header, config={**header.config, "failure": said})
    steps = []
    with suppress(Exception):  # where the reference itself falls over, its trace ends; the header says why
        for step in steps_of(config, error.ops):
            steps.append(step)
    last = _as_subject_has_it(steps[-1], error)
    try:
        write_steps(path, header, [*steps[:-1], last])
        for _ in read_trace(path):
            pass
    except (TraceError, ValueError):  # no trace can have what it showed
        write_steps(path, header, steps)


def _printable(text: str) -> str:
    """As a header may have it: whatever a subject says is on one line, and has an end."""
    return "".join(c if c.isprintable() else " " for c in text)[:LONGEST_FAILURE]


def _as_subject_has_it(step: Step, error: DifferenceError) -> Step:
    found = error.found
    if found is None or ENDS in (found.answer, error.wanted and error.wanted.answer):
        return step
    shows_cells = isinstance(found.picture, dict) and "caches" in found.picture
    after: dict[str, Any] = found.picture if shows_cells else step.after
    ret = found.answer if isinstance(found.answer, int) else step.ret
    extra = {"size": ret} if "size" in step.extra else {}
    return replace(step, ret=ret, after=after, extra=extra)


def told(error: DifferenceError, trace: str | os.PathLike[str]) -> str:
    """The sentences that end a failed run: what differs, by which operations, and how to look at it."""
    n = len(error.ops)
    shown = [f"  {op}" for op in error.ops[-LISTED:]]
    if n > LISTED:
        shown.insert(0, f"  {n - LISTED} more, then")
    lead = "operation leads" if n == 1 else "operations lead"
    saved = f"{n} {lead} there, saved as {trace}. Look at it with"
    return "\n".join([str(error), *shown, saved, f"  kvsim replay --explain {trace}", f"  kvsim app {trace}"])
