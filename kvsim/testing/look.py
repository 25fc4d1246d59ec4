"""One stream of an attention cache as it is looked at after an operation: picture, content, proof.

All three are made in one pass over the cells, and only if a byte has changed since the look before; of the
cells, only those that changed are taken apart again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvsim.cells import CellTable
from kvsim.errors import IntegrityError
from kvsim.ledger import POSITION, Entry
from kvsim.memory import IntArray
from kvsim.owner_words import ids_of_words

Held = dict[int, list[Entry]]
"""What cells hold for every sequence, as the ledger would write it. The row of an entry is a name that the cell
has from one change to the next, so that it never stands for two tokens."""

Cell = tuple[int, ...]
"""pos, shift, token, x, y, instance, turned for, and the words of the owners."""

OWNERS = 7
"""Where those begin."""

NOWHERE = (0, 0)
"""The place of a token that has none."""

HALF_ALIVE = 4
"""Where what a look was made from has the cells that are half alive."""


class Look:
    """``seen`` is everything that it was made from: while that stays, so does the look, which is never changed
    and can be shared.

    ``record`` is the stream's part of a picture, ``held`` what it holds, ``cells`` the cells up to the last one
    that is used, with ``entries`` and ``rows`` made of them (None: empty).
    """

    __slots__ = ("cells", "entries", "held", "record", "rows", "seen")

    def __init__(self, seen: tuple[Any, ...]) -> None:
        self.seen = seen
        self.cells: list[Cell] = []
        self.entries: list[Entry | None] = []
        self.rows: list[list[Any] | None] = []
        self.record: dict[str, Any] = {}
        self.held: Held = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Look:
        return self


NOTHING = Look(())


class CacheLook:
    """All streams of a cache: their looks, and together the picture and what they hold. Never changed, and shared
    as they are."""

    __slots__ = ("held", "records", "streams")

    def __init__(self, streams: Sequence[Look]) -> None:
        self.streams = streams
        self.records = [look.record for look in streams]
        self.held = together(streams)

    def __deepcopy__(self, memo: dict[int, Any]) -> CacheLook:
        return self


def together(looks: Sequence[Look]) -> Held:
    """What all streams hold."""
    if len(looks) == 1:
        return looks[0].held
    held: Held = {}
    for look in looks:
        for s, entries in look.held.items():
            held[s] = held[s] + entries if s in held else entries
    return held


def numbers_of(table: CellTable) -> IntArray:
    """What a table keeps of its cells but for their owners: ``int32[5, size]``, in the order of :data:`Cell`."""
    return np.stack([table.pos, table.shift, table.tok, table.x, table.y])


def no_ink(size: int) -> IntArray:
    """What is seen of rows that nobody stores: no instance, turned for no position."""
    return np.zeros((size, 2), np.int32)


def look_at(
    table: CellTable, head: int, two_d: bool, numbers: IntArray, ink: IntArray, before: Look = NOTHING
) -> Look:
    """The stream as it is now: ``before``, if nothing has changed.

    ``numbers`` are :func:`numbers_of` the table, ``ink`` is per cell the instance in its row and the position
    that is turned for: ``int32[size, 2]``.
    """
    end = table.extent  # empty from here on, as a proof of everything shows now and then
    half_alive = table.half_alive
    seen: tuple[Any, ...] = (head, end, table.n_live, table.has_shift, half_alive)
    if end:  # all bytes, because those up to the end would first be gathered
        seen = (*seen, numbers.tobytes(), table.seq.tobytes(), ink.tobytes())
    if seen == before.seen:
        return before
    look = Look(seen)
    if end:
        columns = (*numbers[:, :end].tolist(), *ink[:end].T.tolist(), *table.seq[:, :end].tolist())
        look.cells = list(zip(*columns, strict=True))
    known = before.cells[:end] if before is not NOTHING and before.seen[HALF_ALIVE] == half_alive else []
    n = len(known)
    look.entries = before.entries[:n] + [None] * (end - n)
    look.rows = before.rows[:n] + [None] * (end - n)
    changed = [i for i, (now, was) in enumerate(zip(look.cells, known, strict=False)) if now != was]
    for i in (*changed, *range(n, end)):
        look.entries[i], look.rows[i] = _taken_apart(look.cells[i], i, two_d, i in half_alive)
    listed = [row for row in look.rows if row is not None]
    look.record = {"head": head, "used": table.used, "has_shift": table.has_shift, "cells": listed}
    look.held = _held(look, before)
    return look


def _taken_apart(cell: Cell, i: int, two_d: bool, half_alive: bool) -> tuple[Entry | None, list[Any] | None]:
    pos, shift, tok, x, y, instance, turned = cell[:OWNERS]
    if pos == -1 and not half_alive:
        return None, None
    row = [i, pos, ids_of(cell[OWNERS:]), shift, tok, x, y]
    if pos == -1:
        return None, row
    return Entry(pos, instance, turned, shift, (y, x) if two_d else NOWHERE, object()), row


_IDS: dict[Any, list[int]] = {}


def ids_of(owners: int | tuple[int, ...]) -> list[int]:
    """The sequences of owner bits; they are few sets, which are asked for over and over."""
    ids = _IDS.get(owners)
    if ids is None:
        ids = _IDS[owners] = ids_of_words([owners] if isinstance(owners, int) else owners)
    return ids


def _held(look: Look, before: Look) -> Held:
    """By sequence, in the order of the cells; a list that is as it was is the one from before."""
    held: Held = {}
    for entry, row in zip(look.entries, look.rows, strict=True):
        if entry is not None and row is not None:
            for s in row[2]:
                if s in held:
                    held[s].append(entry)
                else:
                    held[s] = [entry]
    for s, entries in held.items():
        if before.held.get(s) == entries:
            held[s] = before.held[s]
    return held


def prove(table: CellTable, look: Look) -> None:
    """Compare what a table keeps incrementally with what was just seen of its cells (cells I1-I5). Raises
    IntegrityError."""
    empty = [i for i, cell in enumerate(look.cells) if cell[0] == -1]
    live = len(look.cells) - len(empty)
    if table.n_live != live:
        raise IntegrityError(f"{table.n_live} live cells counted, {live} found (I1)")
    listed = look.record["cells"]
    end = listed[-1][0] + 1 if listed else 0
    if table.used_max_p1 != end:
        raise IntegrityError(f"used_max_p1 is {table.used_max_p1}, the last used cell is {end - 1}")
    if table.is_literal:
        return  # empty cells may have owners then, and what is kept is llama.cpp's own index (R21)
    for i in empty:
        _, shift, *_ = cell = look.cells[i]
        if shift or any(cell[OWNERS:]):
            raise IntegrityError(f"empty cell {i} has owners or a pending shift (I3, I4)")
    if table.sequences() != sorted(look.held):
        raise IntegrityError(f"sequences {table.sequences()} are kept, the cells carry {sorted(look.held)}")
    for s, entries in look.held.items():
        held = list(map(POSITION, entries))
        kept, found = table.seq_range(s), (min(held), max(held))
        if kept != found or table.count(s) != len(held):
            raise IntegrityError(
                f"seq {s} is kept as {table.count(s)} cells from {kept}, the cells say {len(held)} from {found} (I2)"
            )
