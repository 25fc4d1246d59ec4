"""The recurrent memory on a device: states as rows, and cells that say where each sequence's state is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine import recurrent_state
from engine.picture import owners_of
from engine.prepare import prepare_all
from engine.recurrent_cells import HEAD, POS, RS_Z, TAIL, N, Placement, StateCells
from engine.recurrent_store import RecurrentStore
from engine.sync import read_back
from kvsim.batch import BatchAllocator, Ubatch
from kvsim.errors import CacheUsageError, IntegrityError
from kvsim.memory import (
    POS_INF,
    Leaf,
    MemoryContext,
    PrepareFailure,
    UpdateContext,
    View,
    check_delta,
    position_range,
)
from kvsim.state import StateReader, StateWriter

PARTS = ("r", "s", "p")


class RecurrentMemory(Leaf):
    """``size`` cells for as many sequences, with ``n_rs_seq`` older states of each. Same meaning as
    :class:`kvsim.caches.recurrent.RecurrentMemory`."""

    kind = "recurrent"

    def __init__(
        self,
        size: int,
        n_rs_seq: int,
        layers: Sequence[tuple[int, int, int]],
        n_seq_max: int,
        name: str = "recurrent",
        store: RecurrentStore | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.name = name
        self.size = size
        self.n_rs_seq = n_rs_seq
        self.layers = [tuple(widths) for widths in layers]
        self.n_seq_max = n_seq_max
        self.store = store
        self.device = torch.device(device)
        self.cells = StateCells(size, self.device)
        self.rollback = torch.zeros(n_seq_max, dtype=torch.int32, device=self.device)
        self._known: dict[int, int] = dict.fromkeys(range(n_seq_max), -1)

    @property
    def keep_tail(self) -> int:
        """How many last tokens of a sequence must share a ubatch so that its snapshots can be used."""
        return self.n_rs_seq + 1 if self.n_rs_seq > 0 else 0

    @property
    def can_shift(self) -> bool:
        return True

    @property
    def has_layers(self) -> bool:
        return any(any(widths) for widths in self.layers)

    # -- preparing and placing -----------------------------------------------------------------

    def init_batch(self, batch: BatchAllocator, n_ubatch: int, output_all: bool = False) -> MemoryContext:
        if output_all:
            return self.place_batch(batch.split_all(lambda: batch.split_seq(n_ubatch)))
        return self.place_batch(batch.split_all(lambda: batch.split_equal(n_ubatch, True, self.keep_tail)))

    def init_update(self, optimize: bool = False) -> MemoryContext:
        return UpdateContext([])

    @staticmethod
    def prepare_all(
        leaves: Sequence[Leaf], ubatches: Sequence[Ubatch]
    ) -> list[list[Any]] | PrepareFailure | None:
        return prepare_all(leaves, ubatches)

    def prepare(self, ubatches: Sequence[Ubatch]) -> list[tuple[int, int, int]] | None:
        found = prepare_all([self], ubatches)
        return found[0] if isinstance(found, list) else None

    def begin_prepare(self, ubatches: Sequence[Ubatch], ok: Tensor | None) -> StateSearch:
        return StateSearch(self, ubatches, ok)

    def apply_ubatch(self, slot: tuple[int, int, int], ubatch: Ubatch) -> RecurrentView:
        """Place a ubatch; ``slot`` is what the search found: head, n and the row to zero."""
        self.cells.place(self.placement(ubatch))
        self.note_applied(ubatch)
        return RecurrentView(self, slot, ubatch)

    def placement(self, ubatch: Ubatch) -> Placement:
        """Upload a ubatch."""
        return Placement(ubatch, len(self.cells.owners), self.device)

    def note_applied(self, ubatch: Ubatch) -> None:
        """What the host remembers of a placement."""
        for row in range(ubatch.n_seq_tokens - 1, ubatch.n_tokens, ubatch.n_seq_tokens):
            self._known.update(dict.fromkeys(ubatch.seq_ids[row], int(ubatch.pos0[row])))

    def place_restored(self, ubatch: Ubatch) -> bool:
        """Place the one-sequence ubatch of a saved state. False if its id is beyond the cells."""
        self._known = {}
        return self.cells.place(self.placement(ubatch))

    # -- sequence operations -------------------------------------------------------------------

    def clear(self, data: bool) -> None:
        self.cells.clear()
        self.rollback.zero_()
        self._known = dict.fromkeys(range(self.n_seq_max), -1)
        if data and self.store is not None:
            self.store.zero()

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """Remove a whole state, or roll back to before ``p0``. Only a rollback asks the device, since it may
        be refused."""
        p0, p1 = position_range(p0, p1)
        if not 0 <= seq < self.n_seq_max:
            return False
        if p0 == 0 and p1 == POS_INF:
            self.rollback[seq] = 0
        if seq >= self.size:
            return True
        if p0 > 0:
            return self._roll_back(seq, p0, p1)
        self.cells.leave(seq, self.cells.standing_in(seq, p0, p1), lower_head=True)
        self._known = {}
        return True

    def _roll_back(self, seq: int, p0: int, p1: int) -> bool:
        pos, pending = self._position(seq), int(read_back(self.rollback[seq]))
        if not p0 <= pos < p1:
            return True
        depth = pos - (p0 - 1)
        if self.has_layers:
            if pending != 0 or depth > self.n_rs_seq:
                return False
            self.rollback[seq] = depth
        self.cells.columns[POS].masked_fill_(self.cells.at(seq), p0 - 1)
        self._known = {}
        return True

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """``dst`` shares the state of ``src``; the range is ignored, unknown ids are too."""
        if src != dst and 0 <= src < self.size and 0 <= dst < self.size:
            self._known = {}
            self.cells.share(src, dst)

    def seq_keep(self, seq: int) -> None:
        self._known = {}
        self.cells.keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        check_delta(delta)
        if not 0 <= seq < self.size:
            return
        self._known = {}
        at = self.cells.standing_in(seq, *position_range(p0, p1))
        self.cells.columns[POS] += torch.where(at, delta, 0).to(torch.int32)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        self.check_divisor(seq, p0, p1, d)
        if not 0 <= seq < self.size or d == 0:
            return
        self._known = {}
        pos = self.cells.columns[POS]
        at = self.cells.standing_in(seq, *position_range(p0, p1))
        self.cells.columns[POS] = torch.where(at, torch.div(pos, d, rounding_mode="trunc"), pos)

    def check_divisor(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Division by 0 faults in llama.cpp if the state stands in the range."""
        lo, hi = position_range(p0, p1)
        if d == 0 and 0 <= seq < self.size and lo <= self._position(seq) < hi:
            raise CacheUsageError(
                f"seq_div({seq}, {p0}, {p1}, 0): division by 0; llama.cpp crashes. Use a divisor of 2 or more"
            )

    def forget_positions(self) -> None:
        self._known = {}

    def _position(self, seq: int) -> int:
        """The position of a state, -1 if there is none. Asks the device, for all at once, only after an
        edit."""
        if not 0 <= seq < self.size:
            return -1
        if seq not in self._known:
            columns = read_back(self.cells.columns)
            pos, tail = columns[POS], columns[TAIL]
            self._known = {s: int(pos[cell]) if cell >= 0 else -1 for s, cell in enumerate(tail.tolist())}
        return self._known[seq]

    def seq_pos_min(self, seq: int) -> int:
        return self._position(seq)

    def seq_pos_max(self, seq: int) -> int:
        return max(-1, self._position(seq))

    # -- saved states, pictures, proof ---------------------------------------------------------

    def state_write(self, io: StateWriter, seq: int = -1, flags: int = 0) -> None:
        recurrent_state.write(self, io, seq, flags)

    def state_read(self, io: StateReader, seq: int = -1, flags: int = 0) -> None:
        self.forget_positions()
        recurrent_state.read(self, io, seq)

    def memory_breakdown(self) -> dict[str, int]:
        n_rows = self.size * (1 + self.n_rs_seq)
        sizes = {part: 4 * n_rows * sum(w[i] for w in self.layers) for i, part in enumerate(PARTS)}
        return {part: n_bytes for part, n_bytes in sizes.items() if n_bytes}

    def record(self) -> dict[str, Any]:
        """The ``recurrent`` record of the trace format."""
        columns, owners, counters = map(
            read_back, (self.cells.columns, self.cells.owners, self.cells.counters)
        )
        head, used, n, rs_z = counters.tolist()
        rows = zip(columns.T.tolist(), owners_of(owners), strict=True)
        return {
            "head": head, "size": self.size, "used": used, "n": n, "rs_z": rs_z, "n_rs_seq": self.n_rs_seq,
            "rs_idx": read_back(self.rollback).tolist(),
            "cells": [[i, *row, ids] for i, (row, ids) in enumerate(rows)],
        }  # fmt: skip

    def snapshot_into(
        self, name: str, caches: dict[str, list[dict[str, Any]]], extra: dict[str, Any]
    ) -> dict[str, Any] | None:
        return self.record()

    def check_integrity(self) -> None:
        record = self.record()
        tails = {s: cell[4] for s, cell in enumerate(record["cells"]) if cell[4] >= 0}
        owned = {s: cell[0] for cell in record["cells"] for s in cell[5]}
        if tails != owned:
            raise IntegrityError(f"{self.name}: the tails say {tails}, the owners of the cells {owned}")
        for s, pos in self._known.items():
            if pos != (record["cells"][tails[s]][1] if s in tails else -1):
                raise IntegrityError(f"{self.name}: sequence {s} is believed to be at {pos}, its cell is not")
        if not 0 <= record["head"] < self.size:
            raise IntegrityError(f"{self.name}: head {record['head']} is outside")


