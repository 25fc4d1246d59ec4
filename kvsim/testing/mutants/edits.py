"""Faults in the sequence operations of attention caches: removing, moving, copying, clearing."""

from __future__ import annotations

from typing import Any

from kvsim.caches.composite import CompositeMemory
from kvsim.caches.iswa import WindowPair
from kvsim.caches.kv import KVCache
from kvsim.cells import CellTable
from kvsim.memory import UpdateContext
from kvsim.testing.mutants.mutant import Patches, mutant

INDEXED = ("dsa", "msa")


@mutant("B023", memories=("kv",), symptom="a cache that was cut to nothing keeps everything")
def removal_from_zero_ignored(patch: Patches) -> None:
    """Removing from position 0 on counts as removing nothing."""
    patch(KVCache, "seq_rm", lambda right, self, seq, p0, p1: p0 == 0 or right(self, seq, p0, p1))


@mutant("B023", memories=INDEXED, symptom="keys are gone, index keys are left")
def lanes_cut_apart(patch: Patches) -> None:
    """A removal reaches the first of two caches that belong together."""

    def seq_rm(right: Any, self: CompositeMemory, *args: int) -> bool:
        return next(iter(self.parts.values())).seq_rm(*args)

    patch(CompositeMemory, "seq_rm", seq_rm)


@mutant("B035", memories=("iswa",), symptom="the window cache fills up with sequences that are gone")
def window_part_not_evicted(patch: Patches) -> None:
    """A removal reaches the full part alone, and the window part keeps its cells."""
    patch(WindowPair, "seq_rm", lambda right, self, *args: self.full.seq_rm(*args))


@mutant("B080", memories=("iswa",), symptom="the second chat begins with the window of the first")
def clear_forgets_window(patch: Patches) -> None:
    """Clearing reaches the cache without window alone."""

    def clear(right: Any, self: CompositeMemory, data: bool) -> None:
        next(iter(self.parts.values())).clear(data)

    patch(CompositeMemory, "clear", clear)


@mutant("B125", memories=("kv",), symptom="positions are reported for a sequence that holds nothing")
def clear_keeps_books(patch: Patches) -> None:
    """Clearing empties the cells and not the record of each sequence's first and last position."""

    def reset(right: Any, self: CellTable) -> None:
        kept = getattr(self, "_ranges", None)  # none yet when a table is made
        right(self)
        if kept is not None:
            self._ranges = self._kept = kept

    patch(CellTable, "reset", reset)


@mutant("B050", memories=("kv",), symptom="after two shifts without a decode between them keys stand wrong")
def last_shift_only(patch: Patches) -> None:
    """A second shift replaces the pending turn of the first instead of adding to it."""

    def pos_add(right: Any, self: CellTable, s: int, p0: int, p1: int, delta: int) -> Any:
        self.shift[self._cells_of(s, p0, p1)] = 0
        return right(self, s, p0, p1, delta)

    patch(CellTable, "pos_add", pos_add)


@mutant("B038", memories=("kv",), symptom="after a shift all sequences but the first read keys turned wrong")
def first_stream_turned(patch: Patches) -> None:
    """Pending turns are applied to the keys of the first stream alone."""

    def apply(right: Any, self: KVCache, copies: Any, shift: bool) -> None:
        for cells in self.cells[1:]:
            cells.shift[:] = 0
        right(self, copies, shift)

    patch(KVCache, "_copy_and_shift", apply)


@mutant("B058", memories=("kv", "iswa"), symptom="positions have moved, keys have not, and nobody is told")
def failed_turn_swallowed(patch: Patches) -> None:
    """The turn of the keys fails, and the pending turns are dropped as if it had been done."""

    def apply(right: Any, self: KVCache, copies: Any, shift: bool) -> None:
        for cells in self.cells:
            cells.shift[:] = 0
        right(self, copies, shift)

    patch(KVCache, "_copy_and_shift", apply)


@mutant("B059", memories=("iswa",), symptom="a hole stays where a context shift should have closed it")
def shift_silently_refused(patch: Patches) -> None:
    """Positions are not moved where the memory says that it cannot shift, and nobody is told."""

    def seq_add(right: Any, self: WindowPair, *args: int) -> None:
        if self.can_shift:
            right(self, *args)

    patch(WindowPair, "seq_add", seq_add)


@mutant("B062", memories=("kv",), symptom="after an image was cut out the keys behind it stand wrong")
def image_gap_closed(patch: Patches) -> None:
    """Positions of a model with several positions per token are moved as if they were one."""
    patch(KVCache, "check_editable", lambda right, self, op, seq: self.check_seq(op, seq))


@mutant("B065", memories=("kv",), symptom="the cache passes for full when it is not")
def freed_still_counted(patch: Patches) -> None:
    """Cells that a shift has freed still count as used."""

    def pos_add(right: Any, self: CellTable, *args: int) -> Any:
        moved, freed = right(self, *args)
        self.n_live += len(freed)
        return moved, freed

    patch(CellTable, "pos_add", pos_add)


@mutant("B143", memories=("kv",), symptom="positions below 0 wrap or stay instead of being discarded")
def discard_not_bounded(patch: Patches) -> None:
    """A shift by more than a position leaves the cell where it was."""

    def pos_add(right: Any, self: CellTable, s: int, p0: int, p1: int, delta: int) -> Any:
        return right(self, s, max(p0, -delta), p1, delta)

    patch(CellTable, "pos_add", pos_add)


@mutant("B074", memories=("kv",), symptom="removing from position n on removes nothing behind an image")
def removal_by_count(patch: Patches) -> None:
    """Where an image takes more cells than positions, a removal counts tokens instead of positions."""

    def seq_rm(right: Any, self: KVCache, seq: int, p0: int, p1: int) -> bool:
        if self.spec.n_pos_per_embd > 1 and p0 > 0 and seq >= 0:
            positions, _ = self.cells[self.stream_of(seq)].by_position(seq)
            p0 += len(positions) - len(set(positions.tolist()))
        return bool(right(self, seq, p0, p1))

    patch(KVCache, "seq_rm", seq_rm)


@mutant("B037", memories=("kv", "iswa"), symptom="a prefix was to be copied, the copy holds everything")
def prefix_copied_whole(patch: Patches) -> None:
    """A copy of a part between streams is taken for a copy of the whole."""
    patch(KVCache, "check_full_copy", lambda right, self, *args: None)


@mutant("B043", memories=("dsa", "dsa_iswa", "msa"), symptom="the last cache never gets what was copied")
def update_forgets_last_part(patch: Patches) -> None:
    """Queued copies and pending turns are run for all caches of a memory but the last."""

    def init_update(right: Any, self: CompositeMemory, optimize: bool = False) -> UpdateContext:
        *leaves, _ = self.leaves().values()
        return UpdateContext([leaf.take_update(optimize) for leaf in leaves])

    patch(CompositeMemory, "init_update", init_update)


@mutant("B044", memories=INDEXED, symptom="a copied sequence attends to keys and selects by nothing")
def copy_forgets_index(patch: Patches) -> None:
    """Copying a sequence leaves the index keys out."""

    def seq_cp(right: Any, self: CompositeMemory, *args: int) -> None:
        next(iter(self.parts.values())).seq_cp(*args)

    patch(CompositeMemory, "seq_cp", seq_cp)
