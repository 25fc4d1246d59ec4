"""The pooled indexer: grouping, what is recomputed, graph inputs, selection (spec hybrid.md 3)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.batch import Ubatch
from kvsim.caches.pool_inputs import pool_inputs
from kvsim.caches.pool_layout import CLEAN, PoolLayout, SequencePools, all_clean, pool_starts
from kvsim.memory import SlotInfo
from kvsim.tensors import kpool
from kvsim.tensors.rope import Rope

KV_SIZE = 32


def sequence(pos: list[int], by_order: bool = False, first_cell: int = 0, stream: int = 0) -> SequencePools:
    """Cells first_cell.. at the given sorted positions."""
    held = np.array(pos, np.int32)
    cells = first_cell + np.arange(len(pos), dtype=np.int32)
    return SequencePools(stream, held, cells, pool_starts(held, 4, by_order), shared=False)


def pools(*seqs: SequencePools, by_order: bool = False, safe: bool = True) -> PoolLayout:
    """Pools of 4 of sequences 0, 1, ..."""
    n_real = sum(len(seq.pools) for seq in seqs)
    return PoolLayout(4, by_order, dict(enumerate(seqs)), cache_safe=safe, n_real=n_real)


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


def new_of(
    layout: PoolLayout, ub: Ubatch, cells: list[int], stale: dict[int, int] | None = None
) -> list[bool]:
    edits = all_clean()
    for s, pos in (stale or {}).items():
        edits[s] = pos
    return layout.new_pools(ub, SlotInfo((0,), (np.array(cells, np.int32),)), edits).tolist()


def inputs(
    layout: PoolLayout, ub: Ubatch, cells: list[int], n_new: int = 1, n_stream: int = 1, gather: bool = False
) -> kpool.PoolInputs:
    new = np.array(new_of(layout, ub, cells), np.bool_)
    return pool_inputs(
        layout,
        ub,
        np.array(cells, np.int32),
        new,
        n_new,
        kv_size=KV_SIZE,
        n_stream=n_stream,
        n_kv=KV_SIZE,
        gather=gather,
    )


def test_grouping_of_the_module_docstring() -> None:
    pos = np.array([0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11], np.int32)
    assert pos[pool_starts(pos, 4, by_order=False)].tolist() == [0, 8]
    assert pos[pool_starts(pos, 4, by_order=True)].tolist() == [0, 4]


def test_pools_are_aligned_to_the_first_position() -> None:
    pos = np.arange(3, 15, dtype=np.int32)
    assert pos[pool_starts(pos, 4, by_order=False)].tolist() == [3, 7, 11]
    assert pool_starts(pos[:3], 4, by_order=False).tolist() == []


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
    assert pool_starts(np.array(pos, np.int32), size, by_order=False).tolist() == want


def test_l4_the_last_padded_pool_is_never_real() -> None:
    assert [PoolLayout(4, False, n_real=n).n_pool for n in (0, 63, 64, 127)] == [64, 64, 128, 128]


def test_touched_and_stale_pools_are_recomputed() -> None:
    seqs = sequence(list(range(12))), sequence(list(range(8)), first_cell=12)
    ub = ubatch((11, 0))
    assert new_of(pools(*seqs), ub, [11]) == [False, False, True, False, False]
    assert new_of(pools(*seqs), ub, [11], {1: 7, 0: 8}) == [False, False, True, False, True]
    assert new_of(pools(*seqs), ub, [11], {1: 8}) == [False, False, True, False, False]
    assert all(new_of(pools(*seqs, safe=False), ub, [11], {0: CLEAN}))


def test_token_outside_any_pool_recomputes_nothing() -> None:
    assert new_of(pools(sequence([0, 1, 2, 3, 6])), ubatch((6, 0)), [4]) == [False]


def test_order_mode_finds_the_pool_by_cell_where_positions_repeat() -> None:
    layout = pools(sequence([0, 5, 5, 5, 5, 5, 5, 5], by_order=True), by_order=True)
    assert new_of(layout, ubatch((5, 0)), [2]) == [True, False]
    assert new_of(layout, ubatch((5, 0)), [5]) == [False, True]


def test_new_pools_are_padded_with_cells_that_hold_no_pooled_key() -> None:
    layout = pools(sequence([0, 1, 2, 3, 4, 5, 6, 7, 8]))  # keys in cells 3 and 7
    found = inputs(layout, ubatch(*[(p, 0) for p in range(4, 9)]), [4, 5, 6, 7, 8], n_new=6)
    assert found.new_pool_idxs.tolist() == [[4, 5, 6, 7], [0] * 4, [1] * 4, [2] * 4, [4] * 4, [5] * 4]
    assert found.new_pool_rep.tolist() == [7, 0, 1, 2, 4, 5]
    assert found.new_first.tolist() == [4]


def test_visibility_and_tail_by_position() -> None:
    found = inputs(pools(sequence(list(range(10)))), ubatch((6, 0), (7, 0), (9, 0)), [6, 7, 9])
    assert found.pool_mask.sum(axis=1).tolist() == [1, 2, 2]
    assert found.tail_idxs.tolist() == [[6, 5, 4], [32, 32, 32], [9, 8, 32]]


def test_pools_belong_to_the_first_sequence_of_the_token() -> None:
    layout = pools(sequence(list(range(8))), sequence(list(range(4)), first_cell=8))
    found = inputs(layout, ubatch((3, 1), (7, 0)), [11, 7], n_new=2)
    assert np.flatnonzero(found.pool_mask[0]).tolist() == [2]
    assert np.flatnonzero(found.pool_mask[1]).tolist() == [0, 1]


def test_surprise6_cells_of_a_broken_pool_are_seen_only_by_tails_near_them() -> None:
    layout = pools(sequence([0, 1, 2, 3, 4, 6, 7, 8, 9]))  # 5 is missing
    found = inputs(layout, ubatch((6, 0), (9, 0)), [5, 8])
    assert found.pool_mask.sum(axis=1).tolist() == [1, 1]
    assert found.tail_idxs.tolist() == [[5, 32, 4], [8, 7, 32]]


def test_visibility_and_tail_by_rank() -> None:
    layout = pools(sequence([0, 5, 5, 5, 5, 5], by_order=True), by_order=True)
    found = inputs(layout, ubatch((5, 0), (5, 0)), [2, 4])
    assert found.pool_mask.sum(axis=1).tolist() == [0, 1]
    assert found.tail_idxs.tolist() == [[2, 1, 0], [4, 32, 32]]


def test_streams_local_members_and_absent_sequences() -> None:
    layout = pools(sequence(list(range(4))), sequence(list(range(5)), first_cell=2, stream=1))
    found = inputs(layout, ubatch((4, 1)), [6], n_stream=2)
    assert found.pool_idxs[:2].tolist() == [[32] * 4, [2, 3, 4, 5]]
    assert found.pool_cells[:3].tolist() == [3, 32 + 5, 32 + 6]
    gathered = inputs(layout, ubatch((4, 1)), [6], n_stream=2, gather=True)
    assert gathered.pool_idxs[:3].tolist() == [[0, 1, 2, 3], [34, 35, 36, 37], [38] * 4]
    assert gathered.tail_idxs.tolist() == [[38, 38, 38]]


def test_no_pool_yet() -> None:
    found = inputs(pools(sequence([0, 1, 2])), ubatch((2, 0)), [2])
    assert not found.pool_mask.any()
    assert found.pool_cells.tolist() == [2] * 64
    assert found.new_pool_rep.tolist() == [0]
    assert found.tail_idxs.tolist() == [[2, 1, 0]]


def test_mask_and_gather_select_the_same_cells() -> None:
    layout = pools(sequence(list(range(14))))
    tokens, cells = ubatch((6, 0), (13, 0)), [6, 13]
    top = np.array([[0, 2], [2, 0]], np.int32)  # pool 2 is a filler for the first token
    want = [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 8, 9, 10, 11, 12, 13]]
    causal = np.arange(KV_SIZE) <= np.array([[6], [13]])
    masked = kpool.selection_mask(inputs(layout, tokens, cells), top, causal)
    assert [np.flatnonzero(row).tolist() for row in masked] == want
    found, counts = kpool.gathered_selection(inputs(layout, tokens, cells, gather=True), top)
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
