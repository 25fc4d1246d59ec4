"""The recordings that the engine is tested with."""

from __future__ import annotations

from pathlib import Path

from kvsim.trace.read import Trace

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
KINDS = sorted(path.name for path in TRACES.iterdir() if path.is_dir())

PRETENDED = "cuda:0"
"""The name of the GPU that is not there; tests name a real one without its number."""


def traces(kind: str, device: str = "cpu") -> list[Trace]:
    """Every recording of a kind of memory. On a GPU, where an operator on few cells takes long, four; on the
    pretended one, where it takes longer still, two."""
    if device == "cpu":
        return [Trace(path) for path in sorted((TRACES / kind).glob("*.jsonl.gz"))]
    return small_ones(kind, 1 if device == PRETENDED else 2)


def small_ones(kind: str, n: int = 1) -> list[Trace]:
    """The ``n`` smallest recordings with streams and the ``n`` smallest unified ones."""
    paths = sorted((TRACES / kind).glob("*.jsonl.gz"), key=lambda path: path.stat().st_size)
    every = [Trace(path) for path in paths]
    return [
        trace
        for unified in (False, True)
        for trace in [t for t in every if t.header.config["params"]["kv_unified"] is unified][:n]
    ]


def slack(device: str) -> float:
    """By how much errors may be larger: a GPU adds in another order, and its functions have a last bit of their
    own. The tolerances of the recordings leave a CPU no more than it needs."""
    return 4 if device == "cuda" else 1
