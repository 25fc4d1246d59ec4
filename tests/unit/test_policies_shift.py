"""Context shift: the bounds of the server, what happens to cells, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_slots import OTHER, TEXT, assert_as_fresh, fresh_logits, leaf, new_slot, next_logits

from kvsim.errors import CacheUsageError
from kvsim.events import Recorder
from kvsim.policies import ContextShift, ShiftPlan, plan_shift

INT32_MAX = 2**31 - 1


@pytest.mark.parametrize(
    ("asked", "n_keep", "n_discard", "n_moved"),
    [
        ({}, 0, 8, 8),  # half of what is left
        ({"n_keep": 3}, 3, 6, 7),  # 13 are left, half rounds down
        ({"n_keep": -1, "n_prompt": 5}, 5, 5, 6),
        ({"n_keep": 3, "add_bos": True}, 4, 6, 6),
        ({"n_keep": -7, "n_prompt": 5, "add_bos": True}, 6, 5, 5),
        ({"n_keep": 100}, 12, 2, 2),  # at most n_ctx - 4
        ({"n_keep": INT32_MAX}, 12, 2, 2),
        ({"n_discard": 1}, 0, 1, 15),
        ({"n_discard": INT32_MAX}, 0, 15, 1),  # all but one
        ({"n_keep": 1, "n_discard": INT32_MAX}, 1, 14, 1),
        ({"n_discard": -1}, 0, 0, 16),  # negative: nothing
        ({"n_discard": -(2**31)}, 0, 0, 16),
        ({"n_keep": 12, "n_discard": 4}, 12, 3, 1),
    ],
)
def test_bounds_of_16_tokens_in_a_context_of_16(
    asked: dict[str, int], n_keep: int, n_discard: int, n_moved: int
) -> None:
    assert plan_shift(16, 16, **asked) == ShiftPlan(n_keep, n_discard, n_moved)


@pytest.mark.parametrize("n_tokens", [0, 1, 3, 4])
def test_with_no_more_tokens_than_are_kept_nothing_goes(n_tokens: int) -> None:
    plan = plan_shift(n_tokens, 16, n_keep=4, n_discard=9)
    assert (plan.n_discard, plan.n_moved) == (0, 0)


def test_a_tiny_context_is_refused() -> None:
    assert plan_shift(4, 5, n_keep=9) == ShiftPlan(1, 1, 2)
    with pytest.raises(CacheUsageError, match="4 are held back"):
        plan_shift(4, 4)


@given(
    n_tokens=st.integers(0, 64),
    n_ctx=st.integers(5, 64),
    n_keep=st.integers(-2, 70),
    n_discard=st.integers(-70, 70),
    n_prompt=st.integers(0, 64),
    add_bos=st.booleans(),
)
def test_a_plan_never_takes_the_last_token_nor_what_is_kept(
    n_tokens: int, n_ctx: int, n_keep: int, n_discard: int, n_prompt: int, add_bos: bool
) -> None:
    plan = plan_shift(n_tokens, n_ctx, n_keep, n_discard, n_prompt, add_bos)
    assert 0 <= plan.n_keep <= n_ctx - 4
    assert plan.n_discard >= 0
    if plan.n_discard:
        assert plan.n_keep + plan.n_discard + plan.n_moved == n_tokens
        assert plan.n_moved >= 1


def test_cells_keep_their_places_and_change_positions() -> None:
    slot = new_slot(n_ctx=12)
    events = Recorder()
    slot.feed(TEXT[:11])
    slot.context.observe(events)
    assert ContextShift().due(slot)
    plan = ContextShift(n_keep=2, n_discard=5).apply(slot)
    assert (plan, list(plan.dropped)) == (ShiftPlan(2, 5, 4), [2, 3, 4, 5, 6])
    assert slot.tokens == TEXT[:2] + TEXT[7:11]
    assert leaf(slot.context, "kv").cells[0].pos[:12].tolist() == [0, 1, *[-1] * 5, 2, 3, 4, 5, -1]
    assert slot.agrees
    assert (slot.cost.decoded, slot.cost.dropped, slot.cost.shifted, slot.cost.reused) == (11, 5, 4, 6)
    assert [e.detail for e in events.events if e.kind == "policy"] == [
        {
            "policy": "context shift",
            "seq": 0,
            "n_keep": 2,
            "n_discard": 5,
            "n_moved": 4,
            "state_remembers": False,
        }
    ]
    assert_as_fresh(slot)  # the probe's rows depend on token and position alone


def test_a_slot_is_due_one_token_before_its_last_cell() -> None:
    slot = new_slot(n_ctx=12)
    slot.feed(TEXT[:10])
    assert not ContextShift().due(slot)
    slot.feed(TEXT[10:11])
    assert ContextShift().due(slot)


def test_rolling_for_long_never_runs_out_of_cells() -> None:
    slot, shift = new_slot(n_ctx=16, sizes={"kv": 16}), ContextShift(n_keep=3)
    n_shifts = 0
    for token in OTHER[:60]:
        if shift.due(slot):
            shift.apply(slot)
            n_shifts += 1
        assert slot.feed([token]) == 0
        assert slot.agrees
    # 15 tokens fill up; each shift drops 6 of the 12 that are not kept
    assert n_shifts == 8
    assert slot.cost.dropped == 48
    assert len(slot.tokens) == 60 - 48
    assert slot.tokens[:3] == OTHER[:3]
    assert slot.tokens[3:] == OTHER[51:60]
    assert_as_fresh(slot)


def test_a_negative_discard_frees_nothing_and_the_next_decode_fails() -> None:
    slot = new_slot(n_ctx=16, sizes={"kv": 16})
    slot.feed(TEXT[:16])
    plan = ContextShift(n_discard=-3).apply(slot)
    assert plan.n_discard == 0
    assert (slot.cost.dropped, slot.cost.shifted) == (0, 0)
    assert slot.feed([1]) == 1
    assert len(slot.tokens) == 16


def test_another_sequence_is_not_touched() -> None:
    slot = new_slot(n_ctx=12)
    other = type(slot)(slot.context, 1)
    slot.feed(TEXT[:10])
    other.feed(OTHER[:10])
    ContextShift(n_keep=1, n_discard=4).apply(slot)
    assert other.agrees
    assert_as_fresh(other)


@pytest.mark.parametrize("name", ["mrope", "window", "dsv4"])
def test_a_memory_that_cannot_shift_refuses_before_anything_changes(name: str) -> None:
    slot = new_slot(name, n_ctx=12, n_swa=4 if name == "window" else 0, sizes={"swa": 16})
    slot.feed(TEXT[:11])
    before = slot.context.memory.snapshot()
    with pytest.raises(CacheUsageError, match="cannot shift positions"):
        ContextShift(n_discard=4).apply(slot)
    assert slot.context.memory.snapshot() == before
    assert slot.tokens == TEXT[:11]


def test_a_recurrent_state_goes_on_remembering_what_attention_forgot() -> None:
    slot = new_slot("hybrid", n_ctx=12)
    events = Recorder()
    slot.feed(TEXT[:11])
    slot.context.observe(events)
    ContextShift(n_keep=2, n_discard=5).apply(slot)
    assert [e.detail["state_remembers"] for e in events.events if e.kind == "policy"] == [True]
    assert slot.agrees
    want = fresh_logits([*slot.tokens, 3], "hybrid")
    assert float(np.abs(next_logits(slot, 3) - want).max()) > 0.1
