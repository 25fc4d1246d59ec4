"""Shapes in pixels on a matplotlib figure: collected in layers, drawn all at once.

matplotlib is imported here and nowhere else in kvsim: ``pip install 'kvsim[app]'``.
"""

from __future__ import annotations

import io
import logging
from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import KvsimError

try:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
    from matplotlib.collections import LineCollection, PathCollection
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties, fontManager
    from matplotlib.path import Path
except ModuleNotFoundError:
    raise KvsimError("pictures and films need matplotlib: pip install 'kvsim[app]'") from None

DPI = 100
SANS = ("Source Sans 3", "Source Sans Pro", "Liberation Sans", "Arial", "Helvetica", "DejaVu Sans")
MONO = ("Source Code Pro", "Liberation Mono", "Menlo", "Consolas", "DejaVu Sans Mono")
GROUND, FILL, TEXTURE, EDGE, PLATE, LABEL, MARK, FLYING = range(1, 9)
"""Layers, from below."""

# at 72 dots per inch a point is a pixel
_MEASURE: Any = RendererAgg(1, 1, 72)  # type: ignore[no-untyped-call]

Colour = tuple[float, float, float] | tuple[float, float, float, float]


class Ink:
    """A sheet of ``width`` x ``height`` pixels, origin at the upper left, y downwards."""

    def __init__(self, width: int, height: int, ground: Colour) -> None:
        self.figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor=ground)
        self.width, self.height = width, height
        axes = self.figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        self.axes = axes
        self._paths: dict[int, list[tuple[Path, Colour, Colour, float, str]]] = defaultdict(list)
        self._lines: dict[int, list[tuple[Any, Colour, float]]] = defaultdict(list)

    def box(
        self,
        layer: int,
        x: float,
        y: float,
        w: float,
        h: float,
        r: float = 0,
        fill: Colour = (0, 0, 0, 0),
        edge: Colour = (0, 0, 0, 0),
        width: float = 0,
        dash: str = "solid",
    ) -> None:
        """A rectangle with corners of radius ``r``."""
        self._paths[layer].append((_rounded(x, y, w, h, r), fill, edge, width, dash))

    def shape(self, layer: int, points: Any, fill: Colour) -> None:
        """A polygon."""
        self._paths[layer].append((Path([*points, points[0]], closed=True), fill, (0, 0, 0, 0), 0, "solid"))

    def line(self, layer: int, points: Any, colour: Colour, width: float = 1) -> None:
        """A polyline."""
        self._lines[layer].append((points, colour, width))

    def image(self, x: float, y: float, w: float, h: float, pixels: NDArray[np.float64]) -> None:
        """An array of colours, rows x columns x 3, without smoothing."""
        self.axes.imshow(
            pixels, extent=(x, x + w, y + h, y), interpolation="nearest", aspect="auto", zorder=GROUND
        )
        self.axes.set_xlim(0, self.width)
        self.axes.set_ylim(self.height, 0)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        colour: Colour,
        mono: bool = False,
        bold: bool = False,
        across: str = "left",
        layer: int = LABEL,
        up: str = "center_baseline",
    ) -> float:
        """A line of text, never taken for a formula; returns where it ends."""
        name = family(mono)
        self.axes.text(
            *(x, y, text),
            family=name,
            fontsize=size * 72 / DPI,
            fontweight="bold" if bold else "normal",
            color=colour,
            ha=across,
            va=up,
            zorder=layer,
            parse_math=False,
        )
        return x + width_of(text, size, mono, bold)

    def file(self, form: str) -> bytes:
        """The sheet as ``png`` or ``svg``: no date and no random names, so equal sheets make equal files."""
        self._draw()
        file = io.BytesIO()
        about = {"Date": None} if form == "svg" else None
        with rc_context({"svg.hashsalt": "kvsim"}):
            self.figure.savefig(file, format=form, dpi=DPI, metadata=about)
        return file.getvalue()

    def pixels(self) -> NDArray[np.uint8]:
        """The sheet as rows x columns x red, green, blue."""
        self._draw()
        canvas: Any = FigureCanvasAgg(self.figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()

    def _draw(self) -> None:
        for layer, listed in self._paths.items():
            paths, fills, edges, widths, dashes = zip(*listed, strict=True)
            drawn: Any = PathCollection(paths, facecolors=fills, edgecolors=edges, zorder=layer)
            drawn.set_linewidths([w * 72 / DPI for w in widths])
            drawn.set_linestyles(list(dashes))
            drawn.set_transform(self.axes.transData)
            self.axes.add_collection(drawn, autolim=False)
        for layer, strokes in self._lines.items():
            points, colours, thick = zip(*strokes, strict=True)
            points_wide = [w * 72 / DPI for w in thick]
            lines = LineCollection(points, colors=colours, linewidths=points_wide, zorder=layer)
            self.axes.add_collection(lines, autolim=False)
        self._paths.clear()
        self._lines.clear()


def _rounded(x: float, y: float, w: float, h: float, r: float) -> Path:
    if r <= 0:
        return Path([(x, y), (x + w, y), (x + w, y + h), (x, y + h), (x, y)], closed=True)
    r = min(r, w / 2, h / 2)
    a, b = x + w, y + h
    points = [(x + r, y), (a - r, y), (a, y), (a, y + r), (a, b - r), (a, b), (a - r, b)]
    points += [(x + r, b), (x, b), (x, b - r), (x, y + r), (x, y), (x + r, y), (x + r, y)]
    line, curve = Path.LINETO, Path.CURVE3
    codes = [Path.MOVETO, *[line, curve, curve] * 4, Path.CLOSEPOLY]
    return Path(points, codes)


@cache
def family(mono: bool) -> list[str]:
    """The fonts of the player that are installed, best first."""
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    installed = {font.name for font in fontManager.ttflist}
    return [name for name in (MONO if mono else SANS) if name in installed]


@cache
def width_of(text: str, size: float, mono: bool = False, bold: bool = False) -> float:
    """How many pixels wide a line of text is."""
    font = FontProperties(family=family(mono), weight="bold" if bold else "normal", size=size)
    width, _, _ = _MEASURE.get_text_width_height_descent(text, font, ismath=False)
    return float(width)
