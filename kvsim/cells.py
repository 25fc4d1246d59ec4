"""The cell table: who sits in which cell, at which position (``src/llama-kv-cells.h``).

A struct of arrays; every operation is one vectorised pass over the used part of the table.
Drawn as positions, one character a cell, ``.`` empty::

    pos    0 1 2 . . 5 6 .        seq 0 in cells 0-2, seq 1 in cells 5-6
    seq    0 0 0 . . 1 1 .

Smallest and largest position per sequence are kept on append and recomputed only after a removal.

Position -1 is both "no position" and, by a quirk of llama.cpp, a position that a batch may start at
(spec cells R21). A table that has met it keeps the literal index of llama.cpp in ``_index`` from then
on, because its content depends on history and not only on the cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import IntegrityError
from kvsim.memory import POS_INF, BoolArray, IntArray

WORD_BITS = 64
Words = NDArray[np.uint64]


def seq_words(ids: Iterable[int], n_words: int) -> list[int]:
    """The ids as ``n_words`` 64-bit words, least significant bit first."""
    words = [0] * n_words
    for s in ids:
        words[s // WORD_BITS] |= 1 << (s % WORD_BITS)
    return words


def ids_of_words(words: Sequence[int]) -> list[int]:
    """The sequence ids whose bit is set, ascending."""
    return [w * WORD_BITS + b for w, word in enumerate(words) for b in range(WORD_BITS) if word >> b & 1]


@dataclass(frozen=True)
class SavedCells:
    """Position, ext and owners of some cells, for undoing a placement (R18). Shifts are not saved."""

    cells: IntArray
    pos: IntArray
    tok: IntArray
    x: IntArray
    y: IntArray
    seq: Words
    ranges: dict[int, tuple[int, int]]
    removals: int


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
        self.reset()

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
        self._ranges: dict[int, tuple[int, int]] = {}  # seq -> (min, max), absent: empty or stale
        self._stale: set[int] = set()  # seqs whose range must be looked up again
        self._removals = 0
        self._phantom: set[int] = set()  # cells counted as used although at position -1
        self._index: dict[int, set[tuple[int, int]]] | None = None

    def reset_shift(self) -> None:
        """All shifts 0, positions stay (R3)."""
        self.shift[: self._top] = 0
        self.has_shift = False

    # -- reading -------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Cells that are set and not freed; with R21 also those set at position -1."""
        return self.n_live + len(self._phantom)

    @property
    def used_max_p1(self) -> int:
        """One past the last used cell, 0 if none."""
        while self._top > 0 and self.pos[self._top - 1] == -1:
            live = np.flatnonzero(self.pos[max(0, self._top - 4096) : self._top] != -1)
            self._top = max(0, self._top - 4096) + (int(live[-1]) + 1 if len(live) else 0)
        return max(self._top, max(self._phantom, default=-1) + 1)

    def has(self, s: int, hi: int | None = None) -> BoolArray:
        """Which of the first ``hi`` cells (default: all up to the last used one) carry ``s``."""
        hi = self.used_max_p1 if hi is None else hi
        word, bit = divmod(s, WORD_BITS)
        if word >= len(self.seq):
            return np.zeros(hi, np.bool_)
        owned: BoolArray = (self.seq[word, :hi] & np.uint64(1 << bit)) != 0
        return owned

    def owners(self, i: int) -> list[int]:
        """The sequences that see cell ``i``, ascending."""
        return ids_of_words(self.seq[:, i].tolist())

    def sequences(self) -> list[int]:
        """Every sequence that some cell carries, ascending."""
        return ids_of_words([int(w) for w in np.bitwise_or.reduce(self.seq[:, : self.used_max_p1], axis=1)])

    def single_owner(self, s: int, lo: int, hi: int) -> BoolArray:
        """Which cells of [lo, hi) carry ``s`` and nobody else."""
        words = self.seq[:, lo:hi]
        want = seq_words([s], len(words)) if s < WORD_BITS * len(words) else None
        if want is None:
            return np.zeros(hi - lo, np.bool_)
        alone: BoolArray = words[0] == np.uint64(want[0])
        for word, wanted in zip(words[1:], want[1:], strict=True):
            alone &= word == np.uint64(wanted)
        return alone

    def seq_pos_min(self, s: int) -> int:
        """Smallest position of ``s``, -1 if none."""
        return self._range(s)[0]

    def seq_pos_max(self, s: int) -> int:
        """Largest position of ``s``, -1 if none."""
        return self._range(s)[1]

    def _range(self, s: int) -> tuple[int, int]:
        if self._index is not None:
            entries = self._index.get(s)
            return (min(entries)[0], max(entries)[0]) if entries else (-1, -1)
        if s in self._stale:
            self._stale.discard(s)
            held = self.pos[: self._top][self.has(s, self._top)]
            if len(held):
                self._ranges[s] = (int(held.min()), int(held.max()))
            else:
                self._ranges.pop(s, None)
        return self._ranges.get(s, (-1, -1))

    def by_position(self, s: int) -> tuple[IntArray, IntArray]:
        """Positions and cells of ``s``, sorted by position, then cell: the index llama.cpp keeps."""
        if self._index is not None:
            entries = sorted(self._index.get(s, ()))
            table = np.array(entries, np.int32).reshape(-1, 2)
            return table[:, 0], table[:, 1]
        cells = np.flatnonzero(self.has(s)).astype(np.int32)
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
        if self._index is None and (pos == -1).any():
            self._build_index()
        self.pos[cells] = pos
        self._own(cells, seq_ids)
        if self._index is None:
            self.n_live += len(cells)
            self._widen(pos, seq_ids)
        else:
            self._place_indexed(cells, pos, seq_ids)
        self._top = max(self._top, int(cells.max()) + 1)

    def set_ext(self, cells: IntArray, tok: Any, x: Any = 0, y: Any = 0) -> None:
        """Overwrite token id and 2-D position of cells, empty or not (R5)."""
        self.tok[cells] = tok
        self.x[cells] = x
        self.y[cells] = y

    def rm(self, cells: IntArray) -> None:
        """Free cells for every owner (R8)."""
        for s in ids_of_words([int(w) for w in np.bitwise_or.reduce(self.seq[:, cells], axis=1)]):
            self._stale.add(s)
        if self._index is not None:
            self._index_rm(cells)
        self._free(cells)

    def seq_rm(self, s: int, p0: int, p1: int) -> tuple[IntArray, IntArray]:
        """Drop ``s`` from its cells in [p0, p1) (R7). Returns (cells that lost it, cells freed by that)."""
        lost = np.flatnonzero(self._in_range(p0, p1) & self.has(s, self._top)).astype(np.int32)
        if not len(lost):
            return lost, lost
        if self._index is not None:
            self._index_drop(s, lost)
        word, bit = divmod(s, WORD_BITS)
        self.seq[word, lost] &= ~np.uint64(1 << bit)
        freed = lost[~self.seq[:, lost].any(axis=0)]
        if p0 == 0 and p1 == POS_INF:
            self._ranges.pop(s, None)
            self._stale.discard(s)
        else:
            self._stale.add(s)
        self._free(freed)
        return lost, freed

    def rm_range(self, p0: int, p1: int) -> IntArray:
        """Free every cell in [p0, p1) for every owner. Returns the freed cells."""
        freed = np.flatnonzero(self._in_range(p0, p1)).astype(np.int32)
        self.rm(freed)
        return freed

    def seq_keep(self, s: int) -> tuple[IntArray, IntArray]:
        """Only ``s`` stays (R9). Returns (cells that lost other owners, cells freed). A used cell without
        any owner survives."""
        hi = self.used_max_p1
        mine = self.has(s, hi)
        anyone: BoolArray = self.seq[:, :hi].any(axis=0)
        freed = np.flatnonzero(anyone & ~mine).astype(np.int32)
        lone = self.single_owner(s, 0, hi)
        shed = np.flatnonzero(mine & ~lone).astype(np.int32)
        if self._index is not None:
            self._index_keep(s, freed, np.flatnonzero(mine))
        kept = self._ranges.get(s)
        self._ranges = {s: kept} if kept is not None else {}
        self._stale &= {s}
        word, bit = divmod(s, WORD_BITS)
        self.seq[:, shed] = 0
        if len(shed):
            self.seq[word, shed] = np.uint64(1 << bit)
        self._free(freed)
        return shed, freed

    def seq_share(self, src: int, dst: int, p0: int, p1: int) -> IntArray:
        """Add ``dst`` to the cells of ``src`` in [p0, p1). Returns the cells that gained it."""
        cells = np.flatnonzero(self._in_range(p0, p1) & self.has(src, self._top)).astype(np.int32)
        if not len(cells):
            return cells
        self._grow(dst)
        word, bit = divmod(dst, WORD_BITS)
        gained = cells[(self.seq[word, cells] & np.uint64(1 << bit)) == 0]
        self.seq[word, cells] |= np.uint64(1 << bit)
        if self._index is not None:
            self._index.setdefault(dst, set()).update((int(self.pos[i]), int(i)) for i in cells)
        else:
            taken = self.pos[cells]
            self._extend(dst, int(taken.min()), int(taken.max()))
        return gained

    def pos_add(self, s: int, p0: int, p1: int, delta: int) -> tuple[IntArray, IntArray]:
        """Move the cells of ``s`` in [p0, p1) by ``delta``, for every owner (R13). A cell that would fall
        below 0 is freed for all of them, but keeps its stale ext (R14, R16). Returns (moved, freed)."""
        cells = np.flatnonzero(self._in_range(p0, p1) & self.has(s, self._top)).astype(np.int32)
        if not len(cells):
            return cells, cells
        self._retire(cells)
        self.pos[cells] += np.int32(delta)
        self.shift[cells] += np.int32(delta)
        self.has_shift = True
        below = self.pos[cells] < 0
        freed, moved = cells[below], cells[~below]
        self._index_rm(freed)
        tok, x, y = self.tok[freed], self.x[freed], self.y[freed]
        self._free(freed)
        self.set_ext(freed, tok, x, y)
        self._index_add(moved)
        return moved, freed

    def pos_div(self, s: int, p0: int, p1: int, d: int) -> IntArray:
        """Divide the positions of the cells of ``s`` in [p0, p1), toward zero. The shift grows by old minus
        new, the sign llama.cpp uses (R15). Returns the cells."""
        cells = np.flatnonzero(self._in_range(p0, p1) & self.has(s, self._top)).astype(np.int32)
        if not len(cells):
            return cells
        self._retire(cells)
        old = self.pos[cells]
        new = np.trunc(old / d).astype(np.int32)
        self.pos[cells] = new
        self.shift[cells] += old - new
        self.has_shift = True
        self._index_add(cells)
        if (new == -1).any():
            self._mark_phantoms(cells[new == -1])
        return cells

    def save(self, cells: IntArray) -> SavedCells:
        """What :meth:`restore` needs to undo a placement into ``cells`` (R18)."""
        return SavedCells(
            cells, self.pos[cells], self.tok[cells], self.x[cells], self.y[cells], self.seq[:, cells],
            dict(self._ranges) if not self._stale else {}, -1 if self._stale else self._removals,
        )  # fmt: skip

    def restore(self, saved: SavedCells) -> None:
        """Put back position, ext and owners (R19). ``shift`` and ``has_shift`` are untouched."""
        cells = saved.cells
        was_live, is_live = self.pos[cells] != -1, saved.pos != -1
        self.n_live += int(is_live.sum()) - int(was_live.sum())
        if self._index is not None:
            self._index_rm(cells[was_live])
            self._phantom -= set(cells[was_live | is_live].tolist())
        elif saved.removals == self._removals:
            self._ranges = dict(saved.ranges)
            self._stale.clear()
        else:
            self._stale.update(self._ids_in(self.seq[:, cells]), self._ids_in(saved.seq))
        self.pos[cells] = saved.pos
        self.set_ext(cells, saved.tok, saved.x, saved.y)
        self.seq[: len(saved.seq), cells] = saved.seq
        self.seq[len(saved.seq) :, cells] = 0
        self._top = max(self._top, int(cells.max(initial=-1)) + 1)
        self._index_add(cells[is_live])

    def set_row(self, i: int, pos: int, ids: Sequence[int], shift: int = 0) -> None:
        """Fill one free cell with everything but ext, as whole-state restores and stream copies do."""
        self.place(np.array([i], np.int32), np.array([pos], np.int32), [ids])
        if shift:
            self.shift[i] = shift
            self.has_shift = True

    # -- the parts every operation is made of --------------------------------------------------

    def _in_range(self, p0: int, p1: int) -> BoolArray:
        """pos_in (R11) over the cells up to the last used one; p0 is already clamped to >= 0."""
        held = self.pos[: self.used_max_p1]
        self._top = len(held)
        inside: BoolArray = held >= p0
        if p1 < POS_INF:
            inside &= held < p1
        return inside

    def _grow(self, s: int) -> None:
        """Make room for the owner bit of ``s``: one word until an id of 64 or more appears, then four."""
        if s >= WORD_BITS * len(self.seq):
            wider = np.zeros((4, self.size), np.uint64)
            wider[: len(self.seq)] = self.seq
            self.seq = wider

    def _own(self, cells: IntArray, seq_ids: Sequence[Sequence[int]]) -> None:
        first = seq_ids[0]
        if all(ids == first for ids in seq_ids):
            for s in first:
                self._grow(s)
                self.seq[s // WORD_BITS, cells] |= np.uint64(1 << s % WORD_BITS)
            return
        self._grow(max((s for ids in seq_ids for s in ids), default=0))
        words = np.array([seq_words(ids, len(self.seq)) for ids in seq_ids], np.uint64)
        self.seq[:, cells] |= words.T

    def _widen(self, pos: IntArray, seq_ids: Sequence[Sequence[int]]) -> None:
        """Let the ranges take in the positions just placed."""
        first = seq_ids[0]
        if all(ids == first for ids in seq_ids):
            lo, hi = int(pos.min()), int(pos.max())
            for s in first:
                self._extend(s, lo, hi)
            return
        for p, ids in zip(pos.tolist(), seq_ids, strict=True):
            for s in ids:
                self._extend(s, p, p)

    def _extend(self, s: int, lo: int, hi: int) -> None:
        if s in self._stale:
            return
        have = self._ranges.get(s)
        self._ranges[s] = (lo, hi) if have is None else (min(lo, have[0]), max(hi, have[1]))

    def _ids_in(self, words: Words) -> list[int]:
        return ids_of_words([int(w) for w in np.bitwise_or.reduce(words, axis=1)])

    def _retire(self, cells: IntArray) -> None:
        """The owners of ``cells`` are about to see other positions."""
        self._removals += 1
        self._stale.update(self._ids_in(self.seq[:, cells]))
        self._index_rm(cells)

    def _free(self, cells: IntArray) -> None:
        """Back to the empty value; callers have told the ranges and the index."""
        if not len(cells):
            return
        self._removals += 1
        phantoms = self._phantom.intersection(cells.tolist()) if self._phantom else set()
        self.n_live -= len(cells) - len(phantoms)
        self._phantom -= phantoms
        if len(cells) == int(cells[-1]) - int(cells[0]) + 1:  # a run: slices are several times faster
            run = slice(int(cells[0]), int(cells[-1]) + 1)
            self._blank(run)
        else:
            self._blank(cells)

    def _blank(self, at: IntArray | slice) -> None:
        self.pos[at] = -1
        self.seq[:, at] = 0
        self.shift[at] = 0
        self.tok[at] = -1
        self.x[at] = 0
        self.y[at] = 0

    # -- the literal index, kept only once position -1 was met (R21) ---------------------------

    def _build_index(self) -> None:
        self._index = {}
        live = np.flatnonzero(self.pos != -1)
        self._index_add(live.astype(np.int32))

    def _index_add(self, cells: IntArray) -> None:
        if self._index is None:
            return
        for i in cells.tolist():
            for s in self.owners(i):
                self._index.setdefault(s, set()).add((int(self.pos[i]), i))

    def _index_rm(self, cells: IntArray) -> None:
        if self._index is None:
            return
        for i in cells.tolist():
            for s in self.owners(i):
                self._index.get(s, set()).discard((int(self.pos[i]), i))

    def _index_drop(self, s: int, cells: IntArray) -> None:
        assert self._index is not None
        for i in cells.tolist():
            self._index.get(s, set()).discard((int(self.pos[i]), i))

    def _index_keep(self, s: int, freed: IntArray, mine: NDArray[np.intp]) -> None:
        """Every cell with an owner leaves the index; those of ``s`` come back under ``s`` alone."""
        assert self._index is not None
        self._index_rm(freed)
        self._index_rm(mine.astype(np.int32))
        for i in mine.tolist():
            self._index.setdefault(s, set()).add((int(self.pos[i]), i))

    def _place_indexed(self, cells: IntArray, pos: IntArray, seq_ids: Sequence[Sequence[int]]) -> None:
        """Placing with the index: bits of a half-alive cell stay, only the new owners are entered."""
        assert self._index is not None
        for i, p, ids in zip(cells.tolist(), pos.tolist(), seq_ids, strict=True):
            for s in ids:
                self._index.setdefault(s, set()).add((p, i))
            if p == -1:
                self._phantom.add(i)
            else:
                self._phantom.discard(i)
                self.n_live += 1

    def _mark_phantoms(self, cells: IntArray) -> None:
        """Cells whose position became -1 by a division: empty by the only test, yet listed as used."""
        self.n_live -= len(cells)
        if self._index is None:
            self._build_index()
        assert self._index is not None
        for i in cells.tolist():
            self._phantom.add(i)
            for s in self.owners(i):
                self._index.setdefault(s, set()).add((-1, i))

    # -- proof ---------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Compare everything kept incrementally with a fresh computation (cells I1-I5)."""
        live = self.pos != -1
        if self.n_live != int(live.sum()):
            raise IntegrityError(f"{self.n_live} live cells counted, {int(live.sum())} found")
        last = int(np.flatnonzero(live)[-1]) + 1 if live.any() else 0
        if self.used_max_p1 != max(last, max(self._phantom, default=-1) + 1):
            raise IntegrityError(f"used_max_p1 is {self.used_max_p1}, the last used cell is {last - 1}")
        if (self.shift[~live] != 0).any() and not self._phantom:
            raise IntegrityError("an empty cell has a pending shift (I4)")
        if self._index is not None:
            return
        owned = self.seq.any(axis=0)
        if (owned & ~live).any():
            raise IntegrityError(f"empty cells {np.flatnonzero(owned & ~live).tolist()} have owners (I3)")
        for s in set(self.sequences()) | set(self._ranges):
            held = self.pos[self.has(s, self.size)]
            found = (int(held.min()), int(held.max())) if len(held) else (-1, -1)
            if self._range(s) != found:
                raise IntegrityError(f"range of seq {s} is kept as {self._range(s)}, the cells say {found} (I2)")

    def rows(self) -> list[list[Any]]:
        """Every used cell as ``[index, pos, [ids], shift, tok, x, y]``: the cells of a trace's picture."""
        cells = np.flatnonzero(self.pos[: self.used_max_p1] != -1)
        if self._phantom:
            cells = np.array(sorted({*cells.tolist(), *self._phantom}), np.intp)
        known: dict[tuple[int, ...], list[int]] = {}
        owners = []
        for words in zip(*(word[cells].tolist() for word in self.seq), strict=True):
            if words not in known:
                known[words] = ids_of_words(words)
            owners.append(known[words])
        columns = (a[cells].tolist() for a in (self.pos, self.shift, self.tok, self.x, self.y))
        pos, shift, tok, x, y = columns
        return [list(row) for row in zip(cells.tolist(), pos, owners, shift, tok, x, y, strict=True)]
