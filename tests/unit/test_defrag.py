"""Defragmentation (spec decode.md 6): the moving of cells and rows, and when it runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_memories import (
    DSA,
    DSA_ISWA,
    ISWA,
    KV,
    MSA,
    feed,
    kv_cache,
    kv_spec,
    leaf,
    positions,
    put,
    recorded,
    tokens,
    ubatch,
)  # fmt: skip

from kvsim.caches.kv import KVCache
from kvsim.caches.kv_view import KVView
from kvsim.caches.pool_layout import PoolLayout, all_clean
from kvsim.caches.shared_kv import SharedKVCache
from kvsim.cells import CellTable
from kvsim.context import Context
from kvsim.defrag import (
    Defrag,
    Move,
    StreamMoves,
    plan_update,
)  # fmt: skip
from kvsim.errors import CacheUsageError
from kvsim.events import Recorder
from kvsim.memory import MemoryStatus, SlotInfo
from kvsim.models.cache_types import CACHE_TYPES
from kvsim.tensors.store import KVStore

# -- cells -----------------------------------------------------------------------------------------


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_d6_a_moved_cell_takes_everything_along() -> None:
    table = CellTable(8)
    table.place(ints(0, 5, 6), ints(0, 4, 7), [(0,), (0, 3), (70,)])
    table.set_ext(ints(0, 5, 6), [10, 15, 16], [1, 2, 3], [4, 5, 6])
    table.pos_add(3, 4, 5, 2)
    table.move(ints(5, 6), ints(1, 2))
    assert table.rows() == [[0, 0, [0], 0, 10, 1, 4], [1, 6, [0, 3], 2, 15, 2, 5], [2, 7, [70], 0, 16, 3, 6]]
    assert (table.used, table.used_max_p1, table.has_shift) == (3, 3, True)
    assert (table.pos[5], table.shift[5], table.tok[5], table.x[5], table.y[5]) == (-1, 0, -1, 0, 0)
    assert [table.seq_pos_max(s) for s in (0, 3, 70)] == [6, 6, 7]
    table.check_integrity()


def test_cells_can_move_up_too() -> None:
    table = CellTable(8)
    table.place(ints(0, 1), ints(0, 1), [(0,)] * 2)
    table.move(ints(0), ints(7))
    assert (table.used_max_p1, table.used) == (8, 2)
    table.check_integrity()


@pytest.mark.parametrize(("src", "dst"), [(3, 4), (0, 1)], ids=["empty source", "used target"])
def test_impossible_moves_change_nothing(src: int, dst: int) -> None:
    table = CellTable(8)
    table.place(ints(0, 1), ints(0, 1), [(0,)] * 2)
    before = table.rows()
    with pytest.raises(CacheUsageError, match="only from used ones to empty ones"):
        table.move(ints(src), ints(dst))
    assert table.rows() == before


def test_a_cell_at_position_minus_1_is_no_place_to_move_to() -> None:
    """It is empty by the only test, and still carries an owner."""
    table = CellTable(8)
    table.place(ints(0, 4), ints(-1, 3), [(1,), (0,)])
    with pytest.raises(CacheUsageError, match="only from used ones to empty ones"):
        table.move(ints(4), ints(0))


def test_cells_at_negative_positions_move_with_their_index() -> None:
    """From the first negative position on the table keeps llama.cpp's own index (cells R21)."""
    table = CellTable(8)
    table.place(ints(0, 4), ints(-2, 3), [(0,)] * 2)
    table.move(ints(4), ints(1))
    assert [a.tolist() for a in table.by_position(0)] == [[-2, 3], [0, 1]]
    assert table.rows() == [[0, -2, [0], 0, -1, 0, 0], [1, 3, [0], 0, -1, 0, 0]]


# -- caches ----------------------------------------------------------------------------------------

LAYOUTS = [("f16", "f16", False), ("q8_0", "q4_0", False), ("f16", "f16", True), ("f16", None, False)]
LAYOUT_IDS = ["f16", "quantised", "transposed V", "keys only"]


