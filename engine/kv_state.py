"""Saved states of a cache: the same bytes as kvsim's, rows gathered and scattered on the device.

Layout of one stream: the number of cells; per cell its position, owners and, where the cache has it, ext;
then per layer type and width of K and the rows, then the same of V (spec state.md 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.cells import KEPT, POS, TOK, Y
from engine.picture import owners_of
from engine.rows import WORD, owner_words
from engine.sync import read_back, upload
from kvsim.batch import Ubatch
from kvsim.caches.attention_leaf import Mirror
from kvsim.caches.saved_rows import MisfitError, read_kv_rows, write_kv_rows
from kvsim.errors import StateError
from kvsim.memory import MAX_SEQ, SlotInfo
from kvsim.models.params import SwaType

if TYPE_CHECKING:
    from engine.kv import DeviceSlot, KVCache
    from kvsim.state import StateReader, StateWriter


# -- writing ---------------------------------------------------------------------------------------


def write(cache: KVCache, io: StateWriter, seq: int) -> None:
    """Write the cells of ``seq`` that its window has not passed (-1: every cell).

    Raises StateError for an id that no cell can have, unless there is no cell at all to be asked.
    """
    if (
        seq != -1
        and not 0 <= seq < MAX_SEQ
        and any(len(_saved_cells(cache, s, -1)[0]) for s in range(cache.n_stream))
    ):
        raise StateError(
            f"there is no sequence {seq}: ids go from 0 to {MAX_SEQ - 1}, and -1 stands for everything"
        )
    io.u32(cache.n_stream)
    for stream in range(cache.n_stream):
        if seq != -1 and stream != cache.stream_of(seq):
            io.u32(0)
            continue
        cells, pos, tok, x, y, owners = _saved_cells(cache, stream, seq)
        io.u32(len(cells))
        if len(cells):
            ext = (x, y, tok) if cache.spec.has_cell_ext else ()
            io.raw(_pack(pos, ext, owners))
            write_kv_rows(io, cache.spec, cache.store, stream, cells)


def _saved_cells(cache: KVCache, stream: int, seq: int) -> tuple[np.ndarray, ...]:
    """Indices and contents of the cells to save, read back at once."""
    table, hi = cache.table, cache.table.top[stream]
    kept = table.planes[POS, stream, :hi] != -1
    if seq != -1:
        kept = kept & table.has(stream, seq, hi) & ~_passed(cache, stream, seq, hi)
    columns = [
        kept.to(torch.int64),
        *table.planes[:KEPT, stream, :hi].to(torch.int64),
        *table.seq[:, stream, :hi],
    ]
    values = read_back(torch.stack(columns))
    at = np.flatnonzero(values[0])
    pos, tok, x, y = values[1:5, at]
    if seq == -1:
        owners = [
            [s for s in ids if s < cache.n_seq_max] for ids in owners_of(values[5:, at].astype(np.int32))
        ]
    else:  # an id beyond n_seq_max is never listed: such a state cannot be restored
        owners = [[seq] if seq < cache.n_seq_max else []] * len(at)
    return at, pos, tok, x, y, owners


def _passed(cache: KVCache, stream: int, seq: int, hi: int) -> torch.Tensor:
    """Cells that the last token of ``seq`` can no longer see."""
    spec = cache.spec
    pos = cache.table.planes[POS, stream, :hi]
    if spec.swa_type is SwaType.NONE:
        return torch.zeros_like(pos, dtype=torch.bool)
    last = cache.table.extremes([seq], hi)[1]
    if spec.swa_type is SwaType.STANDARD:
        return last - pos >= spec.n_swa
    if spec.swa_type is SwaType.CHUNKED:
        return pos < last // spec.n_swa * spec.n_swa
    return (last - pos).abs() > spec.n_swa // 2


def _pack(pos: np.ndarray, ext: tuple[np.ndarray, ...], owners: list[list[int]]) -> bytes:
    """The cells one after the other: position, number of owners, ext, owners."""
    counts = np.array([len(ids) for ids in owners])
    starts = np.concatenate([[0], np.cumsum(counts + 2 + len(ext))])
    out = np.empty(starts[-1], "<i4")
    out[starts[:-1]], out[starts[:-1] + 1] = pos, counts
    for i, column in enumerate(ext):
        out[starts[:-1] + 2 + i] = column
    is_owner = np.ones(len(out), np.bool_)
    for i in range(2 + len(ext)):
        is_owner[starts[:-1] + i] = False
    out[is_owner] = [s for ids in owners for s in ids]
    return out.tobytes()


# -- reading ---------------------------------------------------------------------------------------


def read(cache: KVCache, io: StateReader, seq: int, mirror: Mirror | None = None) -> Mirror:
    """Restore ``seq`` (-1: everything); returns the slot taken in each stream of the state.

    ``mirror``: slots that must be taken. A refusal raises StateError and leaves what llama.cpp leaves.
    """
    if seq != -1:
        cache.check_seq("state_read", seq)
    if mirror is not None and len(mirror) != cache.n_stream:
        raise StateError(
            f"cache {cache.name!r} has {cache.n_stream} streams, the mirrored slots {len(mirror)}"
        )
    n_stream = io.u32("the number of streams")
    if n_stream != cache.n_stream:
        raise StateError(
            f"cache {cache.name!r} has {cache.n_stream} streams, the state {n_stream}: kv_unified or "
            "n_seq_max was another when it was saved"
        )
    if seq == -1:
        cache.clear(True)
    slots: Mirror = []
    for s in range(n_stream):
        wanted = None if mirror is None else mirror[s]
        count = io.u32(f"the cell count of stream {s}")
        if count:
            stream = s if seq == -1 else cache.stream_of(seq)
            slots.append(_read_stream(cache, io, stream, count, seq, mirror is not None, wanted))
        elif wanted is not None:
            raise StateError(f"cache {cache.name!r}: stream {s} is empty, that of the mirrored cache is not")
        else:
            slots.append(None)
    return slots


def _read_stream(
    cache: KVCache,
    io: StateReader,
    stream: int,
    count: int,
    seq: int,
    mirrored: bool,
    wanted: SlotInfo | None,
) -> SlotInfo:
    slot: SlotInfo | None = None
    try:
        if count > cache.size:
            raise MisfitError(f"the state has {count} cells, a stream {cache.size}")
        if seq == -1:
            slot = _read_all_cells(cache, io, stream, count, mirrored, wanted)
        else:
            slot = _read_seq_cells(cache, io, stream, count, seq, mirrored, wanted)
        read_kv_rows(io, cache.spec, cache.store, stream, slot.idxs[0])
    except StateError as err:
        if slot is not None or isinstance(err, MisfitError):
            _clean_up(cache, seq, stream, slot)
        raise StateError(f"cache {cache.name!r}: {err}") from err
    return slot


def _clean_up(cache: KVCache, seq: int, stream: int, slot: SlotInfo | None) -> None:
    if seq == -1:
        cache.clear(True)
        return
    cache.seq_rm(seq, -1, -1)
    if slot is not None and cache.store is not None:
        cache.store.zero_cells(stream, slot.idxs[0])


def drop_sequence(cache: KVCache, seq: int) -> None:
    """Forget ``seq`` (-1: everything) and zero the rows that were its alone."""
    if seq == -1:
        cache.clear(True)
        return
    stream = cache.stream_of(seq)
    own = cache.table.only_owner(slice(stream, stream + 1), cache.table.top[stream])[0] == seq
    if cache.store is not None:
        cache.store.zero_where(stream, own)
    cache.seq_rm(seq, -1, -1)


def _read_seq_cells(
    cache: KVCache,
    io: StateReader,
    stream: int,
    count: int,
    seq: int,
    mirrored: bool,
    wanted: SlotInfo | None,
) -> SlotInfo:
    """Cells of one sequence: where a search finds room, or where another cache has put them."""
    cache.seq_rm(seq, -1, -1)
    ext = cache.spec.has_cell_ext
    width = 6 if ext else 3  # position, 1, [x, y, token], id
    whole = min(count, io.left // (4 * width))
    cells = np.frombuffer(io.take(4 * width * whole), "<i4").reshape(whole, width)
    n_ids = cells[:, 1].tolist()
    if whole < count and io.left >= 8:
        n_ids.append(int(np.frombuffer(io.take(8), "<i4")[1]))
    bad = next((i for i, n in enumerate(n_ids) if n != 1), None)
    if bad is not None:
        raise MisfitError(f"cell {bad} belongs to {n_ids[bad]} sequences, in the state of one sequence to 1")
    if whole < count:
        io.take(4 * width, f"cell {whole} of {count}")
    pos = np.zeros((4 if cache.spec.n_pos_per_embd > 1 else 1, count), np.int32)
    pos[0] = cells[:, 0]
    if ext and len(pos) > 1:
        pos[1], pos[2] = cells[:, 3], cells[:, 2]
    ubatch = Ubatch.restored(seq, pos)
    slot = _mirrored_slot(cache, stream, wanted, count, ubatch) if mirrored else cache.find_slot(ubatch)
    if slot is None:
        raise MisfitError(f"no room: {cache.last_failure}")
    cache.place(slot, may_evict=cache.windowed)
    if ext:
        columns = upload(cells[:, [4, 2, 3]].T, cache.device, torch.int32)
        cache.table.planes[TOK : Y + 1].flatten(1).index_copy_(1, slot.flat, columns)
    return slot


def _mirrored_slot(
    cache: KVCache, stream: int, wanted: SlotInfo | None, count: int, ubatch: Ubatch
) -> DeviceSlot:
    placed = 0 if wanted is None else wanted.n_cells
    if wanted is None or placed != count:
        raise MisfitError(f"the state has {count} cells, the mirrored cache has restored {placed}")
    slot = cache.slot_on_device(SlotInfo((stream,), wanted.idxs), ubatch)
    outside = bool((wanted.idxs[0] >= cache.size).any())
    if outside or bool(read_back((cache.table.pos.view(-1).index_select(0, slot.flat) != -1).any())):
        raise MisfitError("a cell of the mirrored slot is not free here: the two caches have drifted apart")
    return slot


def _read_all_cells(
    cache: KVCache, io: StateReader, stream: int, count: int, mirrored: bool, wanted: SlotInfo | None
) -> SlotInfo:
    """All cells, to indices 0, 1, ... What was read of a list that is cut short is placed all the same."""
    if mirrored and (0 if wanted is None else wanted.n_cells) != count:
        raise MisfitError(f"the state has {count} cells, the mirrored cache has restored another number")
    cells: list[tuple[int, int, int, int]] = []
    owners: list[tuple[int, ...]] = []
    try:
        for i in range(count):
            pos, n_ids = io.i32(f"cell {i} of {count}"), io.u32(f"cell {i} of {count}")
            cells.append((pos, -1, 0, 0))
            owners.append(())
            if cache.spec.has_cell_ext:
                x, y, tok = (io.i32(f"{what} of cell {i}") for what in ("x", "y", "the token"))
                cells[-1] = (pos, tok, x, y)
            for _ in range(n_ids):
                owner = io.i32(f"the owners of cell {i}")
                if not 0 <= owner < cache.n_seq_max:
                    raise MisfitError(
                        f"cell {i} belongs to sequence {owner}, this context has {cache.n_seq_max}"
                    )
                owners[-1] += (owner,)
    finally:
        _place_from_zero(cache, stream, cells, owners)
    return SlotInfo((stream,), (np.arange(len(cells), dtype=np.int32),))


def _place_from_zero(
    cache: KVCache, stream: int, cells: list[tuple[int, int, int, int]], owners: list[tuple[int, ...]]
) -> None:
    n, table = len(cells), cache.table
    if n:
        table.know(stream, {s for ids in owners for s in ids})
        columns = np.zeros((6, n), np.int32)
        columns[:KEPT] = np.array(cells, np.int32).T
        columns[KEPT] = columns[POS] == -1
        table.highest = max(table.highest, int(columns[POS].max()))
        if int(columns[POS].min()) < 0:
            table.watch_minus_one()
        words = upload(owner_words(tuple(owners), table.n_words), cache.device, WORD)
        flat = table.index[:n] + stream * cache.size
        table.place(flat, upload(columns, cache.device, torch.int32), words)
    table.top[stream] = n
    cache.high = max(cache.high, n)
    cache.free[stream] = cache.size - n
    cache.forget_ranges()
    table.heads[stream] = 0
