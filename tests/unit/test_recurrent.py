"""The recurrent memory by rule: R1 to R13 and the surprises of spec/recurrent.md."""

from __future__ import annotations

import pytest
from recurrent_driver import LAYERS, decode, memory_of, owners, positions

from kvsim.batch import Batch, BatchAllocator
from kvsim.caches.recurrent import RecurrentMemory
from kvsim.errors import CacheUsageError, IntegrityError
from kvsim.events import Recorder
from kvsim.memory import FailedContext, MemoryStatus

# -- seq_rm ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq", [-1, 4, 255])
def test_r1_unknown_sequences_and_every_sequence_are_refused(seq: int) -> None:
    memory = memory_of(4)
    decode(memory, 0)
    before = memory.record()
    assert memory.seq_rm(seq, -1, -1) is False
    assert memory.record() == before


def test_r3_without_snapshots_the_end_of_a_state_cannot_go() -> None:
    memory = memory_of(4)
    decode(memory, 0, n=5)
    before = memory.record()
    assert memory.seq_rm(0, 4, -1) is False
    assert memory.seq_rm(0, 1, 5) is False
    assert memory.record() == before


def test_r3_snapshots_allow_going_back_once() -> None:
    memory = memory_of(4, n_rs_seq=3)
    decode(memory, 0, n=4)
    assert memory.seq_rm(0, 2, -1) is True
    assert (positions(memory)[0], memory.rs_idx[0]) == (1, 2)
    assert memory.seq_rm(0, 1, -1) is False  # one is pending
    assert decode(memory, 0).s_copy == (2 * 4 + 0,)
    assert memory.rs_idx[0] == 0


def test_r3_not_deeper_than_the_snapshots() -> None:
    memory = memory_of(4, n_rs_seq=3)
    decode(memory, 0, n=8)
    assert memory.seq_rm(0, 4, -1) is False
    assert memory.seq_rm(0, 5, -1) is True
    assert memory.rs_idx[0] == 3


def test_r3_int_max_is_the_end_as_well_and_a_range_that_stops_before_is_not() -> None:
    memory = memory_of(4, n_rs_seq=3)
    decode(memory, 0, n=4)
    assert memory.seq_rm(0, 2, 3) is True  # misses the state at 3
    assert positions(memory)[0] == 3
    assert memory.seq_rm(0, 2, 2**31 - 1) is True
    assert positions(memory)[0] == 1


def test_r3_without_layers_positions_go_back_at_will() -> None:
    memory = RecurrentMemory(2, 0, [(0, 0, 0)], 2)
    decode(memory, 0, n=9)
    assert memory.seq_rm(0, 2, -1) is True
    assert memory.seq_rm(0, 1, -1) is True
    assert (positions(memory)[0], memory.rs_idx) == (0, [0, 0])


def test_r2_removing_everything_forgets_a_pending_rollback() -> None:
    memory = memory_of(2, n_rs_seq=3)
    decode(memory, 0, n=4)
    memory.seq_rm(0, 3, -1)
    assert memory.seq_rm(0, -1, -1) is True
    assert (memory.rs_idx, positions(memory)) == ([0, 0], [-1, -1])


def test_surprise_3_a_finite_end_leaves_the_rollback_noted_for_whoever_comes_next() -> None:
    memory = memory_of(2, n_rs_seq=3)
    recorder = Recorder()
    memory.observe(recorder)
    decode(memory, 0, n=4)
    memory.seq_rm(0, 3, -1)
    assert memory.seq_rm(0, 0, 100) is True
    assert (memory.rs_idx, positions(memory)) == ([1, 0], [-1, -1])
    assert recorder.take()[-1].detail == {"id": "stale-rollback-kept", "seq": 0, "op": "seq_rm", "depth": 1}
    view = decode(memory, 0, start=0)
    assert (view.rs_z, view.s_copy, memory.rs_idx) == (0, (1 * 2 + 0,), [0, 0])
    assert "stale-rollback-used" in [event.detail.get("id") for event in recorder.events]


