"""The pooled indexer: grouping, what is recomputed, graph inputs, selection (spec hybrid.md 3)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.batch import Ubatch
from kvsim.tensors import kpool
from kvsim.tensors.rope import Rope

BY_POSITION = kpool.PoolShape(size=4, by_order=False, kv_size=32, n_stream=1, n_seq_max=2)
BY_ORDER = kpool.PoolShape(size=4, by_order=True, kv_size=32, n_stream=1, n_seq_max=2)
STREAMS = kpool.PoolShape(size=4, by_order=False, kv_size=32, n_stream=2, n_seq_max=2)


def sequence(pos: list[int], shape: kpool.PoolShape, first_cell: int = 0, stream: int = 0) -> kpool.SeqPools:
    """Cells first_cell.. at the given sorted positions."""
    held = np.array(pos, np.int32)
    cells = first_cell + np.arange(len(pos), dtype=np.int32)
    return kpool.SeqPools(stream, held, cells, kpool.pool_starts(held, shape.size, shape.by_order))


def ubatch(*tokens: tuple[int, int]) -> Ubatch:
    """``(pos, seq)`` per token."""
    return Ubatch(
        pos=np.array([[p for p, _ in tokens]], np.int32),
        seq_ids=tuple((s,) for _, s in tokens),
        output=np.zeros(len(tokens), np.bool_),
        idx=np.arange(len(tokens), dtype=np.int32),
        tokens=None,
        has_embd=False,
        n_seq_tokens=1,
        n_seqs=len(tokens),
        equal_seqs=False,
        seq_id_unq=tuple(sorted({s for _, s in tokens})),
    )


def inputs(
    layout: kpool.Layout, ub: Ubatch, cells: list[int], shape: kpool.PoolShape, **more: bool
) -> kpool.PoolInputs:
    at = np.array(cells, np.int32)
    new = kpool.new_pools(layout, ub, at, shape, {}, safe=True)
    return kpool.pool_inputs(layout, ub, at, shape, new, safe=True, n_kv=32, **more)


def test_grouping_of_the_module_docstring() -> None:
    pos = np.array([0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11], np.int32)
    assert pos[kpool.pool_starts(pos, 4, by_order=False)].tolist() == [0, 8]
    assert pos[kpool.pool_starts(pos, 4, by_order=True)].tolist() == [0, 4]


def test_pools_are_aligned_to_the_first_position() -> None:
    pos = np.arange(3, 15, dtype=np.int32)
    assert pos[kpool.pool_starts(pos, 4, by_order=False)].tolist() == [3, 7, 11]
    assert kpool.pool_starts(pos[:3], 4, by_order=False).tolist() == []


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(2, 5))
def test_position_grouping_equals_the_scan(held: list[int], size: int) -> None:
    """Repeated positions and holes included; the scan is the rule as spec hybrid.md 3.1 writes it."""
    pos = sorted(held)
    want, j = [], 0
    while j + size <= len(pos):
        whole = all(pos[j + k] == pos[j] + k for k in range(size))
        if (pos[j] - pos[0]) % size == 0 and whole:
            want.append(j)
            j += size
        else:
            j += 1
    assert kpool.pool_starts(np.array(pos, np.int32), size, by_order=False).tolist() == want


def test_l4_the_last_padded_pool_is_never_real() -> None:
    assert [kpool.n_padded_pools(n) for n in (0, 63, 64, 127)] == [64, 64, 128, 128]


def test_touched_and_stale_pools_are_recomputed() -> None:
    layout = {0: sequence(list(range(12)), BY_POSITION), 1: sequence(list(range(8)), BY_POSITION, 12)}
    ub, cells = ubatch((11, 0)), np.array([11], np.int32)
    new = kpool.new_pools(layout, ub, cells, BY_POSITION, {}, safe=True)
    assert new.tolist() == [False, False, True, False, False]
    new = kpool.new_pools(layout, ub, cells, BY_POSITION, {1: 7, 0: 8}, safe=True)
    assert new.tolist() == [False, False, True, False, True]
    assert kpool.new_pools(layout, ub, cells, BY_POSITION, {}, safe=False).all()


def test_token_outside_any_pool_recomputes_nothing() -> None:
    layout = {0: sequence([0, 1, 2, 3, 6], BY_POSITION)}
    assert not kpool.new_pools(layout, ubatch((6, 0)), np.array([4]), BY_POSITION, {}, safe=True).any()


def test_order_mode_finds_the_pool_by_cell_where_positions_repeat() -> None:
    layout = {0: sequence([0, 5, 5, 5, 5, 5, 5, 5], BY_ORDER)}
    ub = ubatch((5, 0))
    assert kpool.new_pools(layout, ub, np.array([2]), BY_ORDER, {}, safe=True).tolist() == [True, False]
    assert kpool.new_pools(layout, ub, np.array([5]), BY_ORDER, {}, safe=True).tolist() == [False, True]


def test_padded_count_of_new_pools() -> None:
    ub = ubatch(*[(p, 0) for p in range(9)])
    assert kpool.n_padded_new(0, 5, ub, BY_POSITION, safe=True) == 3
    assert kpool.n_padded_new(7, 9, ub, BY_POSITION, safe=True) == 7
    assert kpool.n_padded_new(0, 0, ub, BY_POSITION, safe=False) == 1
    small = kpool.PoolShape(4, False, kv_size=4, n_stream=1, n_seq_max=1)
    assert kpool.n_padded_new(0, 1, ub, small, safe=True) == 1


def test_new_pools_are_padded_with_cells_that_hold_no_pooled_key() -> None:
    layout = {0: sequence(list(range(9)), BY_POSITION)}  # keys in cells 3 and 7
    tokens = ubatch(*[(p, 0) for p in range(4, 9)])
    found = inputs(layout, tokens, [4, 5, 6, 7, 8], BY_POSITION)
    assert found.new_pool_idxs.tolist() == [[4, 5, 6, 7], [0, 0, 0, 0]]
    assert found.new_pool_rep.tolist() == [7, 0]
    assert found.new_first.tolist() == [4]


def test_visibility_and_tail_by_position() -> None:
    layout = {0: sequence(list(range(10)), BY_POSITION)}
    found = inputs(layout, ubatch((6, 0), (7, 0), (9, 0)), [6, 7, 9], BY_POSITION)
    assert found.pool_mask.sum(axis=1).tolist() == [1, 2, 2]
    assert found.tail_idxs.tolist() == [[6, 5, 4], [32, 32, 32], [9, 8, 32]]


def test_surprise6_cells_of_a_broken_pool_are_seen_only_by_tails_near_them() -> None:
    layout = {0: sequence([0, 1, 2, 3, 4, 6, 7, 8, 9], BY_POSITION)}  # 5 is missing
    found = inputs(layout, ubatch((6, 0), (9, 0)), [5, 8], BY_POSITION)
    assert found.pool_mask.sum(axis=1).tolist() == [1, 1]
    assert found.tail_idxs.tolist() == [[5, 32, 4], [8, 7, 32]]


def test_visibility_and_tail_by_rank() -> None:
    layout = {0: sequence([0, 5, 5, 5, 5, 5], BY_ORDER)}
    found = inputs(layout, ubatch((5, 0), (5, 0)), [2, 4], BY_ORDER)
    assert found.pool_mask.sum(axis=1).tolist() == [0, 1]
    assert found.tail_idxs.tolist() == [[2, 1, 0], [4, 32, 32]]


def test_streams_local_members_and_absent_sequences() -> None:
    layout = {0: sequence(list(range(4)), STREAMS), 1: sequence(list(range(5)), STREAMS, 2, stream=1)}
    found = inputs(layout, ubatch((4, 1)), [6], STREAMS)
    assert found.pool_idxs[:2].tolist() == [[32] * 4, [2, 3, 4, 5]]
    assert found.pool_cells[:3].tolist() == [3, 32 + 5, 32 + 6]
    gathered = inputs(layout, ubatch((4, 1)), [6], STREAMS, gather=True)
    assert gathered.pool_idxs[:3].tolist() == [[0, 1, 2, 3], [34, 35, 36, 37], [38] * 4]
    assert gathered.tail_idxs.tolist() == [[38, 38, 38]]


def test_mask_and_gather_select_the_same_cells() -> None:
    layout = {0: sequence(list(range(14)), BY_POSITION)}
    tokens, cells = ubatch((6, 0), (13, 0)), [6, 13]
    top = np.array([[0, 2], [2, 0]], np.int32)  # pool 2 is a filler for the first token
    want = [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 8, 9, 10, 11, 12, 13]]
    causal = np.arange(32) <= np.array([[6], [13]])
    masked = kpool.selection_mask(inputs(layout, tokens, cells, BY_POSITION), top, causal)
    assert [np.flatnonzero(row).tolist() for row in masked] == want
    found, counts = kpool.gathered_selection(inputs(layout, tokens, cells, BY_POSITION, gather=True), top)
    assert [sorted(c[m].tolist()) for c, m in zip(found, counts, strict=True)] == want


def test_gated_pooling_weights_each_channel_by_itself() -> None:
    keys = np.array([[[1.0, 10.0], [3.0, 20.0]]])
    gates = np.array([[[0.0, 0.0], [0.0, 1000.0]]])
    assert kpool.pool_gated(keys, gates, np.zeros((2, 2))).tolist() == [[2.0, 20.0]]
    assert kpool.pool_gated(keys, gates * 0, np.array([[1000.0, 0], [0, 0]])).tolist() == [[1.0, 15.0]]


def test_mean_pooling_is_turned_to_the_first_position() -> None:
    keys = np.array([[[3.0, 0.0], [3.0, 8.0]]])
    quarter = Rope(2, base=1.0, scale=np.pi / 2, sections=(1, 0, 0, 0))
    found = kpool.pool_mean(keys, np.ones(2), 0.0, np.array([[1], [0], [0], [1]]), quarter)
    rms = np.sqrt((9 + 16) / 2)
    assert found == pytest.approx(np.array([[-4 / rms, 3 / rms]]))


def test_a_token_leaves_room_for_the_pooled_key() -> None:
    key, gate = np.ones((1, 2)), np.full((1, 2), 5.0)
    assert kpool.token_rows(key, gate).tolist() == [[1, 1, 5, 5, 0, 0]]
    assert kpool.token_rows(key).tolist() == [[1, 1, 0, 0]]
