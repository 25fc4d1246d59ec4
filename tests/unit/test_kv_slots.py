"""Finding slots and the two-phase protocol of a KV cache (spec kv_cache.md, sections 2 and 3)."""

from __future__ import annotations

import numpy as np
import pytest
from cell_oracle import find_slot
from hypothesis import given, settings
from hypothesis import strategies as st
from small_memories import kv_cache, owners, positions, put, streams, ubatch, window_cache

from kvsim.caches.kv import KVCache
from kvsim.memory import SlotInfo
from kvsim.models.params import SwaType


def cells_of(slot: SlotInfo | None) -> list[list[int]] | None:
    return None if slot is None else [part.tolist() for part in slot.idxs]


# -- find_slot -----------------------------------------------------------------------------


def test_f1_a_slot_may_wrap_and_skip_used_cells() -> None:
    cache = kv_cache(8)
    put(cache, range(6))
    put(cache, [0], 1)
    cache.seq_rm(0, 0, 2)
    cache.seq_rm(0, 3, 4)
    cache.heads[0] = 6
    assert owners(cache) == "..0.001."
    assert cells_of(cache.find_slot(ubatch([9, 10, 11, 12]))) == [[7, 0, 1, 3]]


def test_the_search_starts_at_0_when_many_cells_before_the_head_are_free() -> None:
    """head > used + 2 n: the head itself stays."""
    cache = kv_cache(16)
    put(cache, range(8))
    cache.seq_rm(0, 1, -1)
    cache.heads[0] = 4
    assert cells_of(cache.find_slot(ubatch([5]))) == [[1]]  # 4 > 1 + 2
    assert cells_of(cache.find_slot(ubatch([5, 6]))) == [[4, 5]]  # 4 <= 1 + 4
    assert cache.heads == [4]


def test_a_head_at_the_very_end_wraps() -> None:
    cache = kv_cache(4)
    put(cache, range(4))
    assert cache.heads == [4]
    cache.seq_rm(0, 1, 2)
    cache.heads[0] = 4
    assert cells_of(cache.find_slot(ubatch([9]))) == [[1]]


def test_f2_a_full_cache_without_window_refuses() -> None:
    cache = kv_cache(4)
    put(cache, range(4))
    assert cache.find_slot(ubatch([4])) is None
    failure = cache.last_failure
    assert failure is not None
    assert (failure.asked, failure.free, failure.reclaimable, failure.largest_hole) == (1, 0, 0, 0)


def test_more_tokens_than_cells_are_refused() -> None:
    assert kv_cache(4).find_slot(ubatch(range(5))) is None


def test_f2_shared_cells_are_not_re_used_though_masked_for_both() -> None:
    cache = window_cache(n_swa=2, size=4)
    put(cache, range(4), [(0, 1)] * 4)
    assert cache.find_slot(ubatch([4])) is None
    failure = cache.last_failure
    assert failure is not None
    assert failure.reclaimable == 0


def test_f3_future_cells_of_the_same_sequence_are_not_re_used() -> None:
    cache = window_cache(n_swa=8, size=4)
    put(cache, range(4))
    assert cache.find_slot(ubatch([1])) is None


def test_cells_of_another_sequence_are_re_used_once_its_window_has_passed() -> None:
    cache = window_cache(n_swa=2, size=4)
    put(cache, range(4), 1)
    assert cells_of(cache.find_slot(ubatch([0, 1], 0))) == [[0, 1]]  # 4 - 1 >= 2, 4 - 2 >= 2
    assert cells_of(cache.find_slot(ubatch([0, 1, 2], 0))) == [[0, 1, 2]]
    assert cache.find_slot(ubatch([0, 1, 2, 3], 0)) is None  # 4 - 3 < 2