class StateSearch:
    """Trial placement of a batch, undone again."""

    def __init__(self, memory: RecurrentMemory, ubatches: Sequence[Ubatch], ok: Tensor | None) -> None:
        self.memory, self.ubatches = memory, ubatches
        cells = memory.cells
        saved = cells.save()
        self._found: list[Tensor] = []
        self.refused: int | None = None
        for i, ubatch in enumerate(ubatches):
            if not ubatch.equal_seqs:
                cells.put_back(saved)
                raise CacheUsageError(
                    "a recurrent memory takes equally many tokens of every sequence in a ubatch; llama.cpp "
                    "aborts: split with split_equal or split_seq"
                )
            if not cells.place(memory.placement(ubatch)):
                self.refused = i
                break
            self._found.append(cells.counters.clone())
        cells.put_back(saved)
        self.ok = torch.full((), self.refused is None, dtype=torch.bool, device=memory.device)
        if ok is not None:
            self.ok = self.ok & ok

    def asked(self) -> Tensor:
        empty = self.memory.cells.empty.to(torch.int64)
        return torch.cat([*self._found, empty])

    def finish(self, values: np.ndarray) -> list[tuple[int, int, int]] | None:
        """Head, n and the row to zero of each ubatch."""
        found = values[: 4 * len(self._found)].reshape(-1, 4)
        if self.refused is not None:
            empty = values[4 * len(self._found) :]
            runs = "".join(".#"[not free] for free in empty).split("#")
            self.memory.last_failure = PrepareFailure(
                self.memory.name, 0, self.refused, self.ubatches[self.refused].n_seqs, int(empty.sum()), 0,
                max(map(len, runs)), n_ubatches=len(self.ubatches),
            )  # fmt: skip
            return None
        return [(int(row[HEAD]), int(row[N]), int(row[RS_Z])) for row in found]


