"""The interleaved window cache: its rules, test ideas and surprises (spec iswa.md)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_memories import ISWA, ISWA_STREAMS, feed, leaf, owners, positions, recorded, snapshot, tokens

from kvsim.batch import Batch
from kvsim.caches.iswa import ISWACache
from kvsim.context import Context, Fault
from kvsim.errors import CacheUsageError
from kvsim.events import Recorder
from kvsim.memory import MemoryStatus
from kvsim.state import PARTIAL_ONLY


def small(**changes: object) -> Context:
    """Unified, window of 4: base 16 cells, swa 8."""
    return recorded(ISWA, {"base": 16, "swa": 8}, n_swa=4, **changes)


# -- rules ----------------------------------------------------------------------------------


def test_1_operations_reach_both_parts() -> None:
    ctx = small()
    feed(ctx, 0, 4)
    ctx.memory.seq_cp(0, 1, 1, 3)
    assert (owners(leaf(ctx, "base"))[:5], owners(leaf(ctx, "swa"))[:5]) == ("0**0.", "0**0.")
    ctx.memory.seq_add(0, 3, -1, 2)
    ctx.memory.seq_div(0, 5, -1, 2)
    assert positions(leaf(ctx, "base"))[:4] == positions(leaf(ctx, "swa"))[:4] == [0, 1, 2, 2]
    ctx.memory.seq_keep(1)
    assert (owners(leaf(ctx, "base"))[:5], owners(leaf(ctx, "swa"))[:5]) == (".11..", ".11..")
    assert ctx.memory.seq_rm(1, 2, -1) is True
    assert (owners(leaf(ctx, "base"))[:5], owners(leaf(ctx, "swa"))[:5]) == (".1...", ".1...")
    ctx.memory.clear(True)
    assert leaf(ctx, "base").cells[0].used == leaf(ctx, "swa").cells[0].used == 0


def test_2_positions_are_those_of_the_window_cache() -> None:
    ctx = small()
    feed(ctx, 0, 12, step=1)
    assert leaf(ctx, "base").seq_pos_min(0) == 0
    assert (ctx.memory.seq_pos_min(0), ctx.memory.seq_pos_max(0)) == (4, 11)


def test_3_unified_takes_the_simple_split_first_and_streams_equal_ones() -> None:
    unified, streamed = small(), recorded(ISWA_STREAMS)
    batch = Batch.joined(tokens(0, 3, 0), tokens(1, 2, 0))
    for ctx, n_seqs in ((unified, [5]), (streamed, [2, 1])):
        assert ctx.decode(batch) == 0
        assert [record.json["n_seqs"] for record in ctx.records] == n_seqs
    assert [record.json["equal"] for record in streamed.records] == [True, True]
    assert not unified.records[0].json["equal"]


def test_3_a_second_attempt_with_equal_splits_can_succeed() -> None:
    """Known gap. Three tokens of one sequence need three cells at once, of which the window has freed only
    two; one token of each sequence at a time always finds its two."""
    ctx = small(n_ubatch=3)
    feed(ctx, 0, 4, step=1)
    feed(ctx, 1, 4, step=1)
    assert owners(leaf(ctx, "swa")) == "00001111"
    assert ctx.decode(Batch.joined(tokens(0, 3, 4), tokens(1, 3, 4))) == 0
    assert [record.json["idx"] for record in ctx.records] == [[0, 3], [1, 4], [2, 5]]
    assert all(record.json["equal"] for record in ctx.records)
    assert sorted(p for p in positions(leaf(ctx, "swa"))) == [3, 3, 4, 4, 5, 5, 6, 6]
    ctx.memory.check_integrity()


def test_3_base_is_prepared_completely_before_swa_is_tried() -> None:
    """Base has no room: swa has not purged anything."""
    ctx = recorded(ISWA, {"base": 8, "swa": 8}, n_swa=2)
    feed(ctx, 0, 8, step=1)
    before = snapshot(ctx)["caches"]["swa"]
    assert ctx.decode(tokens(1, 4, 0)) == 1
    assert snapshot(ctx)["caches"]["swa"] == before
    assert ctx.last_failure is not None
    assert ctx.last_failure.slot is not None
    assert ctx.last_failure.slot.cache == "base"


def test_3_purges_of_failed_attempts_stay_after_code_1() -> None:
    """Known gap (surprise 4)."""
    ctx = recorded(ISWA, {"base": 64, "swa": 8}, n_swa=4, n_ubatch=4)
    feed(ctx, 0, 8, step=1)  # swa: 0 to 7, of which 0 to 4 are passed
    leaf(ctx, "swa").heads[0] = 2
    assert ctx.decode(tokens(1, 8, 0)) == 1  # takes 2, 3, 4, 0 for the first ubatch, nothing for the second
    assert positions(leaf(ctx, "swa")) == [0, -1, 2, 3, 4, 5, 6, 7]
    assert leaf(ctx, "base").seq_pos_min(0) == 0
    ctx.memory.check_integrity()


def test_4_5_an_update_of_either_part_is_an_update_of_the_pair() -> None:
    ctx = small()
    feed(ctx, 0, 2)
    assert ctx.memory.init_update().status is MemoryStatus.NO_UPDATE
    leaf(ctx, "swa").seq_add(0, -1, -1, 1)
    work = ctx.memory.init_update()
    assert work.status is MemoryStatus.SUCCESS
    work.apply()
    assert not leaf(ctx, "swa").has_shift


def test_6_can_shift_needs_equal_sizes_but_a_shift_is_executed_all_the_same() -> None:
    """Surprise 1."""
    ctx = small()
    assert not ctx.memory.can_shift
    assert recorded(ISWA, {"base": 16, "swa": 16}).memory.can_shift
    feed(ctx, 0, 3)
    told = Recorder()
    ctx.observe(told)
    ctx.memory.seq_add(0, 1, -1, 4)
    assert "shift-although-cannot" in [event.detail.get("id") for event in told.events]
    feed(ctx, 0, 1, start=7)
    assert positions(leaf(ctx, "base"))[:4] == [0, 5, 6, 7]


def test_7_swa_re_uses_cells_that_base_keeps() -> None:
    """Test idea: n_swa 4, 8 cells, 0 to 15 one at a time."""
    ctx = small()
    for p in range(16):
        feed(ctx, 0, 1)
        lo, hi = ctx.memory.seq_pos_min(0), ctx.memory.seq_pos_max(0)
        held = sorted(q for q in positions(leaf(ctx, "swa")) if q >= 0)
        assert held == list(range(lo, hi + 1))
        assert hi == p
        assert hi - lo + 1 >= min(4, p + 1)
    assert sorted(positions(leaf(ctx, "base"))) == list(range(16))


def test_8_a_saved_sequence_omits_what_its_window_has_passed_a_whole_state_does_not() -> None:
    """State test idea 4: n_swa 4, max 9: cells 6 to 9 are stored, one more than the next token needs."""
    ctx = small()
    feed(ctx, 0, 10, step=1)
    blob = ctx.state_seq_get(0)
    other = small()
    assert other.state_seq_set(blob, 1) == len(blob)
    assert sorted(p for p in positions(leaf(other, "base")) if p >= 0) == list(range(10))
    assert sorted(p for p in positions(leaf(other, "swa")) if p >= 0) == [6, 7, 8, 9]
    whole = small()
    assert whole.state_set(ctx.state_get()) > 0
    assert len([p for p in positions(leaf(whole, "swa")) if p >= 0]) == 8


def test_8_a_partial_state_has_the_window_part_only() -> None:
    ctx = small()
    feed(ctx, 0, 6, step=1)
    blob = ctx.state_seq_get(0, PARTIAL_ONLY)
    assert len(blob) < len(ctx.state_seq_get(0))
    feed(ctx, 0, 1)
    assert ctx.state_seq_set(blob, 0, PARTIAL_ONLY) == len(blob)
    assert (ctx.memory.seq_pos_max(0), leaf(ctx, "base").seq_pos_max(0)) == (5, 6)


def test_9_masks_of_base_and_swa_differ_by_the_window() -> None:
    ctx = small()
    feed(ctx, 0, 6, step=1)
    feed(ctx, 0, 1)
    mask = ctx.records[0].json["mask"]
    assert mask["base"] == [[0, 7]]
    assert mask["swa"] == [[3, 7]]


# -- surprises --------------------------------------------------------------------------------


def test_surprise_2_trimming_back_past_the_window_lets_the_next_batch_begin_anywhere() -> None:
    ctx = small()
    feed(ctx, 0, 12, step=1)
    told = Recorder()
    ctx.observe(told)
    ctx.memory.seq_rm(0, 3, -1)
    assert "trimmed-past-window" in [event.detail.get("id") for event in told.events]
    assert (ctx.memory.seq_pos_max(0), leaf(ctx, "base").seq_pos_max(0)) == (-1, 2)
    assert ctx.decode(tokens(0, 1, 100)) == 0


def parts_of(ctx: Context, seq: int) -> tuple[int, int]:
    """Bytes of a sequence state up to the end of base, and of all of it."""
    whole = len(ctx.state_seq_get(seq))
    return whole - len(ctx.state_seq_get(seq, PARTIAL_ONLY)) + 8, whole


def test_surprise_3_base_keeps_what_it_restored_when_swa_fails() -> None:
    ctx = small()
    feed(ctx, 0, 6, step=1)
    blob = ctx.state_seq_get(0)
    _, end = parts_of(ctx, 0)
    feed(ctx, 1, 2, start=0)
    assert ctx.state_seq_set(blob[: end - 1], 1) == 0
    assert leaf(ctx, "base").seq_pos_max(1) == 5
    assert leaf(ctx, "swa").seq_pos_max(1) == -1


def test_surprise_3_when_base_fails_swa_keeps_its_old_cells() -> None:
    ctx = small()
    feed(ctx, 0, 6, step=1)
    blob = ctx.state_seq_get(0)
    base_end, _ = parts_of(ctx, 0)
    feed(ctx, 1, 2, start=0)
    assert ctx.state_seq_set(blob[: base_end - 1], 1) == 0
    assert leaf(ctx, "base").seq_pos_max(1) == -1
    assert leaf(ctx, "swa").seq_pos_max(1) == 1


def test_strict_leaves_both_parts_as_they_were() -> None:
    ctx = small()
    feed(ctx, 0, 6, step=1)
    blob = ctx.state_seq_get(0)
    feed(ctx, 1, 2, start=0)
    before = snapshot(ctx)
    for cut in range(len(blob)):
        if cut > 200 and cut % 97:  # the rows are long and all alike
            continue
        assert ctx.state_seq_set(blob[:cut], 1, strict=True) == 0
        assert snapshot(ctx) == before


def test_surprise_5_a_rollback_does_not_bring_back_what_the_ubatch_overwrote() -> None:
    ctx = small(n_ubatch=4)
    feed(ctx, 0, 8, step=1)
    assert ctx.decode(tokens(0, 3), Fault(0)) == 2
    assert ctx.memory.seq_pos_max(0) == 7
    assert ctx.memory.seq_pos_min(0) == 3
    assert sorted(p for p in positions(leaf(ctx, "base")) if p >= 0) == list(range(8))


def test_surprise_7_a_full_state_read_as_a_partial_one_fills_swa_with_base() -> None:
    """Only possible if layers, types and rows agree: one layer each here."""
    ctx = small()
    base, swa = leaf(ctx, "base"), leaf(ctx, "swa")
    base.spec = replace(base.spec, layers=base.spec.layers[:1])
    swa.spec = replace(swa.spec, layers=base.spec.layers[:1])
    feed(ctx, 0, 4)
    ctx.memory.seq_add(0, 3, -1, 10)  # base and swa save other cells: 0, 1, 2 are out of the window of 13
    blob = ctx.state_seq_get(0)
    base_end, _ = parts_of(ctx, 0)
    assert ctx.state_seq_set(blob, 1, PARTIAL_ONLY) == base_end < len(blob)
    assert positions(swa)[:5] == [0, 1, 2, 13, 13]
    assert owners(swa) == "11101..."
    assert base.seq_pos_max(1) == -1


# -- calls that end llama.cpp -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [ISWA, ISWA_STREAMS])
def test_operations_that_end_llama_cpp_change_neither_part(name: str) -> None:
    ctx = recorded(name)
    feed(ctx, 0, 3)
    ctx.memory.seq_add(0, 1, 2, 1)
    before = snapshot(ctx)
    n = leaf(ctx, "base").known_ids()
    for call in (
        lambda m: m.seq_rm(n, -1, -1), lambda m: m.seq_rm(-2, -1, -1), lambda m: m.seq_cp(0, n, -1, -1),
        lambda m: m.seq_keep(-1), lambda m: m.seq_add(n, 0, -1, 1), lambda m: m.seq_div(0, 0, -1, 0),
        lambda m: m.seq_pos_min(n), lambda m: m.seq_pos_max(-1),
    ):  # fmt: skip
        with pytest.raises(CacheUsageError):
            call(ctx.memory)
        assert snapshot(ctx) == before


def test_a_copy_that_only_one_part_takes_for_the_whole_is_refused_before_either_changes() -> None:
    """Parts of different size: the end at 200 is beyond swa's 16 cells but inside base's 256."""
    ctx = recorded(ISWA_STREAMS, {"swa": 16})
    feed(ctx, 0, 3)
    before = snapshot(ctx)
    for p0, p1 in ((-1, 200), (15, -1), (-1, 5)):
        with pytest.raises(CacheUsageError):
            ctx.memory.seq_cp(0, 1, p0, p1)
        assert snapshot(ctx) == before


def test_a_division_by_zero_in_one_part_only_is_refused_before_either_changes() -> None:
    """swa has lost the positions that base would divide."""
    ctx = small()
    feed(ctx, 0, 12, step=1)
    before = snapshot(ctx)
    with pytest.raises(CacheUsageError):
        ctx.memory.seq_div(0, 0, 3, 0)
    assert snapshot(ctx) == before


def test_the_memory_is_an_iswa_pair_in_this_order() -> None:
    ctx = small()
    assert isinstance(ctx.memory, ISWACache)
    assert list(ctx.memory.leaves()) == ["base", "swa"]
    assert set(ctx.memory.memory_breakdown()) == {"base.k", "base.v", "swa.k", "swa.v"}
