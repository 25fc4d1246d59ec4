"""What a recurrent memory quietly does to its callers; the ids are explained in :mod:`kvsim.hazards`.

Only an observer pays for it, but for :class:`Reach`, which must be kept from the beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.batch import Ubatch
from kvsim.caches.recurrent_cells import Placement, StateCells, owner_ids
from kvsim.memory import position_range

if TYPE_CHECKING:
    from kvsim.caches.recurrent import RecurrentMemory


class Reach:
    """How far back a rollback can really go, which llama.cpp does not know.

    ``rows``: how many tokens the snapshots of each row reach back, those of the last ubatch less one.
    ``uneven``: sequences whose positions do not count their tokens (repeated, skipped, or moved in part).
    ``dirty``: rows that empty cells take for zeroed although the graph that was to zero them did not run.
    """

    def __init__(self, size: int, n_rs_seq: int) -> None:
        self.n_rs_seq = n_rs_seq
        self.rows = [0] * size
        self.uneven: set[int] = set()
        self.dirty: set[int] = set()

    def forget(self) -> None:
        self.rows = [0] * len(self.rows)
        self.uneven.clear()
        self.dirty.clear()

    def note(self, placement: Placement, ubatch: Ubatch, src0: list[int]) -> list[int]:
        """A ubatch will be computed: its rows get snapshots; rows that are only moved lose theirs, and a dirty
        one is dirty where it comes to lie. Returns the sequences that begin in a dirty row."""
        length = ubatch.n_seq_tokens
        begun = [
            s
            for i in range(ubatch.n_seqs)
            if src0[placement.head + i] in self.dirty
            for s in ubatch.seq_ids[i * length]
        ]
        rows = range(placement.head, placement.head + placement.n)
        moved = {
            row for row in rows[ubatch.n_seqs :] if src0[row] in self.dirty and src0[row] != placement.rs_z
        }
        self.dirty = (self.dirty - set(rows)) | moved
        for i in range(placement.n):
            row = placement.head + i
            if i < ubatch.n_seqs:
                self.rows[row] = min(length - 1, self.n_rs_seq)
                self._count(ubatch, i * length, fresh=src0[row] == placement.rs_z >= 0)
            elif src0[row] != row:
                self.rows[row] = 0
        self.uneven.update(seq for ids, _, _ in placement.jumps for seq in ids)
        return begun

    def undo(self, cells: StateCells, head: int, n: int, n_seqs: int) -> None:
        """The ubatch was not computed after all: there are no snapshots, and what was to be zeroed is not."""
        self.rows[head : head + n_seqs] = [0] * n_seqs
        self.dirty.update(c for c in range(head, head + n) if not cells.owners[c])

    def _count(self, ubatch: Ubatch, at: int, fresh: bool) -> None:
        ids, length = set(ubatch.seq_ids[at]), ubatch.n_seq_tokens
        first, last = int(ubatch.pos0[at]), int(ubatch.pos0[at + length - 1])
        even = last - first == length - 1
        if fresh:
            self.uneven -= ids
        if not even or ubatch.seq_ids[at][0] in self.uneven:
            self.uneven |= ids

    def move(self, memory: RecurrentMemory, seq: int, p0: int, p1: int) -> None:
        """Positions move; if not all of them, they no longer count tokens."""
        cell = memory.cells.cell_of(seq)
        lo, hi = position_range(p0, p1)
        last = memory.cells.pos[cell] if cell >= 0 else -1
        if lo < hi and (0 < lo <= last or hi <= last):
            owners = owner_ids(memory.cells.owners[cell])
            self.uneven.update(owners)
            memory._hazard("state-knows-last-position-only", seqs=owners)

    def copy(self, src: int, dst: int) -> None:
        if src in self.uneven:
            self.uneven.add(dst)
        else:
            self.uneven.discard(dst)


def before_remove(memory: RecurrentMemory, seq: int, p0: int, p1: int) -> None:
    """A removal that misses the position of the state, but not its past."""
    if seq == -1:
        memory._hazard("remove-any-refused")
        return
    cell = memory.cells.cell_of(seq)
    lo, hi = position_range(p0, p1)
    if cell >= 0 and lo < hi <= memory.cells.pos[cell]:
        memory._hazard("state-keeps-removed", seq=seq, p0=lo, p1=hi)


def before_rollback(memory: RecurrentMemory, seq: int, cell: int, depth: int) -> None:
    """A rollback to a snapshot that was not taken, or of another token than the position says."""
    row = memory.cells.src[cell]
    if seq in memory.reach.uneven:
        memory._hazard("rollback-counts-positions", seq=seq, depth=depth)
    if memory.has_layers and row >= 0 and depth > memory.reach.rows[row]:
        memory._hazard("rollback-beyond-snapshot", seq=seq, depth=depth, reach=memory.reach.rows[row])


def before_copy(memory: RecurrentMemory, src: int, dst: int, p0: int, p1: int) -> None:
    """A copy always takes the whole state."""
    pos = memory.seq_pos_max(src)
    lo, hi = position_range(p0, p1)
    if pos >= 0 and (lo > 0 or hi <= pos):
        memory._hazard("state-copy-ignores-range", src=src, dst=dst, p0=p0, p1=p1)


def before_move(memory: RecurrentMemory, seq: int, cell: int, p0: int, p1: int, delta: int) -> None:
    """Moving a position moves it for every owner (``cell`` is -1 if the state does not move). Positions that
    fall below 0 are dropped by attention, and stay in the state."""
    own = memory.cells.cell_of(seq)
    others = [s for s in owner_ids(memory.cells.owners[own]) if s != seq] if own >= 0 else []
    if cell >= 0 and others:
        memory._hazard("state-moves-for-all-owners", seq=seq, others=others)
    lo, hi = position_range(p0, p1)
    if own >= 0 and lo < hi and lo + delta < 0 and lo <= memory.cells.pos[own]:
        id = "state-position-below-zero" if cell >= 0 else "state-keeps-removed"
        memory._hazard(id, seq=seq, others=others)


def after_restore(memory: RecurrentMemory, seq: int) -> None:
    """Cells of a whole state that belong to nobody: the next fresh sequence goes on from there."""
    cells = memory.cells
    ownerless = [c for c in range(memory.size) if cells.pos[c] >= 0 and not cells.owners[c]]
    if seq == -1 and ownerless:
        memory._hazard("ownerless-state", cells=ownerless)


def stranded(memory: RecurrentMemory, head: int, n: int, n_seqs: int) -> list[int]:
    """Sequences beside those of a ubatch that failed: its graph was to move their states, and the cells
    already point to where these never came."""
    cells = memory.cells
    moved = range(head + n_seqs, head + n)
    return sorted({s for c in moved if cells.src0[c] != c for s in owner_ids(cells.owners[c])})
