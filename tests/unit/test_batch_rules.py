"""Which batches are refused, by which rule and with which words: V0 to V12 of spec/batch.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from known_ends import Ends

from kvsim.batch import Batch, BatchAllocator
from kvsim.errors import BatchError, CacheUsageError

EMBD = np.zeros((2, 3), np.float32)


def refusal(batch: Batch, memory: Any = None, **kwargs: Any) -> BatchError:
    options = {"n_pos_per_embd": 1, "n_seq_max": 4, "n_vocab": 100, **kwargs}
    allocator = BatchAllocator(**options)
    with pytest.raises(BatchError) as caught:
        allocator.init(batch, memory)
    assert allocator.split_simple(8) is None  # nothing is left of a refused batch
    return caught.value


def accept(batch: Batch, memory: Any = None, **kwargs: Any) -> BatchAllocator:
    options = {"n_pos_per_embd": 1, "n_seq_max": 4, "n_vocab": 100, **kwargs}
    allocator = BatchAllocator(**options)
    allocator.init(batch, memory)
    return allocator


def where(error: BatchError) -> tuple[str, int, int, int | None, int | None]:
    return error.rule, error.token, error.seq, error.found, error.expected


def test_v0_an_empty_batch_ends_the_process() -> None:
    with pytest.raises(CacheUsageError, match="empty"):
        accept(Batch(tokens=[]))


def test_v1_more_than_256_sequences() -> None:
    assert refusal(Batch(tokens=[1]), n_seq_max=257).rule == "V1"
    accept(Batch(tokens=[1]), n_seq_max=256)


def test_v2_an_entry_with_nothing_in_it() -> None:
    assert where(refusal(Batch(tokens=[1, -1]))) == ("V2", 1, -1, -1, None)


def test_v2_goes_before_v5_over_the_whole_batch() -> None:
    assert refusal(Batch(tokens=[-2, -1])).rule == "V2"


def test_v3_both_only_if_all_hold_both() -> None:
    error = refusal(Batch(tokens=[1, -1], embd=EMBD))
    assert where(error) == ("V3", 1, -1, None, None)
    assert "both a token and an embedding" in str(error)
    accept(Batch(tokens=[1, 2], embd=EMBD))


def test_v4_mixed_batches_need_a_model_that_takes_them() -> None:
    mixed = Batch(tokens=[1, -1], embd=EMBD, has_embd=[False, True])
    assert where(refusal(mixed)) == ("V4", 1, -1, None, None)
    accept(mixed, allow_mixed=True)


@pytest.mark.parametrize("token", [-2, 100, 2**40])
def test_v5_token_ids_are_in_the_vocabulary(token: int) -> None:
    error = refusal(Batch(tokens=[99, token]))
    assert where(error) == ("V5", 1, -1, token, None)
    assert str(error) == f"token 1 is {token}, but token ids are 0 to 99 (rule V5)"


def test_v5_without_a_vocabulary_ids_are_32_bits() -> None:
    accept(Batch(tokens=[2**31 - 1]), n_vocab=None)
    assert refusal(Batch(tokens=[2**31]), n_vocab=None).rule == "V5"


def test_v5_checks_the_tokens_of_a_mixed_batch() -> None:
    mixed = Batch(tokens=[-1, 100], embd=EMBD, has_embd=[True, False])
    assert where(refusal(mixed, allow_mixed=True)) == ("V5", 1, -1, 100, None)


@pytest.mark.parametrize("seq", [-1, 4])
def test_v6_sequence_ids_are_below_n_seq_max(seq: int) -> None:
    assert where(refusal(Batch(tokens=[1, 2], seq_ids=[[0], [0, seq]]))) == ("V6", 1, seq, seq, None)


def test_v6_goes_before_the_rules_on_positions() -> None:
    assert refusal(Batch(tokens=[1, 2], pos=[7, 3], seq_ids=[[0], [9]]), Ends({0: 3})).rule == "V6"


def test_v7_a_sequence_goes_on_where_it_ends() -> None:
    error = refusal(Batch.tokens_of(1, [1, 2], 48), Ends({1: 46}))
    assert where(error) == ("V7", 0, 1, 48, 47)
    assert str(error) == "token 0 of seq 1 has position 48, but seq 1 ends at 46, so 47 is expected (rule V7)"
    assert where(refusal(Batch.tokens_of(1, [1], 46), Ends({1: 46}))) == ("V7", 0, 1, 46, 47)
    accept(Batch.tokens_of(1, [1], 47), Ends({1: 46}))


def test_v7_an_empty_sequence_starts_anywhere() -> None:
    accept(Batch.tokens_of(1, [1], 1000), Ends({0: 46}))


def test_v7_sequences_are_checked_in_ascending_order_each_with_v8() -> None:
    batch = Batch(tokens=[1] * 3, pos=[9, 0, 2], seq_ids=[[3], [1], [1]])
    assert where(refusal(batch, Ends({3: 3}))) == ("V8", 2, 1, 2, 1)


def test_v8_positions_have_no_gaps() -> None:
    error = refusal(Batch(tokens=[1, 2, 3], pos=[5, 6, 8]))
    assert where(error) == ("V8", 2, 0, 8, 7)


def test_v8_counts_distinct_positions_so_a_repeated_one_passes() -> None:
    accept(Batch(tokens=[1, 2, 3], pos=[0, 0, 1]))  # E7
    assert refusal(Batch(tokens=[1, 2, 3], pos=[0, 0, 2])).rule == "V8"


def test_v9_m_rope_positions_may_jump_ahead_but_not_back() -> None:
    accept(Batch.tokens_of(0, [1, 2], 60), Ends({0: 46}), n_pos_per_embd=4)
    accept(Batch(tokens=[1, 2], pos=[47, 90]), Ends({0: 46}), n_pos_per_embd=4)
    assert where(refusal(Batch.tokens_of(0, [1], 46), Ends({0: 46}), n_pos_per_embd=4)) == (
        "V9",
        0,
        0,
        46,
        47,
    )


def test_v9_embeddings_may_start_at_the_last_position() -> None:
    accept(Batch(embd=EMBD, pos=[46, 46] + [0] * 6), Ends({0: 46}), n_pos_per_embd=4)
    error = refusal(Batch(embd=EMBD, pos=[45, 46] + [0] * 6), Ends({0: 46}), n_pos_per_embd=4)
    assert where(error) == ("V9", 0, 0, 45, 46)


@pytest.mark.parametrize(("kinds", "fine"), [([True, False], True), ([False, True], False)])
def test_v9_the_first_entry_of_a_mixed_sequence_decides(kinds: list[bool], fine: bool) -> None:
    batch = Batch(
        tokens=[-1 if kind else 1 for kind in kinds], embd=EMBD, has_embd=kinds, pos=[46, 47] + [0] * 6
    )
    if fine:
        accept(batch, Ends({0: 46}), n_pos_per_embd=4, allow_mixed=True)
    else:
        assert refusal(batch, Ends({0: 46}), n_pos_per_embd=4, allow_mixed=True).rule == "V9"


def test_v10_coupled_sequences_cover_the_same_positions() -> None:
    batch = Batch(tokens=[1, 2], pos=[5, 5], seq_ids=[[2], [0, 1]])
    error = refusal(batch, Ends({0: 4}))
    assert where(error) == ("V10", 1, 0, 4, -1)  # 1 is seen first, so 0 is coupled to it
    assert "memory holds positions 0 to 4 of seq 0 and -1 to -1 of seq 1" in str(error)
    accept(batch, Ends({0: 4, 1: 4}))
    accept(batch)


def test_v11_overlapping_sets_are_accepted() -> None:
    accept(Batch(tokens=[1, 2, 3], pos=[0, 1, 1], seq_ids=[[0, 1, 2], [0, 1], [1, 2]]))


def test_v12_positions_never_decrease_in_batch_order() -> None:
    error = refusal(Batch(tokens=[1, 2, 3, 4], pos=[0, 0, 2, 1], seq_ids=[[0], [1], [0], [0]]))
    assert where(error) == ("V12", 3, 0, 1, 2)
    accept(Batch(tokens=[1, 2, 3, 4], pos=[4, 0, 5, 1], seq_ids=[[0], [1], [0], [1]]))


@pytest.mark.parametrize("seqs", [[0, 1, 1, 0], [1, 0, 0, 1]])
def test_v12_names_the_first_token_whatever_its_sequence(seqs: list[int]) -> None:
    batch = Batch(tokens=[1] * 4, pos=[1, 1, 0, 0], seq_ids=[[seq] for seq in seqs])
    assert where(refusal(batch)) == ("V12", 2, seqs[2], 0, 1)


def test_v12_a_batch_may_start_at_minus_1_but_not_below() -> None:
    accept(Batch.tokens_of(0, [1, 2], -1))
    error = refusal(Batch.tokens_of(0, [1, 2, 3], -2))
    assert where(error) == ("V12", 0, 0, -2, -1)
    assert "no position is below -1" in str(error)
