"""Faults of recurrent states: rows, rollbacks, removals, and the two halves of a hybrid."""

from __future__ import annotations

from typing import Any

from kvsim.caches.hybrid import HybridBase
from kvsim.caches.recurrent import RecurrentMemory
from kvsim.memory import position_range
from kvsim.tensors.recurrent_store import RecurrentStore, Rows
from kvsim.testing.mutants.mutant import Patches, mutant

STATES = ("recurrent", "hybrid")
SNAPSHOTS = ("hybrid", "hybrid_iswa")


@mutant("B040", memories=STATES, symptom="after a removal of everything the next decode asserts")
def wildcard_leaves_tails(patch: Patches) -> None:
    """Removing from every sequence empties the cells and leaves the sequences pointing at them."""

    def seq_rm(right: Any, self: RecurrentMemory, seq: int, p0: int, p1: int) -> bool:
        if seq != -1:
            return bool(right(self, seq, p0, p1))
        lo, hi = position_range(p0, p1)
        for cell, pos in enumerate(self.cells.pos):
            if self.cells.owners[cell] and lo <= pos < hi:
                self.cells.owners[cell] = 0
                self.cells.vacate(cell)
        return True

    patch(RecurrentMemory, "seq_rm", seq_rm)


@mutant("B046", memories=SNAPSHOTS, symptom="after a rollback two sequences go on with each other's states")
def snapshots_by_row(patch: Patches) -> None:
    """Snapshots of a ubatch of several sequences are stored in the wrong order."""

    def write_states(right: Any, self: RecurrentStore, part: str, il: int, head: int, planes: Rows) -> None:
        swapped = planes.copy()
        swapped[1:] = planes[1:, ::-1]
        right(self, part, il, head, swapped)

    patch(RecurrentStore, "write_states", write_states)


@mutant("B047", memories=SNAPSHOTS, symptom="after a rollback the state is that of an older ubatch")
def state_not_snapshotted(patch: Patches) -> None:
    """Of the two histories of a layer only one is snapshotted."""

    def write_states(right: Any, self: RecurrentStore, part: str, il: int, head: int, planes: Rows) -> None:
        right(self, part, il, head, planes[:1] if part == "s" else planes)

    patch(RecurrentStore, "write_states", write_states)


@mutant("B103", memories=STATES, symptom="after a refused removal the next decode asserts")
def refusal_loses_tail(patch: Patches) -> None:
    """A removal that is refused has already forgotten where the sequence is."""

    def roll_back(right: Any, self: RecurrentMemory, seq: int, cell: int, to: int) -> bool:
        done = bool(right(self, seq, cell, to))
        if not done:
            self.cells.tail[seq] = -1
        return done

    patch(RecurrentMemory, "_roll_back", roll_back)


@mutant("B104", memories=STATES, symptom="the last token seems removed, and the state still knows it")
def last_position_not_cut(patch: Patches) -> None:
    """A removal from the last position on counts as one that misses the state."""

    def seq_rm(right: Any, self: RecurrentMemory, seq: int, p0: int, p1: int) -> bool:
        cell = self.cells.cell_of(seq)
        if cell >= 0 and p0 > 0 and p0 == self.cells.pos[cell]:
            return True
        return bool(right(self, seq, p0, p1))

    patch(RecurrentMemory, "seq_rm", seq_rm)


@mutant("B025", memories=STATES, symptom="rejected drafts stay in the state and poison what follows")
def rollback_does_nothing(patch: Patches) -> None:
    """A rollback that cannot be done is accepted, and nothing happens."""
    patch(
        RecurrentMemory, "_roll_back", lambda right, self, seq, cell, to: right(self, seq, cell, to) or True
    )


@mutant("B107", memories=SNAPSHOTS, symptom="attention is cut, the state is not, and the caller is told no")
def halves_cut_apart(patch: Patches) -> None:
    """A hybrid removes from attention before it asks the recurrent part, which may refuse."""

    def seq_rm(right: Any, self: HybridBase, *args: int) -> bool:
        cut = self.attn.seq_rm(*args) if args[0] >= 0 else False
        return self.recurrent.seq_rm(*args) and cut

    patch(HybridBase, "seq_rm", seq_rm)


@mutant("B112", memories=SNAPSHOTS, symptom="positions line up, the state does not")
def second_rollback_accepted(patch: Patches) -> None:
    """A second rollback before the first was used counts its depth as if there had been none."""

    def roll_back(right: Any, self: RecurrentMemory, seq: int, cell: int, to: int) -> bool:
        self.rs_idx[seq] = 0
        return bool(right(self, seq, cell, to))

    patch(RecurrentMemory, "_roll_back", roll_back)


@mutant("B113", memories=STATES, symptom="a new conversation begins in the state of an old one")
def state_not_zeroed(patch: Patches) -> None:
    """A sequence that begins anew reads its row as it is, without zeroing it."""

    def initial(
        right: Any, self: RecurrentStore, part: str, il: int, head: int, rs_z: int, *rest: Any
    ) -> Any:
        return right(self, part, il, head, -1, *rest)

    patch(RecurrentStore, "initial_states", initial)


@mutant("B118", memories=STATES, symptom="states drift, after any ubatch beside them")
def copy_too_long(patch: Patches) -> None:
    """Storing states writes one row too many, into the neighbour's."""

    def write_states(right: Any, self: RecurrentStore, part: str, il: int, head: int, planes: Rows) -> None:
        right(self, part, il, head, planes)
        behind = head + planes.shape[1]
        if behind < self.size:
            self.rows[part][il][behind] = planes[0, -1]

    patch(RecurrentStore, "write_states", write_states)
