"""The saved state of a KV cache, byte for byte (``src/llama-kv-cache.cpp: state_write, state_read``).

Layout of one stream: the number of cells; per cell its position, owners and, if the cache has it, ext;
then per layer the type and width of K and the rows, then the same for V. See spec/state.md, section 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim import window
from kvsim.batch import Ubatch
from kvsim.errors import CacheUsageError, StateError
from kvsim.memory import BoolArray, IntArray, SlotInfo
from kvsim.models.cache_spec import LayerSpec

if TYPE_CHECKING:
    from kvsim.caches.kv import KVCache
    from kvsim.state import StateReader, StateWriter


def write(cache: KVCache, io: StateWriter, seq: int) -> None:
    """Write the cells of ``seq`` that the window has not passed (-1: every cell). Nothing pending is
    run first: positions include shifts that the rows do not (W4)."""
    if seq < -1:
        raise CacheUsageError(f"state_write: there is no sequence {seq}; use an id, or -1 for everything")
    if cache.has_shift:
        cache._hazard("save-before-shift", seq=seq)
    io.u32(cache.n_stream)
    for stream in range(cache.n_stream):
        cells = np.flatnonzero(_saved(cache, stream, seq)).astype(np.int32)
        io.u32(len(cells))
        if len(cells):
            io.raw(_meta(cache, stream, cells, seq))
            _write_rows(cache, io, stream, cells)


def _saved(cache: KVCache, stream: int, seq: int) -> BoolArray:
    cells = cache.cells[stream]
    hi = cells.used_max_p1
    pos = cells.pos[:hi]
    kept: BoolArray = pos != -1
    if seq != -1:
        kept &= cells.has(seq, hi)
        kept &= ~window.masked(cache.spec.swa_type, cache.spec.n_swa, pos, cells.seq_pos_max(seq))
    return kept


def _meta(cache: KVCache, stream: int, cells: IntArray, seq: int) -> bytes:
    table = cache.cells[stream]
    parts: list[list[int]] = []
    for i, pos, x, y, tok in zip(
        cells.tolist(), *(a[cells].tolist() for a in (table.pos, table.x, table.y, table.tok)), strict=True
    ):
        owners = [s for s in table.owners(i) if s < cache.n_seq_max] if seq == -1 else [seq]
        if seq >= cache.n_seq_max:
            owners = []  # such an id is never listed: the state cannot be restored
        parts.append([pos, len(owners), *((x, y, tok) if cache.spec.has_cell_ext else ()), *owners])
    return np.array([v for part in parts for v in part], "<i4").tobytes()


def _write_rows(cache: KVCache, io: StateWriter, stream: int, cells: IntArray) -> None:
    spec = cache.spec
    for value in (int(spec.v_trans), len(spec.layers), spec.n_rot_k, spec.n_rot_v):
        io.u32(value)
    n = len(cells)
    for layer in spec.layers:
        io.i32(layer.k.ggml_id)
        io.u64(layer.row_k)
        io.rows(cache.store.read_k(layer.il, stream, cells) if cache.store else None, n * layer.row_k)
    for layer in spec.layers:
        if layer.v is None:
            continue
        io.i32(layer.v.ggml_id)
        if spec.v_trans:
            io.u32(layer.v.n_bytes)
            io.u32(layer.n_embd_v_own)
        else:
            io.u64(layer.row_v)
        io.rows(cache.store.read_v(layer.il, stream, cells) if cache.store else None, n * _v_bytes(cache, layer))


def _v_bytes(cache: KVCache, layer: LayerSpec) -> int:
    """Saved V bytes of one cell: a row, or one element of each transposed row."""
    assert layer.v is not None
    return layer.v.n_bytes * layer.n_embd_v_own if cache.spec.v_trans else layer.row_v


def read(cache: KVCache, io: StateReader, seq: int, mirror: list[SlotInfo | None] | None = None) -> list[SlotInfo | None]:
    """Restore ``seq`` (-1: everything) and return the slot of each stream of the state.

    ``mirror`` gives the slots another cache took, which this one must take too (hybrid-idx). A refusal
    raises StateError; what was removed or purged before it stays so (Rd4, Rd5).
    """
    if seq != -1:
        cache.check_seq("state_read", seq)
    if mirror is not None and len(mirror) != cache.n_stream:
        raise StateError(f"cache {cache.name!r}: the mirrored slots are of {len(mirror)} streams, not {cache.n_stream}")
    n_stream = io.u32("the number of streams")
    if n_stream != cache.n_stream:
        raise StateError(
            f"cache {cache.name!r}: the state has {n_stream} streams, the cache {cache.n_stream}: it was made with another kv_unified or n_seq_max"
        )
    if seq == -1:
        cache.clear(True)
    slots: list[SlotInfo | None] = [None] * n_stream
    for s in range(n_stream):
        count = io.u32(f"the cell count of stream {s}")
        if count == 0:
            if mirror is not None and mirror[s] is not None:
                raise StateError(f"cache {cache.name!r}: empty in stream {s}, where the mirrored cache holds cells")
            continue
        stream = s if seq == -1 else cache.stream_of(seq)
        slots[s] = _read_stream(cache, io, stream, count, seq, mirror, s)
    return slots


def _read_stream(
    cache: KVCache, io: StateReader, stream: int, count: int, seq: int,
    mirror: list[SlotInfo | None] | None, s: int,
) -> SlotInfo:  # fmt: skip
    """One stream: the cells, then the rows. Cells cut short leave what was done; any other failure cleans up."""
    slot: SlotInfo | None = None
    truncated = False
    try:
        wanted = None if mirror is None else mirror[s]
        if mirror is not None and (wanted is None or wanted.n_cells != count):
            seq != -1 and cache.seq_rm(seq, -1, -1)
            raise _Refused(f"{count} cells to restore, the mirrored cache placed {wanted.n_cells if wanted else 0}")
        if count > cache.size:
            raise _Refused(f"{count} cells to restore, only {cache.size} in a stream")
        try:
            if seq == -1:
                slot = _read_all_cells(cache, io, stream, count)
            else:
                slot = _read_seq_cells(cache, io, stream, count, seq, wanted)
        except StateError as err:
            truncated = not isinstance(err, _Refused)
            raise
        _read_rows(cache, io, stream, slot.idxs[0])
    except StateError as err:
        if not truncated:
            clear_sequence(cache, seq, stream, slot)
        raise StateError(f"cache {cache.name!r}: {err}") from err
    return slot


class _Refused(StateError):
    """A state that is complete but does not fit: the caller's clean-up runs (not so when it is cut short)."""


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
    cache: KVCache, io: StateReader, stream: int, count: int, seq: int, wanted: SlotInfo | None
) -> SlotInfo:
    """The cells of one sequence, placed by a slot search (or where ``wanted`` says)."""
    cache.seq_rm(seq, -1, -1)
    ext = cache.spec.has_cell_ext
    width = 6 if ext else 3  # pos, n_seq_id, [x, y, tok], id
    have = min(count, io.left // (4 * width))
    table = np.frombuffer(io.take(4 * width * have), "<i4").reshape(have, width)
    if (table[:, 1] != 1).any():
        bad = int(np.flatnonzero(table[:, 1] != 1)[0])
        raise _Refused(f"cell {bad} of the state lists {table[bad, 1]} sequences, a sequence state lists 1")
    if have < count:
        if io.left >= 8 and np.frombuffer(io.take(8), "<i4")[1] != 1:
            raise _Refused(f"cell {have} of the state does not list 1 sequence")
        io.take(4 * width, f"cell {have} of {count}")
    pos = np.zeros((4 if cache.spec.n_pos_per_embd > 1 else 1, count), np.int32)
    pos[0] = table[:, 0]
    if len(pos) > 1:
        pos[1], pos[2] = table[:, 3], table[:, 2]
    ubatch = _restore_ubatch(pos, table[:, 4].astype(np.int32) if ext else np.zeros(count, np.int32), seq)
    slot = _mirrored(cache, stream, wanted) if wanted is not None else cache.find_slot(ubatch)
    if slot is None:
        raise _Refused(f"no room: {cache.last_failure}")
    cache._place(slot, ubatch)
    if ext:
        cache.cells[stream].set_ext(slot.idxs[0], table[:, 4], table[:, 2], table[:, 3])
    return slot


def _restore_ubatch(pos: IntArray, tokens: IntArray, seq: int) -> Ubatch:
    """The one-sequence ubatch llama.cpp builds to restore a sequence; its token array is zero-filled, so
    without saved ext the cells get token 0 (Rd3)."""
    n = pos.shape[1]
    return Ubatch(
        pos=pos, seq_ids=((seq,),) * n, output=np.zeros(n, np.bool_), idx=np.arange(n, dtype=np.int32),
        tokens=tokens, has_embd=False, n_seq_tokens=n, n_seqs=1, equal_seqs=True, seq_id_unq=(seq,),
    )  # fmt: skip


def _mirrored(cache: KVCache, stream: int, wanted: SlotInfo) -> SlotInfo:
    cells = wanted.idxs[0]
    taken = cells[cache.cells[stream].pos[cells] != -1]
    if len(taken):
        raise _Refused(f"cell {int(taken[0])} of the mirrored slot is not free: the two caches have drifted apart")
    return SlotInfo((stream,), (cells,))


def _read_all_cells(cache: KVCache, io: StateReader, stream: int, count: int) -> SlotInfo:
    """Every cell goes to indices 0, 1, ...: a whole restore compacts."""
    table = cache.cells[stream]
    for i in range(count):
        pos, n_ids = io.i32(f"cell {i} of {count}"), io.u32(f"cell {i} of {count}")
        x, y, tok = (io.i32(), io.i32(), io.i32()) if cache.spec.has_cell_ext else (0, 0, -1)
        listed = min(n_ids, io.left // 4)
        ids = np.frombuffer(io.take(4 * listed), "<i4")
        bad = np.flatnonzero((ids < 0) | (ids >= cache.n_seq_max))
        good = ids[: bad[0]] if len(bad) else ids
        table.set_row(i, pos, list(dict.fromkeys(good.tolist())))
        table.set_ext(np.array([i], np.int32), tok, x, y)
        if len(bad):
            raise _Refused(f"cell {i} belongs to sequence {ids[bad[0]]}, this context has {cache.n_seq_max}")
        if listed < n_ids:
            io.take(4, f"the sequences of cell {i}")
    cache.heads[stream] = 0
    return SlotInfo((stream,), (np.arange(count, dtype=np.int32),))


def _read_rows(cache: KVCache, io: StateReader, stream: int, cells: IntArray) -> None:
    spec = cache.spec
    v_trans, n_layer = io.u32("v_trans"), io.u32("the layer count")
    rot = io.u32("the key rotation"), io.u32("the value rotation")
    if n_layer != len(spec.layers):
        raise _Refused(f"the state has {n_layer} layers, the cache {len(spec.layers)}")
    if bool(v_trans) != spec.v_trans:
        raise _Refused("the state was saved with another V layout (flash attention on or off)")
    if rot != (spec.n_rot_k, spec.n_rot_v):
        raise _Refused(f"the state's rows are rotated by {rot}, the cache's by {(spec.n_rot_k, spec.n_rot_v)}")
    for layer in spec.layers:
        _expect(io.i32("a key type"), layer.k.ggml_id, f"key type of layer {layer.il}")
        _expect(io.u64("a key row size"), layer.row_k, f"key row bytes of layer {layer.il}")
        data = io.rows(len(cells) * layer.row_k, f"keys of layer {layer.il}")
        if cache.store is not None:
            io.defer(lambda il=layer.il, d=data: cache.store.write_k(il, stream, cells, d))  # type: ignore[misc,union-attr]
    for layer in spec.layers:
        if layer.v is None:
            continue
        _expect(io.i32("a value type"), layer.v.ggml_id, f"value type of layer {layer.il}")
        if spec.v_trans:
            _expect(io.u32("a value size"), layer.v.n_bytes, f"value element size of layer {layer.il}")
            _expect(io.u32("a value width"), layer.n_embd_v_own, f"value width of layer {layer.il}")
        else:
            _expect(io.u64("a value row size"), layer.row_v, f"value row bytes of layer {layer.il}")
        data = io.rows(len(cells) * _v_bytes(cache, layer), f"values of layer {layer.il}")
        if cache.store is not None:
            io.defer(lambda il=layer.il, d=data: cache.store.write_v(il, stream, cells, d))  # type: ignore[misc,union-attr]


def _expect(found: int, wanted: int, what: str) -> None:
    if found != wanted:
        raise _Refused(f"{what} is {found} in the state, {wanted} in the cache")
