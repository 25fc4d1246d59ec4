"""How large cells are drawn on a sheet of a given size, and where each lane stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.changes import Lane

PITCHES = (40, 32, 28, 24, 19, 16, 14, 11, 9, 8, 7, 6, 5)
MOST = 0.6  # of the width: grids narrower than that look lost
GUTTER = 46
LANE_HEAD, LANE_GAP = 30, 12


@dataclass(frozen=True)
class Place:
    """A lane on the sheet: its grid begins at ``y``; ``rows`` of ``cols`` cells of ``pitch`` pixels.

    ``rows`` leaves out the rows at the end that the recording never uses. Below pitch 5 the grid is drawn
    as one image, ``width`` and ``height`` pixels large.
    """

    y: float
    cols: int
    rows: int
    pitch: float
    width: float
    height: float


def reach(lanes: Sequence[Lane]) -> list[int]:
    """For each lane one more than its last held cell, and its head."""
    return [max([0, lane.head, *(lane.owners.nonzero()[0][-1:] + 1).tolist()]) for lane in lanes]


def place(
    sizes: Sequence[int], reached: Sequence[int], width: float, top: float, height: float
) -> list[Place]:
    """Places for lanes of ``sizes`` cells below each other from ``top``, within ``width`` x ``height``.

    All have the same pitch and columns, a power of two, so that equal cells stand below each other. The
    largest pitch is taken that fits and fills most of the width.
    """
    heads = len(sizes) * (LANE_HEAD + LANE_GAP)
    for pitch in PITCHES:
        cols = 1
        while cols * 2 * pitch <= width and cols * 2 <= max(sizes):
            cols *= 2
        rows = [_rows(n, used, cols) for n, used in zip(sizes, reached, strict=True)]
        wide = cols * 2 > max(sizes) or cols * pitch >= MOST * width
        if wide and sum(rows) * pitch + heads <= height:
            return _stack([(cols, r, pitch, cols * pitch, r * pitch) for r in rows], top)
    return _stack(_dense(sizes, width, height - heads), top)


def _rows(size: int, used: int, cols: int) -> int:
    """All rows if few are empty; else those in use and one more."""
    every, shown = -(-size // cols), max(1, -(-used // cols)) + 1
    return every if every - shown < 3 else shown


def _dense(sizes: Sequence[int], width: float, height: float) -> list[tuple[int, int, float, float, float]]:
    """Rows as wide as the sheet, as high as all of them together allow (1 to 4 pixels)."""
    cols = 1
    while cols * 2 <= width:
        cols *= 2
    while cols > 32 and sum(-(-n // (cols // 2)) for n in sizes) * 4 <= height:
        cols //= 2
    rows = [-(-n // cols) for n in sizes]
    pitch = min(4.0, width / cols)
    high = min(4.0, max(1.0, height / sum(rows)))
    return [(cols, r, pitch, cols * pitch, r * high) for r in rows]


def _stack(lanes: Sequence[tuple[int, int, float, float, float]], top: float) -> list[Place]:
    places, y = [], top
    for cols, rows, pitch, width, height in lanes:
        places.append(Place(y + LANE_HEAD, cols, rows, pitch, width, height))
        y += LANE_HEAD + height + LANE_GAP
    return places
