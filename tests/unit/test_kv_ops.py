"""Sequence operations of a KV cache, its head rules, shared cells (spec kv_cache.md, sections 4 and 10)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from small_memories import kv_cache, kv_spec, owners, positions, put, streams, ubatch

from kvsim.caches.kv import KVCache
from kvsim.caches.shared_kv import SharedKVCache
from kvsim.errors import CacheUsageError
from kvsim.state import StateReader, StateWriter


def full() -> KVCache:
    """``00001111``, positions 0 to 3 each."""
    cache = kv_cache(8)
    put(cache, range(4), 0)
    put(cache, range(4), 1)
    return cache


def test_clear_empties_everything_and_resets_heads() -> None:
    cache = streams(2)
    put(cache, range(3), 0)
    put(cache, range(2), 1)
    cache.seq_add(1, 0, -1, 5)
    cache.clear(True)
    assert (owners(cache, 0), owners(cache, 1), cache.heads, cache.has_shift) == (
        "." * 8,
        "." * 8,
        [0, 0],
        False,
    )


def test_o1_seq_rm_is_always_true() -> None:
    cache = full()
    assert cache.seq_rm(3, -1, -1) is True
    assert cache.seq_rm(0, 5, 2) is True
    assert owners(cache) == "00001111"


def test_seq_rm_clamps_negative_ends() -> None:
    cache = full()
    cache.seq_rm(0, -7, 2)
    assert owners(cache) == "..001111"
    cache.seq_rm(0, 3, -7)
    assert owners(cache) == "..0.1111"


def test_seq_rm_lowers_the_head_to_the_first_freed_cell() -> None:
    cache = full()
    assert cache.heads == [8]
    cache.seq_rm(1, 2, -1)
    assert cache.heads == [6]
    cache.heads = [3]
    cache.seq_rm(1, -1, -1)
    assert cache.heads == [3]  # freed cells are behind it


def test_seq_rm_that_frees_nothing_leaves_the_head() -> None:
    cache = full()
    cache.seq_cp(0, 2, -1, -1)
    cache.seq_rm(0, -1, -1)
    assert (owners(cache), cache.heads) == ("22221111", [8])


def test_seq_rm_of_every_sequence_frees_the_range_in_all_streams() -> None:
    cache = streams(3)
    for s in range(3):
        put(cache, range(4), s)
    cache.seq_rm(-1, 1, 3)
    assert [owners(cache, s) for s in range(3)] == ["0..0....", "1..1....", "2..2...."]
    assert cache.heads == [1, 1, 1]


def test_seq_cp_in_a_stream_shares_cells_and_keeps_the_head() -> None:
    cache = full()
    cache.seq_cp(0, 3, 1, 3)
    assert owners(cache) == "0**01111"
    assert (cache.seq_pos_min(3), cache.seq_pos_max(3), cache.heads) == (1, 2, [8])
    cache.seq_cp(0, 0, -1, -1)
    assert owners(cache) == "0**01111"


def test_o6_seq_cp_into_a_sequence_that_has_the_cell_is_idempotent() -> None:
    cache = full()
    cache.seq_cp(0, 3, 0, 2)
    cache.seq_cp(0, 3, 0, 4)
    assert owners(cache) == "****1111"
    cache.seq_rm(3, -1, -1)
    assert owners(cache) == "00001111"
    cache.check_integrity()


def test_seq_keep_lowers_the_head_like_seq_rm() -> None:
    cache = full()
    cache.seq_cp(1, 2, 0, 1)
    cache.seq_keep(2)
    assert (owners(cache), cache.heads) == ("....2...", [0])


def test_o7_seq_keep_spares_other_streams() -> None:
    cache = streams(3)
    for s in range(3):
        put(cache, range(2), s)
    cache.seq_keep(1)
    assert [owners(cache, s) for s in range(3)] == ["00......", "11......", "22......"]


def test_seq_add_moves_and_sends_the_head_to_0() -> None:
    cache = full()
    cache.seq_add(0, 2, -1, 3)
    assert (positions(cache)[:4], cache.heads, cache.has_shift) == ([0, 1, 5, 6], [0], True)
    cache.heads = [8]
    cache.seq_add(3, -1, -1, 1)  # nothing in range: the head moves all the same
    assert cache.heads == [0]


def test_seq_add_frees_what_passes_the_end_of_32_bits() -> None:
    cache = full()
    cache.seq_add(0, -1, -1, 2**31 - 2)
    assert (cache.seq_pos_min(0), cache.seq_pos_max(0)) == (2**31 - 2, 2**31 - 1)
    with pytest.raises(CacheUsageError, match="2147483648, it does not fit into 32 bits"):
        cache.seq_add(0, -1, -1, 2**31)


def test_o2_seq_add_of_nothing_leaves_the_head() -> None:
    cache = full()
    cache.seq_add(0, -1, -1, 0)
    cache.seq_add(0, 2, 2, 5)
    cache.seq_add(0, -3, 0, 5)  # p0 is 0 after clamping, so the range is empty
    assert (cache.heads, cache.has_shift) == ([8], False)


def test_o2_seq_div_by_1_or_of_nothing_does_nothing() -> None:
    cache = full()
    cache.seq_div(0, -1, -1, 1)
    cache.seq_div(0, 2, 2, 3)
    assert (positions(cache)[:4], cache.has_shift) == ([0, 1, 2, 3], False)


def test_seq_div_keeps_the_head() -> None:
    cache = full()
    cache.seq_div(0, -1, -1, 2)
    assert (positions(cache)[:4], cache.heads, cache.has_shift) == ([0, 0, 1, 1], [8], True)
    assert cache.cells[0].shift.tolist()[:4] == [0, 1, 1, 2]


def test_o4_o5_shared_cells_move_and_fall_for_every_owner() -> None:
    cache = full()
    cache.seq_cp(0, 2, -1, -1)
    cache.seq_add(0, -1, -1, -2)
    assert owners(cache) == "..**1111"
    assert positions(cache)[2:4] == [0, 1]
    assert (cache.seq_pos_min(2), cache.seq_pos_max(2)) == (0, 1)
    assert cache.heads == [0]


def test_seq_add_below_zero_sends_the_head_to_the_first_freed_cell() -> None:
    cache = full()
    cache.seq_add(1, -1, -1, -2)
    assert (owners(cache), cache.heads) == ("0000..11", [4])


# -- calls that end llama.cpp (recordings' README, list of such calls) ----------------------------

REFUSED: dict[str, Callable[[KVCache], object]] = {
    "seq_rm below -1": lambda c: c.seq_rm(-2, -1, -1),
    "seq_rm beyond": lambda c: c.seq_rm(c.known_ids(), -1, -1),
    "seq_keep -1": lambda c: c.seq_keep(-1),
    "seq_keep beyond": lambda c: c.seq_keep(c.known_ids()),
    "seq_add -1": lambda c: c.seq_add(-1, 0, -1, 1),
    "seq_add beyond": lambda c: c.seq_add(c.known_ids(), 0, -1, 1),
    "seq_div -1": lambda c: c.seq_div(-1, 0, -1, 2),
    "seq_div beyond": lambda c: c.seq_div(c.known_ids(), 0, -1, 2),
    "seq_div by 0": lambda c: c.seq_div(0, 0, -1, 0),
    "seq_cp from -1": lambda c: c.seq_cp(-1, 0, -1, -1),
    "seq_cp to beyond": lambda c: c.seq_cp(0, c.known_ids(), -1, -1),
    "seq_pos_min -1": lambda c: c.seq_pos_min(-1),
    "seq_pos_max beyond": lambda c: c.seq_pos_max(c.known_ids()),
    "state_read into beyond": lambda c: c.state_read(StateReader(b""), c.known_ids()),
    "state_read into -2": lambda c: c.state_read(StateReader(b""), -2),
}


@pytest.mark.parametrize("call", REFUSED)
@pytest.mark.parametrize("n_stream", [1, 3])
def test_calls_that_end_llama_cpp_are_refused_before_anything_changes(call: str, n_stream: int) -> None:
    cache = streams(3) if n_stream == 3 else kv_cache(8)
    put(cache, range(3), 0)
    put(cache, range(2), 1)
    cache.seq_add(0, 1, 2, 4)
    if n_stream == 3:
        cache.seq_cp(0, 2, -1, -1)
    before = cache.snapshot().to_json()
    with pytest.raises(CacheUsageError):
        REFUSED[call](cache)
    assert cache.snapshot().to_json() == before


def test_a_unified_cache_knows_all_256_ids_and_streams_know_their_own() -> None:
    assert kv_cache().known_ids() == 256
    assert streams(3).known_ids() == 3
    kv_cache().seq_rm(255, -1, -1)
    with pytest.raises(CacheUsageError, match="Use an id from 0 to 2"):
        streams(3).seq_rm(3, -1, -1)


@pytest.mark.parametrize("op", ["seq_add", "seq_div"])
def test_o3_several_positions_per_token_cannot_be_moved(op: str) -> None:
    """Checked before the early return."""
    cache = kv_cache(n_pos_per_embd=4)
    put(cache, range(2))
    with pytest.raises(CacheUsageError, match="4 positions per token"):
        getattr(cache, op)(0, 2, 2, 1)


def test_division_by_zero_is_refused_only_with_a_cell_in_range() -> None:
    cache = full()
    cache.seq_div(0, 9, -1, 0)
    cache.seq_div(3, -1, -1, 0)
    assert positions(cache)[:4] == [0, 1, 2, 3]


# -- shared cells (section 10) -------------------------------------------------------------------


def draft_of(source: KVCache) -> SharedKVCache:
    return SharedKVCache(kv_spec(4), source, "draft")


def test_a_draft_has_the_cells_of_its_target() -> None:
    source = full()
    draft = draft_of(source)
    assert (draft.size, draft.cells is source.cells) == (8, True)
    assert (draft.seq_pos_min(1), draft.seq_pos_max(1)) == (0, 3)
    assert draft.memory_breakdown() == {}


def test_nothing_is_changed_through_a_draft() -> None:
    source = full()
    before = source.snapshot().to_json()
    draft = draft_of(source)
    assert draft.seq_rm(0, -1, -1) is True
    draft.seq_cp(0, 2, -1, -1)
    draft.seq_keep(1)
    draft.seq_add(0, -1, -1, 3)
    draft.seq_div(0, -1, -1, 2)
    io = StateWriter()
    draft.state_write(io, 0)
    assert io.getvalue() == b""
    draft.state_read(StateReader(b""), 0)
    assert source.snapshot().to_json() == before


def test_a_draft_searches_slots_on_the_shared_table_but_places_nothing() -> None:
    source = full()
    source.seq_rm(0, 1, 3)
    before = source.snapshot().to_json()
    draft = draft_of(source)
    slots = draft.prepare([ubatch([4, 5])])
    assert slots is not None
    assert slots[0].idxs[0].tolist() == [1, 2]
    draft.apply_ubatch(slots[0], ubatch([4, 5]))
    assert source.snapshot().to_json() == before
    assert draft.prepare([ubatch(range(5))]) is None


def test_a_drafts_update_leaves_the_pending_shift_to_its_target() -> None:
    source = full()
    source.seq_add(0, -1, -1, 2)
    draft = draft_of(source)
    draft.init_update().apply()
    assert source.has_shift
    assert source.cells[0].shift.tolist()[:4] == [2, 2, 2, 2]


def test_can_shift_is_said_by_the_model() -> None:
    assert kv_cache().can_shift
    assert not kv_cache(can_shift=False).can_shift


def test_memory_breakdown_counts_the_rows_of_all_streams() -> None:
    """One layer of 64 f16 values for K and V: 128 bytes a row each."""
    assert streams(3, size=8).memory_breakdown() == {"k": 3 * 8 * 128, "v": 3 * 8 * 128}


def test_integrity_says_which_cache_and_stream() -> None:
    cache = streams(2, name="swa")
    put(cache, range(2), 1)
    cache.cells[1].n_live = 5
    with pytest.raises(Exception, match="cache 'swa', stream 1: 5 live cells"):
        cache.check_integrity()
    cache = kv_cache()
    cache.heads = [9]
    with pytest.raises(Exception, match="head 9 is outside"):
        cache.check_integrity()


def test_the_whole_of_sequences_and_cells() -> None:
    """256 sequences, word by word."""
    cache = kv_cache(512, n_seq_max=256)
    for s in (0, 63, 64, 127, 128, 255):
        put(cache, range(2), s)
    cache.seq_cp(0, 200, -1, -1)
    assert cache.cells[0].sequences() == [0, 63, 64, 127, 128, 200, 255]
    cache.seq_keep(200)
    assert np.flatnonzero(cache.cells[0].pos != -1).tolist() == [0, 1]
