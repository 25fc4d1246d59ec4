"""The cell table: who sits in which cell, at which position (``src/llama-kv-cells.h``).

A struct of arrays; every operation is one vectorised pass over the used part of the table.
Drawn as positions, one character a cell, ``.`` empty::

    pos    0 1 2 . . 5 6 .        seq 0 in cells 0-2, seq 1 in cells 5-6
    seq    0 0 0 . . 1 1 .

Position -1 is both "no position" and, by a quirk of llama.cpp, a position that a batch may start at (spec
cells R21): such a cell is empty by the only test there is, and yet counted as used.

What each sequence's smallest and largest position are is kept by :mod:`kvsim.seq_ranges`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvsim.cell_index import Index, index_of, live_of, where
from kvsim.cell_rows import CellRows
from kvsim.errors import CacheUsageError, IntegrityError
from kvsim.memory import MAX_SEQ, POS_INF, BoolArray, IntArray
from kvsim.owner_words import Words, bit_of, ids_of_words, only_owner_p1, owned_alone
from kvsim.seq_ranges import FEW, PositionIndex, SeqRanges, greatest, least

HANDFUL = 64
"""Cells that cost less one by one than as an array."""

Change = Callable[[PositionIndex, int, IntArray, IntArray], None]


class SavedCells(NamedTuple):
    """Position, ext and owners of some cells, for undoing a placement (R18). Shifts are not saved."""

    cells: IntArray
    pos: IntArray
    tok: IntArray
    x: IntArray
    y: IntArray
    seq: Words


class CellTable:
    """``n`` cells of one stream. Fields: ``pos`` (-1 empty), ``seq`` (owner bits ``uint64[words, n]``),
    ``shift`` (position deltas not yet applied to K), ``tok``, ``x``, ``y`` (all ``int32[n]``)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pos: IntArray = np.empty(size, np.int32)
        self.shift: IntArray = np.empty(size, np.int32)
        self.tok: IntArray = np.empty(size, np.int32)
        self.x: IntArray = np.empty(size, np.int32)
        self.y: IntArray = np.empty(size, np.int32)
        self.seq: Words = np.zeros((1, size), np.uint64)
        self._rows = CellRows(ids_of_words)
        self.reset()

    def __deepcopy__(self, memo: dict[int, Any]) -> CellTable:
        """Memories are copied to try things on, which is no time to go through all this attribute by attribute."""
        twin = copy.copy(self)
        twin.pos, twin.shift, twin.tok = self.pos.copy(), self.shift.copy(), self.tok.copy()
        twin.x, twin.y, twin.seq = self.x.copy(), self.y.copy(), self.seq.copy()
        twin._rows, twin._phantom = copy.deepcopy(self._rows), set(self._phantom)
        twin._ranges, twin._literal = copy.deepcopy(self._ranges), copy.deepcopy(self._literal)
        twin._kept = twin._ranges if twin._literal is None else twin._literal
        return twin

    def reset(self) -> None:
        """Every field back to the fresh value (R1)."""
        self.pos.fill(-1)
        self.shift.fill(0)
        self.tok.fill(-1)
        self.x.fill(0)
        self.y.fill(0)
        self.seq.fill(0)
        self.has_shift = False
        self.n_live = 0  # cells with a position
        self._top = 0  # no live cell at or after this index
        self._phantom: set[int] = set()  # cells counted as used although at position -1 (R21)
        self._ranges = SeqRanges()
        self._literal: PositionIndex | None = None  # instead of _ranges once a position was negative
        self._kept: SeqRanges | PositionIndex = self._ranges  # what knows the positions of the sequences

    def reset_shift(self) -> None:
        """All shifts 0, positions stay (R3)."""
        self.shift[: self.extent] = 0
        self.has_shift = False

    # -- reading -------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Cells that are set and not freed; with R21 also those set at position -1."""
        return self.n_live + len(self._phantom)

    @property
    def used_max_p1(self) -> int:
        """One past the last used cell, 0 if none."""
        while self._top > 0 and self.pos.item(self._top - 1) == -1:
            live = np.flatnonzero(self.pos[max(0, self._top - 4096) : self._top] != -1)
            self._top = max(0, self._top - 4096) + (int(live[-1]) + 1 if len(live) else 0)
        return max(self._top, max(self._phantom) + 1) if self._phantom else self._top

    @property
    def extent(self) -> int:
        """Cells from here on have no owner. With R21 any may have one, used or not."""
        return self.used_max_p1 if self._literal is None else self.size

    def has(self, s: int, hi: int | None = None) -> BoolArray:
        """Which of the first ``hi`` cells (default: :attr:`extent`) carry ``s``."""
        hi = self.extent if hi is None else hi
        word, bit = bit_of(s)
        if word >= len(self.seq):
            return np.zeros(hi, np.bool_)
        owned: BoolArray = (self.seq[word, :hi] & bit) != 0
        return owned

    def owners(self, i: int) -> list[int]:
        """The sequences that see cell ``i``, ascending."""
        return ids_of_words(self.seq[:, i].tolist())

    def occupied(self) -> IntArray:
        """The cells that count as used, ascending: those with a position, and the half-alive ones (R21)."""
        cells = where(self.pos[: self.used_max_p1] != -1)
        return np.array(sorted({*cells.tolist(), *self._phantom}), np.int32) if self._phantom else cells

    @property
    def half_alive(self) -> frozenset[int]:
        """Cells at position -1 that yet count as used (R21)."""
        return frozenset(self._phantom)

    def sequences(self) -> list[int]:
        """Every sequence that some cell carries, ascending."""
        return self._kept.sequences()

    def count(self, s: int) -> int:
        """How many cells carry ``s``, as it is kept while no position was negative."""
        return self._ranges.count(s)

    @property
    def is_literal(self) -> bool:
        """Whether a position was ever negative, so that llama.cpp's own index is kept (R21)."""
        return self._literal is not None

    def single_owner(self, s: int, lo: int, hi: int) -> BoolArray:
        """Which cells of [lo, hi) carry ``s`` and nobody else."""
        return owned_alone(self.seq[:, lo:hi], s)

    def passed(self, lo: int, hi: int, starts: Mapping[int, int]) -> BoolArray:
        """Which cells of [lo, hi) have one owner alone, and lie before the position that ``starts`` gives
        for it."""
        pos = self.pos[lo:hi]
        if hi - lo <= HANDFUL and len(self.seq) == 1:
            begins = {1 << s: start for s, start in starts.items()}
            held = zip(pos.tolist(), self.seq[0, lo:hi].tolist(), strict=True)
            return np.array([p < begins.get(owners, -POS_INF) for p, owners in held], np.bool_)
        out = np.zeros(hi - lo, np.bool_)
        low = np.flatnonzero(pos < max(starts.values()))
        if len(low):
            start_of = np.full(MAX_SEQ + 1, -POS_INF, np.int32)  # by owner + 1
            for s, start in starts.items():
                start_of[s + 1] = start
            out[low] = pos[low] < start_of[only_owner_p1(self.seq[:, low + lo])]
        return out

    def seq_pos_min(self, s: int) -> int:
        """Smallest position of ``s``, -1 if none."""
        return self.seq_range(s)[0]

    def seq_pos_max(self, s: int) -> int:
        """Largest position of ``s``, -1 if none."""
        return self.seq_range(s)[1]

    def seq_range(self, s: int) -> tuple[int, int]:
        """Smallest and largest position of ``s``, -1 if none."""
        known = self._kept.range(s)
        if known is None:
            self._ranges.learn(s, self.pos[: self._top][self.has(s, self._top)])
            known = self._ranges.range(s)
            assert known is not None
        return known

    def positions(self, s: int, start: int = 0) -> list[int]:
        """The positions of ``s`` from ``start`` on, ascending; each as often as cells hold it."""
        start = max(start, 0)
        run = self._ranges.run(s) if self._literal is None else None
        if run is not None:
            return list(range(max(start, run[0]), run[1]))
        held: list[int] = self.pos[self.has(s, self.size) & (self.pos >= start)].tolist()
        return sorted(held)

    def by_position(self, s: int) -> tuple[IntArray, IntArray]:
        """Positions and cells of ``s``, sorted by position, then cell: the index llama.cpp keeps."""
        if self._literal is not None:
            return self._literal.by_position(s)
        cells = where(self.has(s))
        order = np.argsort(self.pos[cells], kind="stable")
        return self.pos[cells][order], cells[order]

    def seq_pos_tok_le(self, s: int, p: int) -> int:
        """Token of the cell of ``s`` at the greatest position <= ``p``, -1 if none; at equal positions the
        highest cell wins (R12)."""
        positions, cells = self.by_position(s)
        at = int(np.searchsorted(positions, p, side="right"))
        return int(self.tok[cells[at - 1]]) if at else -1

    # -- writing -------------------------------------------------------------------------------

    def place(self, cells: IntArray, pos: IntArray, seq_ids: Sequence[Sequence[int]]) -> None:
        """Set the positions of empty cells and add their owners (R4, R6). Ext is left as it is."""
        if not len(cells):
            return
        if self._literal is None and least(pos) < 0:
            self._go_literal()
        at = index_of(cells)
        self.pos[at] = pos
        ranges = self._kept
        for s, rows in _rows_by_sequence(seq_ids):
            word, bit = self._bit_for(s)
            if rows is None:
                self.seq[word][at] |= bit
                ranges.add(s, cells, pos)
            else:
                mine = cells[rows]
                self.seq[word][index_of(mine)] |= bit
                ranges.add(s, mine, pos[rows])
        self.n_live += len(cells)
        if self._literal is not None:
            self._note_phantoms(cells, pos)
        self._top = max(self._top, greatest(cells) + 1)

    def set_ext(self, at: IntArray | Index, tok: Any, x: Any = 0, y: Any = 0) -> None:
        """Overwrite token id and 2-D position of cells, empty or not (R5)."""
        self.tok[at] = tok
        self.x[at] = x
        self.y[at] = y

    def evict(self, cells: IntArray) -> dict[int, int]:
        """Free those of ``cells`` that are live (R8). Returns per owner the largest position it lost."""
        taken = live_of(cells, self.pos[index_of(cells)])
        lost: dict[int, int] = {}
        for s, mine in self._by_owner(taken):
            pos = self.pos[index_of(mine)]
            lost[s] = greatest(pos)
            self._kept.drop(s, mine, pos)
        self._free(taken)
        return lost

    def seq_rm(self, s: int, p0: int, p1: int) -> tuple[IntArray, IntArray]:
        """Drop ``s`` from its cells in [p0, p1) (R7). Returns (cells that lost it, cells freed by that)."""
        lost = self._cells_of(s, p0, p1)
        if not len(lost):
            return lost, lost
        at = index_of(lost)
        self._kept.drop_range(s, p0, p1, lost, self.pos[at])
        word, bit = bit_of(s)
        left = self.seq[word][at] & ~bit
        self.seq[word][at] = left
        empty = left == 0
        for other in range(len(self.seq)):
            if other != word:
                empty &= self.seq[other, at] == 0
        freed = lost if np.count_nonzero(empty) == len(lost) else lost[empty]
        self._free(freed)
        return lost, freed

    def rm_range(self, p0: int, p1: int) -> IntArray:
        """Free every cell in [p0, p1) for every owner. Returns the freed cells."""
        freed = where(self._in_range(p0, p1))
        if len(freed):
            ranges = self._kept
            for s, mine in self._by_owner(freed):
                ranges.drop_range(s, p0, p1, mine, self.pos[mine])
            self._free(freed)
        return freed

    def seq_keep(self, s: int) -> tuple[IntArray, IntArray]:
        """Only ``s`` stays (R9). Returns (cells that lost other owners, cells freed). A used cell without
        any owner survives."""
        hi = self.extent
        owned = np.zeros(hi, np.bool_)
        for word in self.seq[:, :hi]:
            owned |= word != 0
        mine = self.has(s, hi)
        freed = where(owned & ~mine)
        shed = where(mine & ~self.single_owner(s, 0, hi))
        if self._literal is not None:
            self._keep_literally(s, np.concatenate([freed, where(mine)]))
            dead = freed[self.pos[freed] == -1]
            self.n_live += len(dead)  # _free takes them for live ones
            self._phantom.difference_update(dead.tolist())
        self._ranges.keep(s)
        if len(shed):
            word, bit = bit_of(s)
            at = index_of(shed)
            self.seq[:, at] = 0
            self.seq[word, at] = bit
        self._free(freed)
        return shed, freed

    def seq_share(self, src: int, dst: int, p0: int, p1: int) -> IntArray:
        """Add ``dst`` to the cells of ``src`` in [p0, p1) (R6). Returns the cells that gained it."""
        cells = self._cells_of(src, p0, p1)
        if not len(cells):
            return cells
        word, bit = self._bit_for(dst)
        at = index_of(cells)
        before = self.seq[word][at]
        gained: BoolArray = (before & bit) == 0
        self._kept.share(src, dst, cells, self.pos[at], gained)
        self.seq[word][at] = before | bit
        return cells if np.count_nonzero(gained) == len(cells) else cells[gained]

    def pos_add(self, s: int, p0: int, p1: int, delta: int) -> tuple[IntArray, IntArray]:
        """Move the cells of ``s`` in [p0, p1) by ``delta``, for every owner (R13). A cell that would fall
        below 0 is freed for all of them, but keeps its stale ext (R14, R16). Returns (moved, freed)."""
        cells = self._cells_of(s, p0, p1)
        if not len(cells):
            return cells, cells
        at = index_of(cells)
        if self._literal is not None:
            self._index_each(cells, PositionIndex.drop)
        pos = self.pos[at] + np.int32(delta)
        self.pos[at] = pos
        self.shift[at] += np.int32(delta)
        self.has_shift = True
        below = pos < 0
        freed, moved = (cells[below], cells[~below]) if np.count_nonzero(below) else (cells[:0], cells)
        self._ranges_moved(s, cells, freed, delta)
        tok, x, y = self.tok[freed], self.x[freed], self.y[freed]
        self._free(freed)
        self.set_ext(freed, tok, x, y)
        if self._literal is not None:
            self._index_each(moved, PositionIndex.add)
        return moved, freed

    def pos_div(self, s: int, p0: int, p1: int, d: int) -> IntArray:
        """Divide the positions of the cells of ``s`` in [p0, p1), toward zero. The shift grows by old minus
        new, the sign llama.cpp uses (R15). Returns the cells."""
        cells = self._cells_of(s, p0, p1)
        if not len(cells):
            return cells
        at = index_of(cells)
        old = self.pos[at].copy()
        new = np.trunc(old / d).astype(np.int32)
        if self._literal is None and least(new) < 0:
            self._go_literal()
        if self._literal is not None:
            self._index_each(cells, PositionIndex.drop)
        self.pos[at] = new
        self.shift[at] += old - new
        self.has_shift = True
        self._ranges_moved(s, cells, cells[:0], None)
        if self._literal is not None:
            self._index_each(cells, PositionIndex.add)
            self._note_phantoms(cells, new)
        return cells

    def move(self, src: IntArray, dst: IntArray) -> None:
        """Move cells to empty ones, pairwise, with everything they hold; the sources become empty (D6).

        Raises CacheUsageError, before anything has changed, if a source is empty or a target is not.
        """
        if bool((self.pos[src] == -1).any()) or bool((self.pos[dst] != -1).any() or self.seq[:, dst].any()):
            raise CacheUsageError(
                "cells can move only from used ones to empty ones: plan the moves on the table as it is now"
            )
        if self._literal is not None:
            self._index_each(src, PositionIndex.drop)
        for column in (self.pos, self.shift, self.tok, self.x, self.y):
            column[dst] = column[src]
        self.seq[:, dst] = self.seq[:, src]
        self._free(np.sort(src))
        self.n_live += len(src)  # _free takes them for lost
        self._top = max(self._top, greatest(dst) + 1)
        if self._literal is not None:
            self._index_each(dst, PositionIndex.add)

    def save(self, cells: IntArray) -> SavedCells:
        """What :meth:`restore` needs to undo a placement into ``cells`` (R18)."""
        at = index_of(cells)
        pos, tok, x, y = self.pos[at].copy(), self.tok[at].copy(), self.x[at].copy(), self.y[at].copy()
        return SavedCells(cells, pos, tok, x, y, self.seq[:, at].copy())

    def restore(self, saved: SavedCells) -> None:
        """Put back position, ext and owners (R19). ``shift`` and ``has_shift`` are untouched."""
        cells, at, ranges = saved.cells, index_of(saved.cells), self._kept
        was_live, is_live = live_of(cells, self.pos[at]), live_of(cells, saved.pos)
        for s, mine in self._by_owner(was_live):
            ranges.drop(s, mine, self.pos[index_of(mine)])
        self.n_live += len(is_live) - len(was_live)
        if self._phantom:
            self._phantom.difference_update(was_live.tolist(), is_live.tolist())
        self.pos[at] = saved.pos
        self.set_ext(at, saved.tok, saved.x, saved.y)
        self.seq[: len(saved.seq), at] = saved.seq
        if len(self.seq) > len(saved.seq):
            self.seq[len(saved.seq) :, at] = 0
        for s, mine in self._by_owner(is_live):
            ranges.add(s, mine, self.pos[index_of(mine)])
        self._top = max(self._top, greatest(cells) + 1)

    # -- the parts every operation is made of --------------------------------------------------

    def _in_range(self, p0: int, p1: int) -> BoolArray:
        """pos_in (R11) over the cells up to :attr:`extent`; p0 is already clamped to >= 0."""
        held = self.pos[: self.extent]
        inside: BoolArray = held >= p0
        if p1 < POS_INF:
            inside &= held < p1
        return inside

    def _cells_of(self, s: int, p0: int, p1: int) -> IntArray:
        """The cells of ``s`` in [p0, p1), ascending."""
        if p0 == 0 and p1 == POS_INF and self._literal is None:
            return where(self.has(s))
        return where(self._in_range(p0, p1) & self.has(s))

    def _by_owner(self, cells: IntArray) -> Iterable[tuple[int, IntArray]]:
        """Each owner of some of ``cells``, with those that it owns."""
        if not len(cells):
            return ()
        at = cells.astype(np.intp)
        if len(cells) <= FEW:
            owners = list(zip(*[word[at].tolist() for word in self.seq], strict=True))
            if owners.count(owners[0]) == len(owners):
                return [(s, cells) for s in ids_of_words(owners[0])]
        bits = self.seq[:, at]
        parts = []
        for s in ids_of_words(np.bitwise_or.reduce(bits, axis=1).tolist()):
            word, bit = bit_of(s)
            mine = (bits[word] & bit) != 0
            parts.append((s, cells if np.count_nonzero(mine) == len(cells) else cells[mine]))
        return parts

    def _bit_for(self, s: int) -> tuple[int, np.uint64]:
        """Where the owner bit of ``s`` is, having made room for it: one word until an id of 64 or more appears,
        then four."""
        word, bit = bit_of(s)
        if word >= len(self.seq):
            wider = np.zeros((4, self.size), np.uint64)
            wider[: len(self.seq)] = self.seq
            self.seq = wider
        return word, bit

    def _free(self, cells: IntArray) -> None:
        """Live ``cells``, in an order that :func:`index_of` takes, back to the empty value; the caller has told
        the ranges."""
        if not len(cells):
            return
        self.n_live -= len(cells)
        at = index_of(cells)
        self.pos[at] = -1
        self.seq[:, at] = 0
        self.shift[at] = 0
        self.tok[at] = -1
        self.x[at] = 0
        self.y[at] = 0

    def _ranges_moved(self, s: int, cells: IntArray, freed: IntArray, delta: int | None) -> None:
        """Positions of ``cells`` changed for all their owners; ``freed`` are about to be gone. ``delta``:
        by how much, if by the same for all."""
        if self._literal is not None:
            return
        owners = self._owners_of(cells)
        if owners == [s] and delta is not None and not len(freed) and len(cells) == self._ranges.count(s):
            self._ranges.move(s, delta)
            return
        lost = {owner: len(mine) for owner, mine in self._by_owner(freed)} if len(freed) else {}
        for owner in owners:
            self._ranges.disturb(owner, lost.get(owner, 0))

    def _owners_of(self, cells: IntArray) -> list[int]:
        return ids_of_words(np.bitwise_or.reduce(self.seq[:, index_of(cells)], axis=1).tolist())

    # -- negative positions (R21) --------------------------------------------------------------

    def _go_literal(self) -> None:
        """From now on keep the index llama.cpp keeps, entry by entry."""
        self._literal = self._kept = PositionIndex()
        self._index_each(where(self.pos != -1), PositionIndex.add)

    def _index_each(self, cells: IntArray, change: Change) -> None:
        """Add or drop the entries of ``cells``, for every owner."""
        assert self._literal is not None
        for s, mine in self._by_owner(cells):
            change(self._literal, s, mine, self.pos[mine])

    def _keep_literally(self, s: int, cells: IntArray) -> None:
        """Every cell that has an owner leaves the index; those of ``s`` come back under ``s`` alone."""
        assert self._literal is not None
        self._index_each(cells, PositionIndex.drop)
        mine = cells[self.has(s, self.size)[cells]]
        self._literal.add(s, mine, self.pos[mine])

    def _note_phantoms(self, cells: IntArray, pos: IntArray) -> None:
        """``cells``, counted as live, are at ``pos``; those at -1 are empty by the only test, yet used."""
        at_minus_one = pos == -1
        self.n_live -= int(np.count_nonzero(at_minus_one))
        self._phantom.difference_update(cells[~at_minus_one].tolist())
        self._phantom.update(cells[at_minus_one].tolist())

    # -- proof ---------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Compare everything kept incrementally with a fresh computation (cells I1-I5)."""
        live = self.pos != -1
        if self.n_live != int(live.sum()):
            raise IntegrityError(f"{self.n_live} live cells counted, {int(live.sum())} found (I1)")
        last = int(np.flatnonzero(live)[-1]) + 1 if live.any() else 0
        if self.used_max_p1 != max(last, max(self._phantom, default=-1) + 1):
            raise IntegrityError(f"used_max_p1 is {self.used_max_p1}, the last used cell is {last - 1}")
        if self._literal is not None:
            return
        if (self.shift[~live] != 0).any():
            raise IntegrityError("an empty cell has a pending shift (I4)")
        owned = self.seq.any(axis=0)
        if (owned & ~live).any():
            raise IntegrityError(f"empty cells {np.flatnonzero(owned & ~live).tolist()} have owners (I3)")
        found = ids_of_words(np.bitwise_or.reduce(self.seq, axis=1).tolist())
        if self.sequences() != found:
            raise IntegrityError(f"sequences {self.sequences()} are kept, the cells carry {found}")
        for s in found:
            held = self.pos[self.has(s, self.size)]
            if self.seq_range(s) != (int(held.min()), int(held.max())) or self._ranges.count(s) != len(held):
                raise IntegrityError(
                    f"seq {s} is kept as {self._ranges.count(s)} cells from {self.seq_range(s)}, the cells say "
                    f"{len(held)} from {int(held.min())} to {int(held.max())} (I2)"
                )

    def rows(self) -> list[list[Any]]:
        """Every used cell as ``[index, pos, [ids], shift, tok, x, y]``: the cells of a trace's picture.

        Take them as read-only: of a large table, pictures share the cells that did not change between them.
        """
        return self._rows.of(self.occupied(), (self.pos, self.shift, self.tok, self.x, self.y, *self.seq))


def _rows_by_sequence(seq_ids: Sequence[Sequence[int]]) -> Iterable[tuple[int, list[int] | None]]:
    """Each sequence, with the rows of the tokens that belong to it (None: all of them)."""
    first = seq_ids[0]
    if seq_ids.count(first) == len(seq_ids):
        return [(s, None) for s in first]
    rows: dict[int, list[int]] = {}
    for row, ids in enumerate(seq_ids):
        for s in ids:
            rows.setdefault(s, []).append(row)
    return list(rows.items())