class RecurrentView(View):
    """What the graph sees: ``n`` cells from ``head``; ``s_copy int64[n]`` are the rows their states come
    from, set by :meth:`set_inputs`."""

    def __init__(self, memory: RecurrentMemory, slot: tuple[int, int, int], ubatch: Ubatch) -> None:
        self.memory = memory
        self.head, self.n, self.rs_z = slot
        self.n_seqs = ubatch.n_seqs
        self.s_copy: Tensor | None = None

    def set_inputs(self) -> None:
        """Read the sources of all ``n`` cells; that consumes their rollbacks."""
        memory, cells = self.memory, self.memory.cells
        mine = slice(self.head, self.head + self.n)
        row = cells.columns[2, mine].to(torch.int64)
        if memory.n_rs_seq:
            owner = cells.smallest_owner()[mine]
            depth = torch.where(owner < 0, 0, memory.rollback[owner.clamp(min=0)])
            consumed = torch.zeros(memory.n_seq_max + 1, dtype=torch.bool, device=memory.device)
            consumed.index_fill_(
                0, torch.where(owner < 0, memory.n_seq_max, owner), True
            )  # the last: of nobody
            memory.rollback.masked_fill_(consumed[:-1], 0)
            row = row + depth * memory.size
        self.s_copy = row

    def reuse_key(self) -> dict[str, Any]:
        return {"n_rs": self.n, "n_seqs": self.n_seqs, "rs_head": self.head, "rs_z": self.rs_z}

    def describe(self, name: str, record: dict[str, Any]) -> None:
        record["recurrent"] = self.memory.record()