def test_r5_removing_a_sequence_frees_its_cell_and_lowers_the_head() -> None:
    memory = memory_of(4)
    decode(memory, 0, 1, 2)
    decode(memory, 2)
    assert memory.record()["head"] == 2
    assert memory.seq_rm(1, -1, -1) is True
    assert (memory.record()["head"], memory.record()["used"]) == (1, 2)
    assert owners(memory) == [[0], [], [2], []]
    assert memory.record()["cells"][1][1:3] == [-1, -1]


def test_r5_a_shared_cell_stays_with_the_others() -> None:
    memory = memory_of(4)
    decode(memory, 0, 1)
    memory.seq_cp(1, 2, -1, -1)
    memory.seq_rm(1, -1, -1)
    assert (owners(memory), memory.record()["used"]) == ([[0], [2], [], []], 2)


def test_r5_a_negative_position_lies_in_no_range() -> None:
    memory = memory_of(2)
    decode(memory, 0)
    memory.seq_add(0, -1, -1, -3)
    assert memory.seq_rm(0, -1, -1) is True
    assert (memory.seq_pos_min(0), memory.seq_pos_max(0), owners(memory)) == (-3, -1, [[0], []])  # R9 too


# -- the other sequence operations --------------------------------------------------------------


def test_r6_a_copy_shares_the_cell_whatever_the_range() -> None:
    memory = memory_of(4)
    decode(memory, 0, 1, n=5)
    memory.seq_cp(0, 1, 1, 2)
    assert (owners(memory), positions(memory)) == ([[0, 1], [], [], []], [4, 4, -1, -1])
    assert (memory.record()["used"], memory.record()["head"]) == (1, 0)


def test_r6_copying_an_empty_sequence_empties_the_target() -> None:
    memory = memory_of(4)
    decode(memory, 0)
    memory.seq_cp(3, 0, -1, -1)
    assert (owners(memory), memory.record()["used"]) == ([[], [], [], []], 0)


@pytest.mark.parametrize(("src", "dst"), [(0, 0), (0, 4), (4, 0), (0, -1), (-1, 0)])
def test_r6_copies_from_or_to_nowhere_do_nothing(src: int, dst: int) -> None:
    memory = memory_of(4)
    decode(memory, 0)
    before = memory.record()
    memory.seq_cp(src, dst, -1, -1)
    assert memory.record() == before


def test_surprise_2_a_copy_does_not_take_over_a_pending_rollback() -> None:
    memory = memory_of(3, n_rs_seq=2)
    recorder = Recorder()
    memory.observe(recorder)
    decode(memory, 0, n=4)
    memory.seq_rm(0, 3, -1)
    memory.seq_cp(0, 1, -1, -1)
    assert (memory.rs_idx, positions(memory)) == ([1, 0, 0], [2, 2, -1])
    assert recorder.events[-1].detail == {"id": "copy-ignores-rollback", "src": 0, "dst": 1, "depths": [1, 0]}


def test_r7_keep_drops_all_others_and_takes_them_out_of_shared_cells() -> None:
    memory = memory_of(4)
    decode(memory, 0, 1, 2)
    memory.seq_cp(1, 3, -1, -1)
    memory.seq_keep(1)
    assert (owners(memory), memory.record()["used"]) == ([[], [1], [], []], 1)


def test_r7_keep_lowers_the_head_to_a_cell_that_was_empty_before() -> None:
    memory = memory_of(4)
    decode(memory, 0, 1)
    decode(memory, 1)
    memory.seq_rm(0, 0, 100)
    memory.cells.head = 1
    memory.seq_keep(1)
    assert memory.record()["head"] == 0


@pytest.mark.parametrize("seq", [-1, 4])
def test_r7_keeping_an_unknown_sequence_drops_everything(seq: int) -> None:
    memory = memory_of(4)
    decode(memory, 0, 1)
    memory.seq_keep(seq)
    assert (owners(memory), memory.record()["used"]) == ([[]] * 4, 0)


