"""K and V beside block indexer keys (spec msa.md, section 1). Selection: test_msa_select.py."""

from __future__ import annotations

import pytest
from small_memories import MSA, MSA_STREAMS, feed, leaf, owners, recorded, snapshot, tokens

from kvsim.batch import Batch
from kvsim.context import Context
from kvsim.errors import CacheUsageError
from kvsim.state import PARTIAL_ONLY, StateWriter


def restorable() -> tuple[Context, bytes, int]:
    """Sequence 0 holds 5 tokens, 1 holds two; the state of 0, and where its base part ends."""
    ctx = recorded(MSA)
    feed(ctx, 0, 5)
    feed(ctx, 1, 2, start=0)
    io = StateWriter()
    leaf(ctx, "base").state_write(io, 0)
    return ctx, ctx.state_seq_get(0), 8 + len(io.getvalue())


def ends(ctx: Context, seq: int) -> tuple[int, int]:
    return leaf(ctx, "base").seq_pos_max(seq), leaf(ctx, "idx").seq_pos_max(seq)


def test_m1_operations_reach_base_and_idx_and_positions_are_those_of_base() -> None:
    ctx = recorded(MSA)
    feed(ctx, 0, 4)
    ctx.memory.seq_cp(0, 1, 1, 3)
    ctx.memory.seq_rm(0, 0, 1)
    assert owners(leaf(ctx, "base"))[:5] == owners(leaf(ctx, "idx"))[:5] == ".**0."
    leaf(ctx, "idx").seq_rm(0, -1, -1)
    assert (ctx.memory.seq_pos_min(0), ctx.memory.seq_pos_max(0)) == (1, 3)


def test_m1_can_shift_needs_equal_sizes() -> None:
    assert recorded(MSA).memory.can_shift
    assert not recorded(MSA, {"idx": 128}).memory.can_shift


@pytest.mark.parametrize(("name", "equal"), [(MSA, False), (MSA_STREAMS, True)])
def test_m2_one_stream_splits_simply_several_equally(name: str, equal: bool) -> None:
    ctx = recorded(name)
    assert ctx.decode(Batch.joined(tokens(0, 2, 0), tokens(1, 2, 0))) == 0
    assert [record.json["equal"] for record in ctx.records] == [equal]
    assert list(ctx.records[0].json["mask"]) == ["base"]


def test_m2_slots_are_found_independently() -> None:
    """Known gap: base and idx slots that differ."""
    ctx = recorded(MSA)
    feed(ctx, 0, 4)
    leaf(ctx, "idx").seq_rm(0, 1, 3)
    assert ctx.decode(tokens(1, 2, 0)) == 0
    slots = ctx.records[0].json["slots"]
    assert (slots["base"]["idxs"], slots["idx"]["idxs"]) == ([[4, 5]], [[1, 2]])


def test_m2_base_is_prepared_before_idx() -> None:
    ctx = recorded(MSA, {"base": 8, "idx": 4})
    feed(ctx, 0, 4)
    assert ctx.decode(tokens(0, 1)) == 1
    assert ctx.last_failure is not None
    assert ctx.last_failure.slot is not None
    assert ctx.last_failure.slot.cache == "idx"
    assert ctx.decode(tokens(0, 5)) == 1
    assert ctx.last_failure is not None
    assert ctx.last_failure.slot is not None
    assert ctx.last_failure.slot.cache == "base"


def test_m3_base_keeps_what_it_restored_when_idx_fails() -> None:
    ctx, blob, base = restorable()
    assert ctx.state_seq_set(blob[:base], 1) == 0
    assert ends(ctx, 1) == (4, 1)
    assert ctx.state_seq_set(blob[:-1], 1) == 0
    assert ends(ctx, 1) == (4, -1)


def test_m3_idx_keeps_its_old_cells_when_base_fails() -> None:
    ctx, blob, base = restorable()
    assert ctx.state_seq_set(blob[: base - 1], 1) == 0
    assert ends(ctx, 1) == (-1, 1)


def test_m3_flags_are_ignored() -> None:
    ctx, blob, _ = restorable()
    assert ctx.state_seq_get(0, PARTIAL_ONLY) == blob
    assert ctx.state_seq_set(blob, 1, PARTIAL_ONLY) == len(blob)
    assert ends(ctx, 1) == (4, 4)


def test_strict_leaves_both_as_they_were() -> None:
    ctx, blob, base = restorable()
    before = snapshot(ctx)
    for cut in (0, 7, 9, 20, base - 1, base, base + 8, len(blob) - 1):
        assert ctx.state_seq_set(blob[:cut], 1, strict=True) == 0
        assert snapshot(ctx) == before


@pytest.mark.parametrize("name", [MSA, MSA_STREAMS])
def test_operations_that_end_llama_cpp_change_neither_part(name: str) -> None:
    ctx = recorded(name)
    feed(ctx, 0, 3)
    before = snapshot(ctx)
    n = leaf(ctx, "base").known_ids()
    for call in (
        lambda m: m.seq_rm(n, -1, -1), lambda m: m.seq_cp(n, 0, -1, -1), lambda m: m.seq_keep(n),
        lambda m: m.seq_add(-1, 0, -1, 1), lambda m: m.seq_div(0, 0, -1, 0), lambda m: m.seq_pos_max(n),
    ):  # fmt: skip
        with pytest.raises(CacheUsageError):
            call(ctx.memory)
        assert snapshot(ctx) == before
