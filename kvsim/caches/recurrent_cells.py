"""The cells of a recurrent memory, and how a ubatch finds its place in them
(``src/llama-memory-recurrent.cpp: find_slot``).

One cell holds the whole state of a sequence at its last position; sequences that were copied share one.
There are as many cells as sequences, and ``tail[s]`` (stored, oddly, in cell s) is the cell of sequence s.
The graph wants the states of a ubatch side by side, so placing moves cells::

    owners   0 . 1 2      tail  0 2 3      ubatch of 2 and 1
    range [2, 3]: cell 2 must be 2's        swap 2 and 3
    owners   0 . 2 1      src   0 . 3 2     the graph copies row 3 to 2 and row 2 to 3

Where a state is to be read from is ``src``: the cell whose row holds it, -1 for "start from zero". Placing
hands it to the graph as ``src0`` and sets ``src`` to the cell itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kvsim.batch import Ubatch
from kvsim.errors import CacheUsageError, IntegrityError

UINT32 = 0xFFFFFFFF


def owner_ids(mask: int) -> list[int]:
    """The ids whose bit is set, ascending."""
    return [s for s in range(mask.bit_length()) if mask >> s & 1]


@dataclass
class Placement:
    """Where a ubatch went: set k is in cell ``head + k``; the graph works on ``n`` cells from ``head``.

    ``rs_z`` is the row to zero for states that start anew, -1 if none does. ``freed`` cells, ``swaps`` of
    cells, ``unshared`` (sequence, from, to) and ``jumps`` (owners, last position, expected) tell how.
    """

    head: int
    n: int
    rs_z: int
    freed: list[int] = field(default_factory=list)
    swaps: list[tuple[int, int]] = field(default_factory=list)
    unshared: list[tuple[int, int, int]] = field(default_factory=list)
    jumps: list[tuple[tuple[int, ...], int, int]] = field(default_factory=list)


class StateCells:
    """Lists by cell: ``pos``, ``src``, ``src0``, ``owners`` (bit s: sequence s); by sequence: ``tail``.

    Plain lists, since there are few. A cell is empty when it has no owner, whatever its position.
    ``head`` is where the search for an empty cell starts; ``used`` counts as llama.cpp does, modulo 2**32.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.pos = [-1] * size
        self.src = [-1] * size
        self.src0 = [-1] * size
        self.tail = [-1] * size
        self.owners = [0] * size
        self.head = 0
        self.used = 0

    def copy(self) -> StateCells:
        """The same cells once more, to come back to."""
        twin = StateCells.__new__(StateCells)
        twin.size, twin.head, twin.used = self.size, self.head, self.used
        twin.pos, twin.src, twin.src0 = self.pos[:], self.src[:], self.src0[:]
        twin.tail, twin.owners = self.tail[:], self.owners[:]
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> StateCells:
        return self.copy()

    def cell_of(self, seq: int) -> int:
        """The cell of a sequence, -1 if it has none (or there is no such sequence)."""
        return self.tail[seq] if 0 <= seq < self.size else -1

    def vacate(self, cell: int) -> None:
        """An empty cell forgets its position and where its state is."""
        self.pos[cell] = self.src[cell] = -1

    def count_out(self) -> None:
        """One used cell less. It can fall below 0, and wraps then, after llama.cpp has miscounted."""
        self.used = (self.used - 1) & UINT32

    def lower_head(self, cell: int) -> None:
        """Let the next search start at a freed cell if that is earlier."""
        self.head = min(self.head, cell)

    def leave(self, seq: int) -> int:
        """Take a sequence out of its cell. Returns the cell if it is empty now, else -1."""
        cell, self.tail[seq] = self.tail[seq], -1
        if cell < 0:
            return -1
        self.owners[cell] &= ~(1 << seq)
        if self.owners[cell]:
            return -1
        self.vacate(cell)
        self.count_out()
        return cell

    def join(self, seq: int, cell: int) -> None:
        """Make a sequence, which has no cell, one more owner of ``cell``."""
        self.owners[cell] |= 1 << seq
        self.tail[seq] = cell

    def next_empty(self, start: int) -> int:
        """First empty cell from ``start`` on, wrapping; -1 if there is none."""
        for i in range(self.size):
            cell = (start + i) % self.size
            if not self.owners[cell]:
                return cell
        return -1

    # -- placing a ubatch ----------------------------------------------------------------------

    def place(self, ubatch: Ubatch) -> Placement | None:
        """Place the sets of a ubatch side by side; None if an id is beyond the cells.

        What was moved before such an id was met stays moved.
        """
        if not ubatch.equal_seqs:
            raise CacheUsageError(
                "a recurrent memory takes only ubatches with equally many tokens per sequence; "
                "llama.cpp aborts: split with split_equal or split_seq"
            )
        n_seqs, length = ubatch.n_seqs, ubatch.n_seq_tokens
        sets = [ubatch.seq_ids[k * length] for k in range(n_seqs)]
        if self.head > (self.used + 2 * n_seqs) & UINT32:
            self.head = 0
        done = Placement(0, 0, -1)
        for ids in sets:
            if not self._unite(ids, done):
                return None
        lo, hi = self._take_cells([ids[0] for ids in sets], done)
        for k, ids in enumerate(sets):
            self._gather(self.tail[ids[0]], lo + k, done)
        for k, ids in enumerate(sets):
            self._settle(lo + k, ids, int(ubatch.pos[0, (k + 1) * length - 1]), length, done)
        done.head, done.n, done.rs_z = lo, hi - lo + 1, self._stage_sources(lo, hi)
        self.head = lo
        self.used = sum(map(bool, self.owners))
        return done

    def _unite(self, ids: Iterable[int], done: Placement) -> bool:
        """The ids of a set but the first leave their cells: they will share the first one's."""
        for j, seq in enumerate(ids):
            if not 0 <= seq < self.size:
                return False
            if j > 0:
                freed = self.leave(seq)
                if freed >= 0:
                    done.freed.append(freed)
        return True

    def _take_cells(self, firsts: list[int], done: Placement) -> tuple[int, int]:
        """Give every set a cell of its own. Returns the lowest and the highest of them."""
        empty = self.next_empty(self.head)
        for k, seq in enumerate(firsts):
            cell = self.tail[seq]
            if cell >= 0 and self.owners[cell] == 1 << seq:
                continue
            if empty < 0 or self.owners[empty]:
                raise IntegrityError(
                    f"no empty recurrent cell for sequence {seq}, though there is one per sequence"
                )
            if cell >= 0:
                self._unshare(seq, cell, empty)
                done.unshared.append((seq, cell, empty))
            self.tail[seq] = empty
            if k + 1 < len(firsts):
                empty = self.next_empty(empty + 1)
        taken = [self.tail[seq] for seq in firsts]
        return min(taken), max(taken)

    def _unshare(self, seq: int, cell: int, empty: int) -> None:
        """Move a sequence from a shared cell to an empty one; its state is still in the old row."""
        self.pos[empty], self.src[empty] = self.pos[cell], self.src[cell]
        self.owners[cell] &= ~(1 << seq)
        self.owners[empty] |= 1 << seq

    def _gather(self, cell: int, wanted: int, done: Placement) -> None:
        """Swap two cells so that the state comes to stand in its place in the row of the ubatch."""
        if cell == wanted:
            return
        for column in (self.pos, self.src, self.owners):
            column[cell], column[wanted] = column[wanted], column[cell]
        moved = {cell: wanted, wanted: cell}
        self.tail = [moved.get(tail, tail) for tail in self.tail]
        done.swaps.append((cell, wanted))

    def _settle(self, cell: int, ids: tuple[int, ...], last: int, length: int, done: Placement) -> None:
        """The cell now stands at the last position of its set, and belongs to all ids of it."""
        if self.pos[cell] >= 0 and last != self.pos[cell] + length:
            done.jumps.append((ids, last, self.pos[cell] + length))
        self.pos[cell] = last
        self.owners[cell] = 0
        for seq in ids:
            self.join(seq, cell)

    def _stage_sources(self, lo: int, hi: int) -> int:
        """Hand ``src`` to the graph as ``src0``; fresh states read the zeroed row. Returns that row or -1."""
        referenced = set(self.src)
        zero = next((i for i in range(lo, hi + 1) if i not in referenced), -1)
        for i in range(lo, hi + 1):
            if self.src[i] < 0 and zero < 0:
                raise IntegrityError(
                    f"cell {i} is to start from zero, but every row of [{lo}, {hi}] is still read"
                )
            self.src0[i] = zero if self.src[i] < 0 else self.src[i]
            self.src[i] = i
        return zero

    # -- proof ---------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise IntegrityError unless tails and owners agree and every index is in range."""
        for seq, cell in enumerate(self.tail):
            if cell >= 0 and not self.owners[cell] >> seq & 1:
                raise IntegrityError(f"the tail of sequence {seq} is cell {cell}, which it does not own")
        for cell, mask in enumerate(self.owners):
            for seq in owner_ids(mask):
                if seq >= self.size or self.tail[seq] != cell:
                    raise IntegrityError(f"cell {cell} belongs to sequence {seq}, whose tail is elsewhere")
            if not (-1 <= self.src[cell] < self.size and -1 <= self.src0[cell] < self.size):
                raise IntegrityError(f"cell {cell} reads from row {self.src[cell]} or {self.src0[cell]}")
        if not 0 <= self.head < self.size:
            raise IntegrityError(f"head {self.head} is outside [0, {self.size})")
