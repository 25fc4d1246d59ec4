"""One stream of an attention cache as it is looked at after an operation: picture, content, proof.

All three are made in one pass over the cells, and only if a byte has changed since the look before; of the
cells, only those that changed are taken apart again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.caches.kv import KVCache
from kvsim.cells import CellTable
from kvsim.errors import IntegrityError
from kvsim.ledger import Entry
from kvsim.owner_words import ids_of_words

Held = dict[int, list[Entry]]
"""What cells hold for every sequence, as the ledger would write it."""

Cell = tuple[Any, ...]
"""pos, instance, turned for, shift, token, x, y, owners."""

Ink = tuple[NDArray[np.int32], NDArray[np.int32]]
"""Per cell the instance in its row, and the position that is turned for."""


class Look:
    """``seen`` is everything that it was made from: while that stays, so does the look, which is never changed
    and can be shared.

    ``record`` is the stream's part of a picture, ``held`` what it holds, ``cells`` the cells up to the last one
    that is used, with ``entries`` and ``rows`` made of them (None: empty).
    """

    def __init__(self, seen: tuple[Any, ...], cells: list[Cell]) -> None:
        self.seen = seen
        self.cells = cells
        self.entries: list[Entry | None] = []
        self.rows: list[list[Any] | None] = []
        self.record: dict[str, Any] = {}
        self.held: Held = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Look:
        return self


NOTHING = Look((), [])


def look_at(cache: KVCache, stream: int, ink: Ink | None = None, before: Look = NOTHING) -> Look:
    """The stream as it is now: ``before``, if nothing has changed."""
    table = cache.cells[stream]
    end = table.extent  # empty from here on, as a proof of everything shows now and then
    columns = [table.pos, table.shift, table.tok, table.x, table.y, *table.seq, *(ink or ())]
    state = cache.heads[stream], table.used, table.has_shift, table.half_alive
    seen = (*state, *[column[:end].tobytes() for column in columns])
    if seen == before.seen:
        return before
    look = Look(seen, _cells(table, end, ink))
    n_known = len(before.cells) if before is not NOTHING and before.seen[3] == table.half_alive else 0
    two_d = cache.spec.n_pos_per_embd >= 3
    for i, cell in enumerate(look.cells):
        if i < n_known and cell == before.cells[i]:
            entry, row = before.entries[i], before.rows[i]
        else:
            entry, row = _taken_apart(cell, stream, i, two_d, i in table.half_alive)
        look.entries.append(entry)
        look.rows.append(row)
    head, used, has_shift, _ = state
    listed = [row for row in look.rows if row is not None]
    look.record.update(head=head, used=used, has_shift=has_shift, cells=listed)
    look.held.update(_held(look, before))
    return look


def _cells(table: CellTable, end: int, ink: Ink | None) -> list[Cell]:
    instance, turned = ink or (np.zeros(table.size, np.int32),) * 2
    columns = (table.pos, instance, turned, table.shift, table.tok, table.x, table.y)
    words = table.seq[:, :end].tolist()
    owners = words[0] if len(words) == 1 else zip(*words, strict=True)
    return list(zip(*[column[:end].tolist() for column in columns], owners, strict=True))


def _taken_apart(
    cell: Cell, stream: int, i: int, two_d: bool, half_alive: bool
) -> tuple[Entry | None, list[Any] | None]:
    pos, instance, turned, shift, tok, x, y, owners = cell
    if pos == -1 and not half_alive:
        return None, None
    row = [i, pos, ids_of(owners), shift, tok, x, y]
    if pos == -1:
        return None, row
    return Entry(pos, instance, turned, shift, (y, x) if two_d else (0, 0), (stream, i)), row


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


def together(looks: Sequence[Look]) -> Held:
    """What all streams hold."""
    if len(looks) == 1:
        return looks[0].held
    held: Held = {}
    for look in looks:
        for s, entries in look.held.items():
            held[s] = held[s] + entries if s in held else entries
    return held


def prove(table: CellTable, look: Look) -> None:
    """Compare what a table keeps incrementally with what was just seen of its cells (cells I1-I5). Raises
    IntegrityError."""
    positions = [cell[0] for cell in look.cells]
    live = len(positions) - positions.count(-1)
    if table.n_live != live:
        raise IntegrityError(f"{table.n_live} live cells counted, {live} found (I1)")
    end = max((row[0] + 1 for row in look.rows if row is not None), default=0)
    if table.used_max_p1 != end:
        raise IntegrityError(f"used_max_p1 is {table.used_max_p1}, the last used cell is {end - 1}")
    if table.is_literal:
        return  # empty cells may have owners then, and what is kept is llama.cpp's own index (R21)
    for i, cell in enumerate(look.cells):
        if cell[0] == -1 and (cell[3] or ids_of(cell[7])):
            raise IntegrityError(f"empty cell {i} has owners or a pending shift (I3, I4)")
    if table.sequences() != sorted(look.held):
        raise IntegrityError(f"sequences {table.sequences()} are kept, the cells carry {sorted(look.held)}")
    for s, entries in look.held.items():
        held = [entry[0] for entry in entries]
        kept, found = (table.seq_pos_min(s), table.seq_pos_max(s)), (min(held), max(held))
        if kept != found or table.count(s) != len(held):
            raise IntegrityError(
                f"seq {s} is kept as {table.count(s)} cells from {kept}, the cells say {len(held)} from {found} (I2)"
            )
