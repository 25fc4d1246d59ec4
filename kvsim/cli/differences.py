"""``kvsim replay --explain``: the hazards met, what a tester found, and the first difference as two cell maps."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from kvsim.cli.outcome import Meeting, Parting
from kvsim.cli.terminal import map_text
from kvsim.hazards import HAZARDS
from kvsim.narrate.calls import call
from kvsim.narrate.verdicts import failed
from kvsim.narrate.words import count
from kvsim.trace.cellmap import cell_in_words, differing_cells, side_by_side

SHOWN = 10
"""How many fields, and how many cells of a stream, are listed."""


def explain_hazards(out: Console, met: dict[str, Meeting]) -> None:
    """Print each hazard once: how often it was met, where first, and what happens then."""
    for name, meeting in met.items():
        first = f"first {meeting.i}, {meeting.call}"
        out.print(Text(f"  hazard {name}: {count(meeting.operations, 'operation')}, {first}"))
        out.print(Text(f"    {HAZARDS[name].happens}"))


def explain_failure(out: Console, failure: dict[str, str], differences: int) -> None:
    """Print what the tester found at the end of a trace that it saved."""
    out.print(Text(f"  {failed(failure['subject'], failure['verdict'])} at {failure['operation']}:"))
    out.print(Text(f"    {failure['what']}"))
    if not differences:
        out.print(
            Text("    The steps are the reference's: a trace has no place for what the subject showed.")
        )


def explain(out: Console, parting: Parting) -> None:
    """Print a step on which recording and replay differ, and the streams whose cells do."""
    header, recorded, computed, found = parting.header, parting.recorded, parting.computed, parting.found
    out.print(Text(f"  operation {recorded.i}, {call(recorded)}: {count(len(found), 'difference')}"))
    for difference in found[:SHOWN]:
        out.print(Text(f"    {difference}"))
    _print_rest(out, len(found), "field")
    for name, streams in recorded.after["caches"].items():
        for s, ours in enumerate(streams):
            theirs = computed.after["caches"][name][s]
            if differing_cells(ours, theirs):
                out.print(Text(f"\n  {name}, stream {s}", style="bold"))
                _print_maps(out, ours, theirs, header.caches[name]["size"])
                _print_cells(out, ours, theirs)


def _print_maps(out: Console, ours: dict[str, Any], theirs: dict[str, Any], size: int) -> None:
    columns = 32 if out.width >= 144 else 16
    left, right = f"recorded, head {ours['head']}", f"computed, head {theirs['head']}"
    out.print(Text(f"  {left:<{2 * columns + 8}}{right}"))
    for pair in side_by_side(ours, theirs, size, columns):
        line = Text("  ")
        for row in pair:
            line.append(f"{row.first:>6}").append(map_text(row.cells)).append("  ")
        line.rstrip()
        out.print(line)


def _print_cells(out: Console, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    pictures = [{cell[0]: cell for cell in picture["cells"]} for picture in (ours, theirs)]
    cells = differing_cells(ours, theirs)
    for index in cells[:SHOWN]:
        recorded, computed = (cell_in_words(picture.get(index)) for picture in pictures)
        out.print(Text(f"    cell {index}: recorded {recorded}; computed {computed}"))
    _print_rest(out, len(cells), "cell")


def _print_rest(out: Console, n: int, what: str) -> None:
    if n > SHOWN:
        out.print(Text(f"    and {count(n - SHOWN, f'more {what}')}"))
