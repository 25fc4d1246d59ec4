"""The decode loop: codes, rollback, retry, outputs, failures in words (spec decode.md, sections 1 to 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_memories import (
    ISWA,
    KV,
    KV_MROPE,
    KV_STREAMS,
    LLAMA,
    TinyLeaves,
    feed,
    leaf,
    owners,
    positions,
    recorded,
    snapshot,
    tokens,
)  # fmt: skip

from kvsim.batch import Batch, Ubatch
from kvsim.context import Context, Fault
from kvsim.errors import CacheUsageError
from kvsim.memory import MemoryStatus, View, combine_status
from kvsim.models.context_params import ContextParams
from kvsim.models.params import ModelParams

OK, NONE, PREPARE, COMPUTE = (
    MemoryStatus.SUCCESS, MemoryStatus.NO_UPDATE, MemoryStatus.FAILED_PREPARE, MemoryStatus.FAILED_COMPUTE,
)  # fmt: skip


def reason(ctx: Context) -> str:
    assert ctx.last_failure is not None
    return str(ctx.last_failure)


# -- 1. status ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "both"),
    [
        (OK, OK, OK), (OK, NONE, OK), (NONE, OK, OK), (NONE, NONE, NONE), (PREPARE, OK, PREPARE),
        (OK, PREPARE, PREPARE), (NONE, COMPUTE, COMPUTE), (PREPARE, COMPUTE, PREPARE),
        (COMPUTE, PREPARE, COMPUTE),
    ],
)  # fmt: skip
def test_status_of_a_pair_is_the_first_failure_else_success_if_any(a: Any, b: Any, both: Any) -> None:
    assert combine_status(a, b) is both


# -- 2. return codes --------------------------------------------------------------------------------


def test_0_places_everything() -> None:
    ctx = recorded(KV)
    assert ctx.decode(tokens(0, 20)) == 0
    assert (ctx.memory.seq_pos_max(0), ctx.last_failure, len(ctx.records)) == (19, None, 2)


def test_minus_1_changes_nothing_and_leaves_pending_work_pending() -> None:
    """Decode step 2 comes before 5."""
    ctx = recorded(KV_STREAMS)
    feed(ctx, 0, 4)
    ctx.memory.seq_add(0, 2, -1, 3)
    ctx.memory.seq_cp(0, 1, -1, -1)
    before = snapshot(ctx)
    for batch in (Batch(tokens=[]), tokens(0, 1, 5), tokens(9, 1, 0), Batch(tokens=[999], pos=[7])):
        assert ctx.decode(batch) == -1
        assert snapshot(ctx) == before
    assert "pending_copies" in before


def test_an_inconsistent_batch_names_token_sequence_and_expected_position() -> None:
    ctx = recorded(KV)
    feed(ctx, 2, 4)
    assert ctx.decode(Batch.joined(tokens(0, 2, 0), tokens(2, 2, 6))) == -1
    failure = ctx.last_failure
    assert failure is not None
    assert failure.batch is not None
    assert (failure.batch.rule, failure.batch.token, failure.batch.seq) == ("V7", 2, 2)
    assert (failure.batch.found, failure.batch.expected) == (6, 4)
    assert reason(ctx) == (
        "decode returned -1: token 2 of seq 2 has position 6, but seq 2 ends at 3, so 4 is expected (rule V7)"
    )
    assert ctx.decode(Batch(tokens=[])) == -1
    assert reason(ctx) == "decode returned -1: the batch is empty"


def test_1_places_nothing_but_pending_work_has_run() -> None:
    """Surprise 5."""
    ctx = recorded(KV, {"kv": 8})
    feed(ctx, 0, 6)
    ctx.memory.seq_add(0, 2, -1, 3)
    held = positions(leaf(ctx, "kv"))
    assert ctx.decode(tokens(1, 3, 0)) == 1
    assert positions(leaf(ctx, "kv")) == held
    assert not leaf(ctx, "kv").has_shift
    assert ctx.records == []
    assert reason(ctx) == (
        "decode returned 1: kv (stream 0) has no room for ubatch 1 of 1: 3 cells asked for, 2 free, "
        "0 reclaimable by the window, largest hole 2"
    )


def test_1_names_the_part_and_the_ubatch_that_found_no_room() -> None:
    ctx = recorded(ISWA, {"base": 64, "swa": 8}, n_swa=4, n_ubatch=4)
    feed(ctx, 0, 8, step=1)
    assert ctx.decode(tokens(1, 8, 0)) == 1
    failure = ctx.last_failure
    assert failure is not None
    assert failure.slot is not None
    assert (failure.slot.cache, failure.slot.ubatch, failure.slot.n_ubatches, failure.slot.asked) == (
        "swa",
        1,
        2,
        4,
    )


def test_1_when_the_batch_cannot_be_split() -> None:
    """Surprise 2: coupled sequences without a unified cache."""
    ctx = recorded(KV_STREAMS)
    assert ctx.decode(tokens((1, 0), 3, 0)) == 1
    failure = ctx.last_failure
    assert failure is not None
    assert failure.slot is None
    assert "tokens are shared by sequences 1 and 0, which live in different streams" in reason(ctx)


def test_the_retry_happens_only_if_optimising_had_work() -> None:
    """In b11434 it has none, so a refusal is final; work that survived step 5 would run, then one retry."""
    ctx = recorded(KV, {"kv": 8})
    feed(ctx, 0, 8)
    tried: list[bool] = []

    def work(optimize: bool = False) -> bool:
        tried.append(optimize)
        if optimize:
            ctx.memory.seq_rm(0, 0, 4)
        return optimize

    ctx.update = work
    assert ctx.decode(tokens(1, 3, 0)) == 0
    assert tried == [False, True]
    ctx.update = lambda optimize=False: bool(tried.append(optimize))
    assert ctx.decode(tokens(1, 3)) == 1
    assert tried == [False, True, False, True]


@pytest.mark.parametrize(("kind", "code"), [("abort", 2), ("alloc", -2), ("compute", -3)])
def test_a_fault_in_a_ubatch_has_its_code(kind: str, code: int) -> None:
    ctx = recorded(KV, n_ubatch=4)
    assert ctx.decode(tokens(0, 10), Fault(1, kind)) == code
    assert ctx.memory.seq_pos_max(0) == 3
    failure = ctx.last_failure
    assert failure is not None
    assert (failure.code, failure.ubatch, failure.refused) == (code, 1, ())
    assert reason(ctx).startswith(f"decode returned {code}: ubatch 2 ")
    assert reason(ctx).endswith("; its 4 tokens are rolled back")


def test_a_fault_beyond_the_last_ubatch_never_happens() -> None:
    assert recorded(KV, n_ubatch=4).decode(tokens(0, 8), Fault(2)) == 0


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(CacheUsageError, match="use one of abort, alloc, compute"):
        Fault(0, "fire")


def test_more_tokens_than_n_batch_end_llama_cpp() -> None:
    ctx = recorded(KV)
    before = snapshot(ctx)
    with pytest.raises(CacheUsageError, match="exceeds n_batch = 256"):
        ctx.decode(tokens(0, 257))
    assert snapshot(ctx) == before


def test_a_batch_without_causal_attention_must_fit_one_ubatch() -> None:
    ctx = recorded(KV)
    ctx.causal_attn = False
    before = snapshot(ctx)
    with pytest.raises(CacheUsageError, match="must fit one ubatch: 17 tokens, n_ubatch = 16"):
        ctx.decode(tokens(0, 17))
    assert snapshot(ctx) == before
    assert ctx.decode(tokens(0, 16)) == 0


def test_a_shift_that_ends_llama_cpp_is_refused_before_anything_changes() -> None:
    """List of such calls, item 9: llama with head size 32 and a q8_0 cache."""
    layer = replace(LLAMA.layers[0], n_embd_head_k=32, n_embd_head_v=32, n_rot=32)
    ctx = Context(replace(LLAMA, layers=(layer,)), ContextParams(n_ctx=256, type_k="q8_0", kv_unified=True))
    feed(ctx, 0, 4)
    ctx.memory.seq_add(0, 2, -1, 1)
    before = snapshot(ctx)
    with pytest.raises(CacheUsageError, match="no multiple of 64"):
        ctx.decode(tokens(0, 1))
    assert snapshot(ctx) == before


def test_a_model_that_keeps_nothing_has_no_memory() -> None:
    ctx = Context(
        ModelParams("bert", LLAMA.layers, n_ctx_train=512, causal_attn=False), ContextParams(n_ctx=256)
    )
    with pytest.raises(CacheUsageError, match="bert keeps no memory"):
        ctx.decode(tokens(0, 1))


# -- 4. rollback ------------------------------------------------------------------------------------


def test_b1_earlier_ubatches_stay_and_later_ones_were_never_applied() -> None:
    ctx = recorded(KV, n_ubatch=2)
    feed(ctx, 1, 3, start=0)
    assert ctx.decode(tokens(0, 7), Fault(2)) == 2
    assert owners(leaf(ctx, "kv"))[:9] == "1110000.."
    assert [record.json["ok"] for record in ctx.records] == [True, True, False]


def test_b1_p3_head_changes_of_ubatches_that_were_not_reached_remain() -> None:
    """kv_cache.md P3: undoing the second ubatch gave stream 3 the head that stream 0 had then."""
    ctx = recorded(KV_STREAMS)
    feed(ctx, 0, 5)
    feed(ctx, 3, 2)
    batch = Batch.joined(tokens(0, 1, 5), tokens(3, 1, 2))
    assert ctx.decode(batch, Fault(0)) == 2
    assert leaf(ctx, "kv").heads == [5, 0, 0, 6]
    assert (ctx.memory.seq_pos_max(0), ctx.memory.seq_pos_max(3)) == (4, 1)


def test_b2_of_a_shared_token_only_the_first_sequence_is_rolled_back() -> None:
    """Known gap. The ids (0, 1) as submitted are seen as 1, 0."""
    ctx = recorded(KV)
    assert ctx.decode(tokens((0, 1), 3, 0), Fault(0)) == 2
    assert owners(leaf(ctx, "kv"))[:4] == "000."
    assert (ctx.memory.seq_pos_max(0), ctx.memory.seq_pos_max(1)) == (2, -1)


def test_the_smallest_position_of_each_sequence_is_where_its_rollback_begins() -> None:
    ctx = recorded(KV)
    feed(ctx, 0, 3)
    feed(ctx, 1, 2, start=0)
    assert ctx.decode(Batch.joined(tokens(0, 2, 3), tokens(1, 3, 2), tokens(2, 1, 0)), Fault(0)) == 2
    assert [ctx.memory.seq_pos_max(s) for s in range(3)] == [2, 1, -1]


def test_b2_a_rollback_takes_older_tokens_at_the_same_position() -> None:
    """M-RoPE: an image that begins at the stored position takes the text there with it."""
    ctx = recorded(KV_MROPE)
    feed(ctx, 0, 3)
    image = Batch(embd=np.zeros((2, 0), np.float32), pos=[2, 2, 0, 0, 0, 1, 0, 0], seq_ids=[(0,)] * 2)
    assert ctx.decode(image, Fault(0)) == 2
    assert ctx.memory.seq_pos_max(0) == 1


def test_b3_a_memory_may_refuse_and_nothing_is_removed() -> None:
    ctx = recorded("hybrid/jamba-uni-c512-u16-s2-f16-01")
    feed(ctx, 0, 3)
    assert ctx.decode(tokens(0, 2), Fault(0)) == 2
    failure = ctx.last_failure
    assert failure is not None
    assert failure.refused == (0,)
    assert reason(ctx).endswith("except those of sequences 0, whose memory refused")
    assert leaf(ctx, "attn").seq_pos_max(0) == 4


def test_b5_outputs_of_a_failed_call_are_unusable() -> None:
    ctx = recorded(KV, n_ubatch=2)
    ctx.network = Positions()
    assert ctx.decode(tokens(0, 6), Fault(2)) == 2
    assert (ctx.outputs.n_outputs, ctx.logits) == (0, None)
    with pytest.raises(CacheUsageError, match="the last decode failed"):
        ctx.logits_of(0)


# -- 5. outputs --------------------------------------------------------------------------------------


class Positions:
    """Logits are the batch index and the position of each row."""

    def run(self, ubatch: Ubatch, views: Mapping[str, View]) -> Any:
        return np.stack([ubatch.idx, ubatch.pos0], axis=1).astype(np.float32)


def test_outputs_come_in_the_callers_order_though_executed_in_another() -> None:
    """Streams: equal splits execute sequence by sequence."""
    ctx = recorded(KV_STREAMS)
    ctx.network = Positions()
    seqs = [(0,), (1,), (0,), (1,), (0,)]
    batch = Batch(tokens=[1] * 5, pos=[0, 0, 1, 1, 2], seq_ids=seqs, output=[1, 1, 0, 1, 1])
    assert ctx.decode(batch) == 0
    assert [record.json["idx"] for record in ctx.records] == [[0, 2, 1, 3], [4]]
    assert ctx.logits is not None
    assert ctx.logits[:, 0].tolist() == [0, 1, 3, 4]
    assert [ctx.logits_of(i).tolist() for i in (0, 1, 3, 4, -1)] == [[0, 0], [1, 0], [3, 1], [4, 2], [4, 2]]
    with pytest.raises(CacheUsageError, match="flag the token as an output"):
        ctx.logits_of(2)


def test_without_flags_the_last_token_is_the_output() -> None:
    ctx = recorded(KV)
    ctx.network = Positions()
    assert ctx.decode(Batch(tokens=[1, 2, 3])) == 0
    assert ctx.logits_of(2).tolist() == [2, 2]
    assert ctx.outputs.n_outputs == 1


def test_without_a_network_there_are_no_logits() -> None:
    ctx = recorded(KV)
    feed(ctx, 0, 1)
    with pytest.raises(CacheUsageError, match="no network"):
        ctx.logits_of(0)


# -- positions filled in, half-alive cells ---------------------------------------------------------------


def test_known_gap_more_sequences_than_n_ubatch_make_a_ubatch_one_token_too_long() -> None:
    """batch.md E4: 5 sequences, n_ubatch 3: 4 tokens, then 1."""
    ctx = recorded("kv/llama-str-c256-u64-s8-f16-04", n_ubatch=3)
    assert ctx.decode(Batch.joined(*(tokens(s, 1, 0) for s in range(5)))) == 0
    assert [record.json["n_tokens"] for record in ctx.records] == [4, 1]


def test_known_gap_cells_at_position_minus_one_through_decode_keep_and_copy() -> None:
    """cells R21: used but empty; re-used without being freed; kept for its own sequence only."""
    ctx = recorded(KV, {"kv": 8})
    assert ctx.decode(tokens(0, 2, -1)) == 0
    assert [row[:3] for row in snapshot(ctx)["caches"]["kv"][0]["cells"]] == [[0, -1, [0]], [1, 0, [0]]]
    assert snapshot(ctx)["pos"]["0"] == [-1, 0]
    assert ctx.records[0].json["mask"]["kv"] == [[], [1, 2]]
    ctx.memory.seq_cp(0, 1, -1, -1)
    ctx.memory.seq_keep(0)
    assert [row[:3] for row in snapshot(ctx)["caches"]["kv"][0]["cells"]] == [[0, -1, [0]], [1, 0, [0]]]
    leaf(ctx, "kv").heads[0] = 0
    assert ctx.decode(tokens(2, 1, 0)) == 0  # takes cell 0, which still has the bit of sequence 0
    assert snapshot(ctx)["caches"]["kv"][0]["cells"][0][:3] == [0, 0, [0, 2]]
    ctx.memory.seq_keep(3)
    assert snapshot(ctx)["caches"]["kv"][0]["used"] == 0


def test_known_gap_a_refused_batch_leaves_its_cells_at_minus_one_listed() -> None:
    """cells R21: the undone preparation leaves the cell used, without a sequence."""
    ctx = recorded(KV, {"kv": 4}, n_ubatch=2)
    assert ctx.decode(tokens(0, 6, -1)) == 1
    assert snapshot(ctx)["caches"]["kv"][0] == {
        "head": 0, "used": 1, "has_shift": False, "cells": [[0, -1, [], 0, -1, 0, 0]],
    }  # fmt: skip
    assert snapshot(ctx)["pos"]["0"] == [-1, -1]
    feed(ctx, 1, 4, start=0)
    ctx.memory.seq_rm(1, -1, -1)
    assert snapshot(ctx)["caches"]["kv"][0]["used"] == 0


def test_known_gap_a_position_below_minus_one_is_refused() -> None:
    ctx = recorded(KV)
    assert ctx.decode(tokens(0, 2, -2)) == -1
    assert "no position is below -1" in reason(ctx)


def test_known_gap_an_image_may_begin_at_the_stored_position_text_may_not() -> None:
    ctx = recorded(KV_MROPE)
    feed(ctx, 0, 3)
    image = Batch(embd=np.zeros((2, 0), np.float32), pos=[1, 1, 0, 0, 0, 1, 0, 0], seq_ids=[(0,)] * 2)
    assert ctx.decode(image) == -1
    assert "ends at 2, so 2 or more is expected" in reason(ctx)
    assert ctx.decode(replace(image, pos=[2, 2, 0, 0, 0, 1, 0, 0])) == 0
    assert ctx.decode(tokens(0, 1, 2)) == -1
    assert "so 3 or more is expected" in reason(ctx)


def test_leaves_come_from_the_factory() -> None:
    ctx = Context(LLAMA, ContextParams(n_ctx=256), leaves=TinyLeaves(sizes={"kv": 5}))
    assert leaf(ctx, "kv").size == 5
    assert leaf(ctx, "kv").store is None
