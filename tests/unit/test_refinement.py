"""Only what has changed is looked at and compared again; these are the rules by which the rest may be left out."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import IntegrityError
from kvsim.ledger import AttentionPart, Entry
from kvsim.models.params import SwaType
from kvsim.ops import Op
from kvsim.testing.cache_info import CACHES
from kvsim.testing.checked import Checked, CheckError
from kvsim.testing.ink_cache import InkCache, InkStore
from kvsim.testing.refinement import Agreed, agree_as_before

SWA = SwaType.STANDARD


def part(n_swa: int = 1) -> AttentionPart:
    return AttentionPart(SWA, n_swa, streams=False, rotates=True)


def in_a_cell(entry: Entry) -> Entry:
    """The entry as the cells would name it."""
    return entry._replace(row=object())


def world() -> tuple[Checked, InkCache]:
    checked = Checked(CACHES["kv"], CACHES["kv"].configs[0])
    memory = checked.memory
    assert isinstance(memory, InkCache)
    return checked, memory


# -- looks -------------------------------------------------------------------------------------------


def test_a_look_at_cells_that_stayed_is_the_one_before() -> None:
    checked, memory = world()
    checked.perform(Op.decode([5, 6], [0, 1], [[0], [0]]))
    (before,) = memory.look().streams
    (now,) = memory.look().streams
    assert now is before


def test_a_cell_that_changes_is_taken_apart_again_and_no_other() -> None:
    checked, memory = world()
    checked.perform(Op.decode([5, 6, 7], [0, 1, 2], [[0], [0], [0]]))
    (before,) = memory.look().streams
    memory.seq_rm(0, 2, -1)
    (now,) = memory.look().streams
    assert now.held[0] == before.held[0][:2]
    assert all(a is b for a, b in zip(now.held[0], before.held[0], strict=False))


def test_a_cell_that_takes_another_token_gives_it_another_row() -> None:
    checked, memory = world()
    checked.perform(Op.decode([5], [0], [[0]]))
    (first,) = memory.look().held[0]
    checked.perform(Op.seq_rm(0, -1, -1))
    checked.perform(Op.clear(True))
    checked.perform(Op.decode([5], [0], [[0]]))
    (second,) = memory.look().held[0]
    assert (first.instance, second.instance) == (1, 2)
    assert first.row != second.row


def test_a_copy_of_a_cache_is_looked_at_by_its_own_cells() -> None:
    checked, memory = world()
    checked.perform(Op.decode([5, 6], [0, 1], [[0], [0]]))
    twin = copy.deepcopy(memory)
    twin.seq_rm(0, 1, -1)
    assert [e.pos for e in twin.look().held[0]] == [0]
    assert [e.pos for e in memory.look().held[0]] == [0, 1]


def test_what_a_copy_of_a_cache_holds_are_the_rows_of_the_original() -> None:
    checked, memory = world()
    checked.perform(Op.decode([5, 6], [0, 1], [[0], [0]]))
    twin = copy.deepcopy(memory)
    assert twin.look() is memory.look()


# -- what is believed --------------------------------------------------------------------------------


def test_what_one_sequence_has_forgotten_is_still_the_row_that_another_holds() -> None:
    made = part()
    made.write([0, 1], 0, 10)
    made.write([0], 1, 11)
    shared, own = made.entries(0)
    made.adopt({0: [in_a_cell(own)], 1: [in_a_cell(shared)]}, {1})
    assert [e.instance for e in made.entries(0)] == [11, 10]
    made.seq_cp(1, 0, -1, -1)
    assert len(made.entries(0)) == 2, "nothing is new"


def test_what_is_adopted_again_stays_the_same_list() -> None:
    made = part()
    made.write([0], 0, 10)
    made.write([1], 0, 20)
    found = {s: [in_a_cell(e)] for s, (e,) in made.held.items()}
    made.adopt(found, {1})
    before = dict(made.held)
    assert before == found
    made.adopt(found, {1})
    assert all(made.held[s] is before[s] for s in (0, 1))


# -- what is not compared again ----------------------------------------------------------------------


@st.composite
def grown(draw: st.DrawFn) -> tuple[AttentionPart, Agreed, list[Entry]]:
    """A part that agrees with its first cells; then both grow, perhaps not by the same."""
    made = part(draw(st.integers(1, 4)))
    positions = st.lists(st.integers(0, 6), max_size=5)
    for i, p in enumerate(draw(positions)):
        made.write([0], p, 10 + i)
    start = made.window_start(made.pos_max(0) + 1)
    kept = [e for e in made.entries(0) if e.pos >= start or draw(st.booleans())]
    known = [in_a_cell(e) for e in draw(st.permutations(kept))]
    before = made.entries(0)
    assert made.difference(0, known) == ([], [])
    new = [Entry(p, 20 + i, p, 0, (0, 0), object()) for i, p in enumerate(draw(positions))]
    for e in new:
        made.write([0], e.pos, e.instance)
    at = draw(st.integers(0, max(len(new) - 1, 0)))
    change = draw(st.sampled_from(["none", "left out", "another", "a first one gone"]))
    if new and change == "left out":
        del new[at]
    elif new and change == "another":
        new[at] = new[at]._replace(instance=99)
    return made, (before, known), [*known[change == "a first one gone" :], *new]


@given(grown())
def test_what_need_not_be_compared_again_agrees(case: tuple[AttentionPart, Agreed, list[Entry]]) -> None:
    made, (before, known), cells = case
    entries = made.entries(0)
    agree = made.difference(0, cells) == ([], [])
    if agree_as_before((before, known), entries, cells, rows=True):
        assert agree
    if cells[: len(known)] == known and len(cells) - len(known) == len(entries) - len(before) and agree:
        assert agree_as_before((before, known), entries, cells, rows=True)


def test_another_list_is_compared_unless_it_goes_on_from_what_agreed() -> None:
    made = part()
    made.write([0], 0, 10)
    entries = made.entries(0)
    cells = [in_a_cell(entries[0])]
    assert agree_as_before((entries, cells), list(entries), cells, rows=True)
    moved = [entries[0]._replace(pos=1)]
    assert not agree_as_before((entries, cells), moved, cells, rows=True)
    assert not agree_as_before((entries, cells), [*entries, moved[0]], cells, rows=True)


def test_what_is_written_leaves_the_lists_that_were_held_as_they_were() -> None:
    made = part()
    made.write([0], 0, 10)
    before = made.entries(0)
    made.write([0], 1, 11)
    assert [e.instance for e in before] == [10]
    assert [e.instance for e in made.entries(0)] == [10, 11]


# -- what has changed is compared, whichever side it is on -------------------------------------------


def settled() -> tuple[Checked, InkCache]:
    """A memory that agrees with its ledger, and has been compared with it."""
    checked, memory = world()
    checked.perform(Op.decode([5, 6], [0, 1], [[0], [0]]))
    checked.perform(Op.seq_rm(1, -1, -1))
    return checked, memory


def test_cells_that_change_by_themselves_are_found_by_the_next_operation() -> None:
    checked, memory = settled()
    memory.cells[0].seq_rm(0, 1, 2)
    with pytest.raises(CheckError, match="sequence 0 should hold position 1"):
        checked.perform(Op.seq_rm(1, -1, -1))


def test_a_ledger_that_changes_by_itself_is_found_by_the_next_operation() -> None:
    checked, _ = settled()
    checked.ledger.parts["kv"].write([0], 2, 99)
    with pytest.raises(CheckError, match="sequence 0 should hold position 2"):
        checked.perform(Op.seq_rm(1, -1, -1))


def test_rows_that_change_by_themselves_are_found_by_the_next_operation() -> None:
    checked, memory = settled()
    assert isinstance(memory.store, InkStore)
    memory.store.instance[0, 1] = 99
    with pytest.raises(CheckError, match="instance 99"):
        checked.perform(Op.seq_rm(1, -1, -1))


@pytest.mark.parametrize("name", ["n_live", "_top"])
def test_books_that_change_by_themselves_are_found_by_the_next_operation(name: str) -> None:
    checked, memory = settled()
    setattr(memory.cells[0], name, getattr(memory.cells[0], name) - 1)
    with pytest.raises(IntegrityError):
        checked.perform(Op.seq_rm(1, -1, -1))
