"""Saved states of a recurrent memory: the same bytes as kvsim's (spec state.md 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.picture import owners_of
from engine.recurrent_cells import HEAD, POS, SRC, TAIL, USED
from engine.rows import WORD, owner_words
from engine.sync import read_back, upload
from kvsim.batch import Ubatch
from kvsim.caches.saved_rows import MisfitError, read_recurrent_rows, write_recurrent_rows
from kvsim.errors import CacheUsageError, StateError
from kvsim.state import ON_DEVICE

if TYPE_CHECKING:
    from engine.recurrent import RecurrentMemory
    from kvsim.state import StateReader, StateWriter


def write(memory: RecurrentMemory, io: StateWriter, seq: int, flags: int) -> None:
    """Write the state of ``seq`` (-1: all), rows from where they are: the plane of a pending rollback, the
    cell they were moved from."""
    columns, owners = read_back(memory.cells.columns), owners_of(read_back(memory.cells.owners))
    rollback = read_back(memory.rollback)
    if seq == -1:
        saved = [c for c, ids in enumerate(owners) if ids]
    else:
        cell = int(columns[TAIL, seq]) if 0 <= seq < memory.size else -1
        saved = [cell] if cell >= 0 else []
    if flags & ON_DEVICE and saved and saved[-1] - saved[0] + 1 != len(saved):
        raise CacheUsageError(
            f"ON_DEVICE: the states in cells {saved} do not lie together; llama.cpp aborts. Save one "
            "sequence at a time, or to host memory"
        )
    rows = []
    for c in saved:
        depths = {int(rollback[s]) for s in (owners[c] if seq == -1 else [seq])}
        if len(depths) > 1:
            raise CacheUsageError(
                f"the sequences that share cell {c} are rolled back to different depths; llama.cpp aborts. "
                "Decode them on first, or save them one by one"
            )
        source = int(columns[SRC, c])
        rows.append(depths.pop() * memory.size + (source if source >= 0 else c))
    io.u32(len(saved))
    for c in saved:
        ids = owners[c] if seq == -1 else []
        io.raw(np.array([columns[POS, c], len(ids), *ids], "<i4").tobytes())
    write_recurrent_rows(io, memory.layers, memory.store, rows)


def read(memory: RecurrentMemory, io: StateReader, seq: int) -> None:
    """Restore into ``seq`` (-1: all). Raises StateError; what was removed or placed before it stays so."""
    count = io.u32("the number of recurrent cells")
    if count == 0 and memory.n_rs_seq and seq >= memory.n_seq_max:
        raise CacheUsageError(
            f"an empty state cannot go to sequence {seq}, ids end at {memory.n_seq_max - 1}; llama.cpp aborts"
        )
    cells_read = False
    try:
        if count > memory.size:
            raise MisfitError(f"the state has {count} recurrent cells, the memory {memory.size}")
        (_read_all if seq == -1 else _read_one)(memory, io, count, seq)
        cells_read = True
        head = int(read_back(memory.cells.counters)[HEAD])
        read_recurrent_rows(io, memory.layers, memory.store, head, count)
    except StateError as err:
        if seq == -1 and (cells_read or isinstance(err, MisfitError)):
            memory.clear(True)
        elif cells_read or isinstance(err, MisfitError):
            head = int(read_back(memory.cells.counters)[HEAD])
            memory.seq_rm(seq, -1, -1)
            if cells_read and count and memory.store is not None:
                memory.store.zero_cells(head, count)
        raise StateError(f"recurrent memory: {err}") from err
    if memory.n_rs_seq:
        memory.rollback[slice(None) if seq < 0 else seq] = 0


def _read_one(memory: RecurrentMemory, io: StateReader, count: int, seq: int) -> None:
    """The cell of one sequence, placed as a ubatch would be."""
    pos = []
    try:
        for i in range(count):
            pos.append(io.i32(f"recurrent cell {i} of {count}"))
            n_ids = io.u32(f"recurrent cell {i} of {count}")
            if n_ids:
                raise MisfitError(
                    f"recurrent cell {i} lists {n_ids} sequences: this is a part of a whole state"
                )
    finally:
        if len(pos) < 2 or not 0 <= seq < memory.size or len(pos) < count:
            memory.seq_rm(seq, -1, -1)
    if count > 1 and 0 <= seq < memory.size:
        raise CacheUsageError(
            f"the state of one sequence has {count} recurrent cells; llama.cpp aborts: it is damaged"
        )
    if count and not memory.place_restored(Ubatch.restored(seq, np.array([pos], np.int32))):
        raise MisfitError(f"sequence {seq} is beyond the {memory.size} cells")


def _read_all(memory: RecurrentMemory, io: StateReader, count: int, seq: int) -> None:
    """All cells, at 0, 1, ... What was read of a list that is cut short stays."""
    memory.clear(True)
    pos: list[int] = []
    owners: list[tuple[int, ...]] = []
    tails: dict[int, int] = {}
    whole = False
    try:
        for c in range(count):
            at, n_ids = io.i32(f"recurrent cell {c} of {count}"), io.u32(f"recurrent cell {c} of {count}")
            pos.append(at)
            owners.append(())
            for _ in range(n_ids):
                s = io.i32(f"the sequences of recurrent cell {c}")
                if not 0 <= s < memory.n_seq_max:
                    raise MisfitError(
                        f"recurrent cell {c} belongs to sequence {s}, this context has {memory.n_seq_max}"
                    )
                if s in tails:
                    raise MisfitError(f"sequence {s} is in the recurrent cells {tails[s]} and {c}")
                tails[s] = c
                owners[-1] += (s,)
        whole = True
    finally:
        _put(memory, pos, owners, tails, whole)


def _put(
    memory: RecurrentMemory, pos: list[int], owners: list[tuple[int, ...]], tails: dict[int, int], whole: bool
) -> None:
    cells, n = memory.cells, len(pos)
    memory.forget_positions()
    cells.columns[POS, :n] = upload(pos, memory.device).to(cells.columns.dtype)
    cells.owners[:, :n] = upload(owner_words(tuple(owners), len(cells.owners)), memory.device, WORD)
    cells.columns[TAIL].index_copy_(
        0,
        upload(list(tails), memory.device),
        upload(list(tails.values()), memory.device).to(cells.columns.dtype),
    )
    if whole:
        cells.counters[USED] = n
        cells.columns[SRC, :n] = cells.index[:n].to(cells.columns.dtype)
