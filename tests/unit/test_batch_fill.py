"""What a batch leaves out is filled in: rules A1 to A6 of spec/batch.md, and the shapes of ubatches."""

from __future__ import annotations

import numpy as np
import pytest
from known_ends import Ends

from kvsim.batch import Batch, BatchAllocator, Ubatch
from kvsim.errors import BatchError, CacheUsageError


def whole(batch: Batch, memory: Ends | None = None, n_pos: int = 1, output_all: bool = False) -> Ubatch:
    """The batch as one ubatch."""
    allocator = BatchAllocator(n_pos, n_seq_max=8, allow_mixed=True)
    allocator.init(batch, memory, output_all)
    ubatch = allocator.split_simple(1000)
    assert ubatch is not None
    return ubatch


def test_a1_missing_sequence_ids_are_sequence_0() -> None:
    ubatch = whole(Batch(tokens=[5, 6]))
    assert ubatch.seq_ids == ((0,), (0,))
    assert ubatch.seq_id_unq == (0,)


def test_a2_missing_positions_go_on_where_the_sequence_ends() -> None:
    ubatch = whole(Batch(tokens=[5, 6, 7], seq_ids=[[0], [3], [0]]), Ends({0: 41}))
    assert ubatch.pos.tolist() == [[42, 0, 43]]


def test_a2_a_shared_token_advances_only_its_first_sequence_as_submitted() -> None:
    batch = Batch(tokens=[5, 6, 7, 8], seq_ids=[[2, 1], [2], [2, 1], [1]])
    with pytest.raises(BatchError, match="rule V8"):  # seq 1 gets 0, 2, 0: its own counter never moved
        whole(batch)
    assert whole(Batch(tokens=[5, 6, 7], seq_ids=[[2, 1], [2, 1], [2]])).pos.tolist() == [[0, 1, 2]]


def test_a2_without_a_memory_counters_start_at_0() -> None:
    assert whole(Batch(tokens=[5, 6])).pos.tolist() == [[0, 1]]


def test_a2_filled_in_positions_of_embeddings_have_zero_sections() -> None:
    ubatch = whole(Batch(embd=np.zeros((2, 3), np.float32)), n_pos=4)
    assert ubatch.pos.tolist() == [[0, 1], [0, 0], [0, 0], [0, 0]]


def test_a3_a_token_expands_to_four_sections_and_embeddings_bring_their_own() -> None:
    assert whole(Batch(tokens=[5, 6], pos=[7, 8]), n_pos=4).pos.tolist() == [[7, 8], [7, 8], [7, 8], [0, 0]]
    image = Batch(embd=np.zeros((2, 3), np.float32), pos=[4, 4, 0, 1, 2, 3, 9, 9])
    assert whole(image, n_pos=4).pos.tolist() == [[4, 4], [0, 1], [2, 3], [9, 9]]


def test_a3_the_wrong_number_of_positions_is_refused() -> None:
    with pytest.raises(CacheUsageError, match="2 entries has 2 positions, but 8 are read"):
        whole(Batch(embd=np.zeros((2, 3), np.float32), pos=[4, 4]), n_pos=4)
    with pytest.raises(CacheUsageError, match="2 entries has 8 positions, but 2 are read"):
        whole(Batch(tokens=[5, 6], pos=[0] * 8), n_pos=4)


def test_a4_without_flags_only_the_last_entry_is_an_output() -> None:
    assert whole(Batch(tokens=[5, 6, 7])).output.tolist() == [False, False, True]
    assert whole(Batch(tokens=[5, 6, 7], output=[2, 0, 0])).output.tolist() == [True, False, False]


def test_output_all_overrides_the_flags() -> None:
    allocator = BatchAllocator(1, 1)
    allocator.init(Batch(tokens=[5, 6, 7], output=[0, 0, 0]), output_all=True)
    assert allocator.n_outputs == 3


def test_a5_tokens_and_embeddings_together_are_in_every_entry() -> None:
    ubatch = whole(Batch(tokens=[5, 6], embd=np.zeros((2, 3), np.float32)))
    assert ubatch.tokens is not None
    assert (ubatch.tokens.tolist(), ubatch.has_embd, ubatch.is_embd) == ([5, 6], True, None)


def test_a6_repeated_ids_of_an_entry_collapse() -> None:
    assert whole(Batch(tokens=[5], seq_ids=[[2, 2, 0]])).seq_ids == ((0, 2),)


def test_ids_are_seen_in_reverse_of_their_first_insertion() -> None:
    assert whole(Batch(tokens=[5], seq_ids=[[2, 0, 1, 2]])).seq_ids == ((1, 0, 2),)


def test_one_set_submitted_in_two_orders_is_one_set_with_two_first_ids() -> None:
    batch = Batch(tokens=[5, 6, 7], pos=[0, 1, 2], seq_ids=[[0, 1], [1, 0], [0, 1]])
    allocator = BatchAllocator(1, 2)
    allocator.init(batch)
    ubatch = allocator.split_equal(8, sequential=False)
    assert ubatch is not None
    assert (ubatch.n_seqs, ubatch.idx.tolist()) == (1, [0, 1, 2])
    assert ubatch.seq_ids == ((1, 0), (0, 1), (1, 0))
    assert set(allocator.coupled) == {(0, 1), (1, 0)}


