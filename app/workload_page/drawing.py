"""The Workload page's tables and the picture of a plan, as HTML. What comes from a file is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from typing import Any

from app.memory_page.costs import in_words as size
from app.workload_page.configuration import in_words, setup_of_text
from kvsim.player.palette import SEQUENCES
from kvsim.workload.setup import Setup

N_COLOURS = len(SEQUENCES["light"])

COLUMNS = (
    ("memory", lambda run: size(run["bytes"])),
    ("served in full", lambda run: f"{run['totals']['finished']:,} of {run['totals']['requests']:,}"),
    ("failed decodes", lambda run: f"{run['totals']['failed_decodes']:,}"),
    ("reused", lambda run: share(run["totals"]["reused"], run["totals"]["prompt"])),
    ("computed twice", lambda run: share(run["totals"]["reprocessed"], run["totals"]["prompt"])),
    ("waiting, 99 %", lambda run: seconds(run["wait"]["p99"])),
    ("first token, 99 %", lambda run: seconds(run["first_token"]["p99"])),
    ("to the end", lambda run: seconds(run["samples"][-1]["time"])),
)

AXES = {
    "failed": ("failed decodes", lambda value: f"{value:,.0f}"),
    "reprocessed": ("prompt tokens computed twice", lambda value: f"{value:.0%}"),
    "unserved": ("requests not served in full", lambda value: f"{value:.0%}"),
    "first_token": (
        "seconds to the first token, 99 %",
        lambda value: f"{value:.2g} s" if value < 100 else f"{value:,.0f} s",
    ),
}
"""What a plan's picture can show over memory."""

LIMITS = {
    "failed_decodes": "failed decodes",
    "reprocessed": "tokens computed twice",
    "unserved": "requests not served in full",
    "first_token": "time to the first token",
    "bytes": "memory",
}


def slot_colours(slots: list[int]) -> str:
    """The colour of each slot; with more slots than colours, one colour is of several."""
    told: dict[int, list[str]] = {}
    for slot in slots:
        told.setdefault(slot % N_COLOURS, []).append(str(slot))
    items = "".join(
        f'<span><i style="background:var(--kvs-seq-{colour})"></i>slot {", ".join(names)}</span>'
        for colour, names in told.items()
    )
    return f'<div class="kvw-slots">{items}</div>'


def share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0.0%"


def seconds(value: float) -> str:
    return f"{value:,.1f} s" if value >= 10 else f"{value:.2f} s"


def comparison(runs: list[tuple[str, Setup, dict[str, Any]]]) -> str:
    """The simulations side by side: name, configuration, figures. Of later ones only what differs is named."""
    first = runs[0][1]
    rows = []
    for name, setup, run in runs:
        what = in_words(setup) if setup is first else f"{in_words(setup, first)}"
        partly = "" if run["complete"] else " <small>so far</small>"
        rows.append(
            [f"<b>{escape(name)}</b> {escape(what)}{partly}", *(column(run) for _, column in COLUMNS)]
        )
    return table(["configuration", *(head for head, _ in COLUMNS)], rows)


def reasons(run: dict[str, Any]) -> str:
    """Why prompts were not reused, by request, and tokens reprocessed, by reason."""
    told = [[escape(reason), f"{n:,} requests", f"{run['reprocessed_by'].get(reason, 0):,}"]
            for reason, n in run["not_reused"].items()]  # fmt: skip
    if not told:
        return '<div class="kvs-note">Every prompt was reused as far as it could be.</div>'
    return table(["not reused, because", "", "tokens computed twice"], told)


def failures(run: dict[str, Any], most: int = 6) -> str:
    """The first failed decodes with their four numbers."""
    numbers = ("asked", "free", "reclaimable", "largest_hole")
    rows = [
        [seconds(f["time"]), escape(f["cache"]), *(f"{f[key]:,}" for key in numbers)]
        for f in run["failures"][:most]
    ]
    if not rows:
        return '<div class="kvs-note">No decode failed.</div>'
    return table(["at", "cache", "asked", "free", "reclaimable", "largest hole"], rows)


