"""The cells as the slot search prints them: owners without gaps, positions in columns of five.

    0012..M3                            four cells of one digit, two empty, one of several sequences, one more
    0    1    100000.    .    7         a position of six digits takes six columns

Ids of two digits and positions of six make both ambiguous by themselves; each sequence's first and last
position, which are printed after them, and their neighbours decide. What stays undecided is unknown (None).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH, LONGEST, PER_LINE = 5, 7, 64
"""Characters of a position, at least and at most, and positions of a line."""

Spans = Mapping[int, tuple[int, int]]
"""Sequence -> its first and last position in this stream."""

_Way = tuple[Any, ...]
"""The last field and the way to it; () at the beginning."""


def positions(lines: Sequence[str], size: int, width: int = 0) -> list[int | None] | None:
    """The position of each cell, None for an empty one; None altogether if lines are missing or damaged.

    ``lines`` may be wrapped at any width, and may have lost the blanks at their ends: then ``width`` tells
    it, the longest line of the print.
    """
    rows = [row for row in _rows([_without_star(line) for line in lines], size, width) if row]
    if len(rows) * PER_LINE != size:
        return None
    cells: list[int | None] = []
    for row in rows:
        fields = _columns(row) or _split_fields(row, cells[-1] if cells else None)
        if fields is None:
            return None
        cells += fields
    return cells


def _without_star(line: str) -> str:
    """Without the mark after 256 cells."""
    return line[:-2] if line.endswith(" *") else "" if line.strip() == "*" else line


def _rows(lines: list[str], size: int, width: int) -> list[str]:
    """Lines of 64 cells each, put together again if they were wrapped."""
    lines = [line for line in lines if line]
    if len(lines) * PER_LINE <= size:
        return lines
    width = max(width, *map(len, lines))
    n, rest = -(-WIDTH * PER_LINE // width), WIDTH * PER_LINE % width
    rows = []
    while lines:
        taken = lines[:n]
        if len(taken) == n and len(taken[-1].rstrip()) > rest > 0:
            taken = taken[:-1]  # of the last field nothing but blanks was left, and such a line is not kept
        rows.append("".join(line.ljust(width) for line in taken))
        lines = lines[len(taken) :]
    return rows


def _columns(row: str) -> list[int | None] | None:
    """The fields of a line in which every one takes five columns."""
    if len(row.rstrip()) > WIDTH * PER_LINE:
        return None
    fields = [row[at : at + WIDTH].strip() for at in range(0, WIDTH * PER_LINE, WIDTH)]
    try:
        return [None if field == "." else int(field) for field in fields]
    except ValueError:
        return None


def _split_fields(row: str, before: int | None) -> list[int | None] | None:
    """The fields of a line in which positions of six digits and more push the others to the right.

    Of the ways to cut it into 64 fields, the one with the fewest jumps between neighbours.
    """
    if len(row.rstrip()) > LONGEST * PER_LINE:
        return None
    row = row.ljust(WIDTH * PER_LINE)
    begun: dict[int, list[tuple[int, int | None]]] = {}
    best: dict[tuple[int, int | None], tuple[int, _Way]] = {(0, before): (0, ())}
    for _ in range(PER_LINE):
        following: dict[tuple[int, int | None], tuple[int, _Way]] = {}
        for (at, last), (jumps, way) in best.items():
            if at not in begun:
                begun[at] = _fields_at(row, at)
            for end, value in begun[at]:
                key = (end, last if value is None else value)
                jumped = jumps + (value is not None and last is not None and value != last + 1)
                if key not in following or jumped < following[key][0]:
                    following[key] = (jumped, (value, way))
        best = following
    ends = [(jumps, way) for (at, _), (jumps, way) in best.items() if not row[at:].strip()]
    return list(_back(min(ends, key=lambda end: end[0])[1]))[::-1] if ends else None


def _back(way: _Way) -> Iterator[int | None]:
    while way:
        value, way = way
        yield value


def _fields_at(row: str, at: int) -> list[tuple[int, int | None]]:
    """The fields that may begin at this column, with where they end."""
    short = row[at : at + WIDTH]
    if len(short.strip()) < WIDTH:
        text = short.strip()
        fits = text == "." or text.isdigit()
        return [(at + WIDTH, None if text == "." else int(text))] if fits and short[0] != " " else []
    longer = (row[at : at + n] for n in range(WIDTH, LONGEST + 1))
    return [(at + len(text), int(text)) for text in longer if text.isdigit() and len(text) >= WIDTH]


def owners(text: str, cells: Sequence[int | None], spans: Spans) -> list[tuple[int, ...] | None] | None:
    """The sequences of each cell: () for an empty one, None where they cannot be told.

    ``text`` is what was printed, ``cells`` the positions. None altogether if the two do not fit.
    """
    if len(text) == len(cells) and all(seq < 10 for seq in spans):
        possible: list[set[str]] | None = [{token} for token in text]
    else:
        possible = _possible(text, cells, spans)
    if possible is None or any(
        (pos is None) != (tokens == {"."}) for pos, tokens in zip(cells, possible, strict=True)
    ):
        return None
    found: list[tuple[int, ...] | None] = []
    for pos, tokens in zip(cells, possible, strict=True):
        if pos is None:
            found.append(())
        elif len(tokens) != 1:
            found.append(None)
        elif "M" in tokens:
            sharing = tuple(sorted(seq for seq, (first, last) in spans.items() if first <= pos <= last))
            found.append(sharing if len(sharing) == 2 else None)
        else:
            found.append((int(next(iter(tokens))),))
    return found


def _possible(text: str, cells: Sequence[int | None], spans: Spans) -> list[set[str]] | None:
    """For each cell what may stand for it, over all ways to read the whole text."""
    ends: list[set[int]] = [{0}]
    for pos in cells:
        ends.append({at + len(token) for at in ends[-1] for token in _tokens(text, at, pos, spans)})
        if not ends[-1]:
            return None
    if len(text) not in ends[-1]:
        return None
    possible: list[set[str]] = []
    alive = {len(text)}
    for i in range(len(cells) - 1, -1, -1):
        ways = [
            (at, token)
            for at in ends[i]
            for token in _tokens(text, at, cells[i], spans)
            if at + len(token) in alive
        ]
        possible.append({token for _, token in ways})
        alive = {at for at, _ in ways}
    return possible[::-1]


def _tokens(text: str, at: int, pos: int | None, spans: Spans) -> list[str]:
    """What may stand at ``at`` for a cell with this position."""
    if pos is None:
        return ["."] if text.startswith(".", at) else []
    if text.startswith("M", at):
        return ["M"]
    found = []
    for n in (1, 2, 3):
        token = text[at : at + n]
        if len(token) < n or not token.isdigit() or str(int(token)) != token:
            break
        # a log that lost its ranges still tells ids of one digit
        if (not spans and n == 1) or (int(token) in spans and _holds(spans[int(token)], pos)):
            found.append(token)
    return found


def _holds(span: tuple[int, int], pos: int) -> bool:
    return span[0] <= pos <= span[1]
