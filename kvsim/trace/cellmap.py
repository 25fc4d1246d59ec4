"""A picture as text: one character per cell, in memory order.

``0``..``9``, ``a``..``z`` is the sequence that owns the cell (from id 36 on they start over), ``+`` a
cell of several sequences, ``.`` an empty one, ``?`` one that is in use without an owner. Before a cell,
``>`` is the head, where the next slot search starts, and ``!`` marks a difference.
Nothing here depends on a terminal: the command line colours what this module lays out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

COLUMNS = 32
_OWNERS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class MapCell:
    """One cell: its character, its owners, and what stands before it."""

    glyph: str
    seq: tuple[int, ...]
    before: str

    @property
    def text(self) -> str:
        return self.before + self.glyph


@dataclass(frozen=True)
class MapRow:
    """A row of cells; ``first`` is the index of its first one."""

    first: int
    cells: tuple[MapCell, ...]

    @property
    def text(self) -> str:
        return "".join(cell.text for cell in self.cells)

    @property
    def is_quiet(self) -> bool:
        """Nothing but empty cells, without head or mark."""
        return all(cell.text == " ." for cell in self.cells)


def map_rows(
    stream: dict[str, Any], size: int, columns: int = COLUMNS, marked: Collection[int] = ()
) -> list[MapRow]:
    """All rows of one stream of a picture (``after.caches.<name>[stream]``) of ``size`` cells."""
    owners = {cell[0]: tuple(cell[2]) for cell in stream["cells"]}

    def cell(index: int) -> MapCell:
        before = "!" if index in marked else ">" if index == stream["head"] else " "
        seq = owners.get(index)
        if seq is None:
            return MapCell(".", (), before)
        return MapCell(_OWNERS[seq[0] % len(_OWNERS)] if len(seq) == 1 else "+" if seq else "?", seq, before)

    starts = range(0, size, columns)
    return [MapRow(s, tuple(map(cell, range(s, min(s + columns, size))))) for s in starts]


def fold_rows(rows: Sequence[MapRow]) -> Iterator[MapRow | range]:
    """The rows, with each run of two or more quiet ones as the range of its cells."""
    quiet: list[MapRow] = []
    for row in (*rows, None):
        if row is not None and row.is_quiet:
            quiet.append(row)
            continue
        if len(quiet) > 1:
            yield range(quiet[0].first, quiet[-1].first + len(quiet[-1].cells))
        else:
            yield from quiet
        quiet = []
        if row is not None:
            yield row


def differing_cells(recorded: dict[str, Any], computed: dict[str, Any]) -> list[int]:
    """The indices of the cells in which two pictures of one stream differ, ascending."""
    ours, theirs = ({cell[0]: cell for cell in stream["cells"]} for stream in (recorded, computed))
    return sorted(i for i in {*ours, *theirs} if ours.get(i) != theirs.get(i))


def side_by_side(
    recorded: dict[str, Any], computed: dict[str, Any], size: int, columns: int = COLUMNS
) -> list[tuple[MapRow, MapRow]]:
    """The rows in which two pictures of one stream differ, from both, the differing cells marked."""
    marked = set(differing_cells(recorded, computed))
    pairs = zip(*(map_rows(side, size, columns, marked) for side in (recorded, computed)), strict=True)
    return [pair for pair in pairs if not marked.isdisjoint(range(pair[0].first, pair[0].first + columns))]


def cell_in_words(cell: list[Any] | None) -> str:
    """One entry of ``cells`` said in words; None is an empty cell."""
    if cell is None:
        return "empty"
    _, pos, seq, shift, tok, x, y = cell
    words = [f"position {pos}", f"seq {', '.join(map(str, seq))}" if seq else "no sequence"]
    if shift:
        words.append(f"shift {shift:+d} pending")
    words.append("no token" if tok < 0 else f"token {tok}")
    if x or y:
        words.append(f"x {x}, y {y}")
    return ", ".join(words)
