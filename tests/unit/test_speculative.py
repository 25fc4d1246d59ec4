"""Speculative decoding: what a round leaves in both memories, how each kind of memory goes back, what a
run costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_slots import OTHER, TEXT, assert_as_fresh, leaf, model, new_context, new_slot

from kvsim.caches.shared_kv import SharedKVCache
from kvsim.context import Context
from kvsim.errors import CacheUsageError
from kvsim.events import Recorder
from kvsim.models.context_params import ContextParams
from kvsim.policies import Slot
from kvsim.speculative import SharedLeaves, SideReport, Speculation, reach, shares_cells, simulate


def pair(target: str = "llama", draft: str = "llama", n: int = 10, **asked: object) -> Speculation:
    """Both hold ``n`` tokens; ``asked`` is for the target."""
    slots = new_slot(target, **asked), new_slot(draft)
    for slot in slots:
        assert slot.feed(TEXT[:n]) == 0
    return Speculation(*slots)


# -- one round -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_accept", [0, 1, 3])
def test_a_round_keeps_what_was_accepted_in_both(n_accept: int) -> None:
    run = pair()
    events = Recorder()
    run.target.slot.context.observe(events)
    following = run.round(50, OTHER[:3], n_accept, 60)
    assert following == [*OTHER[:n_accept], 60]
    for slot in (run.target.slot, run.draft.slot):
        assert slot.tokens == [*TEXT[:10], 50, *OTHER[:n_accept]]
        assert slot.agrees
        assert_as_fresh(slot)
    told = [e.detail for e in events.events if e.kind == "speculate"]
    assert told == [{"seq": 0, "n_draft": 3, "n_accepted": n_accept}]


def test_the_next_batch_begins_where_the_last_one_was_cut() -> None:
    """15 tokens, then two rounds of two guesses of which one and none are right: 15 + 2 + 1."""
    run = pair("window", "window", n=15, n_swa=4)
    run.round(1, [2, 3], 1, 4)
    run.round(4, [5, 6], 0, 7)
    assert run.target.slot.context.memory.seq_pos_max(0) == 17
    assert run.draft.slot.context.memory.seq_pos_max(0) == 17
    assert_as_fresh(run.target.slot, "window", n_swa=4)


def test_the_draft_decodes_what_it_guessed_twice() -> None:
    """Three to guess three, then the four of the batch."""
    run = pair()
    run.round(50, OTHER[:3], 3, 60)
    assert (run.report.target.tokens, run.report.draft.tokens) == (4, 7)


def test_without_guesses_both_decode_the_sampled_token() -> None:
    run = pair()
    assert run.round(50, [], 0, 60) == [60]
    assert (run.report.target.tokens, run.report.draft.tokens, run.report.drafted) == (1, 1, 0)
    assert run.target.slot.tokens == run.draft.slot.tokens == [*TEXT[:10], 50]


# -- memories that cannot go back at will ----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    [
        ("llama", {}, None),
        ("window", {"n_swa": 4}, None),
        ("hybrid", {}, 0),
        ("hybrid", {"n_rs_seq": 3}, 0),  # this architecture keeps no snapshots
        ("rollback", {"n_rs_seq": 3}, 3),
        ("recurrent", {}, 0),
        ("dsv4", {"n_rs_seq": 2}, 2),
    ],
)
def test_how_far_each_can_go_back(name: str, asked: dict[str, object], expected: int | None) -> None:
    """And the memory agrees: it takes back one token more than that, or refuses."""
    slot = new_slot(name, **asked)
    assert reach(slot) == expected
    slot.feed(TEXT[:8])
    if expected is not None:
        assert not slot.context.memory.seq_rm(0, 8 - expected - 1, -1)
    assert slot.context.memory.seq_rm(0, 8 - (3 if expected is None else expected), -1)


@pytest.mark.parametrize(
    ("name", "n_rs_seq", "n_accept", "how"),
    [
        ("hybrid", 0, 1, "checkpoint"),
        ("recurrent", 0, 0, "checkpoint"),
        ("rollback", 3, 0, "snapshot"),
        ("rollback", 2, 1, "snapshot"),
        ("rollback", 2, 0, "checkpoint"),  # three to take back, two snapshots
        ("dsv4", 3, 0, "snapshot"),
        ("dsv4", 2, 0, "checkpoint"),
        ("dsv4", 0, 2, "checkpoint"),
    ],
)
def test_a_rejected_tail_leaves_no_trace(name: str, n_rs_seq: int, n_accept: int, how: str) -> None:
    run = pair(name, n_rs_seq=n_rs_seq)
    run.round(50, OTHER[:3], n_accept, 60)
    cost = run.report.target
    assert (cost.snapshots, cost.checkpoints, cost.removals) == (how == "snapshot", how == "checkpoint", 0)
    assert cost.refusals == cost.checkpoints
    again = 1 + n_accept if how == "checkpoint" else 0
    assert (cost.replayed, cost.tokens) == (again, 4 + again)
    assert (cost.bytes_read > 0) == (how == "checkpoint")
    assert run.target.slot.tokens == [*TEXT[:10], 50, *OTHER[:n_accept]]
    assert_as_fresh(run.target.slot, name, n_rs_seq=n_rs_seq)


def test_a_checkpoint_is_made_only_where_all_guesses_could_be_too_many() -> None:
    run = pair("rollback", n_rs_seq=3)
    run.round(50, OTHER[:3], 3, 60)
    assert run.report.target.bytes_written == 0
    run.round(60, OTHER[:4], 4, 61)
    assert run.report.target.bytes_written > 0
    assert (run.report.target.bytes_read, run.report.target.checkpoints) == (0, 0)


@pytest.mark.parametrize(("name", "n_rs_seq"), [("hybrid", 0), ("rollback", 4), ("recurrent", 0)])
@pytest.mark.parametrize("n_accept", [0, 2, 3])
def test_a_draft_with_a_state_is_put_back_too(name: str, n_rs_seq: int, n_accept: int) -> None:
    target, draft = new_slot(), new_slot(name, n_rs_seq=n_rs_seq)
    for slot in (target, draft):
        slot.feed(TEXT[:10])
    run = Speculation(target, draft)
    run.round(50, OTHER[:3], n_accept, 60)
    assert draft.tokens == target.tokens
    assert run.report.draft.checkpoints == (2 if n_accept < 3 and not n_rs_seq else 1)
    assert_as_fresh(draft, name, n_rs_seq=n_rs_seq)


def test_snapshots_of_tokens_decoded_one_by_one_do_not_reach_back() -> None:
    """The memory says it went back two tokens; its state says otherwise (recurrent.md R11). That is why a
    draft goes back by a checkpoint after guessing."""
    slot = new_slot("rollback", n_rs_seq=2)
    slot.feed(TEXT[:10])
    for token in OTHER[:2]:
        slot.feed([token])
    assert slot.context.memory.seq_rm(0, 10, -1)
    slot.tokens = TEXT[:10]
    with pytest.raises(AssertionError, match="Mismatched elements"):
        assert_as_fresh(slot, "rollback", n_rs_seq=2)


# -- a draft that shares its target's cells --------------------------------------------------------


def shared_pair() -> tuple[Slot, Slot]:
    target = new_slot()
    params = ContextParams(
        n_ctx=256, n_ubatch=8, n_seq_max=2, kv_unified=True, flash_attn=False, type_k="f32", type_v="f32"
    )
    draft = Context(model("llama"), params, n_vocab=64, leaves=SharedLeaves(target=target.context))
    return target, Slot(draft)


def test_a_shared_draft_guesses_at_one_position_and_writes_nothing() -> None:
    target, draft = shared_pair()
    target.feed(TEXT[:10])
    assert isinstance(leaf(draft.context, "kv"), SharedKVCache)
    before = target.context.memory.snapshot()
    run = Speculation(target, draft)
    draft.context.recording = True
    assert run._guess(50, OTHER[:3])
    assert target.context.memory.snapshot() == before
    assert draft.context.memory.seq_pos_max(0) == 9
    assert run.report.draft.tokens == 3
    # each guess sees the 10 tokens and not the guess before it
    (record,) = draft.context.records
    assert record.json["mask"]["kv"] == [[0, 10]]


def test_a_run_with_a_shared_draft_needs_no_second_cache() -> None:
    target, draft = shared_pair()
    target.feed(TEXT[:10])
    report = simulate(target, draft, 40, n_draft=3, acceptance=0.6, seed=1)
    assert (report.emitted, report.stopped, report.draft_off) == (40, "", "")
    assert report.draft.bytes_cache == 0
    assert report.draft.removals == 0
    assert report.draft.tokens == report.drafted
    assert_as_fresh(target)


def test_it_is_the_memory_that_knows_whether_cells_are_shared() -> None:
    target, draft = shared_pair()
    assert shares_cells(draft.context)
    assert not shares_cells(target.context)


def test_a_draft_cannot_share_caches_that_the_target_does_not_have() -> None:
    target = new_slot("hybrid")
    params = ContextParams(n_ctx=256, n_seq_max=2, kv_unified=True)
    with pytest.raises(CacheUsageError, match="it has only attn, recurrent"):
        Context(model("llama"), params, leaves=SharedLeaves(target=target.context))


# -- runs ------------------------------------------------------------------------------------------


def slots(target: str = "llama", draft: str = "llama", n: int = 10, **asked: object) -> tuple[Slot, Slot]:
    run = pair(target, draft, n, **asked)
    return run.target.slot, run.draft.slot


def test_every_guess_right() -> None:
    """20 tokens in 4 rounds of 4 guesses and one more."""
    report = simulate(*slots(), 20, n_draft=4, acceptance=1.0)
    assert (report.rounds, report.drafted, report.accepted, report.emitted) == (4, 16, 16, 20)
    assert (report.acceptance, report.tokens_per_round) == (1.0, 5.0)
    assert report.target == SideReport(tokens=20, bytes_cache=report.target.bytes_cache)
    assert report.draft == SideReport(tokens=4 * (4 + 5), removals=4, bytes_cache=report.draft.bytes_cache)


def test_every_guess_wrong() -> None:
    """One token a round. Near the end fewer guesses could be used: at most what is still to come, less
    one."""
    report = simulate(*slots(), 10, n_draft=4, acceptance=0.0)
    guesses = [4, 4, 4, 4, 4, 4, 3, 2, 1, 0]
    assert (report.rounds, report.drafted, report.accepted, report.emitted) == (10, sum(guesses), 0, 10)
    assert report.target.tokens == sum(guesses) + 10
    assert report.target.removals == sum(n > 0 for n in guesses)
    assert report.draft.tokens == 2 * sum(guesses) + 10


def test_a_run_follows_its_seed() -> None:
    """Drawn again here: tokens, then which of the guesses are right."""
    target, draft = slots()
    report = simulate(target, draft, 60, n_draft=5, acceptance=0.7, seed=11)
    rng = np.random.default_rng(11)
    text, emitted, drafted, accepted = [int(rng.integers(64))], 0, 0, 0
    while emitted < 60:
        n = min(5, 60 - emitted - 1)
        guesses, correction = rng.integers(64, size=n).tolist(), int(rng.integers(64))
        right = 0
        for chance in rng.random(n):
            if chance >= 0.7:
                break
            right += 1
        text += [*guesses[:right], correction]
        emitted, drafted, accepted = emitted + right + 1, drafted + n, accepted + right
    assert (report.emitted, report.drafted, report.accepted) == (emitted, drafted, accepted)
    assert target.tokens == TEXT[:10] + text[:-1]
    assert_as_fresh(target)
    assert_as_fresh(draft)


def test_drafts_may_have_their_own_types() -> None:
    target = new_slot()
    small = Slot(new_context(flash_attn=True, type_k="q8_0", type_v="q8_0"))
    target.feed(TEXT[:10])
    report = simulate(target, small, 30, seed=3)
    assert report.emitted == 30
    assert small.tokens == target.tokens  # it was brought up to the target first
    # f32 rows against q8_0: 4 bytes a value against 34 for 32
    assert report.draft.bytes_cache * 32 * 4 == report.target.bytes_cache * 34


@pytest.mark.parametrize(
    ("other", "n_decoded"), [(TEXT[:4], 6), (TEXT[:4] + OTHER[:9], 6), (OTHER[:3], 10), ([], 10)]
)
def test_a_draft_that_fell_behind_is_fed_first(other: list[int], n_decoded: int) -> None:
    target, draft = new_slot(), new_slot()
    target.feed(TEXT[:10])
    draft.feed(other)
    run = Speculation(target, draft)
    run.catch_up()
    assert draft.tokens == target.tokens
    assert run.report.draft.tokens == n_decoded
    assert_as_fresh(draft)


def test_a_batch_that_does_not_fit_falls_back_to_the_sampled_token() -> None:
    """One cell is left for the target: the guesses are dropped, and then there is none."""
    target, draft = new_slot(sizes={"kv": 11}), new_slot()
    target.n_ctx = 64
    for slot in (target, draft):
        slot.feed(TEXT[:10])
    report = simulate(target, draft, 5, n_draft=3, acceptance=1.0)
    assert (report.emitted, report.no_room, report.drafted) == (1, 2, 0)
    assert "has no room for ubatch 1 of 1" in report.stopped
    assert target.agrees
    assert draft.agrees


def test_a_draft_without_room_is_given_up_and_the_target_goes_on() -> None:
    target, draft = new_slot(), new_slot(sizes={"kv": 12})
    for slot in (target, draft):
        slot.feed(TEXT[:10])
    report = simulate(target, draft, 8, n_draft=4, acceptance=1.0)
    assert report.emitted == 8
    assert "has no room" in report.draft_off
    assert report.stopped == ""
    assert (report.drafted, report.target.tokens) == (0, 8)
    assert_as_fresh(target)


def test_guesses_stop_two_cells_before_the_end_of_the_context() -> None:
    target, draft = slots(n=10)
    target.n_ctx = 14
    report = simulate(target, draft, 3, n_draft=8, acceptance=1.0)
    assert report.drafted == 2  # 14 - 10 - 2


@given(
    seed=st.integers(0, 999),
    acceptance=st.floats(0, 1),
    n_draft=st.integers(0, 7),
    n_tokens=st.integers(1, 25),
    target=st.sampled_from(["llama", "hybrid", "rollback", "dsv4", "window"]),
    n_rs_seq=st.integers(0, 4),
)
@settings(max_examples=20, deadline=None)
def test_any_run_ends_in_step_and_as_if_every_token_had_been_decoded_once(
    seed: int, acceptance: float, n_draft: int, n_tokens: int, target: str, n_rs_seq: int
) -> None:
    asked = {"n_rs_seq": n_rs_seq, "n_swa": 4 if target == "window" else 0}
    main, draft = slots(target, **asked)
    report = simulate(main, draft, n_tokens, n_draft=n_draft, acceptance=acceptance, seed=seed)
    assert report.emitted == n_tokens
    assert report.emitted == report.rounds + report.accepted
    assert report.target.tokens == report.rounds + report.drafted + report.target.replayed
    assert report.target.refusals == report.target.checkpoints
    assert main.agrees
    assert main.tokens == draft.tokens
    assert_as_fresh(main, target, **asked)


@pytest.mark.parametrize("bad", [{"acceptance": 1.5}, {"acceptance": -0.1}, {"n_draft": -1}])
def test_impossible_runs_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(CacheUsageError, match="cannot simulate"):
        simulate(*slots(), 5, **bad)
    with pytest.raises(CacheUsageError, match="decode a prompt first"):
        simulate(new_slot(), new_slot(), 5)
