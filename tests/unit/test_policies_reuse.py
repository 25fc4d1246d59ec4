"""Prefix and chunk reuse: what is found, what moves, and why something cannot be reused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_slots import OTHER, TEXT, assert_as_fresh, leaf, new_slot

from kvsim.events import Recorder
from kvsim.policies import Checkpoints, Chunk, Slot, common_prefix, match_chunks, reuse
from kvsim.policies.prefix_reuse import OBSTACLES


def letters(text: str) -> list[int]:
    return [ord(c) - ord("a") for c in text]


# -- finding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cached", "prompt", "n"),
    [("", "", 0), ("abc", "", 0), ("abc", "abd", 2), ("abc", "abcd", 3), ("x", "a", 0)],
)
def test_common_prefix(cached: str, prompt: str, n: int) -> None:
    assert common_prefix(letters(cached), letters(prompt)) == n


@pytest.mark.parametrize(
    ("cached", "prompt", "n_cache_reuse", "chunks"),
    [
        ("abcdefghj", "abefhj", 1, [Chunk(4, 2, 2), Chunk(7, 4, 2)]),
        ("abcdefghj", "abefhj", 2, [Chunk(4, 2, 2), Chunk(7, 4, 2)]),
        ("abcdefghj", "abefhj", 3, []),
        ("abcdefghj", "abefhj", 0, []),
        ("abcdefghj", "abefhj", -1, []),
        ("abcde", "abcde", 1, []),  # all prefix
        ("abxxcde", "abcde", 3, [Chunk(4, 2, 3)]),
        ("abxxcd", "abyyycd", 1, []),  # the prompt's own new tokens stop the search
        ("aab", "ab", 1, [Chunk(2, 1, 1)]),
    ],
)
def test_chunks(cached: str, prompt: str, n_cache_reuse: int, chunks: list[Chunk]) -> None:
    assert match_chunks(letters(cached), letters(prompt), n_cache_reuse) == chunks


words = st.lists(st.integers(0, 3), max_size=14)


@given(cached=words, prompt=words, n_cache_reuse=st.integers(1, 4))
def test_chunks_spell_the_prompt(cached: list[int], prompt: list[int], n_cache_reuse: int) -> None:
    end_src = end_dst = common_prefix(cached, prompt)
    for chunk in match_chunks(cached, prompt, n_cache_reuse):
        assert chunk.length >= n_cache_reuse
        assert chunk.dst == end_dst
        assert chunk.src >= end_src
        assert chunk.src > chunk.dst
        assert cached[chunk.src :][: chunk.length] == prompt[chunk.dst :][: chunk.length]
        end_src, end_dst = chunk.src + chunk.length, chunk.dst + chunk.length


# -- in a cache that can go back -------------------------------------------------------------------


def test_a_longer_prompt_decodes_the_rest() -> None:
    slot = new_slot()
    slot.feed(TEXT[:10])
    report = reuse(slot, TEXT[:14])
    assert (report.n_past, report.n_decode, report.n_lost, report.obstacles) == (10, 4, 0, ())
    slot.feed(TEXT[10:14])
    assert (slot.cost.decoded, slot.cost.reused, slot.cost.recomputed) == (14, 10, 0)
    assert_as_fresh(slot)


def test_another_ending_is_replaced() -> None:
    slot = new_slot()
    slot.feed(TEXT[:10] + OTHER[:6])
    prompt = TEXT[:12]
    report = reuse(slot, prompt)
    assert report.n_past == common_prefix(TEXT[:10] + OTHER[:6], prompt) == 10
    assert slot.agrees
    slot.feed(prompt[10:])
    assert_as_fresh(slot)


def test_the_same_prompt_decodes_its_last_token_again() -> None:
    slot = new_slot()
    slot.feed(TEXT[:10])
    report = reuse(slot, TEXT[:10])
    assert (report.n_past, report.n_lost, report.obstacles) == (9, 1, ())
    assert slot.cost.recomputed == 1


def test_nothing_in_common_empties_the_slot() -> None:
    slot = new_slot()
    slot.feed([1, 2, 3])
    assert reuse(slot, [9, 2, 3], n_cache_reuse=0).n_past == 0
    assert (slot.tokens, slot.agrees) == ([], True)


def test_chunks_move_to_where_the_prompt_has_them() -> None:
    """Once a second step took away what the first had moved; the cells must spell a b e f h j."""
    slot = new_slot()
    events = Recorder()
    slot.feed(letters("abcdefghj"))
    slot.context.observe(events)
    report = reuse(slot, letters("abefhjk"), n_cache_reuse=1)
    assert (report.n_past, report.n_prefix, report.n_matched, report.n_decode) == (6, 2, 6, 1)
    assert leaf(slot.context, "kv").cells[0].pos[:9].tolist() == [0, 1, -1, -1, 2, 3, -1, 4, 5]
    assert slot.cost.shifted == 4
    (told,) = [e.detail for e in events.events if e.kind == "policy"]
    assert told["chunks"] == [(4, 2, 2), (7, 4, 2)]
    slot.feed(letters("k"))
    assert_as_fresh(slot)


@given(cached=words, prompt=words.filter(len), n_cache_reuse=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_whatever_is_reused_the_slot_goes_on_as_if_fresh(
    cached: list[int], prompt: list[int], n_cache_reuse: int
) -> None:
    slot = new_slot()
    slot.feed(cached)
    report = reuse(slot, prompt, n_cache_reuse)
    assert slot.agrees
    assert slot.tokens == prompt[: report.n_past]
    assert report.n_decode >= 1
    slot.feed(prompt[report.n_past :])
    assert_as_fresh(slot)


def test_the_other_sequence_stays() -> None:
    slot = new_slot()
    other = Slot(slot.context, 1)
    slot.feed(TEXT[:10])
    other.feed(OTHER[:10])
    reuse(slot, TEXT[:3] + TEXT[6:10], n_cache_reuse=2)
    assert other.agrees
    assert_as_fresh(other)


# -- why not ---------------------------------------------------------------------------------------


def codes(report: object) -> list[str]:
    return [each.code for each in report.obstacles]


def test_every_obstacle_says_what_and_where() -> None:
    slot = new_slot("hybrid")
    slot.feed(TEXT[:10])
    (obstacle,) = reuse(slot, TEXT[:6]).obstacles
    assert obstacle.code in OBSTACLES
    assert obstacle.why == (
        "a recurrent state, or a compressor, stands further on and cannot go back "
        "(first position 9, needed before 5)"
    )


def churned_window_slot() -> Slot:
    """40 tokens through a window cache of 16 cells and a window of 4."""
    slot = new_slot("window", n_swa=4, sizes={"swa": 16})
    slot.feed(TEXT[:40])
    return slot


def test_a_window_that_has_passed_costs_everything() -> None:
    slot = churned_window_slot()
    report = reuse(slot, TEXT[:20] + OTHER[:5])
    assert (report.n_past, report.n_lost, codes(report)) == (0, 20, ["window passed"])
    assert slot.cost.recomputed == 20


def test_a_window_that_is_still_there_can_be_reused() -> None:
    slot = churned_window_slot()
    first = slot.context.memory.seq_pos_min(0)
    assert first > 0
    n_past = first + 5
    report = reuse(slot, [*TEXT[:n_past], (TEXT[n_past] + 1) % 64])
    assert (report.n_past, codes(report)) == (n_past, [])
    slot.feed([(TEXT[n_past] + 1) % 64])
    assert_as_fresh(slot, "window", n_swa=4)


def test_one_position_further_back_and_the_window_is_gone() -> None:
    slot = churned_window_slot()
    n_past = slot.context.memory.seq_pos_min(0) + 4
    report = reuse(slot, [*TEXT[:n_past], (TEXT[n_past] + 1) % 64])
    assert (report.n_past, codes(report)) == (0, ["window passed"])


def test_the_servers_test_loses_a_short_prefix_although_its_window_is_whole() -> None:
    """4 tokens or fewer of a window of 4: the first position 0 is not below the threshold 0."""
    for n_prefix, n_past, why in ((4, 0, ["window test"]), (5, 5, [])):
        slot = new_slot("window", n_swa=4)
        slot.feed(TEXT[:8])
        report = reuse(slot, [*TEXT[:n_prefix], 63])
        assert (report.n_past, codes(report)) == (n_past, why)


def test_with_the_full_cache_there_is_no_window_to_lose() -> None:
    slot = new_slot("window", n_swa=4, swa_full=True)
    slot.feed(TEXT[:40])
    report = reuse(slot, TEXT[:20] + OTHER[:5])
    assert (report.n_past, codes(report)) == (20, [])


@pytest.mark.parametrize("name", ["hybrid", "recurrent", "dsv4"])
def test_a_state_that_stands_further_on_costs_everything(name: str) -> None:
    slot = new_slot(name)
    slot.feed(TEXT[:12])
    report = reuse(slot, TEXT[:8] + OTHER[:3])
    assert (report.n_past, report.n_lost, codes(report)) == (0, 8, ["state ahead"])
    slot.feed(slot_rest := TEXT[:8] + OTHER[:3])
    assert slot.tokens == slot_rest
    assert_as_fresh(slot, name)


@pytest.mark.parametrize("name", ["hybrid", "recurrent", "dsv4"])
def test_a_state_can_always_be_continued(name: str) -> None:
    slot = new_slot(name)
    slot.feed(TEXT[:12])
    report = reuse(slot, TEXT[:15])
    assert (report.n_past, codes(report)) == (12, [])


@pytest.mark.parametrize(("name", "n_swa"), [("hybrid", 0), ("recurrent", 0), ("dsv4", 0), ("window", 4)])
def test_a_checkpoint_saves_what_comes_before_it(name: str, n_swa: int) -> None:
    slot = new_slot(name, n_swa=n_swa, sizes={"swa": 16} if n_swa else {})
    kept = Checkpoints(slot)
    slot.feed(TEXT[:12])
    kept.create()
    slot.feed(TEXT[12:40])
    kept.create()
    report = reuse(slot, TEXT[:20] + OTHER[:3], checkpoints=kept)
    assert report.checkpoint is not None
    assert report.checkpoint.n_tokens == 12
    n_past = 11 if n_swa else 12  # of a window, the last position of the checkpoint is decoded again
    assert (report.n_past, report.n_lost) == (n_past, 20 - n_past)
    assert [each.n_tokens for each in kept.kept] == [12]  # the later one belongs to tokens that are gone
    assert slot.cost.bytes_read == report.checkpoint.n_bytes
    slot.feed((TEXT[:20] + OTHER[:3])[n_past:])
    assert_as_fresh(slot, name, n_swa=n_swa)


def test_a_checkpoint_at_the_end_of_the_prompt_leaves_no_token_to_decode_and_is_passed_over() -> None:
    slot = new_slot("hybrid")
    kept = Checkpoints(slot)
    for n in (4, 8):
        slot.feed(TEXT[len(slot.tokens) : n])
        kept.create()
    slot.feed(TEXT[8:9])
    report = reuse(slot, TEXT[:8], checkpoints=kept)
    assert report.checkpoint is not None
    assert (report.checkpoint.n_tokens, report.n_past, report.n_decode) == (4, 4, 4)


def test_a_refused_checkpoint_is_reported_and_all_is_decoded_again() -> None:
    slot = new_slot("hybrid")
    kept = Checkpoints(slot)
    slot.feed(TEXT[:6])
    made = kept.create()
    assert made is not None
    object.__setattr__(made, "data", made.data[:-1])
    slot.feed(TEXT[6:12])
    report = reuse(slot, TEXT[:8] + OTHER[:3], checkpoints=kept)
    assert (report.n_past, codes(report)) == (0, ["state ahead", "checkpoint refused"])
    assert slot.agrees


@pytest.mark.parametrize(("name", "asked"), [("mrope", {}), ("window", {"n_swa": 4, "sizes": {"swa": 64}})])
def test_chunks_are_left_where_positions_cannot_move(name: str, asked: dict[str, object]) -> None:
    slot = new_slot(name, **asked)
    slot.feed(TEXT[:20])
    report = reuse(slot, TEXT[:8] + TEXT[12:18] + [63], n_cache_reuse=2)
    assert (report.n_past, report.chunks, codes(report)) == (8, (), ["cannot shift"])


def test_a_slot_whose_cells_are_gone_starts_again() -> None:
    slot = new_slot("window", n_swa=4)
    slot.feed(TEXT[:8])
    slot.context.memory.seq_rm(0, -1, -1)
    report = reuse(slot, TEXT[:6])
    assert (report.n_past, codes(report)) == (0, ["cells lost"])
    assert slot.feed(TEXT[:6]) == 0


def test_a_failed_decode_is_not_taken_for_reusable() -> None:
    """The list of tokens is the cache's: it does not grow by what failed."""
    slot = new_slot(sizes={"kv": 8})
    slot.feed(TEXT[:6])
    assert slot.feed(OTHER[:4]) == 1
    assert slot.tokens == TEXT[:6]
    assert slot.agrees
    assert reuse(slot, TEXT[:6] + OTHER[:2]).n_past == 6


def test_parts_that_fit_the_batch_stay_when_a_later_one_fails() -> None:
    slot = new_slot(sizes={"kv": 8}, n_batch=4)
    assert slot.feed(TEXT[:11]) == 1
    assert slot.tokens == TEXT[:8]
    assert slot.agrees