def test_surprise_3_keep_leaves_rollbacks_of_dropped_sequences() -> None:
    memory = memory_of(2, n_rs_seq=2)
    decode(memory, 0, 1, n=3)
    memory.seq_rm(1, 2, -1)
    memory.seq_keep(0)
    assert memory.rs_idx == [0, 1]


def test_r7_a_negative_position_is_not_counted_out_and_the_next_ubatch_recounts() -> None:
    memory = memory_of(2)
    decode(memory, 0, 1)
    memory.seq_add(0, -1, -1, -5)
    memory.seq_keep(1)
    assert memory.record()["used"] == 2
    decode(memory, 1)
    assert memory.record()["used"] == 1


def test_r8_shifts_move_the_position_if_it_is_in_range_for_every_owner() -> None:
    memory = memory_of(4)
    decode(memory, 0, n=6)
    memory.seq_cp(0, 1, -1, -1)
    memory.seq_add(0, 0, 5, 10)  # the state stands at 5
    assert positions(memory)[:2] == [5, 5]
    memory.seq_add(0, 5, -1, 10)
    assert positions(memory)[:2] == [15, 15]
    memory.seq_div(1, -1, -1, 4)
    assert positions(memory)[:2] == [3, 3]


def test_r8_positions_wrap_where_32_bits_end() -> None:
    memory = memory_of(4)
    decode(memory, 0, n=6)
    memory.seq_add(0, -1, -1, 2**31 - 1)  # 5 + 2**31 - 1 = 2**31 + 4
    assert (memory.seq_pos_min(0), memory.seq_pos_max(0)) == (-(2**31) + 4, -1)
    with pytest.raises(CacheUsageError, match="2147483648, it does not fit into 32 bits"):
        memory.seq_add(0, -1, -1, 2**31)


def test_r8_division_truncates_towards_zero() -> None:
    memory = memory_of(1)
    decode(memory, 0, n=8)
    memory.seq_div(0, -1, -1, -2)
    assert memory.seq_pos_min(0) == -3


def test_r8_division_by_zero_ends_the_process_only_if_a_state_is_in_range() -> None:
    memory = memory_of(2)
    decode(memory, 0, n=4)
    memory.seq_div(0, 0, 3, 0)
    memory.seq_div(1, -1, -1, 0)
    with pytest.raises(CacheUsageError, match="divisor of 2 or more"):
        memory.seq_div(0, -1, -1, 0)
    assert positions(memory)[0] == 3


@pytest.mark.parametrize("seq", [-1, 4])
def test_unknown_sequences_have_no_position_and_do_not_move(seq: int) -> None:
    memory = memory_of(4)
    decode(memory, 0)
    before = memory.record()
    memory.seq_add(seq, -1, -1, 5)
    memory.seq_div(seq, -1, -1, 2)
    assert (memory.seq_pos_min(seq), memory.seq_pos_max(seq), memory.record()) == (-1, -1, before)


def test_r9_no_update_is_ever_pending() -> None:
    memory = memory_of(1)
    decode(memory, 0)
    memory.seq_add(0, -1, -1, 5)
    assert memory.can_shift
    assert memory.init_update().status is MemoryStatus.NO_UPDATE


def test_r10_clear_leaves_n_rs_z_and_src0() -> None:
    memory = memory_of(2, n_rs_seq=1)
    decode(memory, 0, 1, n=2)
    memory.seq_rm(0, 1, -1)
    memory.clear(data=False)
    record = memory.record()
    assert (record["head"], record["used"], record["n"], record["rs_z"], record["rs_idx"]) == (
        0,
        0,
        2,
        0,
        [0, 0],
    )
    assert record["cells"] == [[0, -1, -1, 0, -1, []], [1, -1, -1, 0, -1, []]]


# -- placing ------------------------------------------------------------------------------------


