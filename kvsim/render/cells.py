"""Cells as the player draws them: fills, bands for sharing, hatches for what the window has passed."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.render.colours import RGB, Colours, mix
from kvsim.render.ink import EDGE, FILL, GROUND, LABEL, MARK, PLATE, TEXTURE, Ink

Point = tuple[float, float]


@dataclass(frozen=True)
class Look:
    """What stands in a cell. ``seqs`` is empty for an empty cell; ``label`` is "" where there is no room."""

    seqs: tuple[int, ...]
    label: str = ""
    shift: bool = False
    reusable: bool = False


def draw_cell(
    ink: Ink, colours: Colours, x: float, y: float, pitch: float, look: Look, share: float = 1
) -> None:
    """One cell of ``pitch`` at (x, y). ``share`` below 1: on its way in, smaller and paler."""
    gap = 2 if pitch >= 20 else 1
    side, radius = pitch - gap, radius_of(pitch)
    x, y = x + gap / 2, y + gap / 2
    ink.box(GROUND, x, y, side, side, radius, colours.ground["cell"])
    if not look.seqs:
        return
    inset = side * (1 - share) / 2
    x, y, side = x + inset, y + inset, side - 2 * inset
    first = look.seqs[0] % 12
    fill = colours.fills[first]
    ground = mix(fill, colours.ground["cell"], 0.2) if look.reusable and len(look.seqs) == 1 else fill
    ink.box(FILL, x, y, side, side, radius, ground)
    if len(look.seqs) > 1:
        _bands(ink, [colours.fills[s % 12] for s in look.seqs[:4]], x, y, side, pitch)
    elif look.reusable and pitch >= 8:
        _hatch(ink, mix(fill, colours.ground["cell"], 0.75), x, y, side)
    if pitch >= 9:
        ink.box(EDGE, x, y, side, side, radius, edge=colours.edges[first], width=1)
    if look.label and share == 1:
        _label(ink, colours, x + side / 2, y + side / 2, pitch, look)
    if look.shift and pitch >= 9:
        for size, colour in ((10, "bg"), (8, "ink")) if pitch >= 24 else ((7, "bg"), (5, "ink")):
            corner = [(x + side - size, y), (x + side, y), (x + side, y + size)]
            ink.shape(MARK, corner, colours.ground[colour])


def draw_ghost(ink: Ink, colours: Colours, x: float, y: float, pitch: float, seq: int, label: str) -> None:
    """A cell that was freed in this step."""
    gap = 2 if pitch >= 20 else 1
    side, ground = pitch - gap, colours.ground["bg"]
    edge = colours.edges[seq % 12] if pitch >= 24 else mix(colours.edges[seq % 12], ground, 0.5)
    fill = mix(colours.fills[seq % 12], ground, 0.1)
    dash = "dashed" if pitch >= 24 else "solid"
    ink.box(EDGE, x + gap / 2, y + gap / 2, side, side, radius_of(pitch), fill, edge, 1, dash)
    if label and pitch >= 24:
        middle, grey = y + pitch / 2, colours.ground["ink3"]
        ink.text(x + pitch / 2, middle, label, 11, grey, mono=True, across="center", up="center")
        half = 3.6 * len(label) + 2
        ink.line(MARK, [(x + pitch / 2 - half, middle), (x + pitch / 2 + half, middle)], grey, 1)


def draw_ring(ink: Ink, colours: Colours, x: float, y: float, pitch: float) -> None:
    """What was written in this step."""
    width = 2 if pitch >= 20 else 1.5
    ink.box(MARK, x, y, pitch, pitch, radius_of(pitch) + 1, edge=colours.ground["ink"], width=width)


def radius_of(pitch: float) -> float:
    return 5 if pitch >= 40 else 4 if pitch >= 24 else 3 if pitch >= 18 else 2 if pitch >= 11 else 0


def label_size(pitch: float) -> float:
    return 14 if pitch >= 40 else 11.5 if pitch >= 24 else 9.5


def _label(ink: Ink, colours: Colours, x: float, y: float, pitch: float, look: Look) -> None:
    size = label_size(pitch)
    colour: RGB = colours.labels[look.seqs[0] % 12]
    if len(look.seqs) > 1:
        width = min(0.62 * size * len(look.label) + 5, pitch - 4)
        ink.box(PLATE, x - width / 2, y - size * 0.62, width, size * 1.24, 3, colours.ground["bg"])
        colour = colours.ground["ink"]
    elif look.reusable:
        colour = colours.ground["ink2"]
    ink.text(x, y, look.label, size, colour, mono=True, bold=True, across="center", layer=LABEL, up="center")


def _bands(ink: Ink, fills: list[RGB], x: float, y: float, side: float, pitch: float) -> None:
    """Bands of the owners' colours, falling to the right, in phase all over the sheet."""
    width = 5 if pitch >= 24 else 4 if pitch >= 11 else 3
    k = int((x - y - side) // width)
    while k * width < x + side - y:
        band = _between(x, y, side, k * width, (k + 1) * width, 1)
        if len(band) > 2:
            ink.shape(TEXTURE, band, fills[k % len(fills)])
        k += 1


def _hatch(ink: Ink, colour: RGB, x: float, y: float, side: float) -> None:
    """Thin lines rising to the right."""
    k = int((x + y) // 4)
    while k * 4 < x + y + 2 * side:
        line = _between(x, y, side, k * 4, k * 4 + 1.2, -1)
        if len(line) > 2:
            ink.shape(TEXTURE, line, colour)
        k += 1


def _between(x: float, y: float, side: float, low: float, high: float, sign: int) -> list[Point]:
    """The part of a square in which ``low <= px - sign * py <= high``."""
    square = [(x, y), (x + side, y), (x + side, y + side), (x, y + side)]
    return _clip(_clip(square, sign, low, 1), sign, high, -1)


def _clip(points: list[Point], sign: int, limit: float, keep: int) -> list[Point]:
    """The points and crossings with ``keep * (px - sign * py - limit) >= 0`` (Sutherland and Hodgman)."""
    found: list[Point] = []
    for (ax, ay), (bx, by) in zip(points, [*points[1:], *points[:1]], strict=True):
        a, b = (keep * (px - sign * py - limit) for px, py in ((ax, ay), (bx, by)))
        if a >= 0:
            found.append((ax, ay))
        if (a < 0) != (b < 0):
            t = a / (a - b)
            found.append((ax + t * (bx - ax), ay + t * (by - ay)))
    return found
