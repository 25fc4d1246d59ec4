"""Ways to a difference that campaigns have found, shrunk, and that must stay explained."""

from __future__ import annotations

from kvsim.caches.kv import KVCache
from kvsim.context import Fault
from kvsim.ops import Op
from kvsim.testing.cache_info import CACHES
from kvsim.testing.checked import Checked
from kvsim.testing.ink_cache import cells_of
from kvsim.testing.profiles import cramped


def one(seq: int, pos: int) -> Op:
    return Op.decode([5], [pos], [[seq]])


def test_a_fresh_state_in_a_dirty_row_is_told_where_cells_were_swapped() -> None:
    """hazard fresh-state-not-zero: the row that a failed graph left as it was belongs to a cell that is
    swapped before the next sequence begins in it."""
    info = CACHES["hybrid"]
    checked = Checked(info, next(config for config in info.configs if config.name == "streams"))
    for op in (
        one(2, 0), one(0, 7), Op.seq_cp(2, 1), Op.seq_rm(2), one(2, 2), Op.seq_rm(1), Op.seq_cp(1, 0),
        Op.decode([5, 5], [0, 3], [[1], [2]], fault=Fault(0, "alloc")),
        Op.decode(None, [1, 0], [[0], [1]], [1, 1]),
    ):  # fmt: skip
        checked.perform(op)
    assert [event.detail for event in checked.events if event.detail["id"] == "fresh-state-not-zero"] == [
        {"id": "fresh-state-not-zero", "seqs": [1]}
    ]


def test_a_token_shared_by_different_rollbacks_is_told() -> None:
    """hazard shared-token-sees-one-history: sequences 1 and 2 share a state, of which 2 has been rolled back
    and its copy has not, so that they go on from different ones."""
    info = CACHES["hybrid"]
    checked = Checked(info, next(config for config in info.configs if config.name == "rollback"))
    for op in (
        one(2, 3), Op.seq_rm(2, 3), Op.decode([1], [3], [[0]], fault=Fault(0)), Op.seq_cp(2, 1),
        Op.decode([13], [3], [[0, 1, 2]], [1]),
    ):  # fmt: skip
        checked.perform(op)
    told = [event.detail["seqs"] for event in checked.events if "history" in event.detail["id"]]
    assert sorted(map(sorted, told)) == [[0, 2], [1, 2]]


def test_a_copy_that_ignores_its_range_is_told_after_position_minus_one() -> None:
    """hazard copy-ignores-range: the range begins at the last cell, so everything is copied; that the smallest
    position is -1 hides nothing."""
    info = CACHES["kv"]
    checked = Checked(info, next(config for config in info.configs if config.name == "streams"))
    for op in (one(0, -1), one(0, 5), Op.seq_cp(0, 1, 7)):
        checked.perform(op)
    assert [event.detail["id"] for event in checked.events] == ["copy-ignores-range"]


def test_a_state_of_nothing_leaves_rows_shared() -> None:
    """hazard empty-state-removes-nothing: sequence 1 keeps its token, in the row that sequence 0, whose window
    has passed it, shared before; a copy brings it back once, not twice."""
    info = CACHES["dsa_iswa"]
    checked = Checked(info, info.configs[0])
    for op in (
        Op.decode([1, 2, 3], [4, 5, 6], [[0]] * 3), Op.state_seq_get(2, 0),
        Op.decode(None, range(7), [[2]] * 7), Op.seq_rm(0), Op.decode([98], [0], [[0, 1]]),
        one(0, 1), one(0, 2), one(0, 3), Op.seq_rm(2), Op.decode([6, 7], [4, 5], [[0]] * 2),
        Op.state_seq_set(1, 0), Op.seq_cp(1, 0), Op.seq_rm(0, 1),
    ):  # fmt: skip
        checked.perform(op)
    swa = checked.memory.leaves()["swa"]
    assert isinstance(swa, KVCache)
    assert {s: [e.pos for e in held] for s, held in cells_of(swa).items()} == {0: [0], 1: [0]}


def test_rows_zeroed_by_another_parts_failure_are_told_under_a_queued_copy() -> None:
    """hazard restore-under-queued-copy: attention fails to restore, so the index drops the sequence too, and
    a queued copy has yet to read its rows."""
    info = CACHES["hybrid_idx"]
    checked = Checked(info, next(config for config in info.configs if config.name == "streams"))
    get, restore = Op.state_seq_get(1, 0), Op.state_seq_set(1, 0, truncate=146)
    for op in (one(1, 7), get, Op.seq_cp(1, 0), restore):
        checked.perform(op)
    told = {event.cache for event in checked.events if event.detail["id"] == "restore-under-queued-copy"}
    assert "idx" in told


