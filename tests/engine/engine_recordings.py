"""The recordings, and the devices the engine is tested on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvsim.trace.read import Trace

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
KINDS = sorted(path.name for path in TRACES.iterdir() if path.is_dir())

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]


def traces(kind: str) -> list[Trace]:
    return [Trace(path) for path in sorted((TRACES / kind).glob("*.jsonl.gz"))]
