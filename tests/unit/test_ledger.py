"""The ledger says what a caller expects; the refinement check tells what a window may forget."""

from __future__ import annotations

import pytest

from kvsim.ledger import AttentionPart, Entry
from kvsim.ledger_states import NO_STATE, Histories, State, StatePart
from kvsim.models.params import SwaType
from kvsim.ops import Op
from kvsim.testing.cache_info import CACHES
from kvsim.testing.checked import Checked, CheckError
from kvsim.testing.ink_cache import cells_of


def part(streams: bool = False, swa: SwaType = SwaType.NONE, n_swa: int = 0) -> AttentionPart:
    return AttentionPart(swa, n_swa, streams=streams, rotates=True)


def filled(n: int, **how: object) -> AttentionPart:
    """Sequence 0 at positions 0 to n - 1; its instances are 10, 11, ..."""
    made = part(**how)
    for p in range(n):
        made.write([0], p, 10 + p)
    return made


def seen(made: AttentionPart, seq: int) -> list[tuple[int, int, int, int]]:
    return [e[:4] for e in made.entries(seq)]


def test_a_token_belongs_to_all_its_sequences() -> None:
    made = part()
    made.write([1, 2], 4, 7)
    assert seen(made, 1) == seen(made, 2) == [(4, 7, 4, 0)]
    assert seen(made, 0) == []


def test_nobody_ever_reads_a_negative_position() -> None:
    made = part()
    made.write([0], -1, 7)
    assert seen(made, 0) == []


def test_seq_rm_takes_a_half_open_range_of_one_sequence_or_of_all() -> None:
    made = filled(5)
    made.write([1], 2, 20)
    made.seq_rm(0, 1, 3)
    assert [e.pos for e in made.entries(0)] == [0, 3, 4]
    made.seq_rm(-1, 2, -1)
    assert [e.pos for e in made.entries(0)] == [0]
    assert made.entries(1) == []


def test_seq_cp_adds_what_is_not_shared_already() -> None:
    made = filled(3)
    made.seq_cp(0, 1, 0, 2)
    made.seq_cp(0, 1, -1, -1)
    assert [e.instance for e in made.entries(1)] == [10, 11, 12]


def test_seq_cp_between_streams_replaces_the_target() -> None:
    made = filled(2, streams=True)
    made.write([1], 0, 20)
    made.seq_cp(0, 1, -1, -1)
    assert [e.instance for e in made.entries(1)] == [10, 11]


def test_seq_keep_forgets_all_others() -> None:
    made = filled(2)
    made.write([1], 0, 20)
    made.seq_keep(1)
    assert made.entries(0) == []
    assert [e.instance for e in made.entries(1)] == [20]


def test_seq_add_moves_one_sequence_and_the_key_follows_at_the_update() -> None:
    made = filled(3)
    made.seq_cp(0, 1, -1, -1)
    made.seq_add(0, 1, -1, -2)
    assert seen(made, 0) == [(0, 10, 0, 0), (0, 12, 2, -2)]
    assert [e.pos for e in made.entries(1)] == [0, 1, 2]
    made.update()
    assert seen(made, 0) == [(0, 10, 0, 0), (0, 12, 0, 0)]


def test_what_moves_for_one_sequence_alone_is_no_shared_row_any_more() -> None:
    """Then it was not in the cells: a row that is shared moves for all, which a hazard tells."""
    made = filled(2)
    made.seq_cp(0, 1, -1, -1)
    made.seq_add(1, -1, -1, 1)
    made.seq_cp(0, 1, -1, -1)
    assert [e.pos for e in made.entries(1)] == [1, 2, 0, 1]


def test_seq_div_turns_towards_the_new_position() -> None:
    made = filled(5)
    made.seq_div(0, 4, -1, 2)
    assert seen(made, 0)[-1] == (2, 14, 4, -2)


def test_a_saved_state_counts_pending_turns_as_applied_and_keeps_sharing() -> None:
    made = filled(2)
    made.seq_add(0, -1, -1, 3)
    made.seq_cp(0, 1, -1, -1)
    saved = made.save([0, 1])
    made.clear()
    made.restore(saved, {0: 0, 1: 1})
    assert seen(made, 0) == [(3, 10, 3, 0), (4, 11, 4, 0)]
    made.seq_cp(0, 1, -1, -1)
    assert len(made.entries(1)) == 2, "the rows are the same ones"


@pytest.mark.parametrize(
    ("swa", "n_swa", "first"),
    [(SwaType.NONE, 0, 0), (SwaType.STANDARD, 4, 5), (SwaType.CHUNKED, 4, 8), (SwaType.SYMMETRIC, 4, 6)],
)
def test_a_token_attends_to_what_its_window_reaches(swa: SwaType, n_swa: int, first: int) -> None:
    made = filled(10, swa=swa, n_swa=n_swa)
    assert [instance - 10 for instance, _ in made.visible(0, 8)] == list(range(first, 9))


def test_a_window_may_forget_what_the_next_token_no_longer_sees_and_nothing_else() -> None:
    made = filled(10, swa=SwaType.STANDARD, n_swa=4)
    kept = [e for e in made.entries(0) if e.pos >= 7]  # the next token, at 10, sees 7, 8, 9
    assert made.difference(0, kept) == ([], [])
    missing, extra = made.difference(0, kept[1:])
    assert [e.pos for e in missing] == [7]
    assert extra == []