def test_a_fresh_sequence_starts_from_the_zeroed_row() -> None:
    memory = memory_of(4)
    view = decode(memory, 0, 1)
    assert (view.head, view.n, view.rs_z, view.s_copy) == (0, 2, 0, (0, 0))
    view = decode(memory, 0, 1)
    assert (view.rs_z, view.s_copy) == (-1, (0, 1))


def test_a_copied_sequence_moves_out_of_the_shared_cell_when_it_goes_on() -> None:
    memory = memory_of(4)
    decode(memory, 0)
    decode(memory, 1)
    memory.seq_cp(0, 2, -1, -1)
    view = decode(memory, 2)
    assert owners(memory) == [[0], [1], [2], []]
    assert (view.head, view.n, view.s_copy, view.rs_z) == (2, 1, (0,), 2)


def test_gather_swaps_cells_into_the_order_of_the_ubatch() -> None:
    memory = memory_of(3)
    decode(memory, 0, 1, 2)
    view = decode(memory, 2, 0)
    assert owners(memory) == [[2], [0], [1]]
    assert (view.head, view.n, view.n_seqs, view.s_copy) == (0, 3, 2, (2, 0, 1))


def test_swaps_are_told_and_so_is_what_was_written() -> None:
    memory = memory_of(3)
    decode(memory, 0, 1, 2)
    recorder = Recorder()
    memory.observe(recorder)
    decode(memory, 2, 0)
    assert [(e.kind, e.cells.tolist()) for e in recorder.events] == [
        ("swap", [2, 0]),
        ("swap", [2, 1]),
        ("write", [0, 1]),
    ]


def test_sequences_of_a_shared_token_leave_their_own_cells() -> None:
    memory = memory_of(3)
    decode(memory, 0, 1, 2)
    decode(memory, (0, 2))  # 2 is seen first
    assert (owners(memory), memory.record()["used"]) == ([[], [1], [0, 2]], 2)


def test_the_head_returns_to_0_when_enough_is_free_before_it() -> None:
    memory = memory_of(8)
    decode(memory, *range(8))
    for seq in range(7):
        memory.seq_rm(seq, -1, -1)
    memory.cells.head = 4  # beyond used + 2 * n_seqs = 1 + 2
    decode(memory, 0)
    assert memory.record()["head"] == 0


def test_surprise_9_an_ownerless_position_is_taken_over() -> None:
    memory = memory_of(2)
    memory.cells.pos[0], memory.cells.src[0], memory.cells.used = 7, 0, 1
    view = decode(memory, 1, start=8)
    assert (owners(memory), view.s_copy, view.rs_z) == ([[1], []], (0,), -1)


def test_r12_prepare_puts_cells_back_but_not_n_and_rs_z() -> None:
    memory = memory_of(4)
    decode(memory, 0)
    before = memory.record()
    batch = BatchAllocator(1, 4)
    batch.init(Batch.joined(Batch.tokens_of(1, [7]), Batch.tokens_of(2, [7])), memory)
    ubatches = batch.split_all(lambda: batch.split_equal(8, sequential=True))
    assert ubatches is not None
    assert memory.prepare(ubatches) is not None
    assert memory.record() == {**before, "n": 2, "rs_z": 1}


def test_surprise_8_an_id_beyond_the_cells_is_no_place_and_says_so() -> None:
    memory = RecurrentMemory(2, 0, LAYERS, 4)
    decode(memory, 0)
    before = memory.record()
    batch = BatchAllocator(1, 4)
    batch.init(Batch.tokens_of(3, [7]))
    context = memory.init_batch(batch, 8)
    assert isinstance(context, FailedContext)
    assert context.failure is not None
    assert (context.failure.asked, context.failure.free, context.failure.largest_hole) == (1, 1, 1)
    assert memory.record() == before


def test_r13_inputs_of_absent_sequences_between_are_read_as_well() -> None:
    memory = memory_of(3, n_rs_seq=2)
    decode(memory, 0, 1, 2, n=3)
    memory.seq_rm(1, 2, -1)
    view = decode(memory, 0, 2, n=1)  # cells [0, 2], 1 is moved along
    assert view.n == 3
    assert sorted(view.s_copy) == [0, 2, 1 * 3 + 1]
    assert memory.rs_idx == [0, 0, 0]