def cache_with_rows(size: int, type_k: str, type_v: str | None, v_trans: bool, n_stream: int = 1) -> KVCache:
    """Two layers; every row of a cell is filled by :func:`sign`."""
    layer = kv_spec().layers[0]
    v = None if type_v is None else CACHE_TYPES[type_v]
    layers = tuple(replace(layer, il=il, k=CACHE_TYPES[type_k], v=v) for il in range(2))
    spec = kv_spec(size, layers=layers, v_trans=v_trans, n_stream=n_stream)
    cache = KVCache(spec, "kv", KVStore(layers, n_stream, size, v_trans))
    cache.defrag = Defrag()
    return cache


def sign(cache: KVCache, rng: np.random.Generator) -> dict[tuple[int, int], bytes]:
    """Give every used cell rows of its own; returns them by (stream, position)."""
    store = cache.store
    assert store is not None
    for slab in (*store.k.values(), *store.v.values()):
        slab[...] = rng.integers(0, 256, slab.shape, np.uint8)
    return signed(cache)


def signed(cache: KVCache) -> dict[tuple[int, int], bytes]:
    store = cache.store
    assert store is not None
    rows = {}
    for stream, table in enumerate(cache.cells):
        for i in np.flatnonzero(table.pos != -1):
            cell = np.array([i], np.int32)
            data = [store.read_k(il, stream, cell) for il in store.k] + [
                store.read_v(il, stream, cell) for il in store.v
            ]
            rows[stream, int(table.pos[i])] = b"".join(data)
    return rows


def fragmented(cache: KVCache, gaps: list[int]) -> None:
    """Positions 0, 1, 2, ... in one stream, then without ``gaps``."""
    put(cache, list(range(cache.size)), 0)
    for pos in gaps:
        cache.seq_rm(0, pos, pos + 1)


def optimize(cache: KVCache) -> bool:
    work = cache.init_update(optimize=True)
    if work.status is MemoryStatus.SUCCESS:
        work.apply()
    return work.status is MemoryStatus.SUCCESS


