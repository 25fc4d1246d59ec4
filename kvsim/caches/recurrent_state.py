"""The saved state of a recurrent memory, byte for byte (``src/llama-memory-recurrent.cpp``).

Layout (spec/state.md, section 4)::

    u32 cells                         of the sequence (0 or 1), or all that have an owner
    per cell: i32 pos, u32 n, n ids   n = 0 for the state of one sequence
    u32 0 (S is not transposed), u32 layers
    per layer with a state: i32 type, u64 row bytes of r, rows [, u64 row bytes of p, rows]
    per layer with a state: i32 type, u64 row bytes of s, rows
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.batch import Ubatch
from kvsim.caches.recurrent_cells import owner_ids
from kvsim.caches.saved_rows import MisfitError, read_recurrent_rows, write_recurrent_rows
from kvsim.errors import CacheUsageError, StateError
from kvsim.state import ON_DEVICE

if TYPE_CHECKING:
    from kvsim.caches.recurrent import RecurrentMemory
    from kvsim.state import StateReader, StateWriter

# -- writing -----------------------------------------------------------------------------------


def write(memory: RecurrentMemory, io: StateWriter, seq: int, flags: int) -> None:
    """Write the state of ``seq`` (-1: all). Rows are taken where the state is: from the plane of a pending
    rollback, and from the cell it was moved from."""
    cells = memory.cells
    saved = [c for c, mask in enumerate(cells.owners) if mask] if seq == -1 else _cell_of(memory, seq)
    if flags & ON_DEVICE and saved and saved[-1] - saved[0] + 1 != len(saved):
        raise CacheUsageError(
            f"state with ON_DEVICE: the states are in cells {saved}, which are not neighbours; llama.cpp "
            "aborts. Save sequence by sequence, or to host memory"
        )
    rows = [_depth(memory, c, seq) * memory.size + (cells.src[c] if cells.src[c] >= 0 else c) for c in saved]
    io.u32(len(saved))
    for c in saved:
        ids = owner_ids(cells.owners[c]) if seq == -1 else []
        io.raw(np.array([cells.pos[c], len(ids), *ids], "<i4").tobytes())
    write_recurrent_rows(io, memory.layers, memory.store, rows)


def _cell_of(memory: RecurrentMemory, seq: int) -> list[int]:
    cell = memory.cells.cell_of(seq)
    return [cell] if cell >= 0 else []


def _depth(memory: RecurrentMemory, cell: int, seq: int) -> int:
    """The pending rollback of what is saved; sequences that share a cell must agree (Rc2)."""
    if seq != -1:
        return memory.rs_idx[seq]
    depths = {s: memory.rs_idx[s] for s in owner_ids(memory.cells.owners[cell])}
    if len(set(depths.values())) > 1:
        raise CacheUsageError(
            f"state of everything: the sequences that share cell {cell} are rolled back by different depths "
            f"{depths}; llama.cpp aborts. Decode them on first, or save sequence by sequence"
        )
    return next(iter(depths.values()))


# -- reading -----------------------------------------------------------------------------------


def read(memory: RecurrentMemory, io: StateReader, seq: int) -> None:
    """Restore into ``seq`` (-1: all). Raises StateError; what was removed or placed before it stays so."""
    count = io.u32("the number of recurrent cells")
    if count == 0 and memory.n_rs_seq and seq >= memory.n_seq_max:
        raise CacheUsageError(
            f"an empty state cannot be restored into sequence {seq}; llama.cpp aborts. "
            f"Use an id from 0 to {memory.n_seq_max - 1}"
        )
    cells_read = False
    try:
        if count > memory.size:
            raise MisfitError(f"the state has {count} recurrent cells, the memory {memory.size}")
        if seq == -1:
            _read_all_cells(memory, io, count)
        else:
            _read_seq_cell(memory, io, count, seq)
        cells_read = True
        read_recurrent_rows(io, memory.layers, memory.store, memory.cells.head, count)
    except StateError as err:
        if cells_read or isinstance(err, MisfitError):
            _clean_up(memory, seq, count if cells_read else 0)
        raise StateError(f"recurrent memory: {err}") from err
    if memory.n_rs_seq:
        for s in range(memory.n_seq_max) if seq < 0 else (seq,):
            memory.rs_idx[s] = 0


def _clean_up(memory: RecurrentMemory, seq: int, placed: int) -> None:
    """Undo a failed restore: drop the sequence, zero the rows it was to fill (Rc4). Head, n, rs_z stay."""
    if seq == -1:
        memory.clear(True)
        return
    head = memory.cells.head
    memory.seq_rm(seq, -1, -1)
    if placed and memory.store is not None:
        memory.store.zero_cells(head, placed)


def _read_seq_cell(memory: RecurrentMemory, io: StateReader, count: int, seq: int) -> None:
    """The cell of one sequence, placed as a ubatch would be."""
    positions = []
    try:
        for i in range(count):
            what = f"recurrent cell {i} of {count}"
            positions.append(io.i32(what))
            n_ids = io.u32(what)
            if n_ids:
                raise MisfitError(
                    f"{what} lists {n_ids} sequences: it is part of a whole state, not of one sequence"
                )
    except StateError:
        memory.seq_rm(seq, -1, -1)
        raise
    if count > 1 and 0 <= seq < memory.size:
        raise CacheUsageError(
            f"the state of sequence {seq} lists {count} recurrent cells, a sequence has one; llama.cpp "
            "aborts. The state is damaged: save it again"
        )
    memory.seq_rm(seq, -1, -1)
    if count and not memory.place_restored(Ubatch.restored(seq, np.array([positions], np.int32))):
        raise MisfitError(f"sequence {seq} is beyond the {memory.size} cells")


def _read_all_cells(memory: RecurrentMemory, io: StateReader, count: int) -> None:
    """All cells, at indices 0, 1, ... A list cut short leaves what was read of it (Rc5)."""
    memory.clear(True)
    cells = memory.cells
    for c in range(count):
        what = f"recurrent cell {c} of {count}"
        pos, n_ids = io.i32(what), io.u32(what)
        cells.pos[c] = pos
        for _ in range(n_ids):
            s = io.i32(f"the sequences of {what}")
            if not 0 <= s < memory.n_seq_max:
                raise MisfitError(f"{what} belongs to sequence {s}, this context has {memory.n_seq_max}")
            if cells.tail[s] >= 0:
                raise MisfitError(f"{what} belongs to sequence {s}, and so does cell {cells.tail[s]}")
            cells.join(s, c)
    cells.used = count
    cells.src[:count] = range(count)
