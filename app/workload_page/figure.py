"""The page's plots drawn with matplotlib, to be saved."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

from app.workload_page.series import Panel
from kvsim.player.palette import SEQUENCES, TOKENS

DASHES = ("-", (0, (6, 3)), (0, (1.5, 2)), (0, (6, 2, 1.5, 2)))
WIDTH, TALL, LOW = 9.0, 1.7, 1.05  # inches


def figure(panels: list[Panel], title: str, kind: str) -> bytes:
    """The panels below one another on a common axis of time, as ``png`` or ``svg``."""
    from matplotlib.figure import Figure

    heights = [TALL if panel["kind"] == "area" else LOW for panel in panels]
    made = Figure(figsize=(WIDTH, sum(heights) + 0.45 * len(panels) + 0.8), layout="constrained")
    made.suptitle(title, x=0.01, ha="left", fontsize=10, color=_colour("ink"), parse_math=False)
    axes = made.subplots(len(panels), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for panel, axis in zip(panels, axes, strict=True):
        {"area": _area, "bars": _bars, "lines": _lines}[panel["kind"]](axis, panel)
        note = f"  {panel['note']}" if panel["note"] else ""
        axis.set_title(panel["title"] + note, loc="left", fontsize=8.5, color=_colour("ink"))
        axis.set_ylim(bottom=0)
        axis.margins(x=0)
        axis.tick_params(labelsize=7.5, colors=_colour("ink3"))
        axis.spines[["top", "right"]].set_visible(False)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes[-1].set_xlabel("seconds", fontsize=8, color=_colour("ink2"))
    out = io.BytesIO()
    made.savefig(out, format=kind, dpi=200)
    return out.getvalue()


def _colour(tone: str) -> str:
    parts = tone.split(":")
    return SEQUENCES["light"][int(parts[1]) % 12] if parts[0] == "seq" else TOKENS[tone][0]


def _area(axis: Any, panel: Panel) -> None:
    base = [0.0] * len(panel["x"])
    for layer in panel["layers"]:
        top = [a + b for a, b in zip(base, layer["y"], strict=True)]
        colour, hatched = _colour(layer["tone"]), layer["tone"].endswith(":pale")
        inside = (
            {"facecolor": "none", "edgecolor": colour, "hatch": "/////"} if hatched else {"color": colour}
        )
        name = "_" if hatched or not any(layer["y"]) else layer["name"]  # "_": not in the legend
        axis.fill_between(panel["x"], base, top, linewidth=0, label=name, **inside)
        base = top
    axis.plot(panel["x"], panel["used"], color=_colour("ink"), linewidth=0.8)
    axis.axhline(panel["limit"], color=_colour("ink3"), linewidth=0.8, linestyle=(0, (4, 3)))
    if any(any(layer["y"]) for layer in panel["layers"]):
        n = len(panel["layers"])
        axis.legend(
            fontsize=6.5, frameon=False, ncols=1 + n // 12, loc="upper left", bbox_to_anchor=(1, 1.05)
        )


def _bars(axis: Any, panel: Panel) -> None:
    edges = panel["x"]
    widths = [b - a for a, b in pairwise(edges)]
    base = [0.0] * len(widths)
    for layer in panel["layers"]:
        axis.bar(
            edges[:-1],
            layer["y"],
            widths,
            base,
            align="edge",
            color=_colour(layer["tone"]),
            label=layer["name"],
        )
        base = [a + b for a, b in zip(base, layer["y"], strict=True)]
    if len(panel["layers"]) > 1:
        axis.legend(fontsize=7, frameon=False, ncols=3, loc="upper right", bbox_to_anchor=(1, 1.3))


def _lines(axis: Any, panel: Panel) -> None:
    for line in panel["lines"]:
        style = DASHES[line["dash"] % len(DASHES)]
        axis.plot(
            line["x"],
            line["y"],
            color=_colour(line["tone"]),
            linestyle=style,
            linewidth=1.1,
            label=line["name"],
        )
    axis.legend(fontsize=7, frameon=False, ncols=4, loc="upper right", bbox_to_anchor=(1, 1.3))
