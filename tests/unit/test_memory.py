"""The interfaces: ranges, prepared changes, snapshots, composites that change all parts or none."""

from __future__ import annotations

import numpy as np
import pytest
from small_memories import (
    DSA,
    DSA_ISWA,
    ISWA,
    KV,
    KV_STREAMS,
    MSA,
    feed,
    kv_cache,
    leaf,
    put,
    recorded,
    snapshot,
    streams,
    ubatch,
)  # fmt: skip

from kvsim.errors import CacheUsageError, IntegrityError
from kvsim.events import Recorder
from kvsim.memory import (
    POS_INF,
    BatchContext,
    FailedContext,
    MemoryStatus,
    PrepareFailure,
    SlotInfo,
    UpdateContext,
    position_range,
)  # fmt: skip


@pytest.mark.parametrize(
    ("p0", "p1", "wanted"), [(-1, -1, (0, POS_INF)), (-9, 0, (0, 0)), (3, 7, (3, 7)), (3, -2, (3, POS_INF))]
)
def test_ranges_are_clamped(p0: int, p1: int, wanted: tuple[int, int]) -> None:
    assert position_range(p0, p1) == wanted


def test_a_slot_as_json() -> None:
    slot = SlotInfo((2, 3), (np.array([4, 5], np.int32), np.array([0, 1], np.int32)))
    assert slot.n_cells == 4
    assert slot.to_json() == {"strm": [2, 3], "idxs": [[4, 5], [0, 1]]}


def test_a_prepared_batch_is_applied_ubatch_by_ubatch() -> None:
    cache = kv_cache(8)
    ubatches = [ubatch([0, 1]), ubatch([2])]
    slots = cache.prepare(ubatches)
    assert slots is not None
    context = BatchContext(ubatches, {"kv": cache}, {"kv": slots})
    assert (context.status, context.views, list(context)) == (MemoryStatus.SUCCESS, {}, ubatches)
    assert context.apply()
    assert list(context.views) == ["kv"]
    assert cache.seq_pos_max(0) == 1
    assert context.next()
    assert (context.ubatch, context.views) == (ubatches[1], {})
    assert context.apply()
    assert cache.seq_pos_max(0) == 2
    assert not context.next()


def test_a_refused_batch_applies_nothing_and_has_no_ubatches() -> None:
    context = FailedContext(None)
    assert (context.status, context.apply(), context.next(), context.views) == (
        MemoryStatus.FAILED_PREPARE, False, False, {},
    )  # fmt: skip
    with pytest.raises(LookupError):
        context.ubatch  # noqa: B018


def test_an_update_runs_the_works_in_order_and_without_any_there_is_none() -> None:
    ran: list[str] = []
    context = UpdateContext([lambda: ran.append("base"), None, lambda: ran.append("swa")])
    assert context.status is MemoryStatus.SUCCESS
    assert context.apply()
    assert ran == ["base", "swa"]
    assert UpdateContext([None, None]).status is MemoryStatus.NO_UPDATE


def test_a_refusal_in_words() -> None:
    failure = PrepareFailure("swa", 3, 1, asked=16, free=4, reclaimable=9, largest_hole=6, n_ubatches=5)
    assert str(failure) == (
        "swa (stream 3) has no room for ubatch 2 of 5: 16 cells asked for, 4 free, "
        "9 reclaimable by the window, largest hole 6"
    )


def test_a_snapshot_is_the_after_field_of_a_trace() -> None:
    cache = streams(2, size=4)
    put(cache, [0, 1], 1)
    cache.seq_cp(1, 0, -1, -1)
    cells = [[0, 0, [1], 0, 100, 0, 0], [1, 1, [1], 0, 101, 0, 0]]
    copied = [[i, p, [0], *rest] for i, p, _, *rest in cells]
    assert cache.snapshot().to_json() == {
        "caches": {
            "kv": [
                {"head": 2, "used": 2, "has_shift": False, "cells": copied},
                {"head": 2, "used": 2, "has_shift": False, "cells": cells},
            ]
        },
        "recurrent": None,
        "pos": {"0": [0, 1], "1": [0, 1]},
        "pending_copies": {"kv": [[1, 0]]},
    }


@pytest.mark.parametrize("name", [ISWA, DSA, DSA_ISWA, MSA])
def test_a_composite_takes_no_update_if_one_part_must_refuse(name: str) -> None:
    ctx = recorded(name)
    feed(ctx, 0, 3)
    ctx.memory.seq_add(0, 1, -1, 1)
    last = leaf(ctx, list(ctx.memory.leaves())[-1])
    object.__setattr__(last.spec, "can_shift", False)
    before = snapshot(ctx)
    with pytest.raises(CacheUsageError, match="cannot shift its keys"):
        ctx.memory.init_update()
    assert snapshot(ctx) == before


@pytest.mark.parametrize("name", [KV_STREAMS, ISWA, DSA, DSA_ISWA, MSA])
def test_a_copy_of_the_metadata_is_independent_and_bare(name: str) -> None:
    ctx = recorded(name, data=True)
    ctx.observe(Recorder())
    feed(ctx, 0, 5)
    ctx.memory.seq_add(0, 2, -1, 1)
    ctx.memory.seq_cp(0, 1, -1, -1)
    trial = ctx.memory.copy_metadata()
    assert trial.snapshot() == ctx.memory.snapshot()
    assert all(part.store is None and part.observer is None for part in trial.leaves().values())
    assert all(part.store is not None and part.observer is not None for part in ctx.memory.leaves().values())
    before = snapshot(ctx)
    trial.seq_rm(0, -1, -1)
    trial.init_update().apply()
    trial.check_integrity()
    assert snapshot(ctx) == before


@pytest.mark.parametrize("name", [KV, ISWA, DSA, DSA_ISWA, MSA])
def test_integrity_is_checked_in_every_part(name: str) -> None:
    ctx = recorded(name)
    feed(ctx, 0, 3)
    ctx.memory.check_integrity()
    for part in ctx.memory.leaves():
        leaf(ctx, part).cells[0].n_live += 1
        with pytest.raises(IntegrityError, match=f"cache '{part}', stream 0"):
            ctx.memory.check_integrity()
        leaf(ctx, part).cells[0].n_live -= 1


def test_breakdowns_of_parts_are_named() -> None:
    parts = recorded(DSA_ISWA).memory.memory_breakdown()
    assert set(parts) == {f"{part}.{side}" for part in ("mla", "lid", "swa") for side in ("k", "v")}
    assert parts["mla.v"] == parts["lid.v"] == 0 < parts["mla.k"]
