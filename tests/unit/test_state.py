"""Saved states of a KV cache, byte for byte, and the containers around them (spec state.md, 1, 2, 5)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_memories import (
    ISWA,
    KV,
    KV_MROPE,
    KV_STREAMS,
    LLAMA,
    feed,
    kv_spec,
    leaf,
    owners,
    positions,
    put,
    recorded,
    snapshot,
    tokens,
)  # fmt: skip

from kvsim import state
from kvsim.batch import Batch
from kvsim.caches.kv import KVCache
from kvsim.errors import CacheUsageError, StateError
from kvsim.models.cache_types import cache_type
from kvsim.models.context_params import ContextParams, resolve
from kvsim.models.params import SwaType
from kvsim.state import ON_DEVICE, StateReader, StateWriter
from kvsim.tensors.store import KVStore

F16, Q8_0 = 1, 8
"""Type numbers of ggml."""


def cache_with_rows(size: int = 8, n_stream: int = 1, **changes: Any) -> KVCache:
    """One layer: 64 values of K and V per token; every row is filled with its cell index + 1 (V: + 129)."""
    n_seq_max = n_stream if n_stream > 1 else 4
    spec = kv_spec(size, n_stream=n_stream, n_seq_max=n_seq_max, **changes)
    ctx = resolve(LLAMA, ContextParams(n_ctx=256, n_seq_max=n_seq_max, kv_unified=n_stream == 1))
    return KVCache(spec, "kv", KVStore.of(spec, ctx))


def fill(cache: KVCache, pos: range, seq: int = 0) -> None:
    """Place tokens and fill their rows with their position + 1 and + 129."""
    view = put(cache, pos, seq)
    assert cache.store is not None
    stream, cells = view.slot.strm[0], view.slot.idxs[0]
    layer = cache.spec.layers[0]
    cache.store.write_k(0, stream, cells, b"".join(bytes([p + 1]) * layer.row_k for p in pos))
    if cache.spec.v_trans:
        one = np.array([[p + 129] * 2 for p in pos], np.uint8).view(np.uint16).ravel()
        cache.store.write_v(0, stream, cells, np.tile(one, layer.n_embd_v_own).tobytes())
    else:
        cache.store.write_v(0, stream, cells, b"".join(bytes([p + 129]) * layer.row_v for p in pos))


def saved(cache: KVCache, seq: int) -> bytes:
    io = StateWriter()
    cache.state_write(io, seq)
    return io.getvalue()


def restore(cache: KVCache, data: bytes, seq: int) -> int:
    io = StateReader(data)
    cache.state_read(io, seq)
    io.commit()
    return io.at


def rows_of(cache: KVCache, stream: int = 0) -> list[tuple[int, int]]:
    """First byte of the K and of the V row of every cell."""
    assert cache.store is not None
    each = [np.array([i], np.int32) for i in range(cache.size)]
    return [(cache.store.read_k(0, stream, i)[0], cache.store.read_v(0, stream, i)[0]) for i in each]


# -- writing -----------------------------------------------------------------------------------------


def test_w1_the_bytes_of_a_sequence() -> None:
    cache = cache_with_rows()
    fill(cache, range(1), 1)
    fill(cache, range(2), 2)
    cache.seq_cp(2, 3, 0, 1)
    assert saved(cache, 2) == (
        struct.pack("<II", 1, 2)  # one stream, two cells
        + struct.pack("<iIi", 0, 1, 2)  # shared with 3, but 2 alone is listed
        + struct.pack("<iIi", 1, 1, 2)
        + struct.pack("<IIII", 0, 1, 0, 0)  # V not transposed, 1 layer, no rotations
        + struct.pack("<iQ", F16, 128) + bytes([1]) * 128 + bytes([2]) * 128
        + struct.pack("<iQ", F16, 128) + bytes([129]) * 128 + bytes([130]) * 128
    )  # fmt: skip


def test_w1_the_whole_lists_all_cells_ascending_with_all_their_ids() -> None:
    cache = cache_with_rows()
    fill(cache, range(3), 1)
    cache.seq_cp(1, 0, 1, 2)
    cache.seq_rm(1, 2, -1)
    data = saved(cache, -1)
    assert data[: 4 + 4 + 12 + 16] == (
        struct.pack("<II", 1, 2) + struct.pack("<iIi", 0, 1, 1) + struct.pack("<iIii", 1, 2, 0, 1)
    )


def test_w1_ids_beyond_n_seq_max_are_not_listed() -> None:
    """Surprise 4: such a sequence can be saved, but not restored."""
    cache = cache_with_rows()
    fill(cache, range(1), 9)
    assert saved(cache, -1)[:16] == struct.pack("<IIiI", 1, 1, 0, 0)
    assert saved(cache, 9)[:16] == struct.pack("<IIiI", 1, 1, 0, 0)
    with pytest.raises(StateError, match="lists 0 sequences"):
        restore(cache, saved(cache, 9), 1)


def test_w1_cells_at_position_minus_one_are_not_saved() -> None:
    cache = cache_with_rows()
    put(cache, [-1, 0], 0)
    assert saved(cache, 0)[:8] == saved(cache, -1)[:8] == struct.pack("<II", 1, 1)


@pytest.mark.parametrize(
    ("swa", "n_swa", "kept"),
    [(SwaType.STANDARD, 4, [6, 7, 8, 9]), (SwaType.CHUNKED, 4, [8, 9]), (SwaType.SYMMETRIC, 4, [7, 8, 9])],
)
def test_w1_a_sequence_omits_what_the_window_hides_from_its_last_position(
    swa: SwaType, n_swa: int, kept: list[int]
) -> None:
    cache = cache_with_rows(16, swa_type=swa, n_swa=n_swa)
    fill(cache, range(10))
    other = cache_with_rows(16)
    restore(other, saved(cache, 0), 0)
    assert [p for p in positions(other) if p >= 0] == kept
    whole = cache_with_rows(16)
    restore(whole, saved(cache, -1), -1)
    assert [p for p in positions(whole) if p >= 0] == list(range(10))


def test_w1_every_stream_is_listed() -> None:
    cache = cache_with_rows(n_stream=3)
    fill(cache, range(1), 1)
    data = saved(cache, 1)
    assert data[:8] == struct.pack("<II", 3, 0)
    assert data[8:12] == struct.pack("<I", 1)
    assert data[-4:] == struct.pack("<I", 0)
    assert saved(cache, 2) == struct.pack("<IIII", 3, 0, 0, 0)


def test_w2_transposed_values_are_saved_row_by_row_in_the_layers_own_width() -> None:
    layer = kv_spec().layers[0]
    cache = cache_with_rows(v_trans=True, layers=(replace(layer, n_embd_v=64, n_embd_v_own=3),))
    fill(cache, range(2))
    tail = struct.pack("<iII", F16, 2, 3) + (bytes([129] * 2) + bytes([130] * 2)) * 3
    assert saved(cache, 0).endswith(tail)
    assert struct.pack("<IIII", 1, 1, 0, 0) in saved(cache, 0)


def test_w3_with_ext_each_cell_has_x_y_and_token() -> None:
    cache = cache_with_rows(has_cell_ext=True, n_pos_per_embd=4)
    pos = np.array([[5], [2], [3], [0]], np.int32)
    put(cache, [5], 0, pos=pos, tokens=np.array([77], np.int32))
    assert saved(cache, 0)[8:32] == struct.pack("<iIiiii", 5, 1, 3, 2, 77, 0)


def test_w4_positions_are_shifted_rows_are_not_and_nothing_is_flushed() -> None:
    cache = cache_with_rows()
    fill(cache, range(2))
    cache.seq_add(0, -1, -1, 5)
    data = saved(cache, 0)
    assert data[8:12] == struct.pack("<i", 5)
    assert bytes([1]) * 128 in data
    assert cache.has_shift
    other = cache_with_rows()
    restore(other, data, 0)
    assert (positions(other)[:2], other.has_shift, rows_of(other)[0]) == ([5, 6], False, (1, 129))


@pytest.mark.parametrize("seq", [-2, 256, 300])
def test_w5_a_cell_cannot_be_asked_for_an_id_that_does_not_exist(seq: int) -> None:
    """llama.cpp then saves nothing at all; without a single cell it saves an empty state."""
    cache = cache_with_rows()
    assert saved(cache, seq) == saved(cache, 0)
    fill(cache, range(2))
    with pytest.raises(StateError, match=f"no sequence {seq}: ids go from 0 to 255"):
        saved(cache, seq)


# -- reading -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("v_trans", [False, True])
@pytest.mark.parametrize("seq", [0, -1])
def test_round_trip_into_a_fragmented_cache(v_trans: bool, seq: int) -> None:
    """Test idea 1; Rd2: the order of the bytes does not depend on where the cells are."""
    source = cache_with_rows(v_trans=v_trans)
    fill(source, range(4))
    data = saved(source, seq)
    target = cache_with_rows(v_trans=v_trans)
    fill(target, range(6), 3)
    for p in (1, 3):
        target.seq_rm(3, p, p + 1)
    assert restore(target, data, seq) == len(data)
    if seq == -1:
        assert owners(target) == "0000...."
        assert rows_of(target)[:4] == [(1, 129), (2, 130), (3, 131), (4, 132)]
    else:
        assert owners(target) == "30303300"
        assert [rows_of(target)[i] for i in (1, 3, 6, 7)] == [(1, 129), (2, 130), (3, 131), (4, 132)]
        assert rows_of(target)[0] == (1, 129)  # the neighbour's own
    assert saved(target, seq) == data


def test_quantised_rows_make_the_round_trip() -> None:
    layer = kv_spec().layers[0]
    quantised = replace(layer, k=cache_type("q8_0"), v=cache_type("q8_0"))
    source = cache_with_rows(layers=(quantised,), n_rot_k=64, n_rot_v=64)
    fill(source, range(3))
    data = saved(source, 0)
    assert struct.pack("<IIII", 0, 1, 64, 64) + struct.pack("<iQ", Q8_0, 68) in data
    target = cache_with_rows(layers=(quantised,), n_rot_k=64, n_rot_v=64)
    restore(target, data, 2)
    assert saved(target, 2)[4:8] == data[4:8]
    assert rows_of(target)[:3] == [(1, 129), (2, 130), (3, 131)]


def test_a_sequence_goes_to_its_new_ids_own_stream() -> None:
    """Test idea 2: from 2 to 1, whatever stream index held it; a unified cache refuses it."""
    source, target = cache_with_rows(n_stream=4), cache_with_rows(n_stream=4)
    fill(source, range(3), 2)
    restore(target, saved(source, 2), 1)
    assert [owners(target, s)[:4] for s in range(4)] == ["....", "111.", "....", "...."]
    unified = cache_with_rows()
    fill(unified, range(2), 1)
    before = unified.snapshot()
    with pytest.raises(StateError, match="the state has 4 streams, the cache 1"):
        restore(unified, saved(source, 2), 1)
    with pytest.raises(StateError, match="the state has 4 streams, the cache 1"):
        restore(unified, saved(source, -1), -1)
    assert unified.snapshot() == before


def test_a_whole_restore_compacts_and_keeps_streams_apart() -> None:
    source, target = cache_with_rows(n_stream=2), cache_with_rows(n_stream=2)
    fill(source, range(4), 0)
    fill(source, range(2), 1)
    source.seq_rm(0, 1, 3)
    fill(target, range(5), 1)
    restore(target, saved(source, -1), -1)
    assert [owners(target, s)[:3] for s in (0, 1)] == ["00.", "11."]
    assert positions(target)[:2] == [0, 3]
    assert target.heads == [0, 0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"size": 3}, "4 cells to restore, only 3"),
        ({"v_trans": True}, "another V layout"),
        ({"n_rot_k": 64}, "rotated by"),
        ({"n_rot_v": 64}, "rotated by"),
        ({"layers": ()}, "1 layers, the cache 0"),
        ({"layers": "q8_0"}, "key type of layer 0 is 1 in the state, 8 in the memory"),
        ({"layers": "wider"}, "key row bytes of layer 0 is 128 in the state, 256 in the memory"),
    ],
)
@pytest.mark.parametrize("seq", [1, -1])
def test_rd1_a_state_that_does_not_fit_is_refused_and_cleaned_up(
    change: dict[str, Any], why: str, seq: int
) -> None:
    """Test idea 5: free cells, rows zeroed."""
    source = cache_with_rows()
    fill(source, range(4))
    layer = kv_spec().layers[0]
    if change.get("layers") == "q8_0":
        change = {"layers": (replace(layer, k=cache_type("q8_0")),)}
    elif change.get("layers") == "wider":
        change = {"layers": (replace(layer, n_embd_k=128),)}
    target = cache_with_rows(**change)
    put(target, range(1), 0)
    put(target, range(2), 1)
    with pytest.raises(StateError, match=why):
        restore(target, saved(source, 0 if seq == 1 else -1), seq)
    assert owners(target).strip(".") == ("" if seq == -1 else "0")


def test_rd1_a_sequence_state_of_several_ids_is_refused() -> None:
    source = cache_with_rows()
    fill(source, range(2))
    source.seq_cp(0, 1, -1, -1)
    target = cache_with_rows()
    fill(target, range(3), 2)
    with pytest.raises(StateError, match="cell 0 lists 2 sequences"):
        restore(target, saved(source, -1), 2)
    assert owners(target) == "." * 8


def test_rd1_no_room_is_refused_after_the_old_sequence_is_gone() -> None:
    source, target = cache_with_rows(), cache_with_rows()
    fill(source, range(6))
    fill(target, range(3), 1)
    fill(target, range(2), 2)
    with pytest.raises(StateError, match=r"no room: .* 6 cells asked for, 5 free"):
        restore(target, saved(source, 0), 2)
    assert owners(target) == "111....."


def test_rd3_without_ext_a_restored_sequence_has_token_0_a_whole_restore_none() -> None:
    source, target = cache_with_rows(), cache_with_rows()
    fill(source, range(1))
    restore(target, saved(source, 0), 1)
    assert target.cells[0].rows()[0][4:] == [0, 0, 0]
    restore(target, saved(source, -1), -1)
    assert target.cells[0].rows()[0][4:] == [-1, 0, 0]


@pytest.mark.parametrize("seq", [1, -1])
def test_rd3_with_ext_x_y_and_token_come_back(seq: int) -> None:
    changes = {"has_cell_ext": True, "n_pos_per_embd": 4}
    source, target = cache_with_rows(**changes), cache_with_rows(**changes)
    put(source, [5], 0, pos=np.array([[5], [2], [3], [0]], np.int32), tokens=np.array([77], np.int32))
    restore(target, saved(source, 0 if seq == 1 else -1), seq)
    assert target.cells[0].rows()[0][4:] == [77, 3, 2]


def test_rd4_a_restore_purges_like_any_ubatch_other_sequences_too() -> None:
    source = cache_with_rows(swa_type=SwaType.STANDARD, n_swa=8)
    fill(source, range(2))
    target = cache_with_rows(swa_type=SwaType.STANDARD, n_swa=2)
    fill(target, range(8), 3)
    target.heads[0] = 3
    restore(target, saved(source, 0), 1)
    assert owners(target) == "...11333"  # took 3 and 4; 0 to 2 went with them
    assert target.seq_pos_min(3) == 5


def test_rd5_an_empty_state_succeeds_and_leaves_the_destination() -> None:
    cache = cache_with_rows()
    fill(cache, range(3), 1)
    assert restore(cache, saved(cache, 0), 1) == 8
    assert owners(cache) == "111....."


def boundaries(cache: KVCache, seq: int) -> tuple[int, int, int]:
    """Where the count ends, where the cells end, where the rows end."""
    n = int(np.count_nonzero(cache.cells[0].has(seq)))
    return 8, 8 + 12 * n, len(saved(cache, seq))


def test_rd5_truncated_at_every_byte_a_sequence_is_untouched_or_gone() -> None:
    """Test idea 3."""
    source = cache_with_rows()
    fill(source, range(2))
    data = saved(source, 0)
    count, cells, end = boundaries(source, 0)
    for cut in range(end):
        target = cache_with_rows()
        fill(target, range(3), 1)
        fill(target, range(1), 2)
        with pytest.raises(StateError, match="truncated"):
            restore(target, data[:cut], 1)
        assert owners(target) == ("1112...." if cut < count else "...2...."), cut
        zeroed = cut >= cells  # the cells were placed, so their rows are zeroed: 0 and 1, freed before
        assert rows_of(target)[0] == ((0, 0) if zeroed else (1, 129)), cut
        target.check_integrity()
    restore(cache_with_rows(), data[:end], 1)


def test_known_gap_rd5_truncated_at_every_byte_a_whole_state_is_untouched_partly_filled_or_empty() -> None:
    source = cache_with_rows()
    fill(source, range(2))
    source.seq_cp(0, 1, -1, -1)
    data = saved(source, -1)
    for cut in range(len(data)):
        target = cache_with_rows()
        fill(target, range(3), 2)
        with pytest.raises(StateError, match="truncated"):
            restore(target, data[:cut], -1)
        if cut < 4:
            wanted = "222....."
        elif cut < 8 + 32:  # inside the cells: what was read stays, a cell by cell, an id by id
            into = max(cut - 8, 0)
            first = "." if into < 8 else "?" if into < 12 else "0" if into < 16 else "*"
            second = "." if into < 24 else "?" if into < 28 else "0"
            wanted = first + second + "......"
        else:
            wanted = "........"
        assert owners(target) == wanted, cut
        target.check_integrity()
    assert struct.unpack_from("<iIii", data, 8) == (0, 2, 0, 1)


def test_a_whole_state_cut_inside_the_ext_leaves_a_cell_without_it() -> None:
    changes = {"has_cell_ext": True, "n_pos_per_embd": 4}
    source, target = cache_with_rows(**changes), cache_with_rows(**changes)
    put(source, [5], 0, pos=np.array([[5], [2], [3], [0]], np.int32), tokens=np.array([77], np.int32))
    with pytest.raises(StateError, match="y of cell 0"):
        restore(target, saved(source, -1)[:22], -1)
    assert target.cells[0].rows() == [[0, 5, [], 0, -1, 0, 0]]


def test_a_cell_without_owners_is_freed_only_for_everybody() -> None:
    source, target = cache_with_rows(), cache_with_rows()
    fill(source, range(2))
    with pytest.raises(StateError):
        restore(target, saved(source, -1)[:16], -1)
    assert owners(target) == "?......."
    target.seq_keep(0)
    assert owners(target) == "?......."
    target.seq_rm(-1, 0, -1)
    assert owners(target) == "........"


def test_an_unknown_id_in_a_whole_state_empties_the_cache() -> None:
    source, target = cache_with_rows(), cache_with_rows()
    fill(source, range(2))
    data = bytearray(saved(source, -1))
    struct.pack_into("<i", data, 8 + 12 + 8, 7)
    with pytest.raises(StateError, match="cell 1 belongs to sequence 7, this context has 4"):
        restore(target, bytes(data), -1)
    assert owners(target) == "." * 8


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 300), st.integers(0, 255), st.sampled_from([1, -1]))
def test_damaged_states_are_refused_or_restored_but_never_more(at: int, value: int, seq: int) -> None:
    """No other error, no huge allocation, the books in order."""
    source, target = cache_with_rows(), cache_with_rows()
    fill(source, range(3))
    data = bytearray(saved(source, 0 if seq == 1 else -1))
    data[at % len(data)] = value
    with suppress(StateError):
        restore(target, bytes(data), seq)
    target.check_integrity()


# -- containers -----------------------------------------------------------------------------------------


def test_the_container_of_a_sequence() -> None:
    ctx = recorded(KV)
    feed(ctx, 2, 3, start=0)
    data = ctx.state_seq_get(2)
    assert data[:8] == struct.pack("<Ii", 0xAF143CD8, 2)
    assert data[8:] == saved(leaf(ctx, "kv"), 2)
    assert ctx.state_seq_set(data + b"trailing", 0) == len(data)
    assert ctx.memory.seq_pos_max(0) == 2


def test_the_container_of_the_whole() -> None:
    ctx = recorded(KV)
    feed(ctx, 2, 3, start=0)
    data = ctx.state_get()
    assert data[:9] == struct.pack("<I", 5) + b"llama"
    assert data[9:] == saved(leaf(ctx, "kv"), -1)
    assert ctx.state_set(data + b"trailing") == len(data)


def test_a_wrong_magic_or_architecture_changes_nothing_and_says_why() -> None:
    ctx = recorded(KV)
    feed(ctx, 0, 3)
    before = snapshot(ctx)
    blob, whole = ctx.state_seq_get(0), ctx.state_get()
    for call, why in (
        (lambda: ctx.state_seq_set(b"\0" + blob[1:], 1), "not a sequence state"),
        (lambda: ctx.state_seq_set(blob[:6], 1), "truncated at byte 4"),
        (lambda: ctx.state_set(b"\5\0\0\0qwen2" + whole[9:]), "architecture 'qwen2', this one is 'llama'"),
        (lambda: ctx.state_set(whole[:7]), "truncated"),
    ):  # fmt: skip
        assert call() == 0
        assert ctx.last_failure is not None
        assert why in ctx.last_failure.reason
        assert snapshot(ctx) == before
    assert ctx.state_seq_set(blob, 1) == len(blob)
    assert ctx.last_failure is None


def test_files_have_a_magic_a_version_and_the_tokens(tmp_path: Path) -> None:
    ctx = recorded(KV)
    feed(ctx, 0, 3)
    whole, one = tmp_path / "whole", tmp_path / "one"
    state.save_all_file(ctx.memory, "llama", whole, [7, 8, 9])
    state.save_sequence_file(ctx.memory, 0, one, [7])
    assert whole.read_bytes()[:24] == struct.pack("<IIIiii", 0x6767736E, 11, 3, 7, 8, 9)
    assert whole.read_bytes()[24:] == ctx.state_get()
    assert one.read_bytes()[:16] == struct.pack("<IIIi", 0x67677371, 4, 1, 7)
    assert one.read_bytes()[16:] == ctx.state_seq_get(0)[8:]
    assert state.load_sequence_file(ctx.memory, 1, one) == [7]
    assert ctx.memory.seq_pos_max(1) == 2
    assert state.load_all_file(ctx.memory, "llama", whole) == [7, 8, 9]
    assert ctx.memory.seq_pos_max(1) == -1


def test_files_of_another_kind_version_or_length_are_refused(tmp_path: Path) -> None:
    ctx = recorded(KV)
    feed(ctx, 0, 3)
    path = tmp_path / "state"
    state.save_all_file(ctx.memory, "llama", path)
    good = path.read_bytes()
    for data, why in (
        (good[:1] + b"!" + good[2:], "0x"), (good[:4] + b"\1" + good[5:], "version"),
        (good + b"x", "left over"), (good[:-1], "truncated"), (b"", "truncated"),
    ):  # fmt: skip
        path.write_bytes(data)
        with pytest.raises(StateError, match=why):
            state.load_all_file(ctx.memory, "llama", path)


# -- states kept on the device -------------------------------------------------------------------------


def test_od1_od3_the_host_part_has_no_rows_and_goes_into_any_sequence() -> None:
    ctx = recorded(KV, data=True)
    feed(ctx, 0, 3)
    kv = leaf(ctx, "kv")
    assert kv.store is not None
    rows = bytes(range(1, 129)) * (3 * kv.spec.layers[0].row_k // 128)
    kv.store.write_k(kv.spec.layers[0].il, 0, np.arange(3, dtype=np.int32), rows)
    host, full = ctx.state_seq_get(0, ON_DEVICE), ctx.state_seq_get(0)
    n_rows = sum(3 * (layer.row_k + layer.row_v) for layer in kv.spec.layers)
    assert len(full) - len(host) == n_rows
    ctx.memory.clear(True)
    assert ctx.state_seq_set(host, 2, ON_DEVICE) == len(host)
    assert ctx.memory.seq_pos_max(2) == 2
    assert kv.store.read_k(kv.spec.layers[0].il, 0, np.arange(3, dtype=np.int32)) == rows


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (
            lambda ctx, host: ctx.state_seq_set(host[:4] + struct.pack("<i", 3) + host[8:], 1, ON_DEVICE),
            "no state of sequence 3",
        ),
        (lambda ctx, host: ctx.state_seq_set(host + b"x", 1, ON_DEVICE), "left over"),
        (lambda ctx, host: ctx.state_seq_set(b"x" + host[1:], 1, ON_DEVICE), "throws out of the call"),
        (lambda ctx, host: ctx.state_seq_set(host[:6], 1, ON_DEVICE), "throws out of the call"),
    ],
)
def test_od3_od4_od6_what_ends_llama_cpp_is_refused_before_anything_changes(
    harm: Callable[[Any, bytes], int], why: str
) -> None:
    ctx = recorded(KV)
    feed(ctx, 0, 3)
    feed(ctx, 1, 2, start=0)
    host = ctx.state_seq_get(0, ON_DEVICE)
    before = snapshot(ctx)
    with pytest.raises(CacheUsageError, match=why):
        harm(ctx, host)
    assert snapshot(ctx) == before


def test_od2_a_newer_save_of_the_sequence_replaces_the_older() -> None:
    ctx = recorded(KV)
    feed(ctx, 0, 3)
    older = ctx.state_seq_get(0, ON_DEVICE)
    feed(ctx, 0, 2)
    ctx.state_seq_get(0, ON_DEVICE)
    before = snapshot(ctx)
    with pytest.raises(CacheUsageError, match="are left over"):
        ctx.state_seq_set(older, 1, ON_DEVICE)
    assert snapshot(ctx) == before


# -- strict ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [KV, KV_STREAMS, KV_MROPE, ISWA])
def test_strict_leaves_the_memory_exactly_as_it_was(name: str) -> None:
    ctx = recorded(name)
    feed(ctx, 0, 4)
    feed(ctx, 1, 2, start=0)
    blob, whole = ctx.state_seq_get(0), ctx.state_get()
    if "str" in name:
        ctx.memory.seq_cp(0, 2, -1, -1)
    before = snapshot(ctx)
    for cut in {*range(100), *range(100, len(blob) - 1, 197), len(blob) - 1}:
        assert ctx.state_seq_set(blob[:cut], 1, strict=True) == 0
        assert ctx.state_set(whole[:cut], strict=True) == 0
        assert snapshot(ctx) == before
    assert ctx.state_seq_set(blob, 1, strict=True) == len(blob)
    assert ctx.memory.seq_pos_max(1) == 3
    assert ctx.state_set(whole, strict=True) == len(whole)


def test_strict_changes_no_rows_and_keeps_its_observers() -> None:
    cache = cache_with_rows()
    fill(cache, range(3), 0)
    fill(cache, range(2), 1)
    rows = rows_of(cache)
    told: list[Any] = []
    cache.observe(told.append)
    data = state.save_sequence(cache, 0)
    with pytest.raises(StateError):
        state.load_sequence(cache, data[:-1], 1, strict=True)
    assert rows_of(cache) == rows
    assert cache.observer is not None


def test_surprise_1_a_whole_restore_leaves_queued_copies_that_later_overwrite_it() -> None:
    cache = cache_with_rows(n_stream=2)
    fill(cache, range(2), 0)
    whole = saved(cache, -1)
    cache.seq_cp(0, 1, -1, -1)
    restore(cache, whole, -1)
    assert cache.pending_copies == [(0, 1)]
    assert owners(cache, 1) == "." * 8
    cache.init_update().apply()
    assert rows_of(cache, 1)[0] == (1, 129)


def test_a_state_may_be_decoded_on_from() -> None:
    ctx = recorded(KV)
    feed(ctx, 0, 3)
    other = recorded(KV)
    other.state_seq_set(ctx.state_seq_get(0), 3)
    assert other.decode(Batch.joined(tokens(3, 1))) == 0
    assert other.memory.seq_pos_max(3) == 3