def test_rows_zeroed_by_a_cut_state_are_told_under_a_queued_copy() -> None:
    """hazard restore-under-queued-copy: the window's part of the state is cut short, which zeroes rows that
    sequence 1 no longer holds, and that a queued copy has yet to read for sequence 0."""
    info = CACHES["dsa_iswa"]
    checked = Checked(info, next(config for config in info.configs if config.name == "streams"))
    get, restore = Op.state_seq_get(0, 17), Op.state_seq_set(1, 17, truncate=191)
    for op in (one(0, 0), one(1, 6), get, Op.seq_cp(1, 0), Op.seq_rm(1), restore):
        checked.perform(op)
    told = {event.cache for event in checked.events if event.detail["id"] == "restore-under-queued-copy"}
    assert told == {"mla", "lid", "swa"}


def test_a_window_that_a_state_of_nothing_left_behind_is_astray() -> None:
    """hazard empty-state-removes-nothing: the base goes back to the state, the window stays where it was. What
    the window has long given to another sequence is asked of it no more, wherever its position moves."""
    info = CACHES["iswa"]
    checked = Checked(info, next(config for config in info.configs if config.name == "symmetric"))
    for op in (
        one(0, 2), Op.decode([2, 3], [3, 4], [[0]] * 2), Op.seq_add(1, -1, -1, 2), one(1, 12), Op.seq_rm(0, 3),
        Op.state_seq_get(0, 71),
        Op.clear(), one(0, 0), one(0, 1), one(1, 1), one(0, 2), one(1, 2), one(1, 3), one(0, 3),
        Op.decode([4, 5], [4, 4], [[0], [1]]), Op.decode([4, 5], [5, 5], [[0], [1]]),
        Op.state_seq_set(0, 71), Op.seq_add(0, 5, -1, -4), Op.seq_add(0, -1, 1, 3),
    ):  # fmt: skip
        checked.perform(op)
    assert checked.hazards["empty-state-removes-nothing"] == 1
    swa = checked.memory.leaves()["swa"]
    assert isinstance(swa, KVCache)
    assert sorted(e.pos for e in cells_of(swa)[0]) == [1, 1, 2, 3, 4]


def test_a_passed_token_that_another_owners_shift_removed_is_not_asked_for_again() -> None:
    """hazard shift-moves-other-owners: the window cache keeps an owner that the base does not, and its shift
    frees the last token of sequence 1, which then goes on from the position before."""
    info = CACHES["iswa"]
    checked = Checked(info, cramped(next(config for config in info.configs if config.name == "window-of-1")))
    for op in (
        Op.decode([1, 2, 3], [0, 1, 2], [[1]] * 3), one(0, -1), one(1, 3), Op.seq_rm(1), Op.seq_rm(0),
        Op.decode(None, [1, 2], [[0]] * 2), Op.decode([4, 5], [0, 1], [[1]] * 2), Op.seq_add(0, -1, -1, -4),
    ):  # fmt: skip
        checked.perform(op)
    assert [(event.cache, event.detail["id"]) for event in checked.events] == [
        ("swa", "shift-moves-other-owners")
    ]
    checked.perform(one(1, 1))
    swa = checked.memory.leaves()["swa"]
    assert isinstance(swa, KVCache)
    assert [(e.pos, e.instance) for e in sorted(cells_of(swa)[1])] == [(0, 8), (1, 10)]


def test_a_shared_state_that_skips_positions_does_so_for_every_owner() -> None:
    """hazard state-skips-positions: copies put the state of two sequences at position 4, a token that they share
    puts it at 2; what is removed from position 4 on is nothing of either."""
    info = CACHES["hybrid_idx"]
    checked = Checked(info, next(config for config in info.configs if config.name == "rollback"))
    for op in (
        Op.decode([12, 16], [1, 4], [[1], [0]]), one(2, 1), Op.seq_cp(0, 2, 9), Op.seq_cp(0, 1, -1, 0),
        Op.decode([81], [2], [[1, 2]]),
    ):  # fmt: skip
        checked.perform(op)
    (told,) = (event.detail for event in checked.events if event.detail["id"] == "state-skips-positions")
    assert {told["seq"], *told["others"]} == {1, 2}
    assert checked.perform(Op.seq_rm(1, 4)) == 1


