"""The recurrent memory: one state cell per sequence (``src/llama-memory-recurrent.cpp``).

A recurrent state stands at the last position of its sequence and has forgotten how it came there, so
nothing can be removed from its end. Unless snapshots are kept: with ``n_rs_seq`` planes a sequence can go
back by up to that many tokens, once. Going back only notes the depth in ``rs_idx``; the next graph reads the
older plane and so consumes it.

The placing of a ubatch is in recurrent_cells.py, the state format in recurrent_state.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvsim.batch import BatchAllocator, Ubatch
from kvsim.caches import recurrent_hazards, recurrent_state
from kvsim.caches.recurrent_cells import Placement, StateCells, owner_ids
from kvsim.errors import CacheUsageError, IntegrityError, StateError
from kvsim.events import Event
from kvsim.memory import (
    POS_INF,
    Leaf,
    MemoryContext,
    PrepareFailure,
    UpdateContext,
    View,
    check_delta,
    moved_position,
    position_range,
)
from kvsim.state import StateReader, StateWriter
from kvsim.tensors.recurrent_store import PARTS, LayerWidths, RecurrentStore


class RecurrentMemory(Leaf):
    """``size`` cells for as many sequences, with ``n_rs_seq`` older states of each.

    ``layers`` are the row widths (r, s, p) of each trunk layer, all 0 where a layer keeps no state. ``store``
    holds the rows when numbers are wanted. After a ubatch was placed, ``n`` cells from the head are the
    graph's, and ``rs_z`` is the row it zeroes (-1: none).
    """

    kind = "recurrent"

    def __init__(
        self,
        size: int,
        n_rs_seq: int,
        layers: Sequence[LayerWidths],
        n_seq_max: int,
        name: str = "recurrent",
        store: RecurrentStore | None = None,
    ) -> None:
        self.name = name
        self.n_rs_seq = n_rs_seq
        self.layers = [(r, s, p) for r, s, p in layers]
        self.n_seq_max = n_seq_max
        self.store = store
        self.cells = StateCells(size)
        self.n = 0
        self.rs_z = -1
        self.rs_idx = [0] * n_seq_max
        self.reach = recurrent_hazards.Reach(size, n_rs_seq)

    @property
    def size(self) -> int:
        return self.cells.size

    @property
    def keep_tail(self) -> int:
        """How many last tokens of a sequence must share a ubatch so that its snapshots can be used."""
        return self.n_rs_seq + 1 if self.n_rs_seq > 0 else 0

    @property
    def can_shift(self) -> bool:
        return True

    # -- preparing and placing -----------------------------------------------------------------

    def init_batch(self, batch: BatchAllocator, n_ubatch: int, output_all: bool = False) -> MemoryContext:
        """One sequence set after the other if every token is an output, else equal splits of consecutive
        sequences that keep tails whole."""
        if output_all:
            return self.place_batch(batch.split_all(lambda: batch.split_seq(n_ubatch)))
        return self.place_batch(batch.split_all(lambda: batch.split_equal(n_ubatch, True, self.keep_tail)))

    def init_update(self, optimize: bool = False) -> MemoryContext:
        """Never has work: positions move at once and no row is rotated."""
        return UpdateContext([])

    def prepare(self, ubatches: Sequence[Ubatch]) -> list[Placement] | None:
        """Try all ubatches and put the cells back; ``n`` and ``rs_z`` stay as the last trial left them."""
        before = self.cells.copy()
        placements: list[Placement] = []
        for i, ubatch in enumerate(ubatches):
            placement = self._place(ubatch)
            if placement is None:
                self.last_failure = self._why(ubatch, i, len(ubatches))
                self._emit("slot", found=False, asked=ubatch.n_seqs)
                break
            placements.append(placement)
        self.cells = before
        return placements if len(placements) == len(ubatches) else None

    def _why(self, ubatch: Ubatch, i: int, n_ubatches: int) -> PrepareFailure:
        empty = [not mask for mask in self.cells.owners]
        runs = "".join(".#"[not free] for free in empty).split("#")
        return PrepareFailure(
            cache=self.name, stream=0, ubatch=i, asked=ubatch.n_seqs, free=sum(empty), reclaimable=0,
            largest_hole=max(map(len, runs)), n_ubatches=n_ubatches,
        )  # fmt: skip

    def _place(self, ubatch: Ubatch) -> Placement | None:
        placement = self.cells.place(ubatch)
        if placement is not None:
            self.n, self.rs_z = placement.n, placement.rs_z
        return placement

    def apply_ubatch(self, slot: Placement, ubatch: Ubatch) -> RecurrentView:
        """Place a ubatch. The cells are searched again, as in llama.cpp; ``slot`` says what will be found."""
        if self.observer is not None:
            self._warn_of_stale_rollbacks(ubatch)
        placement = self._place(ubatch)
        if placement is None:
            raise IntegrityError(f"{self.name}: a prepared ubatch no longer finds its cells")
        dirty = self.reach.note(placement, ubatch, self.cells.src0)
        if dirty:
            self._hazard("fresh-state-not-zero", seqs=dirty)
        if self.observer is not None:
            self._tell(placement, ubatch)
        return RecurrentView(self, placement, ubatch)

    def place_restored(self, ubatch: Ubatch) -> bool:
        """Place the one-sequence ubatch of a saved state. False if its id is beyond the cells."""
        placed = self._place(ubatch) is not None
        if placed:
            self.reach.rows[self.cells.head] = 0
        return placed

    # -- sequence operations -------------------------------------------------------------------

    def clear(self, data: bool) -> None:
        """Forget all states and rollbacks. ``n``, ``rs_z`` and the cells' ``src0`` stay (R10)."""
        fresh = StateCells(self.size)
        fresh.src0 = self.cells.src0
        self._emit("free", [c for c, mask in enumerate(self.cells.owners) if mask], reason="clear")
        self.cells = fresh
        self.reach.forget()
        self.rs_idx = [0] * self.n_seq_max
        if data and self.store is not None:
            self.store.zero()

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """Remove a whole state, or roll back to before ``p0`` if a snapshot reaches there (R1 to R5).

        Refuses unknown ids, -1 ("every sequence") among them, and an end that no snapshot reaches. A range
        that misses the state's position changes nothing and is True.
        """
        if self.observer is not None:
            recurrent_hazards.before_remove(self, seq, p0, p1)
        p0, p1 = position_range(p0, p1)
        if not 0 <= seq < self.n_seq_max:
            return False
        if p0 == 0 and p1 == POS_INF:
            self.rs_idx[seq] = 0
        cell = self.cells.cell_of(seq)
        if cell < 0 or not p0 <= self.cells.pos[cell] < p1:
            return True
        if p0 > 0:
            return self._roll_back(seq, cell, p0 - 1)
        freed = self.cells.leave(seq)
        if freed >= 0:
            self._lower_head(freed)
        self._emit("free", [freed] if freed >= 0 else [], reason="seq_rm", seq=seq, lost=[cell])
        self._warn_of_kept_rollback([seq], "seq_rm")
        return True

    def _roll_back(self, seq: int, cell: int, to: int) -> bool:
        """Go back to position ``to``: note which snapshot the next graph is to read (R3)."""
        depth = self.cells.pos[cell] - to
        if self.has_layers:
            if self.rs_idx[seq] != 0 or depth > self.n_rs_seq:
                self._emit("rollback", [cell], seq=seq, depth=depth, refused=True, pending=self.rs_idx[seq])
                return False
            self.rs_idx[seq] = depth
            if self.observer is not None:
                recurrent_hazards.before_rollback(self, seq, cell, depth)
        self.cells.pos[cell] = to
        self._emit("rollback", [cell], seq=seq, depth=depth, refused=False)
        others = [s for s in owner_ids(self.cells.owners[cell]) if s != seq]
        if others:
            self._hazard("rollback-moves-other-owners", seq=seq, others=others)
        return True

    @property
    def has_layers(self) -> bool:
        """Whether any layer keeps a state. If none does, positions can go back at will."""
        return any(any(widths) for widths in self.layers)

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """``dst`` shares the state of ``src``; the range is ignored, unknown ids are too (R6)."""
        cells = self.cells
        if src == dst:
            return
        if not (0 <= src < self.size and 0 <= dst < self.size):
            self._hazard("unknown-sequence-ignored", src=src, dst=dst)
            return
        self.reach.copy(src, dst)
        if self.observer is not None:
            recurrent_hazards.before_copy(self, src, dst, p0, p1)
        freed = cells.leave(dst)
        if freed >= 0:
            self._emit("free", [freed], reason="seq_cp", seq=dst)
        cell = cells.tail[src]
        if cell < 0:
            return
        cells.join(dst, cell)
        self._emit("share", [cell], src=src, dst=dst)
        if self.rs_idx[src] != self.rs_idx[dst]:
            self._hazard(
                "copy-ignores-rollback", src=src, dst=dst, depths=[self.rs_idx[src], self.rs_idx[dst]]
            )

    def seq_keep(self, seq: int) -> None:
        """Only ``seq`` stays; an unknown id drops everything. Rollbacks stay noted. The head goes down to the
        first cell without ``seq``, even one that was empty already (R7)."""
        cells = self.cells
        kept = cells.cell_of(seq)
        others = [s for s, cell in enumerate(cells.tail) if cell >= 0 and s != seq]
        freed = [c for c, mask in enumerate(cells.owners) if mask and c != kept]
        for c in range(self.size):
            if c == kept:
                continue
            if cells.pos[c] >= 0:
                cells.count_out()
            cells.vacate(c)
            cells.owners[c] = 0
        cells.tail = [-1] * self.size
        if kept >= 0:
            cells.owners[kept] = 0
            cells.join(seq, kept)
        without = [c for c in range(self.size) if c != kept]
        if without:
            self._lower_head(without[0])
        self._emit("free", freed, reason="seq_keep", seq=seq)
        self._warn_of_kept_rollback(others, "seq_keep")

    def _lower_head(self, cell: int) -> None:
        if cell < self.cells.head:
            self._emit("head", old=self.cells.head, new=cell)
            self.cells.head = cell

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move the position of a state that stands in the range, for all its owners, even below 0 (R8)."""
        check_delta(delta)
        cell = self._standing_in(seq, p0, p1)
        self.reach.move(self, seq, p0, p1)
        if self.observer is not None:
            recurrent_hazards.before_move(self, seq, cell, p0, p1, delta)
        if cell < 0 or delta == 0:
            return
        self.cells.pos[cell] = moved_position(self.cells.pos[cell], delta)
        self._emit("shift", [cell], seq=seq, delta=delta)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Divide the position of a state that stands in the range, for all its owners (R8)."""
        cell = self._standing_in(seq, p0, p1)
        if d != 1:
            self.reach.move(self, seq, 1, -1)
        if cell < 0 or d == 1:
            return
        if d == 0:
            raise CacheUsageError(
                f"seq_div({seq}, {p0}, {p1}, 0): positions cannot be divided by 0; llama.cpp crashes. "
                "Use a divisor of 2 or more"
            )
        if self.observer is not None:
            recurrent_hazards.before_move(self, seq, cell, 0, 0, 0)
        pos = self.cells.pos[cell]
        self.cells.pos[cell] = pos // d if d > 0 else -(pos // -d)  # towards 0
        self._emit("shift", [cell], seq=seq, divisor=d)

    def _standing_in(self, seq: int, p0: int, p1: int) -> int:
        """The cell of ``seq`` if its position is in the range, else -1."""
        p0, p1 = position_range(p0, p1)
        cell = self.cells.cell_of(seq)
        return cell if cell >= 0 and p0 <= self.cells.pos[cell] < p1 else -1

    def seq_pos_min(self, seq: int) -> int:
        """Position of the state, -1 if there is none. ``seq_add`` may have driven it below -1 (R9)."""
        cell = self.cells.cell_of(seq)
        return self.cells.pos[cell] if cell >= 0 else -1

    def seq_pos_max(self, seq: int) -> int:
        """Position of the state, at least -1: the same as ``seq_pos_min``, since a state has one."""
        return max(-1, self.seq_pos_min(seq))

    # -- saved states, pictures, proof ---------------------------------------------------------

    def state_write(self, io: StateWriter, seq: int = -1, flags: int = 0) -> None:
        recurrent_state.write(self, io, seq, flags)

    def state_read(self, io: StateReader, seq: int = -1, flags: int = 0) -> None:
        had = [s for s in range(self.n_seq_max) if self.cells.cell_of(s) >= 0] if self.observer else []
        try:
            recurrent_state.read(self, io, seq)
        except StateError:
            lost = [s for s in had if self.cells.cell_of(s) < 0]
            if lost:
                self._hazard("failed-restore-loses-sequence", seqs=lost)
            raise
        if self.observer is not None:
            recurrent_hazards.after_restore(self, seq)

    def memory_breakdown(self) -> dict[str, int]:
        """Bytes of r, s and p rows, snapshots included; parts that no layer has are left out."""
        n_rows = self.size * (1 + self.n_rs_seq)
        sizes = {part: 4 * n_rows * sum(w[i] for w in self.layers) for i, part in enumerate(PARTS)}
        return {part: n_bytes for part, n_bytes in sizes.items() if n_bytes}

    def record(self) -> dict[str, Any]:
        """The ``recurrent`` record of the trace format."""
        c = self.cells
        columns = zip(c.pos, c.src, c.src0, c.tail, c.owners, strict=True)
        return {
            "head": c.head,
            "size": c.size,
            "used": c.used,
            "n": self.n,
            "rs_z": self.rs_z,
            "n_rs_seq": self.n_rs_seq,
            "rs_idx": list(self.rs_idx),
            "cells": [[i, *row, owner_ids(mask)] for i, (*row, mask) in enumerate(columns)],
        }

    def snapshot_into(
        self, name: str, caches: dict[str, list[dict[str, Any]]], extra: dict[str, Any]
    ) -> dict[str, Any] | None:
        return self.record()

    def check_integrity(self) -> None:
        """Tails and owners agree, all indices are in range, rollbacks reach no deeper than the snapshots."""
        try:
            self.cells.check_integrity()
        except IntegrityError as err:
            raise IntegrityError(f"{self.name}: {err}") from err
        if any(not 0 <= depth <= self.n_rs_seq for depth in self.rs_idx):
            raise IntegrityError(
                f"{self.name}: rollback depths {self.rs_idx} beyond {self.n_rs_seq} snapshots"
            )
        if not (0 <= self.n <= self.size and -1 <= self.rs_z < self.size):
            raise IntegrityError(f"{self.name}: n = {self.n}, rs_z = {self.rs_z} with {self.size} cells")

    # -- telling the observer ------------------------------------------------------------------

    def _emit(self, what: str, cells: Sequence[int] = (), **detail: Any) -> None:
        if self.observer is not None:
            self.observer(Event(what, self.name, 0, np.array(cells, np.int32), detail))

    def _hazard(self, hazard: str, **detail: Any) -> None:
        if self.observer is not None:
            self.observer(Event("hazard", self.name, 0, detail={"id": hazard, **detail}))

    def _tell(self, placement: Placement, ubatch: Ubatch) -> None:
        for seq, old, new in placement.unshared:
            self._emit("share", [new], src=seq, dst=seq, unshared_from=old)
        if placement.freed:
            self._emit("free", placement.freed, reason="united")
        for pair in placement.swaps:
            self._emit("swap", pair)
        first = slice(None, None, ubatch.n_seq_tokens)
        self._emit(
            "write",
            range(placement.head, placement.head + ubatch.n_seqs),
            pos=ubatch.pos0[ubatch.n_seq_tokens - 1 :: ubatch.n_seq_tokens],
            seqs=ubatch.seq_ids[first],
            rs_z=placement.rs_z,
        )
        for (seq, *others), last, expected in placement.jumps:
            shared = {"others": others} if others else {}
            self._hazard("state-skips-positions", seq=seq, last=last, expected=expected, **shared)

    def _warn_of_kept_rollback(self, seqs: Sequence[int], op: str) -> None:
        """A sequence lost its state but keeps its noted rollback; its next state will begin in a snapshot."""
        for seq in seqs:
            if self.rs_idx[seq] != 0 and self.cells.tail[seq] < 0:
                self._hazard("stale-rollback-kept", seq=seq, op=op, depth=self.rs_idx[seq])

    def _warn_of_stale_rollbacks(self, ubatch: Ubatch) -> None:
        for ids in dict.fromkeys(ubatch.seq_ids):
            own = self.rs_idx[ids[0]] if self.cells.tail[ids[0]] >= 0 else 0
            used = self.rs_idx[min(ids)]
            if used != own:
                self._hazard("stale-rollback-used", seqs=list(ids), depth=used)
            kept = [s for s in ids if s != min(ids) and self.rs_idx[s]]
            if kept:
                self._hazard("stale-rollback-kept", seqs=kept)
        below = {s for i, ids in enumerate(ubatch.seq_ids) if ubatch.pos0[i] < 0 for s in ids}
        if below:
            self._hazard("position-minus-one", seqs=sorted(below))


