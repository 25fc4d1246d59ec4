"""Traces: recordings of a memory's operations, with the whole metadata after each.

>>> from kvsim.trace import read_trace, replay, compare_step
>>> trace = read_trace("fixtures/traces/kv/llama-uni-c256-u16-s4-f16-03.jsonl.gz")
>>> sum(len(compare_step(step, ours)) for step, ours in zip(trace, replay(trace)))
0

``lines`` (bytes to JSON), ``header``, ``operation`` and ``picture`` (what a line must be), ``read``,
``write``, ``compare``, ``cellmap`` (a picture as text); the replay itself is :mod:`kvsim.replay`.
The format is described in ``fixtures/traces/README.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.trace.compare import MISSING, Difference, compare_step
from kvsim.trace.header import Header
from kvsim.trace.read import Step, Trace, read_trace
from kvsim.trace.write import TraceWriter

__all__ = [
    "MISSING",
    "Difference",
    "Header",
    "Step",
    "Trace",
    "TraceWriter",
    "compare_step",
    "read_trace",
    "replay",
]

if TYPE_CHECKING:
    from kvsim.replay import replay


def __getattr__(name: str) -> Any:
    # the replay needs all the caches and imports this package: fetched when first asked for
    if name == "replay":
        from kvsim.replay import replay

        return replay
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
