"""Differences between two steps in words: a field, and what the two sides have there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from kvsim.changes import runs
from kvsim.narrate.words import number, span
from kvsim.trace import MISSING, Difference

MOST = 14
"""Rows told; more are counted."""

KINDS = (
    ("return value", r"ret$|extra\."),
    ("ubatches, slots, masks", r"ubatches"),
    ("cells: position, owners, shift, token", r"after\.caches\..*\.cells"),
    ("heads, used, position ranges", r"after\.(caches\..*\.(head|used|has_shift)|pos)"),
    ("recurrent states", r"after\.recurrent"),
    ("pending copies and rollbacks", r"after\.(pending_copies|rs_idx|idx_stale)"),
)
"""What is compared at every step, and the paths of each."""

Row = tuple[str, str, str]

_CELL = re.compile(r"after\.caches\.(?P<cache>.+)\[(?P<stream>\d+)\]\.cells\[(?P<cell>\d+)\]")
_FIELD = re.compile(r"after\.caches\.(?P<cache>.+)\[(?P<stream>\d+)\]\.(?P<name>head|used|has_shift)")
_POS = re.compile(r"after\.pos\[(?P<seq>\d+)\]\[(?P<end>[01])\]")
_UBATCH = re.compile(r"ubatches\[(?P<u>\d+)\]\.(?P<what>slots|mask|idx|plan|recurrent)\.?(?P<cache>[\w.]*)")


def kinds_of(differences: Iterable[Difference]) -> list[int]:
    """Which of :data:`KINDS` differ, by index."""
    paths = [difference.path for difference in differences]
    return [k for k, (_, pattern) in enumerate(KINDS) if any(re.match(pattern, path) for path in paths)]


def rows_of(differences: list[Difference], several: bool = False) -> list[Row]:
    """The fields in words; cells that differ in one way are one row. ``several``: name cache and stream."""
    rows: dict[str, Row] = {}
    cells: dict[tuple[str, str], list[Difference]] = {}
    for one in differences:
        cell = _CELL.fullmatch(one.path)
        if cell:
            cells.setdefault((cell["cache"], cell["stream"]), []).append(one)
            continue
        name, show = _named(one.path, several)
        rows.setdefault(name, (name, show(one.recorded), show(one.computed)))
    told = list(rows.values())
    for (cache, stream), listed in cells.items():
        told += _cells(_where(cache, stream, several), listed)
    more = len(told) - MOST
    return told if more <= 0 else [*told[:MOST], (f"and {more} more", "", "")]


def _named(path: str, several: bool) -> tuple[str, Any]:
    if path == "ret":
        return "answer", _short
    if match := _FIELD.fullmatch(path):
        return f"{match['name']}{_where(match['cache'], match['stream'], several)}", _short
    if match := _POS.fullmatch(path):
        return f"seq_pos_{'max' if match['end'] == '1' else 'min'}({match['seq']})", _short
    if match := _UBATCH.match(path):
        cache = f" of {match['cache'].split('.')[0]}" if match["cache"] else ""
        return f"ubatch {int(match['u']) + 1}: {match['what']}{cache}", _short
    return path.removeprefix("after."), _short


def _where(cache: str, stream: str, several: bool) -> str:
    return f" of {cache}, stream {stream}" if several else ""


def _cells(where: str, listed: list[Difference]) -> list[Row]:
    """Cells grouped by what happened to them: only here, only there, or changed."""
    groups: dict[tuple[bool, bool], list[Difference]] = {}
    for one in listed:
        groups.setdefault((one.recorded is MISSING, one.computed is MISSING), []).append(one)
    rows = []
    for group in groups.values():
        numbers = [int(one.path.rsplit("[", 1)[1][:-1]) for one in group]
        found = runs(numbers)
        names = ", ".join(span(a, b) for a, b in found[:4]) + (" ..." if len(found) > 4 else "")
        noun = "cell" if len(numbers) == 1 else "cells"
        rows.append((f"{noun} {names}{where}", *(_content([getattr(o, side) for o in group])
                                                for side in ("recorded", "computed"))))  # fmt: skip
    return rows


def _content(cells: list[Any]) -> str:
    """What a group of cells holds: "seq 2, positions 0–7"."""
    if any(cell is MISSING for cell in cells):
        return "empty"
    seqs = sorted({tuple(cell[2]) for cell in cells})
    positions = sorted(cell[1] for cell in cells)
    shifts = {cell[3] for cell in cells} - {0}
    owners = "seq " + ", ".join(map(str, seqs[0])) if len(seqs) == 1 else f"{len(seqs)} owners"
    ends = span(positions[0], positions[-1])
    shifted = (
        f", shift {number(next(iter(shifts)))}" if len(shifts) == 1 else ", several shifts" if shifts else ""
    )
    return f"{owners}, position{'s' if len(positions) > 1 else ''} {ends}{shifted}"


def _short(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    text = json.dumps(value) if isinstance(value, list | dict) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