class RecurrentView(View):
    """What the graph sees of a recurrent memory: ``n`` cells from ``head``, and where each state comes from.

    ``s_copy[i]`` is the row (over all planes) from which cell ``head + i`` starts; empty before
    :meth:`set_inputs`. The first ``n_seqs`` are the ubatch's, the others are only moved.
    """

    def __init__(self, memory: RecurrentMemory, placement: Placement, ubatch: Ubatch) -> None:
        self.memory = memory
        self.head = placement.head
        self.n = placement.n
        self.rs_z = placement.rs_z
        self.n_seqs = ubatch.n_seqs
        self.s_copy: tuple[int, ...] = ()

    def undone(self) -> None:
        """The graph did not run: states that it was to move are not where the cells say."""
        memory = self.memory
        memory.reach.undo(memory.cells, self.head, self.n, self.n_seqs)
        if memory.observer is not None:
            seqs = recurrent_hazards.stranded(memory, self.head, self.n, self.n_seqs)
            if seqs:
                memory._hazard("failed-ubatch-strands-states", seqs=seqs)

    def set_inputs(self) -> None:
        """Read the sources of all ``n`` cells; that consumes their rollbacks, even if the graph fails."""
        self.s_copy = tuple([self._source(self.head + i) for i in range(self.n)])

    def _source(self, cell: int) -> int:
        """The row of ``src0``, in the plane of a pending rollback of the cell's smallest owner."""
        memory = self.memory
        row = memory.cells.src0[cell]
        mask = memory.cells.owners[cell]
        if memory.n_rs_seq == 0 or not mask:
            return row
        smallest = (mask & -mask).bit_length() - 1
        depth, memory.rs_idx[smallest] = memory.rs_idx[smallest], 0
        return depth * memory.size + row

    def reuse_key(self) -> dict[str, Any]:
        return {"n_rs": self.n, "n_seqs": self.n_seqs, "rs_head": self.head, "rs_z": self.rs_z}

    def describe(self, name: str, record: dict[str, Any]) -> None:
        record["recurrent"] = self.memory.record()
