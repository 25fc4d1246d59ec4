"""What a lightning indexer says of the cells in a step of a lesson: a network with random weights computes it, on
the same operations and a memory with rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.lessons.lesson import Answer, Moment
from kvsim.caches.factory import LeafFactory
from kvsim.models.probe import ProbeNetwork
from kvsim.replay import N_VOCAB, Replayer, context_of


@dataclass(frozen=True)
class Selection:
    """Of the last token: the score of every cell it may see, and the cells that attention then reads."""

    scores: dict[int, float]
    cells: list[int]


def selection_of(m: Moment) -> Selection:
    """The selection of the first block, after all that was done until then."""
    context = context_of(m.header, LeafFactory(data=True))
    probe = context.network = ProbeNetwork(context.model, context.resolved, N_VOCAB)
    replayer, last = Replayer(context), Selection({}, [])

    def hear(il: int, stream: int, rows: slice, scores: Any, chosen: Any) -> None:
        nonlocal last
        if il == 0:
            seen = {cell: float(score) for cell, score in enumerate(scores[-1]) if score > float("-inf")}
            last = Selection(seen, chosen[-1].nonzero()[0].tolist())

    probe.watch_scores = hear
    for step in (*m.earlier, *m.steps):
        replayer.step(step.i, step.op, step.args)
    return last


def n_read(m: Moment) -> int:
    """How many cells the last token's attention reads."""
    return len(selection_of(m).cells)


def read_cells(cache: str) -> Answer:
    """The cells that the last token's attention reads."""

    def answer(m: Moment) -> list[tuple[int, int]]:
        lane = next(k for k, lane in enumerate(m.after.lanes) if lane.spec.cache == cache)
        return [(lane, cell) for cell in selection_of(m).cells]

    return answer


def scores_told(m: Moment) -> str:
    """The scores, cell by cell: "cell 0: 1.25, 1: 0.80", with no line's end between a cell and its score."""
    return "cell " + ", ".join(f"{cell}:\u00a0{score:.2f}" for cell, score in selection_of(m).scores.items())
