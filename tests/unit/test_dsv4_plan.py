"""Compressor plans: the worked example of the rules, and the rules no recording shows."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.batch import Ubatch
from kvsim.caches.dsv4_plan import build_plan, build_plans
from kvsim.errors import CacheUsageError
from kvsim.tensors.compressor import CompressorShape

CSA = CompressorShape(ratio=4, overlap=True, state_size=8, kv_size=256, n_stream=1, n_rs_seq=0)
HCA = CompressorShape(ratio=128, overlap=False, state_size=128, kv_size=256, n_stream=1, n_rs_seq=0)


def ubatch(*tokens: tuple[int, ...], equal: bool = False) -> Ubatch:
    """``(pos, seq, seq, ...)`` per token."""
    unq = tuple(sorted({s for t in tokens for s in t[1:]}))
    n_seqs = len(unq) if equal else len(tokens)
    return Ubatch(
        pos=np.array([[t[0] for t in tokens]], np.int32),
        seq_ids=tuple(t[1:] for t in tokens),
        output=np.zeros(len(tokens), bool),
        idx=np.arange(len(tokens), dtype=np.int32),
        tokens=None,
        has_embd=False,
        n_seq_tokens=len(tokens) // n_seqs,
        n_seqs=n_seqs,
        equal_seqs=equal,
        seq_id_unq=unq,
    )


def run(p0: int, p1: int, seq: int = 0, equal: bool = False) -> Ubatch:
    return ubatch(*[(p, seq) for p in range(p0, p1)], equal=equal)


def test_worked_example_simple_split() -> None:
    plan = build_plan(run(0, 10), CSA, [0]).to_json()
    assert plan == {
        "n_stream": 1,
        "n_kv": 256,
        "state_pos": [0, 1, 2, 3, 0, 1, 2, 3, 0, 1],
        "state_persist_src_idxs": [8, 9, 2, 3, 4, 5, 6, 7],
        "state_persist_dst_idxs": [0, 1, 2, 3, 4, 5, 6, 7],
        "state_restore_src_idxs": [],
        "state_restore_dst_idxs": [],
        "state_snapshot_src_idxs": [],
        "state_snapshot_dst_idxs": [],
        "state_read_idxs": [18] * 4 + [8, 9, 10, 11] + [8, 9, 10, 11] + [12, 13, 14, 15],
        "state_write_idxs": [0, 1],
        "state_write_pos": [0, 4],
        "n_visible": [0, 0, 0, 1, 1, 1, 1, 2, 2, 2],
    }


def test_worked_example_equal_split_has_a_dummy() -> None:
    plan = build_plan(run(0, 10, equal=True), CSA, [0])
    assert plan.state_write_idxs.tolist() == [0, 1, 255]
    assert plan.state_write_pos.tolist() == [0, 4, 0]
    prev = [18] * 4 + [8, 9, 10, 11] + [8] * 4
    assert plan.state_read_idxs.tolist() == prev + [8, 9, 10, 11, 12, 13, 14, 15] + [8] * 4


def test_block_from_the_ring_and_dummy_without_block() -> None:
    alone = build_plan(run(10, 11), CSA, [0])
    assert alone.state_write_idxs.tolist() == [255]
    assert alone.state_read_idxs.tolist() == [8] * 8
    assert alone.state_persist_dst_idxs.tolist() == [2]
    closing = build_plan(run(11, 12), CSA, [0])
    assert closing.state_write_idxs.tolist() == [2]
    assert closing.state_write_pos.tolist() == [8]
    assert closing.state_read_idxs.tolist() == [4, 5, 6, 7, 0, 1, 2, 8]
    assert closing.n_visible.tolist() == [3]


def test_rollback_restores_and_snapshots() -> None:
    shape = CompressorShape(4, True, 8, 256, 1, n_rs_seq=2)
    plan = build_plan(run(10, 13), shape, [1])
    assert plan.state_restore_src_idxs.tolist() == list(range(8, 16))
    assert plan.state_restore_dst_idxs.tolist() == list(range(8))
    assert plan.state_snapshot_src_idxs.tolist() == [0, 1, 24, 25, 4, 5, 6, 7, 0, 1, 24, 3, 4, 5, 6, 7]
    assert plan.state_snapshot_dst_idxs.tolist() == list(range(8, 24))


def test_ratio_128_reads_ring_then_ubatch() -> None:
    plan = build_plan(ubatch((126, 0), (127, 0)), HCA, [0])
    assert plan.state_write_idxs.tolist() == [0]
    assert plan.state_write_pos.tolist() == [0]
    assert plan.state_read_idxs.tolist() == [*range(126), 128, 129]


def test_ratio_128_dummy_even_with_shared_tokens() -> None:
    shape = CompressorShape(128, False, 128, 256, n_stream=3, n_rs_seq=0)
    plan = build_plan(ubatch((5, 2, 1)), shape, [0, 0, 0])
    assert plan.state_write_idxs.tolist() == [3 * 256 - 1]
    assert plan.state_read_idxs.tolist() == [3 * 128] * 128


def test_shared_token_closes_a_block_of_every_sequence_in_its_own_order() -> None:
    shape = CompressorShape(4, True, 8, 256, n_stream=2, n_rs_seq=0)
    plan = build_plan(ubatch((3, 1, 0)), shape, [0, 0])
    assert plan.n_stream == 1
    assert plan.state_write_idxs.tolist() == [256, 0]
    assert plan.state_read_idxs.tolist() == [17] * 8 + [8, 9, 10, 16, 0, 1, 2, 16]
    assert plan.state_persist_src_idxs.tolist() == [0, 0]
    assert plan.state_persist_dst_idxs.tolist() == [3, 11]


def test_repeated_position_reads_last_persists_first_snapshots_last() -> None:
    shape = CompressorShape(4, True, 8, 256, 1, n_rs_seq=1)
    plan = build_plan(ubatch((2, 0), (2, 0), (3, 0)), shape, [0])
    assert plan.state_read_idxs.tolist()[4:] == [0, 1, 9, 10]
    assert plan.state_persist_src_idxs.tolist() == [0, 2]
    assert plan.state_snapshot_src_idxs.tolist() == [0, 1, 17, 3, 4, 5, 6, 7]


def test_negative_positions_take_no_part() -> None:
    plan = build_plan(ubatch((-1, 0), (0, 0)), CSA, [0])
    assert plan.state_pos.tolist() == [0]
    assert plan.n_visible.tolist() == [0, 0]
    assert plan.state_persist_src_idxs.tolist() == [1]
    assert build_plan(ubatch((-1, 0)), CSA, [0]).state_write_idxs.tolist() == []


def test_only_the_first_ubatch_of_a_sequence_restores() -> None:
    shape = CompressorShape(4, True, 8, 256, n_stream=2, n_rs_seq=2)
    rs_idx = [2, 1]
    plans = build_plans([run(4, 5), run(5, 6), run(7, 8, seq=1)], shape, rs_idx)
    planes = [p.state_restore_src_idxs.reshape(2, 8)[:, 0] // 16 for p in plans]
    assert [p.tolist() for p in planes] == [[2, 0], [0, 0], [0, 1]]
    assert rs_idx == [2, 1]


def test_absent_stream_keeps_its_snapshots() -> None:
    shape = CompressorShape(4, True, 8, 256, n_stream=2, n_rs_seq=1)
    plan = build_plan(run(0, 1, seq=1), shape, [0, 0])
    assert plan.state_snapshot_src_idxs.tolist() == [*range(16, 24), *range(8, 16)]


def test_number_of_rows_read_grows_by_256() -> None:
    assert build_plan(run(1022, 1024), CSA, [0]).n_kv == 256
    assert build_plan(run(1027, 1028), CSA, [0]).n_kv == 512


def test_gap_that_misses_two_blocks_is_refused() -> None:
    gap = ubatch(*[(p, 0) for p in (0, 1, 2, 8, 9, 10, 12, 13)], equal=True)
    with pytest.raises(CacheUsageError, match=r"sequence 0 completes 0 blocks.*where 2 are due"):
        build_plan(gap, CSA, [0])


def test_two_sequences_on_one_stream_are_refused() -> None:
    with pytest.raises(CacheUsageError, match="one stream got a ubatch of 2 sequences"):
        build_plan(ubatch((0, 0), (0, 1)), CSA, [0, 0])
