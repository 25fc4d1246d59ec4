"""What is plotted of a simulation: panels over its time, in plain numbers, for the browser and for export alike.

A panel has a ``kind``: ``area`` (layers on top of one another, a line for their sum and one for the limit),
``bars`` (stacked, between the edges ``x``) or ``lines`` (each with its own ``x``). A ``tone`` is the name of a
colour: ``seq:3`` of a slot, ``seq:3:pale`` of its cells out of the window, or one of the palette's.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

BINS = 96
Samples = list[dict[str, Any]]
Panel = dict[str, Any]

SUMS = ("failed_decodes", "reprocessed", "requests", "hits", "reused", "computed")


@dataclass(frozen=True)
class Run:
    """A simulation as far as it has come: its ``name`` (A, B, ...), what was counted, cells of each cache."""

    name: str
    account: dict[str, Any]
    sizes: dict[str, int]

    @property
    def samples(self) -> Samples:
        return self.account["samples"]

    @property
    def seconds(self) -> float:
        return self.samples[-1]["time"]


def panels(run: Run) -> list[Panel]:
    """One simulation in detail."""
    samples, x = run.samples, [s["time"] for s in run.samples]
    edges, grown = growth(samples)
    totals = run.account["totals"]
    return [
        *(_cells(run, name, x) for name in run.sizes),
        {
            "kind": "lines", "title": "Requests", "unit": "requests",
            "note": f"at most {max(s['waiting'] for s in samples):,} waiting",
            "lines": [
                {"name": "waiting", "tone": "ink", "dash": 0, "x": x, "y": [s["waiting"] for s in samples]},
                {"name": "served", "tone": "ink3", "dash": 1, "x": x, "y": [s["serving"] for s in samples]},
            ],
        },
        {
            "kind": "bars", "title": "Prompt tokens", "unit": "tokens", "x": edges,
            "note": f"{totals['reused']:,} of {totals['prompt']:,} reused, {totals['reprocessed']:,} computed twice",
            "layers": [
                {"name": "reused", "tone": "copy", "y": grown["reused"]},
                {"name": "computed", "tone": "line2", "y": grown["computed"]},
                {"name": "reprocessed", "tone": "fail", "y": grown["reprocessed"]},
            ],
        },
        {
            "kind": "bars", "title": "Requests that found a prefix", "unit": "requests", "x": edges,
            "note": f"{run.account['prefix_hits']:,} of {totals['requests']:,}",
            "layers": [
                {"name": "hit", "tone": "copy", "y": grown["hits"]},
                {"name": "not", "tone": "line2",
                 "y": [max(0, a - b) for a, b in zip(grown["requests"], grown["hits"], strict=True)]},
            ],
        },
        {
            "kind": "bars", "title": "Failed decodes", "unit": "failed", "x": edges, "note": _failed(totals),
            "layers": [{"name": "failed", "tone": "fail", "y": grown["failed_decodes"]}],
        },
    ]  # fmt: skip


def slots(panels: list[Panel]) -> list[int]:
    """The slots that hold cells somewhere in the panels: those whose colours are to be told."""
    tones = [
        layer["tone"].split(":")
        for panel in panels
        if panel["kind"] == "area"
        for layer in panel["layers"]
        if any(layer["y"])
    ]
    return sorted({int(tone[1]) for tone in tones})


def beside(runs: list[Run]) -> list[Panel]:
    """Several simulations on the same axes; what happened in none of them is left out. Where nothing did, it is
    shown that nobody waited."""

    def panel(title: str, unit: str, value: Any) -> Panel:
        lines = [
            {
                "name": run.name,
                "tone": "ink" if k % 2 == 0 else "ink3",
                "dash": k,
                "x": [s["time"] for s in run.samples],
                "y": [value(run, s) for s in run.samples],
            }
            for k, run in enumerate(runs)
        ]
        return {"kind": "lines", "title": title, "unit": unit, "note": "", "lines": lines, "tall": True}

    made = [
        panel("Cells in use, of the fullest cache", "%", _fullest),
        panel("Requests waiting", "requests", lambda run, s: s["waiting"]),
        panel("Failed decodes so far", "failed", lambda run, s: s["failed_decodes"]),
        panel("Prompt tokens reused so far", "tokens", lambda run, s: s["reused"]),
        panel("Prompt tokens computed twice so far", "tokens", lambda run, s: s["reprocessed"]),
    ]
    return [each for each in made if any(any(line["y"]) for line in each["lines"])] or made[1:2]


def growth(samples: Samples) -> tuple[list[float], dict[str, list[int]]]:
    """The edges of even bins over the whole time, and by how much every sum grew within each.

    What lies between two samples counts where the second one stands.
    """
    times, end = [s["time"] for s in samples], samples[-1]["time"]
    n = max(1, min(BINS, len(samples) - 1))
    edges = [end * k / n for k in range(n)] + [end]
    upto = [0, *(bisect_right(times, edge) for edge in edges[1:])]
    grown = {}
    for name in SUMS:
        values = [samples[i - 1][name] if i else 0 for i in upto]
        grown[name] = [b - a for a, b in pairwise(values)]
    return edges, grown


def _cells(run: Run, name: str, x: list[float]) -> Panel:
    caches = [s["caches"][name] for s in run.samples]
    size = run.sizes[name]
    n_slots = max(len(c["live_by_slot"]) for c in caches)

    def held(key: str, slot: int) -> list[int]:
        return [c[key][slot] if slot < len(c[key]) else 0 for c in caches]

    layers = []
    for slot in range(n_slots):
        passed = held("reclaimable_by_slot", slot)
        live = [a - b for a, b in zip(held("live_by_slot", slot), passed, strict=True)]
        layers.append({"name": f"slot {slot}", "tone": f"seq:{slot}", "y": live})
        if any(passed):
            layers.append(
                {"name": f"slot {slot}, out of the window", "tone": f"seq:{slot}:pale", "y": passed}
            )
    note = f"at most {run.account['peak_used'][name]:,} of {size:,} used"
    passed_window = any(c["reclaimable"] for c in caches) and name != "blocks"
    more = "; hatched: out of the window" if passed_window else ""
    return {
        "kind": "area", "title": f"Cells of {name}, by slot", "unit": "cells", "note": note + more, "x": x,
        "layers": layers, "used": [c["used"] for c in caches], "limit": size,
    }  # fmt: skip


def _failed(totals: dict[str, int]) -> str:
    lost = [
        f"{totals[key]:,} {word}"
        for key, word in (("rejected", "rejected"), ("aborted", "sent away"), ("truncated", "cut short"))
        if totals[key]
    ]
    return ", ".join(
        [f"{totals['failed_decodes']:,} of {totals['decodes'] + totals['failed_decodes']:,}", *lost]
    )


def _fullest(run: Run, sample: dict[str, Any]) -> float:
    shares = (100 * cache["used"] / run.sizes[name] for name, cache in sample["caches"].items())
    return round(max(shares, default=0.0), 2)
