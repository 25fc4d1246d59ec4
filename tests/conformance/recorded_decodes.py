"""The decodes of the recordings, with what the memory held before each."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.batch import Batch

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
N_VOCAB = 128  # of every recorded model; the headers do not say so


def trace_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Header and operation lines as they are."""
    with gzip.open(path, "rt") as file:
        yield from map(json.loads, file)


@dataclass
class RecordedPositions:
    """A memory that answers from the ``pos`` of a recorded line."""

    pos: dict[str, list[int]]

    def seq_pos_min(self, seq: int) -> int:
        return self.pos[str(seq)][0]

    def seq_pos_max(self, seq: int) -> int:
        return self.pos[str(seq)][1]


def decodes(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any], RecordedPositions]]:
    """For each decode the header, the line, and the positions right before it."""
    lines = trace_lines(path)
    header = next(lines)
    before = RecordedPositions({})
    for line in lines:
        if line["op"] == "decode":
            yield header, line, before
        if line["after"] is not None:
            before = RecordedPositions(line["after"]["pos"])


def batch_of(args: dict[str, Any]) -> Batch:
    """The batch of a recorded decode; embeddings have no width, only their presence matters."""
    embd = np.empty((len(args["seq"]), 0), np.float32) if args["tokens"] is None else None
    return Batch(args["tokens"], embd, args["pos"], args["seq"], args["out"])
