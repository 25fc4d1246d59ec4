"""What an observer is told: each kind where it belongs, with its cells; and nothing without an observer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from small_memories import (
    ISWA,
    KV,
    KV_STREAMS,
    feed,
    kv_cache,
    leaf,
    put,
    recorded,
    streams,
    tokens,
    ubatch,
    window_cache,
)  # fmt: skip

from kvsim.batch import Batch
from kvsim.caches.kv import KVCache
from kvsim.context import Context, Fault
from kvsim.events import KINDS, Event, Recorder
from kvsim.models.context_params import ContextParams
from kvsim.models.known import known_model

Told = list[tuple[str, int, list[int], dict[str, Any]]]


def watch(cache: KVCache, call: Callable[[], object]) -> Told:
    """Kind, stream, cells and detail of each event, hazards left out."""
    recorder = Recorder()
    cache.observe(recorder)
    call()
    cache.observe(None)
    return [
        (e.kind, e.stream, e.cells.tolist(), plain(e.detail)) for e in recorder.events if e.kind != "hazard"
    ]


def plain(detail: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in detail.items()}


def hazards(cache: KVCache, call: Callable[[], object]) -> list[str]:
    recorder = Recorder()
    cache.observe(recorder)
    call()
    return [e.detail["id"] for e in recorder.events if e.kind == "hazard"]


def cells_of(told: Told) -> dict[str, list[int]]:
    return {kind: cells for kind, _, cells, _ in told}


def test_a_slot_is_told_found_or_not() -> None:
    cache = kv_cache(4)
    told = watch(cache, lambda: cache.find_slot(ubatch([0, 1])))
    assert told == [("slot", 0, [0, 1], {"found": True, "asked": 2})]
    told = watch(cache, lambda: cache.find_slot(ubatch(range(5))))
    assert told == [("slot", 0, [], {"found": False, "asked": 5})]


def test_write_is_told_when_a_ubatch_is_placed_not_when_it_is_tried() -> None:
    cache = kv_cache(4)
    told = watch(cache, lambda: put(cache, [0, 1], [(1, 0), (0,)]))
    assert [kind for kind, *_ in told] == ["slot", "write", "head"]
    assert told[1] == ("write", 0, [0, 1], {"pos": [0, 1], "seqs": ((1, 0), (0,))})
    assert told[2] == ("head", 0, [], {"old": 0, "new": 2})


def test_free_has_the_freed_cells_and_those_that_lost_an_owner() -> None:
    cache = kv_cache(8)
    put(cache, range(4))
    cache.seq_cp(0, 1, 0, 2)
    told = watch(cache, lambda: cache.seq_rm(0, 1, 3))
    assert told == [
        ("free", 0, [2], {"reason": "seq_rm", "seq": 0, "lost": [1, 2]}),
        ("head", 0, [], {"old": 4, "new": 2}),
    ]
    told = watch(cache, lambda: cache.seq_keep(1))
    assert told[0] == ("free", 0, [3], {"reason": "seq_keep", "seq": 1, "lost": [0]})
    told = watch(cache, lambda: cache.seq_rm(-1, 0, 1))
    assert told[0] == ("free", 0, [0], {"reason": "seq_rm", "seq": -1, "lost": [0]})
    put(cache, [5], 2)
    told = watch(cache, lambda: cache.clear(False))
    assert told[0][:3] == ("free", 0, [0, 1])
    assert told[0][3]["reason"] == "clear"


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.seq_rm(3, -1, -1), lambda c: c.seq_rm(0, 50, -1), lambda c: c.seq_rm(-1, 50, 60),
        lambda c: c.seq_cp(3, 2, -1, -1), lambda c: c.seq_cp(0, 0, -1, -1), lambda c: c.seq_keep(0),
        lambda c: c.seq_add(0, 2, -1, 0), lambda c: c.seq_div(3, -1, -1, 2),
    ],
)  # fmt: skip
def test_what_changes_nothing_tells_nothing(call: Callable[[KVCache], object]) -> None:
    cache = kv_cache(8)
    put(cache, range(3))
    assert watch(cache, lambda: call(cache)) == []


def test_share_has_the_cells_that_gained_an_owner() -> None:
    cache = kv_cache(8)
    put(cache, range(4))
    cache.seq_cp(0, 1, 0, 1)
    told = watch(cache, lambda: cache.seq_cp(0, 1, 0, 3))
    assert told == [("share", 0, [1, 2], {"src": 0, "dst": 1})]


def test_shift_has_the_moved_cells_and_free_those_that_fell_below_zero() -> None:
    cache = kv_cache(8)
    put(cache, range(4))
    told = watch(cache, lambda: cache.seq_add(0, -1, -1, -1))
    assert told == [
        ("shift", 0, [1, 2, 3], {"seq": 0, "delta": -1}),
        ("free", 0, [0], {"reason": "seq_add", "seq": 0, "lost": [0]}),
        ("head", 0, [], {"old": 4, "new": 0}),
    ]
    told = watch(cache, lambda: cache.seq_div(0, 1, -1, 2))
    assert told == [("shift", 0, [2, 3], {"seq": 0, "divisor": 2})]


def test_k_shift_has_the_cells_whose_keys_turn() -> None:
    cache = kv_cache(8)
    put(cache, range(4))
    cache.seq_add(0, 2, -1, 3)
    told = watch(cache, lambda: cache.init_update().apply())
    assert told == [("k_shift", 0, [2, 3], {})]


def test_copies_are_told_when_queued_and_when_carried_out() -> None:
    cache = streams(3)
    put(cache, range(3), 0)
    put(cache, range(1), 2)
    told = watch(cache, lambda: cache.seq_cp(0, 2, -1, -1))
    assert told == [
        ("free", 2, [0], {"reason": "seq_cp", "seq": 2, "lost": [0]}),
        ("head", 2, [], {"old": 1, "new": 3}),
        ("copy_queued", 2, [0, 1, 2], {"src": 0, "dst": 2}),
    ]
    told = watch(cache, lambda: cache.init_update().apply())
    assert told == [("stream_copy", 2, [], {"src": 0})]


def test_purge_has_the_cells_that_went_although_nobody_asked() -> None:
    cache = window_cache(n_swa=2, size=6)
    put(cache, range(5))
    cache.heads[0] = 2
    slots = cache.prepare([ubatch([0], 1)])
    assert slots is not None
    put(cache, [5], 0)
    cache = window_cache(n_swa=2, size=6)
    put(cache, range(5))
    cache.heads[0] = 2
    told = watch(cache, lambda: cache.prepare([ubatch([0], 1)]))
    assert ("purge", 0, [0, 1], {"seq": 0, "reach": 2, "freed": [0, 1]}) in told
    assert "write" not in cells_of(told)


def test_heads_that_a_preparation_leaves_elsewhere_are_told() -> None:
    """kv_cache.md P3."""
    cache = streams(4)
    cache.heads = [1, 2, 3, 4]
    told = watch(cache, lambda: cache.prepare([ubatch([0, 0], [2, 3])]))
    assert [t for t in told if t[0] == "head"] == [
        ("head", 2, [], {"old": 3, "new": 1}),
        ("head", 3, [], {"old": 4, "new": 2}),
    ]


# -- the context --------------------------------------------------------------------------------------


def listen(ctx: Context) -> Recorder:
    recorder = Recorder()
    ctx.observe(recorder)
    return recorder


def test_a_decode_tells_of_its_ubatches_graphs_and_rollbacks() -> None:
    ctx = recorded(KV, n_ubatch=2)
    told = listen(ctx)
    assert ctx.decode(tokens(0, 4), Fault(1)) == 2
    assert [e.kind for e in told.events if e.kind not in ("slot", "head")] == [
        "split", "write", "graph", "split", "write", "graph", "free", "rollback",
    ]  # fmt: skip
    split, graph, rollback = (
        next(e for e in told.events if e.kind == kind) for kind in ("split", "graph", "rollback")
    )
    assert split.detail == {"n_tokens": 2, "n_seqs": 2, "idx": [0, 1]}
    assert graph.detail == {"reused": False, "reason": "the first graph"}
    assert rollback.detail == {"seq": 0, "p0": 2, "accepted": True}
    assert (split.cache, split.stream) == ("", -1)


def test_states_are_told_saved_restored_and_refused() -> None:
    ctx = recorded(KV)
    feed(ctx, 0, 2)
    told = listen(ctx)
    blob = ctx.state_seq_get(0)
    ctx.state_seq_set(blob, 1)
    ctx.state_seq_set(blob[:-1], 1)
    ctx.state_set(ctx.state_get())
    states = [e.detail for e in told.events if e.kind == "state"]
    assert [(d["what"], d["seq"]) for d in states] == [
        ("saved", 0), ("restored", 1), ("refused", 1), ("saved", -1), ("restored", -1),
    ]  # fmt: skip
    assert "truncated" in states[2]["reason"]


def test_events_name_the_part_of_a_composite() -> None:
    ctx = recorded(ISWA, {"base": 16, "swa": 8}, n_swa=4)
    told = listen(ctx)
    feed(ctx, 0, 2)
    assert [e.cache for e in told.events if e.kind == "write"] == ["base", "swa"]


@pytest.mark.parametrize(
    ("hazard", "call"),
    [
        ("division-turns-backwards", lambda c: c.seq_div(0, -1, -1, 2)),
        ("keep-spares-other-streams", lambda c: c.seq_keep(0)),
        ("copy-ignores-range", lambda c: c.seq_cp(0, 2, -1, 0)),
    ],
)
def test_hazards_are_told_where_they_happen(hazard: str, call: Callable[[KVCache], object]) -> None:
    cache = streams(3)
    put(cache, range(3), 0)
    put(cache, range(3), 1)
    assert hazard in hazards(cache, lambda: call(cache))


def test_a_shift_of_shared_cells_and_a_clear_with_queued_copies_are_hazards() -> None:
    cache = kv_cache(8)
    put(cache, range(3))
    cache.seq_cp(0, 1, -1, -1)
    assert hazards(cache, lambda: cache.seq_add(0, -1, -1, 1)) == ["shift-moves-other-owners"]
    cache = streams(2)
    put(cache, range(3), 0)
    cache.seq_cp(0, 1, -1, -1)
    assert hazards(cache, lambda: cache.clear(False)) == ["clear-keeps-copies"]


def test_every_kind_that_a_kv_context_can_meet_is_told_once() -> None:
    seen: set[str] = set()
    for name in (KV_STREAMS, ISWA):
        ctx = recorded(name, {"swa": 8}, n_swa=4)
        told = listen(ctx)
        feed(ctx, 0, 12, step=1)
        last = leaf(ctx, list(ctx.memory.leaves())[-1])
        last.heads[0] = 5  # of the window cache, whose cell 4 is older than what cell 5 will overwrite
        feed(ctx, 2, 2, start=0)
        ctx.memory.seq_cp(0, 1, -1, -1)
        ctx.memory.seq_rm(1, 3, 9)
        ctx.memory.seq_add(0, 11, -1, 1)
        ctx.memory.seq_div(0, 12, -1, 2)
        ctx.state_seq_get(0)
        ctx.decode(tokens(2, 1), Fault(0))
        seen |= set(told.kinds())
    assert seen >= set(KINDS) - {"move", "swap", "policy", "speculate"}


# -- no observer -----------------------------------------------------------------------------------------


def test_without_an_observer_no_event_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object, **kwargs: object) -> Event:
        raise AssertionError("an event was made although nobody listens")

    for module in ("kvsim.caches.kv", "kvsim.caches.composite", "kvsim.context", "kvsim.state"):
        monkeypatch.setattr(f"{module}.Event", forbidden)
    for name in (KV, KV_STREAMS, ISWA):
        ctx = recorded(name, {"swa": 8}, n_swa=4)
        feed(ctx, 0, 12, step=1)
        ctx.memory.seq_cp(0, 1, -1, -1)
        ctx.memory.seq_rm(1, 3, 9)
        ctx.memory.seq_add(0, 11, -1, 1)
        ctx.memory.seq_div(0, 12, -1, 2)
        ctx.memory.seq_keep(0)
        ctx.state_set(ctx.state_get())
        assert ctx.decode(tokens(0, 1), Fault(0)) == 2
        ctx.memory.clear(True)


def test_a_recorder_hands_over_what_it_heard_and_forgets_it() -> None:
    recorder = Recorder()
    recorder(Event("slot"))
    recorder(Event("write"))
    assert recorder.kinds() == ["slot", "write"]
    assert [e.kind for e in recorder.take()] == ["slot", "write"]
    assert recorder.events == []


def test_detaching_reaches_every_leaf() -> None:
    ctx = recorded(ISWA)
    told = listen(ctx)
    ctx.observe(None)
    feed(ctx, 0, 2)
    assert told.events == []


def test_a_whole_restore_tells_what_it_frees_and_writes() -> None:
    """States Rd2, Rd3: everything goes, then cells are filled from 0 on."""
    context = Context(known_model("llama3-8b"), ContextParams(n_ctx=256, n_seq_max=2, kv_unified=True))
    context.decode(Batch.tokens_of(0, range(4)))
    context.memory.seq_rm(0, 1, 2)
    saved = context.state_get()
    context.decode(Batch.tokens_of(1, range(2)))
    told = Recorder()
    context.observe(told)
    assert context.state_set(saved)
    cells = [(e.kind, e.cells.tolist()) for e in told.events if e.kind in ("free", "write")]
    assert cells == [("free", [0, 1, 2, 3, 4]), ("write", [0, 1, 2])]
    [write] = [e.detail for e in told.events if e.kind == "write"]
    assert write["pos"].tolist() == [0, 2, 3]
    assert write["seqs"] == [[0], [0], [0]]


def test_clearing_tells_half_alive_cells_too() -> None:
    """Cells R21: a cell at position -1 counts as used, so it is freed."""
    context = Context(known_model("llama3-8b"), ContextParams(n_ctx=256, n_seq_max=1))
    assert context.decode(Batch([1, 2, 3], pos=[-1, 0, 1], seq_ids=[[0], [0], [0]])) == 0
    told = Recorder()
    context.observe(told)
    context.memory.clear(False)
    assert [e.cells.tolist() for e in told.events if e.kind == "free"] == [[0, 1, 2]]