def table(heads: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{h}</th>" for h in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<table class="kvs-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


# -- a plan --------------------------------------------------------------------------------------


def frontier(tried: list[dict[str, Any]], axis: str) -> list[int]:
    """Those of which no other is both smaller (or as small) and better: from the smallest on."""
    best, found = float("inf"), []
    for i in sorted(range(len(tried)), key=lambda i: (tried[i]["bytes"], tried[i][axis])):
        if tried[i][axis] < best:
            best = tried[i][axis]
            found.append(i)
    return found


def scatter(tried: list[dict[str, Any]], axis: str, best: str | None) -> str:
    """Every configuration by memory and what it does; the frontier as a line; the smallest that serves ringed."""
    name, told = AXES[axis]
    low, high = min(t["bytes"] for t in tried), max(t["bytes"] for t in tried)
    left, right = (0.9 * low, 1.1 * high) if high > low else (0.5 * low, 1.5 * low)
    top = max(t[axis] for t in tried) * 1.08 or 1.0

    def place(t: dict[str, Any]) -> tuple[float, float]:
        return 100 * (t["bytes"] - left) / (right - left), 100 * (1 - t[axis] / top)

    on_it = frontier(tried, axis)
    points = "".join(_point(t, place(t), i in on_it, t["setup"] == best) for i, t in enumerate(tried))
    line = "".join(_stairs([place(tried[i]) for i in on_it]))
    most = top / 1.08
    ticks = "".join(
        f'<span style="top:{100 * (1 - most * k / 4 / top):.2f}%">{told(most * k / 4)}</span>'
        for k in range(5)
    )
    step = 2 ** math.ceil(math.log2((right - left) / 6))
    across = "".join(
        f'<span style="left:{100 * (n - left) / (right - left):.2f}%">{size(n)}</span>'
        for n in range(-int(-left // step) * step, int(right), step)
    )
    said = f"{len(tried)} configurations by memory and {name}"
    return (
        f'<div class="kvw-scatter"><div class="kvw-name">{name}</div><div class="kvw-up">{ticks}</div>'
        f'<div class="kvw-field" role="img" aria-label="{said}">{line}{points}</div>'
        f'<div class="kvw-across">{across}</div><div class="kvw-x">memory of the caches</div></div>'
    )


def _stairs(corners: list[tuple[float, float]]) -> Iterator[str]:
    """The frontier: on from each of its points at the same height, then down to the next; at last to the edge."""
    for (x, y), (to, low) in pairwise([*corners, (100.0, corners[-1][1])]):
        yield f'<u style="left:{x:.2f}%;top:{y:.2f}%;width:{to - x:.2f}%;height:{low - y:.2f}%"></u>'


def _point(t: dict[str, Any], at: tuple[float, float], on_it: bool, best: bool) -> str:
    setup = setup_of_text(t["setup"])
    words = escape(in_words(setup)) if setup else ""
    breaks = ", ".join(LIMITS[name] for name in t["broken"])
    kind = "kvw-bad" if breaks else "kvw-good"
    label = ""
    if best or on_it:
        side = "kvw-left" if at[0] > 62 else ""
        label = f'<em class="{side}">{short(setup) if setup else ""}</em>'
    return (
        f'<i class="{kind}{" kvw-best" if best else ""}" style="left:{at[0]:.2f}%;top:{at[1]:.2f}%" '
        f'title="{words}{": breaks " + breaks if breaks else ": within the limits"}">{label}</i>'
    )


def short(setup: Setup) -> str:
    """A configuration of a plan, as short as can be: "16k x 8 unified"."""
    cells = f"{setup.n_ctx // 1024}k" if setup.n_ctx % 1024 == 0 else f"{setup.n_ctx:,}"
    parts = [f"{cells} × {setup.parallel} {'unified' if setup.unified else 'streams'}"]
    parts += [setup.type_k] if setup.type_k != "f16" else []
    parts += ["swa_full"] if setup.swa_full else []
    return escape(", ".join(parts))


def plan_table(tried: list[dict[str, Any]], best: str | None) -> str:
    rows = []
    for t in tried:
        setup = setup_of_text(t["setup"])
        breaks = ", ".join(LIMITS[name] for name in t["broken"]) or "nothing"
        name = short(setup) if setup else escape(t["setup"])
        values = [size(t["bytes"]), f"{t['failed']:,}", f"{t['reprocessed']:.1%}", f"{t['unserved']:.1%}",
                  seconds(t["first_token"]), breaks]  # fmt: skip
        rows.append([f"<b>{name}</b>" if t["setup"] == best else name, *values])
    heads = [
        "configuration",
        "memory",
        "failed",
        "computed twice",
        "not served",
        "first token, 99 %",
        "breaks",
    ]
    return table(heads, rows)
