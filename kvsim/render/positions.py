"""Positions per sequence: the other order of the same cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.changes import OWNERS, POS, Lane, Picture, reusable_cells, runs
from kvsim.render.colours import Colours, mix
from kvsim.render.frames import Frame
from kvsim.render.ink import EDGE, FILL, GROUND, Ink

LEFT, NOTE, HEAD = 64, 96, 54
STEPS = [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]


def positions_height(picture: Picture, seqs: list[int]) -> float:
    """How much room the rulers need."""
    return HEAD + len(seqs) * _pitch(picture) if picture.lanes and seqs else 0


def draw_positions(
    ink: Ink,
    colours: Colours,
    frame: Frame,
    seqs: list[int],
    last: int,
    y: float,
    width: float,
    left: float,
) -> None:
    """One row per sequence, one bar per cache, on one scale that ends after position ``last``."""
    picture, ground = frame.after, colours.ground
    if not picture.lanes or not seqs:
        return
    end = ink.text(left, y + 8, "Positions", 14, ground["ink"], bold=True)
    names = _caches(picture)
    if len(names) > 1:
        ink.text(end + 14, y + 8, f"bars from above: {', '.join(names)}", 12.5, ground["ink2"])
    room = width - LEFT - NOTE
    step = next(s for s in STEPS if s >= last / room * 64 or s == STEPS[-1])
    top = (last // step + 1) * step
    scale = room / top
    base, bottom = left + LEFT, y + HEAD + len(seqs) * _pitch(picture)
    for p in range(0, top + 1, step):
        x = base + p * scale
        ink.line(GROUND, [(x, y + HEAD - 12), (x, bottom - 4)], ground["line"], 1)
        ink.text(x, y + HEAD - 22, f"{p:,}", 11, ground["ink3"], mono=True, across="center", up="center")
    for row, seq in enumerate(seqs):
        middle = y + HEAD + (row + 0.5) * _pitch(picture) - 2
        ink.box(FILL, left, middle - 6, 12, 12, 3, colours.fills[seq % 12], colours.edges[seq % 12], 1)
        ink.text(left + 18, middle, f"seq {seq}", 13, ground["ink"], up="center")
        first, final = picture.pos.get(str(seq), [-1, -1])
        note = "empty" if final < 0 else f"{first:,}" if first == final else f"{first:,}–{final:,}"
        ink.text(left + width, middle, note, 12, ground["ink3"], across="right", up="center")
        high = _bar(picture)
        bars = len(names) * (high + 2) - 2
        for lane in picture.lanes:
            above = names.index(lane.spec.cache) * (high + 2)
            bar = _Bar(base, middle - bars / 2 + above, scale, high)
            bar.draw(ink, colours, frame, lane, seq)


@dataclass(frozen=True)
class _Bar:
    """Where a bar stands: position 0 at ``x``, ``scale`` pixels a position."""

    x: float
    y: float
    scale: float
    high: float

    def draw(self, ink: Ink, colours: Colours, frame: Frame, lane: Lane, seq: int) -> None:
        """What the sequence holds in one lane; paler what it shares, palest what is out of the window."""
        mine = np.flatnonzero(frame.owners.holding(seq)[lane.owners])
        passed = reusable_cells(lane, frame.owners)[mine]
        shared = frame.owners.counts()[lane.cells[mine, OWNERS]] > 1
        fill, cell = colours.fills[seq % 12], colours.ground["cell"]
        for cells, share in ((~shared & ~passed, 1.0), (shared, 0.6), (passed & ~shared, 0.3)):
            for first, last in runs(np.unique(lane.cells[mine[cells], POS])):
                x, width = self.x + first * self.scale, max(1.0, (last + 1 - first) * self.scale - 0.5)
                ink.box(FILL, x, self.y, width, self.high, 2, mix(fill, cell, share))
                ink.box(EDGE, x, self.y, width, self.high, 2, edge=colours.edges[seq % 12], width=0.5)


def _caches(picture: Picture) -> list[str]:
    return list(dict.fromkeys(lane.spec.cache for lane in picture.lanes))


def _bar(picture: Picture) -> float:
    return 6 if len(_caches(picture)) > 1 else 12


def _pitch(picture: Picture) -> float:
    return max(24, len(_caches(picture)) * (_bar(picture) + 2) + 8)