@pytest.mark.parametrize(("type_k", "type_v", "v_trans"), LAYOUTS, ids=LAYOUT_IDS)
@pytest.mark.parametrize("strategy", ["classic", "minimal"])
@given(gaps=st.lists(st.integers(0, 15), max_size=16, unique=True), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_d7_rows_follow_their_cells(
    type_k: str, type_v: str | None, v_trans: bool, strategy: str, gaps: list[int], seed: int
) -> None:
    cache = cache_with_rows(16, type_k, type_v, v_trans)
    cache.defrag = Defrag(strategy)
    fragmented(cache, gaps)
    want = sign(cache, np.random.default_rng(seed))
    optimize(cache)
    assert signed(cache) == want
    n = 16 - len(gaps)
    assert (cache.cells[0].pos != -1).tolist() == [True] * n + [False] * len(gaps)
    cache.check_integrity()


def test_exact_figures() -> None:
    """Two layers of 64 values in K and V: f16 rows take 2 * 2 * 128 bytes a cell."""
    cache = cache_with_rows(16, "f16", "f16", False)
    fragmented(cache, [2, 3, 6, 9, 10, 12, 15])
    events = Recorder()
    cache.observe(events)
    assert optimize(cache)
    (report,) = cache.last_defrag
    assert report.moves == (Move(13, 2, 2), Move(11, 6, 1))
    assert (report.stream, report.n_cells, report.n_bytes) == (0, 3, 3 * 512)
    assert report.fragmentation_before == pytest.approx(6 / 15)
    assert report.fragmentation_after == 0.0
    assert positions(cache) == [0, 1, 13, 14, 4, 5, 11, 7, 8, *[-1] * 7]
    assert cache.heads == [0]
    told = [(e.cells.tolist(), e.detail) for e in events.events if e.kind == "move"]
    assert told == [([2, 3], {"src": 13, "length": 2}), ([6], {"src": 11, "length": 1})]


@pytest.mark.parametrize(
    ("type_k", "type_v", "v_trans", "n_bytes"),
    [("q8_0", "q4_0", False, 2 * (68 + 36)), ("f16", "f16", True, 512), ("f16", None, False, 256)],
    ids=LAYOUT_IDS[1:],
)
def test_bytes_of_one_moved_cell(type_k: str, type_v: str | None, v_trans: bool, n_bytes: int) -> None:
    cache = cache_with_rows(4, type_k, type_v, v_trans)
    fragmented(cache, [1])
    cache.seq_rm(0, 2, 3)
    optimize(cache)
    assert [(r.moves, r.n_bytes) for r in cache.last_defrag] == [((Move(3, 1, 1),), n_bytes)]


def test_without_a_strategy_optimize_changes_nothing() -> None:
    cache = cache_with_rows(8, "f16", "f16", False)
    cache.defrag = None
    fragmented(cache, [1, 4])
    before = cache.snapshot()
    assert cache.init_update(optimize=True).status is MemoryStatus.NO_UPDATE
    assert cache.snapshot() == before


def test_a_compact_cache_has_no_work() -> None:
    cache = cache_with_rows(8, "f16", "f16", False)
    put(cache, [0, 1, 2])
    assert cache.init_update(optimize=True).status is MemoryStatus.NO_UPDATE


def test_without_being_asked_only_the_threshold_counts() -> None:
    cache = kv_cache(4096)
    cache.defrag = Defrag(threshold=0.4)
    put(cache, list(range(2048)))
    cache.seq_rm(0, 0, 818)  # 818/2048 = 0.399, less the padding
    assert cache.init_update().status is MemoryStatus.NO_UPDATE
    cache.seq_rm(0, 818, 822)
    assert cache.init_update().status is MemoryStatus.SUCCESS


def test_d8_keys_turn_before_cells_move() -> None:
    context = recorded(KV, {"kv": 16}, data=True)
    cache = leaf(context, "kv")
    cache.defrag = Defrag()
    plain = recorded(KV, {"kv": 16}, data=True)
    for each in (context, plain):
        feed(each, 0, 8)
        store = leaf(each, "kv").store
        assert store is not None
        for il in store.k:
            store.encode_k(
                il, 0, slice(0, 8), np.random.default_rng(il).normal(size=(8, store.layers[il].n_embd_k))
            )
        each.memory.seq_rm(0, 2, 4)
        each.memory.seq_add(0, 4, -1, -2)
    events = Recorder()
    context.observe(events)
    assert context.update(optimize=True)
    assert plain.update(optimize=True)
    assert [k for k in events.kinds() if k in ("k_shift", "move")] == ["k_shift", "move"]
    assert positions(cache)[:7] == [0, 1, 4, 5, 2, 3, -1]
    assert not cache.has_shift
    assert cache.store is not None
    there = leaf(plain, "kv").store
    assert there is not None
    for il in cache.store.k:
        want = there.k[il][0, [0, 1, 6, 7, 4, 5]]
        np.testing.assert_array_equal(cache.store.k[il][0, :6], want)


@given(gaps=st.lists(st.integers(0, 11), max_size=11, unique=True), shared=st.integers(0, 11))
@settings(max_examples=60, deadline=None)
def test_every_token_sees_the_same_positions_before_and_after(gaps: list[int], shared: int) -> None:
    cache = kv_cache(16)
    cache.defrag = Defrag("minimal")
    put(cache, list(range(12)), [0 if i % 3 else 1 for i in range(12)])
    cache.seq_cp(0, 2, 0, shared)
    for pos in gaps:
        cache.seq_rm(pos % 2, pos, pos + 1)

    def seen() -> list[list[list[int]]]:
        pos = cache.cells[0].pos
        masks = [put_nothing(cache, s).mask() for s in range(3)]
        return [[sorted(pos[: len(row)][row].tolist()) for row in mask] for mask in masks]

    before = seen()
    optimize(cache)
    assert seen() == before


def put_nothing(cache: KVCache, seq: int) -> KVView:
    """What tokens of ``seq`` at positions 5 and 20 would see, without placing them."""
    return KVView(cache, SlotInfo((0,), (ints(14, 15),)), ubatch([5, 20], seq))


def test_streams_are_compacted_each_for_itself() -> None:
    cache = cache_with_rows(4, "f16", "f16", False, n_stream=3)
    for s in (0, 2):
        put(cache, [0, 1, 2, 3], s)
        cache.seq_rm(s, 0, 2 if s else 1)
    assert optimize(cache)
    assert [(r.stream, r.moves) for r in cache.last_defrag] == [(0, (Move(3, 0, 1),)), (2, (Move(2, 0, 2),))]
    assert [positions(cache, s) for s in range(3)] == [[3, 1, 2, -1], [-1] * 4, [2, 3, -1, -1]]


def test_a_stream_with_a_cell_at_position_minus_1_is_left_alone() -> None:
    cache = kv_cache(8)
    cache.defrag = Defrag()
    put(cache, [-1, 0, 1, 2], 0)
    cache.seq_rm(0, 0, 1)
    assert (cache.cells[0].used, cache.cells[0].n_live) == (3, 2)
    assert plan_update(cache, optimize=True) == []


def test_d2_the_budget_leaves_a_valid_cache() -> None:
    cache = cache_with_rows(16, "f16", "f16", False)
    cache.defrag = Defrag(max_nodes=4 + 12)  # one move in two layers
    fragmented(cache, [1, 3, 5, 7])
    want = sign(cache, np.random.default_rng(0))
    rounds = 0
    while optimize(cache):
        rounds += 1
        assert len(cache.last_defrag[0].moves) == 1
        assert signed(cache) == want
    assert rounds == 4
    assert cache.last_defrag[0].fragmentation_after == 0


def test_moves_become_index_arrays() -> None:
    src, dst = StreamMoves(0, (Move(5, 1, 2), Move(9, 0, 1))).cells()
    assert (src.tolist(), dst.tolist()) == ([5, 6, 9], [1, 2, 0])


# -- when a batch finds no room (D9) ---------------------------------------------------------------


def holey(contiguous: bool, defrag: Defrag | None) -> Context:
    """8 cells, every other one free."""
    context = recorded(KV, {"kv": 8})
    cache = leaf(context, "kv")
    cache.contiguous, cache.defrag = contiguous, defrag
    for _ in range(4):
        feed(context, 0, 1)
        feed(context, 1, 1)
    context.memory.seq_rm(1, -1, -1)
    return context


def test_d9_a_batch_without_a_run_of_cells_defragments_once_and_succeeds() -> None:
    context = holey(contiguous=True, defrag=Defrag())
    events = Recorder()
    context.observe(events)
    assert context.decode(tokens(0, 3)) == 0
    told = [(e.kind, e.detail.get("found")) for e in events.events if e.kind in ("slot", "move", "write")]
    assert told == [("slot", False), ("move", None), ("move", None), ("slot", True), ("write", None)]
    assert positions(leaf(context, "kv")) == [0, 3, 1, 2, 4, 5, 6, -1]


def test_d9_without_a_strategy_the_same_batch_fails() -> None:
    context = holey(contiguous=True, defrag=None)
    assert context.decode(tokens(0, 3)) == 1
    failure = context.last_failure
    assert failure is not None
    assert failure.slot is not None
    assert (failure.slot.asked, failure.slot.free, failure.slot.largest_hole) == (3, 4, 1)


def test_d9_there_is_one_retry_only() -> None:
    context = holey(contiguous=True, defrag=Defrag())
    events = Recorder()
    context.observe(events)
    assert context.decode(tokens(0, 5)) == 1
    assert [e.detail["found"] for e in events.events if e.kind == "slot"] == [False, False]


def test_scattered_placement_needs_no_defragmentation() -> None:
    context = holey(contiguous=False, defrag=Defrag())
    assert context.decode(tokens(0, 3)) == 0
    assert leaf(context, "kv").last_defrag == ()


# -- composites ------------------------------------------------------------------------------------


def interleaved(name: str, cells: dict[str, int]) -> Context:
    """Sequence 1 gone from between the cells of sequence 0."""
    context = recorded(name, cells)
    for cache in context.memory.leaves().values():
        if isinstance(cache, KVCache):
            cache.defrag = Defrag()
    for _ in range(4):
        feed(context, 1, 1)
        feed(context, 0, 2)
    context.memory.seq_rm(1, -1, -1)
    return context


@pytest.mark.parametrize(
    ("name", "pair"), [(DSA, ("mla", "lid")), (MSA, ("base", "idx")), (DSA_ISWA, ("mla", "lid"))]
)
def test_an_indexer_makes_the_moves_of_its_cache(name: str, pair: tuple[str, str]) -> None:
    context = interleaved(name, {})
    caches = [leaf(context, each) for each in pair]
    assert context.update(optimize=True)
    assert [r.moves for r in caches[0].last_defrag] == [r.moves for r in caches[1].last_defrag] != []
    assert caches[0].cells[0].rows() == caches[1].cells[0].rows()
    assert positions(caches[0])[:9] == [7, 0, 1, 6, 2, 3, 5, 4, -1]


def test_a_pair_keeps_one_plan_though_one_has_more_layers() -> None:
    """The budget is that of the cache with more layers, for both."""
    context = interleaved(DSA, {})
    mla, lid = leaf(context, "mla"), leaf(context, "lid")
    mla.spec = replace(mla.spec, layers=mla.spec.layers[:1])
    lid.spec = replace(lid.spec, layers=lid.spec.layers[:1] * 2)
    mla.defrag = Defrag(max_nodes=2 * 2 + 6 * 2)  # one move in two layers, two in one
    context.update(optimize=True)
    assert [len(r.moves) for r in mla.last_defrag] == [len(r.moves) for r in lid.last_defrag] == [1]


def test_cells_at_one_position_rank_by_index_so_a_move_regroups_pools() -> None:
    """Pools by order, two cells each: 0 and 5 were one, 0 and 1 are."""
    cache = kv_cache(8)
    cache.defrag = Defrag()
    put(cache, [9, 0, 9, 9, 9, 1, 1], [1, 0, 1, 1, 1, 0, 0])
    cache.seq_rm(1, -1, -1)
    layout = PoolLayout(2, by_order=True)
    layout.refresh(cache, all_clean())
    assert layout.seqs[0].cells.tolist() == [1, 5, 6]
    cache.init_update(optimize=True).apply()
    layout.refresh(cache, all_clean())
    assert cache.cells[0].pos[:4].tolist() == [1, 0, 1, -1]  # 5 and 6 into holes 0 and 2
    assert layout.seqs[0].cells.tolist() == [1, 0, 2]


def test_tables_that_drifted_apart_are_left_alone() -> None:
    context = interleaved(MSA, {})
    leaf(context, "idx").seq_rm(0, 3, 4)
    assert not context.update(optimize=True)


def test_the_caches_of_a_window_pair_are_compacted_each_for_itself() -> None:
    context = interleaved(ISWA, {"swa": 16})
    assert context.update(optimize=True)
    for name in ("base", "swa"):
        assert positions(leaf(context, name))[:9] == [7, 0, 1, 6, 2, 3, 5, 4, -1]


def test_a_cache_that_looks_at_anothers_cells_never_moves_them() -> None:
    cache = cache_with_rows(8, "f16", "f16", False)
    fragmented(cache, [1])
    shared = SharedKVCache(cache.spec, cache)
    shared.defrag = Defrag()
    before = positions(cache)
    optimize(shared)
    assert positions(cache) == before
