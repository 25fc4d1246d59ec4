"""Block selection in position space (spec msa.md)."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.tensors import msa_select as msa

# cells in an order of their own, with a hole at positions 2 and 3 and a cell of another sequence
POS = np.array([0, 1, -1, 6, 7, 4, 5, 9], np.int32)
MINE = np.array([1, 1, 0, 1, 1, 1, 1, 0], np.bool_)


def test_n_pos_is_a_multiple_of_256_and_of_the_block() -> None:
    assert msa.padded_positions(-1, 1, 4) == 256
    assert msa.padded_positions(255, 1, 4) == 256
    assert msa.padded_positions(256, 1, 4) == 512
    assert msa.padded_positions(0, 1, 96) == 288
    assert msa.padded_positions(300, 512, 128) == 512


def test_pos_slot_finds_the_cell_of_each_position() -> None:
    assert msa.slots_of_positions(POS, MINE, 10).tolist() == [0, 1, 0, 0, 5, 6, 3, 4, 0, 0]


def test_pos_slot_takes_the_last_cell_of_a_repeated_position() -> None:
    pos = np.array([3, 0, 3, 3], np.int32)
    assert msa.slots_of_positions(pos, np.array([1, 1, 1, 0], np.bool_), 4).tolist() == [1, 0, 0, 2]


def test_surprise4_positions_beyond_n_pos_are_skipped() -> None:
    pos = np.array([0, 300], np.int32)
    both = np.ones(2, np.bool_)
    assert msa.slots_of_positions(pos, both, 256).any() == np.False_
    assert msa.visible_positions(np.array([400]), pos, both, 256).sum() == 1


def test_cell_blk_is_0_for_other_cells() -> None:
    assert msa.blocks_of_cells(POS, MINE, 4).tolist() == [0, 0, 0, 1, 1, 1, 1, 0]


def test_pos_mask_is_causal_and_leaves_holes_out() -> None:
    seen = msa.visible_positions(np.array([5, 0], np.int32), POS, MINE, 8)
    assert np.flatnonzero(seen[0]).tolist() == [0, 1, 4, 5]
    assert np.flatnonzero(seen[1]).tolist() == [0]


def test_bias_forces_local_blocks_down_to_block_0() -> None:
    bias = msa.local_bias(np.array([9, 3], np.int32), block=4, n_local=2, n_blocks=4)
    assert (bias == msa.FORCED).tolist() == [[False, True, True, False], [True, False, False, False]]
    assert (msa.local_bias(np.array([5]), 4, 9, 4) == msa.FORCED).tolist() == [[True, True, False, False]]


def test_s1_block_score_is_the_best_position_of_the_block() -> None:
    q = np.array([[[1.0, 0.0], [0.0, -1.0]]])
    keys = np.array([[5.0, 1.0], [2.0, -7.0], [9.0, 9.0], [3.0, 4.0]])
    slots, visible = np.array([0, 1, 3, 2], np.int32), np.array([[True, True, True, False]])
    assert msa.block_scores(q, keys, slots, visible, 2).tolist() == [[[5.0, 3.0], [7.0, -4.0]]]


def test_s3_block_without_visible_position() -> None:
    q, keys = np.ones((1, 1, 1), np.float32), np.ones((4, 1), np.float32)
    visible = np.array([[True, True, False, False]])
    scores = msa.block_scores(q, keys, np.arange(4, dtype=np.int32), visible, 2)
    assert scores.tolist() == [[[1.0, -3.4028234663852886e38]]]


def test_s2_local_blocks_count_towards_k() -> None:
    scores = np.array([[[9.0, 8.0, 1.0]]], np.float32)
    bias = np.array([[0, 0, msa.FORCED]], np.float32)
    assert set(msa.choose_blocks(scores, bias, 2)[0, 0].tolist()) == {2, 0}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_both_regimes_attend_to_the_same_cells(data: st.DataObject) -> None:
    """Batch masks cells by their block, decode gathers the positions: the same set, in any cell order."""
    n = data.draw(st.integers(1, 20))
    held = data.draw(st.lists(st.integers(0, 23), min_size=n, max_size=n, unique=True))
    pos = np.full(32, -1, np.int32)
    pos[np.array(data.draw(st.permutations(range(32))))[:n]] = held
    mine, block = pos >= 0, 4
    token = np.array([data.draw(st.sampled_from(held))], np.int32)
    blocks = np.array(
        [[data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=3, unique=True))]], np.int32
    )
    causal = (mine & (pos <= token[0]))[None]
    masked = msa.visible_cells(blocks, msa.blocks_of_cells(pos, mine, block), causal)
    slots = msa.slots_of_positions(pos, mine, 24)
    cells, counts = msa.gathered_cells(blocks, slots, msa.visible_positions(token, pos, mine, 24), block)
    assert sorted(cells[counts].tolist()) == np.flatnonzero(masked[0, 0]).tolist()


def test_edge1_all_blocks_chosen_is_dense() -> None:
    blocks = np.array([[[0, 1, 2]]], np.int32)
    causal = (MINE & (POS <= 6))[None]
    assert (msa.visible_cells(blocks, msa.blocks_of_cells(POS, MINE, 4), causal)[0] == causal).all()
