"""Checkpoints of windows and recurrent states: what they hold, what they save, which are kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_slots import OTHER, TEXT, assert_as_fresh, leaf, new_context, new_slot

from kvsim.errors import CacheUsageError
from kvsim.events import Recorder
from kvsim.policies import Checkpoint, Checkpoints, Slot


def window_slot(**asked: object) -> Slot:
    return new_slot("window", n_swa=4, **asked)


def test_a_window_checkpoint_holds_what_the_next_token_sees_and_no_more() -> None:
    """20 tokens, all still in the window cache; the last one sees positions 16 to 19."""
    slot = window_slot()
    slot.feed(TEXT[:20])
    kept = Checkpoints(slot)
    made = kept.create()
    assert made is not None
    swa = leaf(slot.context, "swa")
    held = int(np.count_nonzero(swa.cells[0].pos != -1))
    assert (held, made.n_masked) == (20, 16)
    row = sum(layer.row_k + layer.row_v for layer in swa.spec.layers)
    assert made.n_bytes_masked == 16 * row
    # magic and id; streams, count; 4 cells of (pos, n_ids, id); 4 numbers; per layer 12 bytes before K and V
    assert made.n_bytes == 8 + 4 + 4 + 4 * 12 + 16 + len(swa.spec.layers) * 24 + 4 * row


def test_bytes_saved_are_those_of_the_base_cache() -> None:
    slot = window_slot()
    slot.feed(TEXT[:20])
    made = Checkpoints(slot).create()
    assert made is not None
    base = leaf(slot.context, "base").spec
    row = sum(layer.row_k + layer.row_v for layer in base.layers)
    n_layer = len(base.layers)
    assert made.n_bytes_saved == 4 + 4 + 20 * 12 + 16 + n_layer * 24 + 20 * row
    assert made.n_bytes_full == made.n_bytes + made.n_bytes_saved


def test_a_recurrent_checkpoint_holds_the_state_alone() -> None:
    slot = new_slot("hybrid")
    slot.feed(TEXT[:20])
    made = Checkpoints(slot).create()
    assert made is not None
    assert (made.pos_min, made.pos_max, made.n_tokens) == (19, 19, 20)
    longer = new_slot("hybrid")
    longer.feed(TEXT[:60])
    later = Checkpoints(longer).create()
    assert later is not None
    assert later.n_bytes == made.n_bytes
    attn = leaf(slot.context, "attn").spec
    row = sum(layer.row_k + layer.row_v for layer in attn.layers)
    assert later.n_bytes_saved - made.n_bytes_saved == 40 * (12 + row)
    assert (made.n_masked, made.n_bytes_masked) == (0, 0)


@pytest.mark.parametrize(
    ("name", "asked", "useful"),
    [
        ("llama", {}, False),
        ("window", {"n_swa": 4}, True),
        ("window", {"n_swa": 4, "swa_full": True}, False),
        ("hybrid", {}, True),
        ("recurrent", {}, True),
        ("dsv4", {}, True),
    ],
)
def test_where_checkpoints_are_of_use(name: str, asked: dict[str, object], useful: bool) -> None:
    assert Checkpoints(new_slot(name, **asked)).useful is useful


def test_an_empty_sequence_has_none() -> None:
    assert Checkpoints(window_slot()).create() is None


@pytest.mark.parametrize(("name", "n_swa"), [("window", 4), ("hybrid", 0), ("recurrent", 0), ("dsv4", 0)])
def test_going_back_to_a_checkpoint_equals_never_having_gone_on(name: str, n_swa: int) -> None:
    slot = new_slot(name, n_swa=n_swa)
    slot.feed(TEXT[:13])
    kept = Checkpoints(slot)
    made = kept.create()
    assert made is not None
    slot.feed(OTHER[:29])
    events = Recorder()
    slot.context.observe(events)
    assert kept.restore(made)
    assert slot.context.memory.seq_rm(0, 13, -1)
    slot.tokens = TEXT[:13]
    assert slot.agrees
    assert (slot.cost.bytes_read, slot.cost.bytes_written) == (made.n_bytes, made.n_bytes)
    told = [e.detail["policy"] for e in events.events if e.kind == "policy"]
    assert told == ["restore checkpoint"]
    assert_as_fresh(slot, name, n_swa=n_swa)


def test_without_a_checkpoint_a_state_cannot_go_back() -> None:
    slot = new_slot("hybrid")
    slot.feed(TEXT[:13])
    assert not slot.context.memory.seq_rm(0, 10, -1)


def test_a_damaged_checkpoint_is_refused() -> None:
    slot = window_slot()
    slot.feed(TEXT[:13])
    kept = Checkpoints(slot)
    made = kept.create()
    assert made is not None
    damaged = Checkpoint(**{**vars(made), "data": made.data[:-1]})
    assert not kept.restore(damaged)
    assert slot.context.last_failure is not None


# -- which are kept --------------------------------------------------------------------------------


def at(*n_tokens: int, task: int = 0) -> list[Checkpoint]:
    return [Checkpoint(n, n - 1, n - 1, task, b"x" * 10, 0, 0, 0) for n in n_tokens]


def with_tokens(n: int, most: int, min_step: int, kept: list[Checkpoint], task: int) -> Checkpoints:
    slot = Slot(new_context("hybrid"), task=task)
    slot.feed(TEXT[:n])
    made = Checkpoints(slot, most, min_step)
    made.kept = kept
    made.create()
    return made


@pytest.mark.parametrize(
    ("most", "min_step", "kept", "task", "left"),
    [
        (4, 5, at(2, 4, 6), 1, [2, 6, 9]),  # one place left: 4 is within 5 of 2, then there are two
        (3, 5, at(2, 4, 6), 1, [2, 9]),  # none left: 6 too
        (5, 5, at(2, 4, 6), 1, [2, 4, 6, 9]),  # two places left: nothing is thinned out
        (4, 5, at(2, 4, 6), 0, [2, 4, 6, 9]),  # those of the same task stay
        (3, 5, at(2, 4, 6), 0, [4, 6, 9]),  # and the oldest goes if there is no place
        (3, 1, at(2, 4, 6), 1, [4, 6, 9]),  # 2 apart is far enough
        (1, 0, at(2), 1, [9]),
        (4, 0, at(2, 9), 1, [2, 9]),  # one at the same place is replaced
    ],
)
def test_making_room(most: int, min_step: int, kept: list[Checkpoint], task: int, left: list[int]) -> None:
    made = with_tokens(9, most, min_step, kept, task)
    assert [each.n_tokens for each in made.kept] == left


@given(
    most=st.integers(1, 6),
    min_step=st.integers(0, 12),
    steps=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=12),
)
@settings(max_examples=25, deadline=None)
def test_never_more_than_allowed_and_the_newest_always(
    most: int, min_step: int, steps: list[tuple[int, bool]]
) -> None:
    slot = Slot(new_context("hybrid"))
    kept = Checkpoints(slot, most, min_step)
    for n, new_task in steps:
        slot.task += new_task
        slot.feed(TEXT[:n])
        made = kept.create()
        places = [each.n_tokens for each in kept.kept]
        assert len(places) <= most
        assert places == sorted(set(places))
        assert kept.kept[-1] is made
        assert kept.n_bytes == sum(each.n_bytes for each in kept.kept)


def test_the_newest_that_reaches_not_too_far_is_best() -> None:
    kept = Checkpoints(Slot(new_context("hybrid")))
    kept.kept = at(4, 8, 12)
    assert [c and c.n_tokens for c in (kept.best(12, 12), kept.best(9, 9), kept.best(3, 3))] == [12, 8, None]
    assert kept.best(11, 7) == kept.kept[0]  # 8 begins at 7, not before
    kept.drop_after(8)
    assert [each.n_tokens for each in kept.kept] == [4, 8]


def test_one_that_begins_at_0_is_always_early_enough() -> None:
    kept = Checkpoints(Slot(new_context("window", n_swa=4)))
    kept.kept = [Checkpoint(3, 0, 2, 0, b"", 0, 0, 0)]
    assert kept.best(3, 0) is kept.kept[0]
    assert kept.best(1, 0) is None


@pytest.mark.parametrize(("most", "min_step"), [(0, 0), (-1, 4), (1, -1)])
def test_impossible_settings_are_refused(most: int, min_step: int) -> None:
    with pytest.raises(CacheUsageError, match="keep at least 1"):
        Checkpoints(Slot(new_context()), most, min_step)
