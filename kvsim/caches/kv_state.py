"""The saved state of a KV cache, byte for byte (``src/llama-kv-cache.cpp: state_write, state_read``).

Layout of one stream: the number of cells; per cell its position, owners and, if the cache has it, ext;
then per layer the type and width of K and the rows, then the same for V. See spec/state.md, section 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim import window
from kvsim.batch import Ubatch
from kvsim.caches.saved_rows import MisfitError, read_kv_rows, write_kv_rows
from kvsim.cell_index import index_of
from kvsim.errors import StateError
from kvsim.memory import MAX_SEQ, BoolArray, IntArray, SlotInfo

if TYPE_CHECKING:
    from kvsim.caches.kv import KVCache
    from kvsim.state import StateReader, StateWriter

Mirror = list[SlotInfo | None]
"""Per stream of a state, the slot another cache took when it read the same state."""


def write(cache: KVCache, io: StateWriter, seq: int) -> None:
    """Write the cells of ``seq`` that the window has not passed (-1: every cell). Nothing pending is
    run first: positions include shifts that the rows do not (W4).

    Raises StateError for an id that no cell can have, unless there is no cell at all to be asked.
    """
    if seq != -1 and not 0 <= seq < MAX_SEQ and any((table.pos != -1).any() for table in cache.cells):
        raise StateError(
            f"there is no sequence {seq}: ids go from 0 to {MAX_SEQ - 1}, and -1 stands for everything"
        )
    io.u32(cache.n_stream)
    for stream in range(cache.n_stream):
        if seq != -1 and stream != cache.stream_of(seq):
            io.u32(0)
            continue
        cells = np.flatnonzero(_saved(cache, stream, seq)).astype(np.int32)
        io.u32(len(cells))
        if len(cells):
            io.raw(_meta(cache, stream, cells, seq))
            write_kv_rows(io, cache.spec, cache.store, stream, cells)


def _saved(cache: KVCache, stream: int, seq: int) -> BoolArray:
    cells = cache.cells[stream]
    hi = cells.used_max_p1
    pos = cells.pos[:hi]
    kept: BoolArray = pos != -1
    if seq != -1 and kept.any():
        kept &= cells.has(seq, hi)
        kept &= ~window.masked(cache.spec.swa_type, cache.spec.n_swa, pos, cells.seq_pos_max(seq))
    return kept


def _meta(cache: KVCache, stream: int, cells: IntArray, seq: int) -> bytes:
    table = cache.cells[stream]
    if 0 <= seq < cache.n_seq_max:  # one owner: all records are of one form
        ext = [column[cells] for column in (table.x, table.y, table.tok)] if cache.spec.has_cell_ext else []
        ones = np.ones(len(cells), np.int32)
        return np.stack([table.pos[cells], ones, *ext, ones * seq], axis=1).astype("<i4").tobytes()
    parts: list[list[int]] = []
    for i, pos, x, y, tok in zip(
        cells.tolist(), *(a[cells].tolist() for a in (table.pos, table.x, table.y, table.tok)), strict=True
    ):
        owners = [s for s in table.owners(i) if s < cache.n_seq_max] if seq == -1 else [seq]
        if seq >= cache.n_seq_max:
            owners = []  # such an id is never listed: the state cannot be restored
        parts.append([pos, len(owners), *((x, y, tok) if cache.spec.has_cell_ext else ()), *owners])
    return np.array([v for part in parts for v in part], "<i4").tobytes()


def read(cache: KVCache, io: StateReader, seq: int, mirror: Mirror | None = None) -> list[SlotInfo | None]:
    """Restore ``seq`` (-1: everything) and return the slot of each stream of the state.

    ``mirror`` gives the slots another cache took, which this one must take too (hybrid-idx). A refusal
    raises StateError; what was removed or purged before it stays so (Rd4, Rd5).
    """
    if seq != -1:
        cache.check_seq("state_read", seq)
    if mirror is not None and len(mirror) != cache.n_stream:
        raise StateError(
            f"cache {cache.name!r}: the mirrored slots are of {len(mirror)} streams, not {cache.n_stream}"
        )
    n_stream = io.u32("the number of streams")
    if n_stream != cache.n_stream:
        raise StateError(
            f"cache {cache.name!r}: the state has {n_stream} streams, the cache {cache.n_stream}: it was "
            f"made with another kv_unified or n_seq_max"
        )
    if seq == -1:
        cache.clear(True)
    slots: list[SlotInfo | None] = [None] * n_stream
    for s in range(n_stream):
        count = io.u32(f"the cell count of stream {s}")
        if count == 0:
            if mirror is not None and mirror[s] is not None:
                raise StateError(f"cache {cache.name!r}: empty in stream {s}, but the mirrored cache is not")
            continue
        stream = s if seq == -1 else cache.stream_of(seq)
        slots[s] = _read_stream(cache, io, stream, count, seq, None if mirror is None else [mirror[s]])
    return slots


def _read_stream(
    cache: KVCache, io: StateReader, stream: int, count: int, seq: int, mirror: Mirror | None
) -> SlotInfo:
    """One stream: the cells, then the rows. Cells cut short leave what was done; other failures clean up."""
    slot: SlotInfo | None = None
    try:
        if count > cache.size:
            raise MisfitError(f"{count} cells to restore, only {cache.size} in a stream")
        read_cells = _read_all_cells if seq == -1 else _read_seq_cells
        slot = read_cells(cache, io, stream, count, seq, mirror)
        read_kv_rows(io, cache.spec, cache.store, stream, slot.idxs[0])
    except StateError as err:
        if slot is not None or isinstance(err, MisfitError):
            clear_sequence(cache, seq, stream, slot)
        raise StateError(f"cache {cache.name!r}: {err}") from err
    return slot


def clear_sequence(cache: KVCache, seq: int, stream: int, slot: SlotInfo | None) -> None:
    """Undo a failed restore (``state_clear``): drop the sequence, zero the rows it was to fill."""
    if seq == -1:
        cache.clear(True)
        return
    cache.seq_rm(seq, -1, -1)
    if slot is not None and cache.store is not None:
        cache.store.zero_cells(stream, slot.idxs[0])


def drop_sequence(cache: KVCache, seq: int) -> None:
    """Forget ``seq`` (-1: everything) and zero the rows that were its alone, as a composite does when
    another part failed to restore."""
    if seq == -1:
        cache.clear(True)
        return
    stream = cache.stream_of(seq)
    cells = cache.cells[stream]
    own = np.flatnonzero(cells.single_owner(seq, 0, cells.used_max_p1)).astype(np.int32)
    clear_sequence(cache, seq, stream, SlotInfo((stream,), (own,)))


def _read_seq_cells(
    cache: KVCache, io: StateReader, stream: int, count: int, seq: int, mirror: Mirror | None
) -> SlotInfo:
    """The cells of one sequence, placed by a slot search, or where ``mirror`` says."""
    cache.seq_rm(seq, -1, -1)
    ext = cache.spec.has_cell_ext
    width = 6 if ext else 3  # pos, n_seq_id, [x, y, tok], id
    have = min(count, io.left // (4 * width))
    table = np.frombuffer(io.take(4 * width * have), "<i4").astype(np.int32).reshape(have, width)
    if (table[:, 1] != 1).any():
        bad = int(np.flatnonzero(table[:, 1] != 1)[0])
        raise MisfitError(f"cell {bad} lists {table[bad, 1]} sequences; in a sequence's state it lists 1")
    if have < count:
        if io.left >= 8 and np.frombuffer(io.take(8), "<i4")[1] != 1:
            raise MisfitError(f"cell {have} does not list 1 sequence")
        io.take(4 * width, f"cell {have} of {count}")
    pos = np.zeros((4 if cache.spec.n_pos_per_embd > 1 else 1, count), np.int32)
    pos[0] = table[:, 0]
    if ext and len(pos) > 1:
        pos[1], pos[2] = table[:, 3], table[:, 2]
    ubatch = Ubatch.restored(seq, pos)
    slot = cache.find_slot(ubatch) if mirror is None else _mirrored(cache, stream, mirror[0], count)
    if slot is None:
        raise MisfitError(f"no room: {cache.last_failure}")
    cache._place(slot, ubatch)
    if ext:
        cache.cells[stream].set_ext(index_of(slot.idxs[0]), table[:, 4], table[:, 2], table[:, 3])
    return slot


def _mirrored(cache: KVCache, stream: int, wanted: SlotInfo | None, count: int) -> SlotInfo:
    """The slot another cache took, in this cache's ``stream``: its cells must be free here too."""
    _check_mirror(wanted, count)
    assert wanted is not None
    cells = wanted.idxs[0]
    outside = cells[cells >= cache.size]
    taken = outside if len(outside) else cells[cache.cells[stream].pos[cells] != -1]
    if len(taken):
        raise MisfitError(f"cell {int(taken[0])} of the mirrored slot is not free: the caches differ")
    return SlotInfo((stream,), (cells,))