def test_a_row_that_a_window_has_taken_from_one_owner_comes_back_by_a_copy() -> None:
    """The window takes position 0 from sequence 1 alone; its later positions move, and a copy of sequence 0
    brings the row back at the position that it has there."""
    info = CACHES["iswa"]
    checked = Checked(info, next(config for config in info.configs if config.name == "symmetric"))
    for op in (
        Op.decode([1, 2, 3], range(3), [[0]] * 3), Op.decode(range(8), range(8), [[1]] * 8), Op.seq_cp(1, 0),
        Op.seq_rm(0, 1), Op.decode([4, 5, 6], [1, 2, 3], [[0]] * 3), Op.seq_add(1, -1, -1, 1), Op.seq_cp(0, 1),
    ):  # fmt: skip
        checked.perform(op)
    swa = checked.memory.leaves()["swa"]
    assert isinstance(swa, KVCache)
    assert min(e.pos for e in cells_of(swa)[1]) == 0


def test_a_token_whose_sequence_the_index_has_lost_is_of_no_pool() -> None:
    """At position -1 the two caches of hybrid_idx part: a cell is free in one and shared in the other. A token that
    is placed there drives its own sequence out of the index (kv_cache.md, purge), and belongs to no pool."""
    info = CACHES["hybrid_idx"]
    checked = Checked(info, next(config for config in info.configs if config.name == "tiny"))
    for op in (
        Op.decode(range(5), range(5), [[0]] * 5), Op.decode([7, 8], [5, 5], [[0]] * 2), Op.state_seq_get(0, 104),
        Op.seq_rm(0), Op.decode([4, 5], [0, 1], [[2]] * 2), Op.decode([7, 0, 1], [2, 3, -1], [[2], [2], [1]]),
        one(2, 4), one(0, 5), Op.decode([4, 5], [5, 6], [[2], [0]]), Op.state_seq_get(0, 158),
        Op.seq_add(0, -1, -1, -2), Op.state_seq_set(0, 158, truncate=185), Op.state_seq_set(1, 104), one(0, 7),
        Op.seq_cp(1, 2), Op.seq_rm(0),
    ):  # fmt: skip
        checked.perform(op)
    assert checked.perform(one(2, 3)) == 0
    idx = checked.memory.leaves()["idx"]
    assert isinstance(idx, KVCache)
    assert 2 not in cells_of(idx)


def test_a_dirty_row_that_a_ubatch_moves_is_dirty_where_it_comes_to_lie() -> None:
    """hazard fresh-state-not-zero: the first ubatch of the last batch moves the row that a failed graph left as it
    was out of its way, and sequence 0 begins there in the second."""
    info = CACHES["recurrent"]
    checked = Checked(info, next(config for config in info.configs if config.name == "streams"))
    for op in (
        Op.state_seq_get(0, 56), Op.decode([7, 8], [1, 0], [[0], [1]], [1, 1]), one(2, 10), one(3, 42),
        Op.state_seq_set(1, 56), Op.seq_add(2, -1, -1, -1), Op.seq_rm(0),
        Op.decode([15, 17], [0, 10], [[1], [2]], fault=Fault(0, "alloc")), Op.decode(None, [43], [[3]]),
        Op.decode([31, 40, 49], [11, 44, 0], [[2], [3], [0]], [1, 1, 1]),
    ):  # fmt: skip
        checked.perform(op)
    assert [event.detail for event in checked.events] == [{"id": "fresh-state-not-zero", "seqs": [0]}]


def test_a_batch_whose_plan_cannot_be_made_leaves_a_pending_shift_pending() -> None:
    """DeepSeek-V4: a partial state is restored alone, its window cell falls below 0, and what is pending is the mark
    of a shift. llama.cpp ends while it prepares the batch, after the update that would have done it."""
    info = CACHES["dsv4"]
    config = cramped(next(config for config in info.configs if config.name == "one-sequence"))
    checked = Checked(info, config)
    for op in (
        one(0, 0), Op.state_seq_get(0, 15, 1), Op.seq_rm(0), Op.state_seq_set(0, 15, 1), Op.seq_add(0, -1, -1, -5)
    ):  # fmt: skip
        checked.perform(op)
    swa = checked.memory.leaves()["raw.swa"]
    assert isinstance(swa, KVCache)
    assert swa.has_shift
    assert checked.perform(Op.decode([42, 43, 44], [-1, 0, 1], [[0]] * 3, [0] * 3)) is None
    assert "compressors cannot be computed" in str(checked.refusal)
    assert swa.has_shift
    assert checked.perform(one(0, 0)) == 0
    assert not swa.has_shift
