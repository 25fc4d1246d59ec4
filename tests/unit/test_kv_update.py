"""Copies between streams and the update that carries out what is pending (spec kv_cache.md, section 5)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_memories import LLAMA, kv_cache, kv_spec, owners, positions, put, streams

from kvsim.caches.kv import KVCache
from kvsim.errors import CacheUsageError
from kvsim.memory import MemoryStatus
from kvsim.models.cache_types import cache_type
from kvsim.models.context_params import ContextParams, resolve
from kvsim.models.params import RopeType
from kvsim.tensors.store import KVStore


def test_a_copy_takes_over_positions_shifts_and_ext_at_the_same_cells() -> None:
    cache = streams(3)
    put(cache, range(4), 0)
    cache.seq_rm(0, 1, 2)
    cache.seq_add(0, 2, -1, 5)
    put(cache, range(6), 2)
    cache.seq_cp(0, 2, -1, -1)
    assert owners(cache, 2) == "2.22...."
    assert positions(cache, 2)[:4] == [0, -1, 7, 8]
    assert cache.cells[2].rows() == [
        [0, 0, [2], 0, 100, 0, 0],
        [2, 7, [2], 5, 102, 0, 0],
        [3, 8, [2], 5, 103, 0, 0],
    ]
    assert cache.heads == [0, 0, 0]  # that of the source
    assert cache.pending_copies == [(0, 2)]
    assert owners(cache, 0) == "0.00...."


@pytest.mark.parametrize(("p0", "p1"), [(-1, -1), (0, 0), (0, 7), (7, -1), (8, 9), (-1, 0), (0, 100)])
def test_ranges_that_count_as_the_whole_are_ignored_altogether(p0: int, p1: int) -> None:
    """Known gap: p1 = 0 means everything, as does any end at size - 1 or beyond."""
    cache = streams(2)
    put(cache, range(4), 0)
    cache.seq_cp(0, 1, p0, p1)
    assert owners(cache, 1) == "1111...."


@pytest.mark.parametrize(("p0", "p1"), [(1, -1), (6, -1), (-1, 1), (-1, 6), (2, 5), (1, 100)])
def test_a_sub_range_between_streams_is_refused_before_anything_changes(p0: int, p1: int) -> None:
    cache = streams(2)
    put(cache, range(4), 0)
    put(cache, range(2), 1)
    before = cache.snapshot().to_json()
    with pytest.raises(CacheUsageError, match="only whole sequences"):
        cache.seq_cp(0, 1, p0, p1)
    assert cache.snapshot().to_json() == before


def test_the_flag_of_a_copy_is_that_of_its_shifts_not_of_the_source() -> None:
    """Known gap: only zero shifts pending."""
    cache = streams(3)
    put(cache, range(2), 0)
    cache.seq_add(0, -1, -1, 3)
    cache.seq_add(0, -1, -1, -3)
    assert cache.cells[0].has_shift
    cache.seq_cp(0, 1, -1, -1)
    assert not cache.cells[1].has_shift
    cache.seq_add(0, 1, 2, 3)
    cache.seq_cp(0, 1, -1, -1)
    assert cache.cells[1].has_shift
    cache.seq_cp(2, 1, -1, -1)  # an empty source: the reset clears the flag
    assert not cache.cells[1].has_shift


def test_a_copy_takes_a_cell_at_position_minus_one() -> None:
    """Known gap (cells R21): the copy tests the owner bit only."""
    cache = streams(2)
    put(cache, [-1, 0], 0)
    cache.seq_cp(0, 1, -1, -1)
    assert [row[:3] for row in cache.cells[1].rows()] == [[0, -1, [1]], [1, 0, [1]]]
    assert (cache.cells[1].used, cache.seq_pos_min(1)) == (2, -1)


def test_a_position_divided_below_zero_does_not_survive_the_copy() -> None:
    """It is rebuilt as position - shift plus shift, and falling below 0 frees the cell but for its ext."""
    cache = streams(2)
    put(cache, [0, 4, 9], 0)
    cache.seq_div(0, 4, 5, -2)
    assert cache.cells[0].rows()[1][:4] == [1, -2, [0], 6]
    cache.seq_cp(0, 1, -1, -1)
    assert positions(cache, 1)[:3] == [0, -1, 9]
    assert (cache.cells[1].used, cache.cells[1].has_shift, cache.cells[1].tok[1]) == (2, True, 101)
    cache.check_integrity()


def test_an_update_takes_the_queue_and_the_shift() -> None:
    cache = streams(2)
    put(cache, range(3), 0)
    assert cache.init_update().status is MemoryStatus.NO_UPDATE
    cache.seq_add(0, 1, -1, 2)
    cache.seq_cp(0, 1, -1, -1)
    work = cache.init_update(optimize=True)
    assert work.status is MemoryStatus.SUCCESS
    assert cache.pending_copies == []  # moved out, whether the update is applied or not
    assert work.apply()
    assert (cache.has_shift, cache.cells[1].shift.tolist()[:3]) == (False, [0, 0, 0])
    assert positions(cache, 1)[:3] == [0, 3, 4]
    assert cache.init_update().status is MemoryStatus.NO_UPDATE


def test_an_update_that_is_dropped_has_lost_its_copies_but_not_its_shift() -> None:
    cache = streams(2)
    put(cache, range(3), 0)
    cache.seq_add(0, 1, -1, 2)
    cache.seq_cp(0, 1, -1, -1)
    cache.init_update()
    assert (cache.pending_copies, cache.has_shift) == ([], True)


def test_the_flag_alone_is_work() -> None:
    """cells R17: the shifted cells are gone, one shift over zeros still runs."""
    cache = kv_cache()
    put(cache, range(2))
    cache.seq_add(0, -1, -1, 1)
    cache.seq_rm(0, -1, -1)
    work = cache.init_update()
    assert work.status is MemoryStatus.SUCCESS
    work.apply()
    assert not cache.has_shift


def test_clear_leaves_queued_copies() -> None:
    """Surprise 6."""
    cache = streams(2)
    put(cache, range(3), 0)
    cache.seq_cp(0, 1, -1, -1)
    cache.clear(True)
    assert cache.pending_copies == [(0, 1)]
    assert cache.snapshot().to_json()["pending_copies"] == {"kv": [[0, 1]]}


def test_rows_move_with_the_update_and_copies_come_before_the_shift() -> None:
    spec = kv_spec(4, n_stream=2, n_seq_max=2)
    cache = KVCache(spec, "kv", KVStore.of(spec, resolve(LLAMA, ContextParams(n_ctx=256, n_seq_max=2))))
    assert cache.store is not None
    put(cache, range(2), 0)
    cache.store.write_k(0, 0, cache.cells[0].by_position(0)[1], bytes([1]) * (2 * 128))
    cache.seq_cp(0, 1, -1, -1)
    cells = cache.cells[0].by_position(0)[1]
    assert cache.store.read_k(0, 1, cells) == bytes(256)
    cache.init_update().apply()
    assert cache.store.read_k(0, 1, cells) == bytes([1]) * 256


# -- pending shifts that end llama.cpp at the next update ---------------------------------------


def shifted(**changes: object) -> KVCache:
    cache = kv_cache(**changes)
    put(cache, range(2))
    cache.seq_add(0, -1, -1, 1)
    return cache


def test_a_shift_that_ends_llama_cpp_is_refused_before_anything_is_taken() -> None:
    quantised = kv_spec().layers[0].__class__(**{**vars(kv_spec().layers[0]), "k": cache_type("q8_0")})
    for reason, changes in {
        "cannot shift": {"can_shift": False},
        "has no layer": {"layers": ()},
        "no multiple of 64": {"layers": (quantised,), "n_rot_k": 0},
        "16 of 64 values rotate": {"layers": (replace(quantised, n_rot=16),), "n_rot_k": 64},
    }.items():
        cache = shifted(**changes)
        before = cache.snapshot().to_json()
        with pytest.raises(CacheUsageError, match=reason):
            cache.init_update()
        assert cache.snapshot().to_json() == before


def test_without_rope_nothing_is_turned_and_nothing_can_go_wrong() -> None:
    cache = shifted(layers=(), rope_type=RopeType.NONE)
    cache.init_update().apply()
    assert not cache.has_shift


def test_a_quantised_cache_with_a_rotation_shifts() -> None:
    quantised = kv_spec().layers[0].__class__(**{**vars(kv_spec().layers[0]), "k": cache_type("q8_0")})
    cache = shifted(layers=(quantised,), n_rot_k=64)
    cache.init_update().apply()
    assert not cache.has_shift