def _check_mirror(wanted: SlotInfo | None, count: int) -> None:
    placed = 0 if wanted is None else wanted.n_cells
    if placed != count:
        raise MisfitError(f"{count} cells to restore, but the mirrored cache restored {placed}")


def _read_all_cells(
    cache: KVCache, io: StateReader, stream: int, count: int, seq: int, mirror: Mirror | None
) -> SlotInfo:
    """Every cell goes to indices 0, 1, ...: a whole restore compacts. What was read stays, if it fails."""
    if mirror is not None:
        _check_mirror(mirror[0], count)
    pos: list[int] = []
    owners: list[list[int]] = []
    ext: list[tuple[int, int, int]] = []  # tok, x, y
    try:
        for i in range(count):
            at, n_ids = io.i32(f"cell {i} of {count}"), io.u32(f"cell {i} of {count}")
            pos.append(at)
            owners.append([])
            ext.append((-1, 0, 0))
            if cache.spec.has_cell_ext:
                x, y, tok = io.i32(f"x of cell {i}"), io.i32(f"y of cell {i}"), io.i32(f"token of cell {i}")
                ext[-1] = (tok, x, y)
            for _ in range(n_ids):
                owner = io.i32(f"the sequences of cell {i}")
                if not 0 <= owner < cache.n_seq_max:
                    known = cache.n_seq_max
                    raise MisfitError(f"cell {i} belongs to sequence {owner}, this context has {known}")
                if owner not in owners[-1]:
                    owners[-1].append(owner)
    finally:
        cells = np.arange(len(pos), dtype=np.int32)
        cache.cells[stream].place(cells, np.array(pos, np.int32), owners)
        cache.cells[stream].set_ext(cells, *np.array(ext, np.int32).reshape(-1, 3).T)
        cache._emit("write", stream, cells, pos=np.array(pos, np.int32), seqs=owners)
    cache.heads[stream] = 0
    return SlotInfo((stream,), (cells,))