@pytest.mark.parametrize(
    ("swa", "n_swa", "top", "reusable"),
    [
        (SwaType.STANDARD, 4, 9, [0, 1, 2, 3, 4, 5, 6]),
        (SwaType.CHUNKED, 4, 7, [0, 1, 2, 3, 4, 5, 6, 7]),
        (SwaType.CHUNKED, 4, 6, [0, 1, 2, 3]),
        (SwaType.SYMMETRIC, 4, 9, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_what_a_window_frees(swa: SwaType, n_swa: int, top: int, reusable: list[int]) -> None:
    """iswa.md, test ideas: seen from the next position, ``top + 1``."""
    cache = window_cache(n_swa, 10, swa)
    put(cache, range(top + 1))
    assert np.flatnonzero(cache.search(0).usable(0, top + 1)).tolist() == reusable


def test_a_refusal_counts_free_and_reclaimable_cells_and_the_largest_hole() -> None:
    cache = window_cache(n_swa=4, size=10)
    put(cache, range(8))  # 0..4 are passed, 5..7 are not
    assert cache.prepare([ubatch([8], 0), ubatch(range(9), 1)]) is None
    failure = cache.last_failure
    assert failure is not None
    assert (failure.cache, failure.stream, failure.ubatch, failure.n_ubatches) == ("kv", 0, 1, 2)
    # position 8 sits in cell 8 by then, so 0..5 are passed, and cell 9 is free
    assert (failure.asked, failure.free, failure.reclaimable, failure.largest_hole) == (9, 1, 6, 6)
    assert str(failure) == (
        "kv (stream 0) has no room for ubatch 2 of 2: 9 cells asked for, 1 free, "
        "6 reclaimable by the window, largest hole 6"
    )


def test_streams_are_searched_one_by_one_and_share_nothing() -> None:
    cache = streams(4, size=4)
    put(cache, range(3), 2)
    slot = cache.find_slot(ubatch([0, 3], [1, 2], equal_seqs=True))
    assert slot is not None
    assert (slot.strm, cells_of(slot)) == ((1, 2), [[0], [3]])
    assert cache.find_slot(ubatch([0, 1, 3, 4], [1, 1, 2, 2])) is None
    failure = cache.last_failure
    assert failure is not None
    assert (failure.stream, failure.asked, failure.free) == (2, 2, 1)


def test_contiguous_search_takes_one_run() -> None:
    """What decoding never asks for (F4)."""
    cache = kv_cache(8)
    put(cache, range(8))
    for p in (1, 3, 4, 6, 7):
        cache.seq_rm(0, p, p + 1)
    cache.heads[0] = 2
    assert owners(cache) == "0.0..0.."
    assert cells_of(cache.find_slot(ubatch([9, 10]), cont=True)) == [[3, 4]]
    assert cache.find_slot(ubatch([9, 10, 11]), cont=True) is None
    assert cells_of(cache.find_slot(ubatch([9, 10, 11]))) == [[3, 4, 6]]


cell_kinds = st.lists(st.sampled_from([".", "0", "1", "*"]), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(
    cell_kinds,
    st.integers(0, 12),
    st.integers(1, 7),
    st.booleans(),
    st.integers(1, 9),
    st.sampled_from(SwaType),
)
def test_equals_the_search_as_it_is_written(
    kinds: list[str], head: int, n: int, cont: bool, n_swa: int, swa: SwaType
) -> None:
    size = len(kinds)
    cache = window_cache(n_swa, size, swa)
    table = cache.cells[0]
    for i, kind in enumerate(kinds):
        if kind != ".":
            table.place(
                np.array([i], np.int32), np.array([i], np.int32), [(0, 1) if kind == "*" else (int(kind),)]
            )
    head = cache.heads[0] = min(head, size)

    def usable(i: int) -> bool:
        if kinds[i] in ".*":
            return kinds[i] == "."
        top = table.seq_pos_max(int(kinds[i])) + 1
        if swa is SwaType.STANDARD:
            return top - i >= n_swa
        if swa is SwaType.CHUNKED:
            return i < top // n_swa * n_swa
        return swa is SwaType.SYMMETRIC and abs(top - i) > n_swa // 2

    wanted = find_slot(size, table.used, head, n, cont, usable)
    found = cells_of(cache.find_slot(ubatch(range(n)), cont))
    assert found == (None if wanted is None else [wanted])
    assert cache.heads == [head]


def test_a_long_search_looks_at_every_cell_once() -> None:
    """Larger than the first search window, with one free cell just before the head."""
    cache = kv_cache(5000)
    put(cache, range(5000))
    cache.seq_rm(0, 2998, 2999)
    cache.heads[0] = 2999
    assert cells_of(cache.find_slot(ubatch([5000]))) == [[2998]]
    assert cache.find_slot(ubatch([5000, 5001])) is None


# -- prepare -------------------------------------------------------------------------------


def picture(cache: KVCache) -> object:
    return cache.snapshot().to_json()


def test_prepare_places_each_ubatch_on_top_of_the_ones_before_and_undoes_all() -> None:
    cache = kv_cache(8)
    put(cache, [0, 1])
    before = picture(cache)
    slots = cache.prepare([ubatch([2, 3, 4]), ubatch([0, 1], 1)])
    assert slots is not None
    assert [cells_of(slot) for slot in slots] == [[[2, 3, 4]], [[5, 6]]]
    assert picture(cache) == before


def test_a_refused_prepare_undoes_what_fitted() -> None:
    cache = kv_cache(8)
    put(cache, [0, 1])
    before = picture(cache)
    assert cache.prepare([ubatch(range(2, 7)), ubatch([0, 1], 1)]) is None
    assert picture(cache) == before


def test_p1_a_purged_cell_that_a_later_ubatch_takes_stays_empty() -> None:
    """Positions 0..3, window 2: the first ubatch takes cell 2 and purges 0 and 1, the second takes those."""
    cache = window_cache(n_swa=2, size=4)
    put(cache, range(4))
    cache.heads[0] = 2
    slots = cache.prepare([ubatch([4]), ubatch([5])])
    assert slots is not None
    assert [cells_of(slot) for slot in slots] == [[[2]], [[3]]]
    assert owners(cache) == "..00"
    assert positions(cache) == [-1, -1, 2, 3]


def test_p2_purges_outside_the_slot_stay_after_a_refusal() -> None:
    """Known gap: purged SWA cells stay purged after code 1."""
    cache = window_cache(n_swa=2, size=4)
    put(cache, range(4))
    cache.heads[0] = 1
    assert cache.prepare([ubatch([4, 5]), ubatch(range(5), 1)]) is None
    # cells 1 and 2 were taken, which purged position 0; they are put back, 0 is not
    assert positions(cache) == [-1, 1, 2, 3]
    assert cache.seq_pos_min(0) == 1
    cache.check_integrity()


def test_p2_the_mask_of_the_first_ubatch_misses_what_a_later_one_purged() -> None:
    """The third ubatch takes the cell of position 4 and so purges 1 to 3; the first could still see 3."""
    cache = window_cache(n_swa=5, size=8)
    put(cache, [0, 4, 1, 2, 3, 5, 6])
    cache.heads[0] = 7
    ubatches = [ubatch([7]), ubatch([8]), ubatch([9])]
    slots = cache.prepare(ubatches)
    assert slots is not None
    assert [cells_of(slot) for slot in slots] == [[[7]], [[0]], [[1]]]
    assert positions(cache) == [0, 4, -1, -1, -1, 5, 6, -1]
    view = cache.apply_ubatch(slots[0], ubatches[0])
    assert [positions(cache)[i] for i in np.flatnonzero(view.mask()[0])] == [4, 5, 6, 7]


def test_p3_heads_are_put_back_by_the_slots_local_number() -> None:
    cache = streams(4, size=8)
    cache.heads = [1, 2, 3, 4]
    assert cache.prepare([ubatch([0, 0], [2, 3])]) is not None
    assert cache.heads == [1, 2, 1, 2]


def test_p3_with_the_first_streams_heads_come_back_right() -> None:
    cache = streams(4, size=8)
    cache.heads = [1, 2, 3, 4]
    assert cache.prepare([ubatch([0, 0], [0, 1])]) is not None
    assert cache.heads == [1, 2, 3, 4]


# -- placing -------------------------------------------------------------------------------


def test_a1_a4_overwriting_purges_the_older_positions_of_that_owner() -> None:
    cache = window_cache(n_swa=2, size=6)
    put(cache, range(5))
    cache.heads[0] = 2
    put(cache, [0], 1)  # takes cell 2: position 2 of sequence 0 goes, and so must 0 and 1
    assert owners(cache) == "..100."
    assert positions(cache) == [-1, -1, 0, 3, 4, -1]
    assert (cache.seq_pos_min(0), cache.seq_pos_max(0)) == (3, 4)


def test_a4_the_positions_between_min_and_max_are_all_there() -> None:
    """iswa.md, test ideas: 16 tokens one at a time through 8 cells with a window of 4."""
    cache = window_cache(n_swa=4, size=8)
    for p in range(16):
        put(cache, [p])
        lo, hi = cache.seq_pos_min(0), cache.seq_pos_max(0)
        assert sorted(q for q in positions(cache) if q >= 0) == list(range(lo, hi + 1))
        assert hi == p
        assert hi - lo + 1 >= min(p + 1, 4)
        cache.check_integrity()
    assert sorted(positions(cache)) == [8, 9, 10, 11, 12, 13, 14, 15]


def test_a2_tokens_are_written_as_ext() -> None:
    cache = kv_cache(4)
    put(cache, [0, 1], tokens=np.array([7, 8], np.int32))
    assert cache.cells[0].tok.tolist()[:2] == [7, 8]


def test_a2_r16_an_embedding_ubatch_with_one_position_leaves_ext() -> None:
    """The stale token of a cell that fell below 0 becomes visible again."""
    cache = kv_cache(4)
    put(cache, [0], tokens=np.array([42], np.int32))
    cache.seq_add(0, -1, -1, -1)
    assert owners(cache) == "...."
    put(cache, [0], 1, tokens=None, has_embd=True)
    assert cache.cells[0].rows() == [[0, 0, [1], 0, 42, 0, 0]]


def test_a2_two_dimensional_positions_are_sections_2_and_1() -> None:
    cache = kv_cache(4, n_pos_per_embd=4)
    pos = np.array([[5, 5], [1, 2], [3, 4], [0, 0]], np.int32)
    put(cache, [5, 5], pos=pos, tokens=None, has_embd=True)
    assert [row[4:] for row in cache.cells[0].rows()] == [[-1, 3, 1], [-1, 4, 2]]


def test_a2_rows_of_a_mixed_ubatch_that_are_embeddings_have_no_token() -> None:
    mixed = {
        "tokens": np.array([7, 0], np.int32),
        "has_embd": True,
        "is_embd": np.array([False, True]),
    }
    cache = kv_cache(4)
    put(cache, [0, 1], **mixed)
    assert cache.cells[0].tok.tolist()[:2] == [7, -1]
    ngram = kv_cache(4, ngram_token=99)
    put(ngram, [0, 1], **mixed)
    assert ngram.cells[0].tok.tolist()[:2] == [7, 99]


def test_a2_with_n_gram_embeddings_an_embedding_counts_as_the_image_token() -> None:
    cache = kv_cache(4, ngram_token=99)
    put(cache, [0], tokens=None, has_embd=True)
    assert cache.cells[0].tok[0] == 99


def test_a3_a_token_of_several_sequences_is_one_cell() -> None:
    cache = kv_cache(4)
    put(cache, [0, 1], [(1, 0), (0,)])
    assert owners(cache) == "*0.."
    assert cache.cells[0].owners(0) == [0, 1]


def test_a5_the_head_goes_behind_the_last_cell_of_the_slot() -> None:
    cache = kv_cache(4)
    put(cache, [0, 1])
    assert cache.heads == [2]
    put(cache, [2, 3])
    assert cache.heads == [4]


# -- n_kv ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "size", "n_kv"), [(1, 1024, 256), (256, 1024, 256), (257, 1024, 512), (300, 300, 300)]
)
def test_n_kv_is_padded_to_256_and_clamped(used: int, size: int, n_kv: int) -> None:
    assert put(kv_cache(size), range(used)).n_kv == n_kv


def test_n_kv_is_one_value_for_all_streams_of_a_ubatch() -> None:
    """Known gap: streams of different padded lengths."""
    cache = streams(2, size=1024)
    put(cache, range(300), 1)
    view = put(cache, [0, 300], [0, 1])
    assert view.n_kv == 512
    assert view.mask().shape == (2, 512)
    assert put(cache, [1], 0).n_kv == 256


def test_n_kv_counts_a_cell_at_position_minus_one() -> None:
    cache = kv_cache(1024)
    put(cache, range(255))
    put(cache, [-1], 1)
    cache.heads[0] = 256
    put(cache, [-1], 2)
    assert cache.seq_rm(0, -1, -1)
    assert put(cache, [0], 3).n_kv == 512