MIXED = Batch(
    tokens=[5, -1, -1, 6],
    embd=np.zeros((4, 3), np.float32),
    has_embd=[False, True, True, False],
    pos=[*(0, 1, 1, 2), *(9, 3, 4, 9), *(9, 5, 6, 9), *(9, 7, 8, 9)],
)


def test_a_mixed_batch_keeps_sections_of_embeddings_and_expands_tokens() -> None:
    ubatch = whole(MIXED, n_pos=4)
    assert ubatch.pos.tolist() == [[0, 1, 1, 2], [0, 3, 4, 2], [0, 5, 6, 2], [0, 7, 8, 0]]
    assert ubatch.tokens is not None
    assert ubatch.is_embd is not None
    assert ubatch.tokens.tolist() == [5, 0, 0, 6]
    assert ubatch.is_embd.tolist() == [False, True, True, False]
    assert ubatch.has_embd


def test_ubatches_of_one_kind_out_of_a_mixed_batch_are_plain() -> None:
    allocator = BatchAllocator(4, 1, allow_mixed=True)
    allocator.init(MIXED)
    tokens, images, last = (allocator.split_simple(n) for n in (1, 2, 9))
    assert tokens is not None
    assert images is not None
    assert last is not None
    assert (tokens.tokens.tolist(), tokens.has_embd, tokens.is_embd) == ([5], False, None)
    assert (images.tokens, images.has_embd, images.is_embd) == (None, True, None)
    assert (last.tokens.tolist(), last.has_embd) == ([6], False)


def test_parts_of_the_wrong_length_are_refused_at_once() -> None:
    with pytest.raises(CacheUsageError, match="2 entries has 1 seq_ids"):
        Batch(tokens=[5, 6], seq_ids=[[0]])
    with pytest.raises(CacheUsageError, match="2 entries has 3 output"):
        Batch(tokens=[5, 6], output=[0, 0, 1])


def test_an_entry_without_sequence_is_refused() -> None:
    with pytest.raises(CacheUsageError, match="token 1 belongs to no sequence"):
        whole(Batch(tokens=[5, 6], seq_ids=[[0], []]))


def test_positions_that_do_not_fit_32_bits_are_refused() -> None:
    with pytest.raises(CacheUsageError, match="32 bits"):
        whole(Batch(tokens=[5], pos=[2**31]))


def test_tokens_of_and_joined_build_batches() -> None:
    batch = Batch.joined(Batch.tokens_of(0, [5, 6], 10), Batch.tokens_of((1, 2), [7], 3))
    assert batch == Batch(
        tokens=[5, 6, 7],
        pos=[10, 11, 3],
        seq_ids=[(0,), (0,), (1, 2)],
        output=[False, True, True],
    )
    with pytest.raises(CacheUsageError, match="all give positions, or none"):
        Batch.joined(Batch.tokens_of(0, [5]), Batch.tokens_of(1, [7], 3))


def test_numpy_arrays_will_do() -> None:
    ubatch = whole(
        Batch(tokens=np.array([5, 6]), pos=np.array([0, 1]), seq_ids=np.array([[0], [0]]), output=np.ones(2))
    )
    assert ubatch.seq_ids == ((0,), (0,))
    assert type(ubatch.seq_ids[0][0]) is int


def test_a_restored_ubatch_carries_token_0_and_no_output() -> None:
    ubatch = Ubatch.restored(3, np.array([[4, 5]], np.int32))
    assert ubatch.tokens is not None
    assert (ubatch.n_tokens, ubatch.n_seq_tokens, ubatch.seq_ids) == (2, 2, ((3,), (3,)))
    assert (ubatch.tokens.tolist(), ubatch.output.tolist(), ubatch.pos0.tolist()) == (
        [0, 0],
        [False] * 2,
        [4, 5],
    )


def test_filled_in_positions_end_where_32_bits_end() -> None:
    assert whole(Batch(tokens=[5]), Ends({0: 2**31 - 2})).pos.tolist() == [[2**31 - 1]]
    with pytest.raises(CacheUsageError, match="does not fit into 32 bits"):
        whole(Batch(tokens=[5]), Ends({0: 2**31 - 1}))


@pytest.mark.parametrize("wrong", [["5"], [1.5], "5", [[5]], np.array([[5]]), np.array([1.0])])
def test_tokens_and_positions_that_are_no_integers_are_refused(wrong: object) -> None:
    with pytest.raises(CacheUsageError, match="tokens of a batch must be a flat list of integers, not "):
        Batch(tokens=wrong)
    with pytest.raises(CacheUsageError, match="pos of a batch must be a flat list of integers, not "):
        Batch(tokens=[5], pos=wrong)


@pytest.mark.parametrize("wrong", [0, "0", (0.0,), ["0"], None])
def test_sequence_ids_that_are_not_lists_of_integers_are_refused(wrong: object) -> None:
    with pytest.raises(CacheUsageError, match=r"a list of sequence ids for every entry, such as \[\[0\]"):
        Batch(tokens=[5], seq_ids=[wrong])


def test_integers_of_numpy_are_taken() -> None:
    batch = Batch(tokens=[np.int64(5), 6], pos=np.arange(2), seq_ids=np.array([[1], [1]]))
    assert whole(batch).seq_ids == ((1,), (1,))
