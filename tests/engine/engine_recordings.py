"""The recordings that the engine is tested with."""

from __future__ import annotations

from pathlib import Path

from kvsim.trace.read import Trace

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
KINDS = sorted(path.name for path in TRACES.iterdir() if path.is_dir())

PRETENDED = "cuda:0"
"""The name of the GPU that is not there; tests name a real one without its number."""


def traces(kind: str, device: str = "cpu") -> list[Trace]:
    """Every recording of a kind of memory. For the pretended device, where an operator takes long, one with
    streams and a unified one."""
    every = [Trace(path) for path in sorted((TRACES / kind).glob("*.jsonl.gz"))]
    if device != PRETENDED:
        return every
    return [next(t for t in every if t.header.config["params"]["kv_unified"] is one) for one in (False, True)]
