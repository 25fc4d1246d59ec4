"""MLA rows beside indexer keys, with and without a window cache (spec dsa.md, sections 1 and 4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from small_memories import (
    DSA,
    DSA_ISWA,
    DSA_ISWA_STREAMS,
    DSA_STREAMS,
    feed,
    leaf,
    owners,
    positions,
    recorded,
    snapshot,
    tokens,
)  # fmt: skip

from kvsim.batch import Batch
from kvsim.context import Context
from kvsim.errors import CacheUsageError
from kvsim.memory import Memory
from kvsim.state import PARTIAL_ONLY, StateWriter


def part_bytes(ctx: Context, seq: int, *names: str) -> int:
    """Bytes of a sequence state, header and these parts."""
    io = StateWriter()
    for name in names:
        leaf(ctx, name).state_write(io, seq)
    return 8 + len(io.getvalue())


@pytest.mark.parametrize("name", [DSA, DSA_ISWA])
def test_d1_c1_operations_reach_all_parts_in_order(name: str) -> None:
    ctx = recorded(name)
    feed(ctx, 0, 4)
    ctx.memory.seq_cp(0, 1, 1, 3)
    ctx.memory.seq_add(0, 3, -1, 2)
    assert ctx.memory.seq_rm(0, 0, 1) is True
    for part in ctx.memory.leaves():
        assert owners(leaf(ctx, part))[:5] == ".**0."
        assert positions(leaf(ctx, part))[:4] == [-1, 1, 2, 5]
    ctx.memory.seq_keep(1)
    ctx.memory.clear(True)
    assert all(leaf(ctx, part).cells[0].used == 0 for part in ctx.memory.leaves())


def test_d1_positions_are_those_of_mla() -> None:
    ctx = recorded(DSA)
    feed(ctx, 0, 4)
    leaf(ctx, "lid").seq_rm(0, 2, -1)
    assert (ctx.memory.seq_pos_min(0), ctx.memory.seq_pos_max(0)) == (0, 3)


def test_c1_positions_are_those_of_swa() -> None:
    ctx = recorded(DSA_ISWA, {"swa": 8}, n_swa=4)
    feed(ctx, 0, 12, step=1)
    assert (ctx.memory.seq_pos_min(0), leaf(ctx, "mla").seq_pos_min(0)) == (4, 0)


@pytest.mark.parametrize(
    ("name", "equal"), [(DSA, False), (DSA_STREAMS, True), (DSA_ISWA, False), (DSA_ISWA_STREAMS, True)]
)
def test_d2_c2_one_stream_splits_simply_several_equally(name: str, equal: bool) -> None:
    ctx = recorded(name)
    assert ctx.decode(Batch.joined(tokens(0, 2, 0), tokens(1, 2, 0))) == 0
    assert [record.json["equal"] for record in ctx.records] == [equal]
    assert list(ctx.records[0].json["slots"]) == list(ctx.memory.leaves())


def test_d2_slots_of_mla_and_lid_are_found_independently() -> None:
    """Known gap: slots that differ (surprise 1)."""
    ctx = recorded(DSA)
    feed(ctx, 0, 4)
    feed(ctx, 1, 2, start=0)
    leaf(ctx, "lid").seq_rm(0, 1, 3)
    assert ctx.decode(tokens(1, 2)) == 0
    slots = ctx.records[0].json["slots"]
    assert (slots["mla"]["idxs"], slots["lid"]["idxs"]) == ([[6, 7]], [[1, 2]])


def test_c2_the_second_split_can_succeed() -> None:
    """As of a unified iSWA cache (iswa.md rule 3)."""
    ctx = recorded(DSA_ISWA, {"mla": 16, "lid": 16, "swa": 8}, n_swa=4, n_ubatch=3)
    feed(ctx, 0, 4, step=1)
    feed(ctx, 1, 4, step=1)
    assert ctx.decode(Batch.joined(tokens(0, 3, 4), tokens(1, 3, 4))) == 0
    assert [record.json["idx"] for record in ctx.records] == [[0, 3], [1, 4], [2, 5]]


def test_c2_mla_is_prepared_before_lid_before_swa() -> None:
    ctx = recorded(DSA_ISWA, {"mla": 8, "lid": 8, "swa": 8}, n_swa=4)
    feed(ctx, 0, 8, step=1)
    before = snapshot(ctx)
    assert ctx.decode(tokens(1, 1, 0)) == 1
    assert snapshot(ctx) == before
    assert ctx.last_failure is not None
    assert ctx.last_failure.slot is not None
    assert ctx.last_failure.slot.cache == "mla"
    leaf(ctx, "mla").seq_rm(0, 0, 1)
    assert ctx.decode(tokens(1, 1, 0)) == 1
    assert ctx.last_failure is not None
    assert ctx.last_failure.slot is not None
    assert ctx.last_failure.slot.cache == "lid"


def test_d3_c1_can_shift_needs_equal_sizes() -> None:
    assert recorded(DSA).memory.can_shift
    assert not recorded(DSA, {"lid": 128}).memory.can_shift
    assert recorded(DSA_ISWA).memory.can_shift
    assert not recorded(DSA_ISWA, {"swa": 128}).memory.can_shift


# -- states ---------------------------------------------------------------------------------------


def restorable(name: str) -> tuple[Context, bytes]:
    """Sequence 0 holds 5 tokens, sequence 1 two; the state is that of 0."""
    ctx = recorded(name)
    feed(ctx, 0, 5)
    feed(ctx, 1, 2, start=0)
    return ctx, ctx.state_seq_get(0)


def ends(ctx: Context, seq: int) -> dict[str, int]:
    return {name: leaf(ctx, name).seq_pos_max(seq) for name in ctx.memory.leaves()}


def test_d4_a_state_that_fails_in_lid_takes_mla_too() -> None:
    """Edge test 6."""
    ctx, blob = restorable(DSA)
    mla = part_bytes(ctx, 0, "mla")
    for cut in (mla, mla + 4, mla + 8, mla + 20, len(blob) - 1):
        again, _ = restorable(DSA)
        assert again.state_seq_set(blob[:cut], 1) == 0
        lid = 1 if cut < mla + 8 else -1  # untouched before the first cell count was read
        assert ends(again, 1) == {"mla": -1, "lid": lid}, cut


def test_d4_a_state_that_fails_in_mla_leaves_lid() -> None:
    ctx, blob = restorable(DSA)
    assert ctx.state_seq_set(blob[: part_bytes(ctx, 0, "mla") - 1], 1) == 0
    assert ends(ctx, 1) == {"mla": -1, "lid": 1}


def test_d4_a_whole_state_that_fails_in_lid_empties_mla() -> None:
    ctx, _ = restorable(DSA)
    blob = ctx.state_get()
    assert ctx.state_set(blob[:-1]) == 0
    assert snapshot(ctx)["pos"] == {str(s): [-1, -1] for s in range(4)}


def test_d4_flags_are_irrelevant_to_dsa() -> None:
    ctx, blob = restorable(DSA)
    assert ctx.state_seq_get(0, PARTIAL_ONLY) == blob
    assert ctx.state_seq_set(blob, 1, PARTIAL_ONLY) == len(blob)
    assert ends(ctx, 1) == {"mla": 4, "lid": 4}


def test_c3_a_partial_state_has_swa_only() -> None:
    ctx, blob = restorable(DSA_ISWA)
    partial = ctx.state_seq_get(0, PARTIAL_ONLY)
    assert len(partial) == part_bytes(ctx, 0, "swa") < len(blob)
    assert ctx.state_seq_set(partial, 1, PARTIAL_ONLY) == len(partial)
    assert ends(ctx, 1) == {"mla": 1, "lid": 1, "swa": 4}


def test_c3_dsa_is_not_cleaned_up_when_swa_fails() -> None:
    ctx, blob = restorable(DSA_ISWA)
    assert ctx.state_seq_set(blob[:-1], 1) == 0
    assert ends(ctx, 1) == {"mla": 4, "lid": 4, "swa": -1}


def test_c3_a_failure_inside_dsa_leaves_swa() -> None:
    ctx, blob = restorable(DSA_ISWA)
    assert ctx.state_seq_set(blob[: part_bytes(ctx, 0, "mla", "lid") - 1], 1) == 0
    assert ends(ctx, 1) == {"mla": -1, "lid": -1, "swa": 1}


@pytest.mark.parametrize("name", [DSA, DSA_STREAMS, DSA_ISWA, DSA_ISWA_STREAMS])
def test_strict_leaves_everything_as_it_was(name: str) -> None:
    ctx, blob = restorable(name)
    before = snapshot(ctx)
    for cut in sorted({*range(160), *range(160, len(blob), 211), len(blob) - 1}):
        assert ctx.state_seq_set(blob[:cut], 1, strict=True) == 0
        assert snapshot(ctx) == before
    assert ctx.state_seq_set(blob, 1, strict=True) == len(blob)


# -- item 16: a selection that lies outside of mla ---------------------------------------------------


@pytest.mark.parametrize("name", [DSA, DSA_ISWA])
def test_16_a_batch_whose_selection_could_lie_outside_is_refused_before_anything_changes(name: str) -> None:
    """After a restore that failed in mla, lid holds 255 cells and mla almost none: the 2 next tokens would
    give lid a length of 512 and mla one of 256."""
    ctx = recorded(name, {"mla": 1024, "lid": 1024, "swa": 1024})
    feed(ctx, 1, 255, step=15)
    blob = ctx.state_seq_get(1)
    assert ctx.state_seq_set(blob[:40], 1) == 0
    assert ends(ctx, 1)["mla"] == -1
    assert ends(ctx, 1)["lid"] == 254
    feed(ctx, 0, 1)
    ctx.memory.seq_add(0, 0, -1, 1)
    ctx.memory.seq_cp(0, 2, -1, -1)
    before = snapshot(ctx)
    with pytest.raises(CacheUsageError, match=r"select among 512 cells of 'lid', but 'mla' then has 256"):
        ctx.decode(tokens(3, 2, 0))
    assert snapshot(ctx) == before
    leaf(ctx, "lid").seq_rm(1, -1, -1)  # what the message says
    assert ctx.decode(tokens(3, 2, 0)) == 0


def test_16_a_longer_mla_is_harmless() -> None:
    ctx = recorded(DSA, {"mla": 1024, "lid": 1024})
    feed(ctx, 1, 255, step=15)
    leaf(ctx, "lid").seq_rm(1, -1, -1)
    assert ctx.decode(tokens(0, 2, 0)) == 0
    slots = ctx.records[0].json["slots"]
    assert (slots["mla"]["n_kv"], slots["lid"]["n_kv"]) == (512, 256)


def test_16_a_batch_without_room_is_refused_as_such() -> None:
    ctx = recorded(DSA, {"mla": 8, "lid": 1024})
    leaf(ctx, "lid").heads[0] = 3
    assert ctx.decode(tokens(0, 9, 0)) == 1


# -- other calls that end llama.cpp ------------------------------------------------------------------

CALLS: dict[str, Callable[[Memory, int], object]] = {
    "seq_rm": lambda m, n: m.seq_rm(n, -1, -1),
    "seq_rm -2": lambda m, n: m.seq_rm(-2, -1, -1),
    "seq_keep": lambda m, n: m.seq_keep(-1),
    "seq_cp": lambda m, n: m.seq_cp(0, n, -1, -1),
    "seq_add": lambda m, n: m.seq_add(n, 0, -1, 1),
    "seq_div": lambda m, n: m.seq_div(-1, 0, -1, 2),
    "seq_div by 0": lambda m, n: m.seq_div(0, 0, -1, 0),
    "seq_pos_min": lambda m, n: m.seq_pos_min(-1),
    "seq_pos_max": lambda m, n: m.seq_pos_max(n),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", [DSA, DSA_STREAMS, DSA_ISWA, DSA_ISWA_STREAMS])
def test_operations_that_end_llama_cpp_change_no_part(name: str, call: str) -> None:
    ctx, _ = restorable(name)
    ctx.memory.seq_add(0, 2, -1, 3)
    before = snapshot(ctx)
    with pytest.raises(CacheUsageError):
        CALLS[call](ctx.memory, leaf(ctx, "mla").known_ids())
    assert snapshot(ctx) == before


def test_a_shift_of_quantised_index_keys_alone_is_refused_too() -> None:
    """Where a restore failed half-way, positions move in ``lid`` alone, of whose keys only a part rotates (the
    live library ends)."""
    ctx = recorded("dsa/deepseek32-uni-c512-u32-s2-q8_0-09")
    feed(ctx, 0, 4)
    leaf(ctx, "mla").clear(False)
    ctx.memory.seq_add(0, 1, -1, 2)
    assert not leaf(ctx, "mla").has_shift
    before = snapshot(ctx)
    with pytest.raises(CacheUsageError, match="'lid' stores quantised keys of which 32 of 64 values"):
        ctx.decode(tokens(0, 1))
    assert snapshot(ctx) == before


@pytest.mark.parametrize(
    "name", ["dsa/deepseek32-uni-c512-u32-s2-q8_0-09", "dsa_iswa/dots3note-uni-c512-u32-s2-q8_0-09"]
)
def test_9_a_shift_of_quantised_latent_rows_is_refused_at_the_decode_before_anything_changes(
    name: str,
) -> None:
    ctx = recorded(name)
    feed(ctx, 0, 4)
    ctx.memory.seq_add(0, 1, -1, 2)
    before = snapshot(ctx)
    with pytest.raises(CacheUsageError, match="no multiple of 64"):
        ctx.decode(tokens(0, 1))
    assert snapshot(ctx) == before