def test_surprise_4_only_the_smallest_owners_rollback_is_read() -> None:
    memory = memory_of(3, n_rs_seq=2)
    decode(memory, 0, n=3)
    memory.seq_cp(0, 1, -1, -1)
    memory.seq_rm(1, 2, -1)
    assert positions(memory) == [1, 1, -1]
    decode(memory, (0, 1))
    assert memory.rs_idx == [0, 1, 0]


def test_only_equal_ubatches_are_taken() -> None:
    memory = memory_of(2)
    batch = BatchAllocator(1, 2)
    batch.init(Batch.tokens_of(0, [7, 7]))
    ubatch = batch.split_simple(8)
    assert ubatch is not None
    with pytest.raises(CacheUsageError, match="split_equal"):
        memory.prepare([ubatch])


# -- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_rs_seq", "lengths"), [(0, [8, 2]), (3, [6, 4])])
def test_a_batch_is_split_so_that_tails_stay_whole(n_rs_seq: int, lengths: list[int]) -> None:
    memory = memory_of(2, n_rs_seq)
    batch = BatchAllocator(1, 2)
    batch.init(Batch.tokens_of(0, [7] * 10))
    context = memory.init_batch(batch, 8)
    seen = []
    while True:
        seen.append(context.ubatch.n_tokens)
        assert context.apply()
        assert context.views["recurrent"].reuse_key() == {
            "n_rs": 1, "n_seqs": 1, "rs_head": 0, "rs_z": 0 if len(seen) == 1 else -1
        }  # fmt: skip
        if not context.next():
            break
    assert (seen, positions(memory)) == (lengths, [9, -1])


def test_all_tokens_as_outputs_are_split_by_sequence() -> None:
    memory = memory_of(2)
    batch = BatchAllocator(1, 2)
    batch.init(Batch.joined(Batch.tokens_of(0, [7] * 2), Batch.tokens_of(1, [7] * 2)), output_all=True)
    context = memory.init_batch(batch, 8, output_all=True)
    assert context.ubatch.idx.tolist() == [0, 1]


def test_surprise_6_a_tail_as_long_as_a_ubatch_ends_the_process() -> None:
    batch = BatchAllocator(1, 2)
    batch.init(Batch.tokens_of(0, [7] * 10))
    with pytest.raises(CacheUsageError, match="n_ubatch above 4"):
        memory_of(2, n_rs_seq=3).init_batch(batch, 4)


def test_coupled_sequences_cannot_be_split() -> None:
    batch = BatchAllocator(1, 2)
    batch.init(Batch.tokens_of((0, 1), [7]))
    assert memory_of(2).init_batch(batch, 8).status is MemoryStatus.FAILED_PREPARE


# -- the rest -----------------------------------------------------------------------------------


def test_memory_breakdown_counts_all_planes() -> None:
    assert memory_of(4, n_rs_seq=2).memory_breakdown() == {"r": 4 * 12 * 4, "s": 4 * 12 * 6, "p": 4 * 12 * 1}
    assert RecurrentMemory(1, 0, [(768, 4096, 0)] * 2, 1).memory_breakdown() == {"r": 6144, "s": 32768}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda memory: memory.cells.tail.__setitem__(0, 1),
        lambda memory: memory.cells.tail.__setitem__(0, -1),
        lambda memory: memory.cells.owners.__setitem__(2, 1 << 7),
        lambda memory: memory.cells.src.__setitem__(0, 9),
        lambda memory: memory.rs_idx.__setitem__(0, 1),
        lambda memory: setattr(memory.cells, "head", 4),
    ],
)
def test_integrity_is_checked(spoil) -> None:
    memory = memory_of(4)
    decode(memory, 0, 1)
    spoil(memory)
    with pytest.raises(IntegrityError):
        memory.check_integrity()