def test_a_wrong_instance_is_missing_and_extra() -> None:
    made = filled(2)
    wrong = made.entries(0)[1]._replace(instance=99)
    missing, extra = made.difference(0, [made.entries(0)[0], wrong])
    assert [e.instance for e in missing] == [11]
    assert [e.instance for e in extra] == [99]


def test_a_doubled_row_is_extra() -> None:
    made = filled(1)
    assert made.difference(0, made.entries(0) * 2) == ([], made.entries(0))


def test_what_is_adopted_replaces_one_sequence_and_keeps_what_others_may_have_forgotten() -> None:
    made = filled(3, swa=SwaType.STANDARD, n_swa=1)
    made.write([1], 0, 20)
    found = {0: [made.entries(0)[2]], 1: [Entry(5, 20, 0, 5, (0, 0), "cell 7")]}
    made.adopt(found, [1])
    assert seen(made, 1) == [(5, 20, 0, 5)]
    assert sorted(e.instance for e in made.entries(0)) == [10, 11, 12]


# -- recurrent states ------------------------------------------------------------------------------


def test_a_state_has_seen_its_tokens_in_order() -> None:
    histories = Histories()
    states = StatePart(histories)
    for p in range(3):
        states.write([0], p, 10 + p)
    state = states.state(0)
    assert state.pos == 2
    assert histories.tokens(state.history) == [10, 11, 12]
    assert states.state(1) == NO_STATE


def test_removing_a_token_takes_it_out_of_the_history() -> None:
    histories = Histories()
    states = StatePart(histories)
    for p in range(4):
        states.write([0], p, 10 + p)
    states.seq_cp(0, 1, -1, -1)
    states.seq_rm(0, 1, 3)
    assert histories.tokens(states.state(0).history) == [10, 13]
    assert histories.tokens(states.state(1).history) == [10, 11, 12, 13]


def test_equal_histories_are_one_number() -> None:
    histories = Histories()
    one = histories.after(histories.after(0, 5), 6)
    assert histories.after(histories.after(0, 5), 6) == one
    assert histories.before(one, 2) == 0


def test_an_adopted_state_counts_back_from_its_position() -> None:
    histories = Histories()
    states = StatePart(histories)
    states.adopt(0, State(7, histories.after(histories.after(0, 5), 6)))
    assert states.held[0] == [(6, 5), (7, 6)]


# -- a faulty memory is caught ---------------------------------------------------------------------


def world(kind: str = "kv") -> Checked:
    return Checked(CACHES[kind], CACHES[kind].configs[0])


def test_the_check_passes_a_sound_memory_and_knows_its_cells() -> None:
    checked = world()
    checked.perform(Op.decode_run(0, 0, [1, 2, 3]))
    assert {s: [e[:4] for e in entries] for s, entries in cells_of(checked.memory).items()} == {
        0: [(0, 1, 0, 0), (1, 2, 1, 0), (2, 3, 2, 0)]
    }


def test_a_row_that_was_not_written_is_found() -> None:
    checked = world()
    checked.network._write = lambda view, instances: None
    with pytest.raises(CheckError, match=r"the token of sequence 0 at position 0 attends to \[\(0, 0\)\]"):
        checked.perform(Op.decode_run(0, 0, [1]))


def test_a_cell_that_lost_its_owner_is_found() -> None:
    checked = world()
    checked.perform(Op.decode_run(0, 0, [1, 2]))
    checked.memory.seq_rm(0, 1, -1)  # behind the ledger's back
    with pytest.raises(CheckError, match=r"kv: sequence 0 should hold position 1 \(instance 2"):
        checked.perform(Op.seq_rm(1))


def test_a_key_that_was_not_turned_is_found() -> None:
    checked = world()
    checked.perform(Op.decode_run(0, 0, [1, 2]))
    checked.perform(Op.seq_add(0, -1, -1, 3))
    checked.memory.cells[0].reset_shift()
    with pytest.raises(
        CheckError, match=r"should hold position 3 \(instance 1, key turned for 0, \+3 pending"
    ):
        checked.perform(Op.seq_rm(1))


def test_a_state_that_has_seen_something_else_is_found() -> None:
    checked = world("recurrent")
    checked.perform(Op.decode_run(0, 0, [1, 2]))
    checked.memory.store.rows["s"][0][0] = 0
    with pytest.raises(CheckError, match=r"state of sequence 0 stands at 1 and has seen \[\]; it should"):
        checked.perform(Op.seq_rm(1))


def test_a_refusal_that_changed_something_is_found() -> None:
    checked = world()
    checked.perform(Op.decode_run(0, 0, [1, 2]))
    decode = checked.replayer.apply

    def meddle(op: str, args: dict[str, object]) -> int | None:
        checked.memory.heads[0] = 7
        return decode(op, args)

    checked.replayer.apply = meddle
    with pytest.raises(CheckError, match="decode was refused or only reads, and yet changed the memory"):
        checked.perform(Op.decode_run(0, 9, [3]))
