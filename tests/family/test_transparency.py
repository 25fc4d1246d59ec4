"""Transparency: after any sequence of operations, on any memory of the family, a token attends to and reads
what it would without a cache.

What it attends to (sequences, windows, what indexers choose, DeepSeek-V4's rows) is compared exactly, what it
reads within a tolerance. :mod:`play` says how; ``test_transparency_faults.py`` that faults are noticed.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from play import MAX_TOKENS, N_ROLLBACK, N_SEQ, PLAYED, Account, Play

from kvsim.events import Event

FLASH = 5e-3
"""Flash attention reads f32 rows as f16, and rounds queries and weights."""

SEQ = st.integers(0, N_SEQ - 1)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("decode"), st.integers(1, 2**N_SEQ - 1), st.integers(1, 9)),
        st.tuples(st.just("tail"), SEQ, st.integers(1, 5)),
        st.tuples(st.just("reject drafts"), SEQ, st.integers(1, N_ROLLBACK)),
        st.tuples(st.just("gap"), SEQ, st.integers(0, 12)),
        st.tuples(st.sampled_from(["context shift", "move up"]), SEQ, st.integers(1, 6)),
        st.tuples(
            st.sampled_from(["empty", "keep", "restore", "start again", "defragment"]), SEQ, st.just(0)
        ),
        st.tuples(st.sampled_from(["copy", "hand over", "together"]), SEQ, SEQ),
    ),
    min_size=6,
    max_size=16,
)
EVERY_OPERATION = [
    ("decode", 7, 9), ("decode", 1, 1), ("context shift", 0, 3), ("move up", 1, 5), ("decode", 7, 9),
    ("reject drafts", 1, 2), ("decode", 2, 1), ("tail", 0, 2), ("gap", 0, 2), ("restore", 1, 0),
    ("hand over", 1, 2), ("decode", 7, 2), ("move up", 2, 4), ("decode", 4, 1), ("start again", 0, 0),
    ("decode", 7, 1), ("copy", 0, 1), ("together", 1, 0), ("decode", 7, 3), ("keep", 0, 0),
    ("defragment", 0, 0), ("empty", 1, 0), ("decode", 7, 9), ("decode", 1, 1),
]  # fmt: skip

few_random_ones = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def perform(play: Play, ops: list[tuple[str, int, int]]) -> None:
    for op in [("decode", 2**N_SEQ - 1, 7), *ops, ("decode", 2**N_SEQ - 1, 2)]:
        play.do(*op)


@pytest.mark.parametrize("name", PLAYED)
@few_random_ones
@given(ops=OPERATIONS, kv_unified=st.booleans(), n_ubatch=st.sampled_from([4, 8, 16]))
def test_any_operations_are_transparent(
    name: str, ops: list[tuple[str, int, int]], kv_unified: bool, n_ubatch: int
) -> None:
    perform(Play(name, kv_unified, n_ubatch), ops)


@few_random_ones
@given(ops=OPERATIONS, n_ubatch=st.sampled_from([4, 8, 16]))
def test_block_sparse_attention_is_transparent(ops: list[tuple[str, int, int]], n_ubatch: int) -> None:
    """With flash attention and one sequence per stream; of single tokens by gathering."""
    perform(Play("msa-minimax-m3", False, n_ubatch, flash=True, tolerance=FLASH), ops)


@pytest.mark.parametrize("kv_unified", [False, True], ids=["streams", "unified"])
@pytest.mark.parametrize("name", PLAYED)
def test_every_operation_is_done_and_transparent(name: str, kv_unified: bool) -> None:
    """One sequence of operations that has them all; and what windows and indexers leave out is some."""
    play = Play(name, kv_unified, 8)
    perform(play, EVERY_OPERATION)
    missing = {"keep", "together"} if not kv_unified else set()
    if play.has_states:
        missing |= {"together", "gap", "context shift", "tail"}  # rejecting drafts removes tails
    if play.has_states and not play.ctx.resolved.n_rs_seq:
        missing |= {"reject drafts"}
    if not play.can_move():
        missing |= {"context shift", "move up"}
    assert set(play.n_done) == {op for op, _, _ in EVERY_OPERATION} - missing
    assert {il for il, n in play.left_out.items() if n} == choosing_blocks(play)


def test_rows_of_128_tokens_are_transparent() -> None:
    """DeepSeek-V4's rows that compress heavily, through what can happen to a sequence that has some."""
    play = Play("dsv4-deepseek4", False, 16, max_tokens=200)
    ops = [
        ("decode", 3, 126), ("decode", 1, 1), ("reject drafts", 0, 2), ("reject drafts", 1, 1), ("decode", 3, 7),
        ("restore", 0, 0), ("copy", 0, 2), ("decode", 7, 3), ("hand over", 1, 0), ("decode", 1, 5),
        ("start again", 0, 0), ("decode", 7, 4),
    ]  # fmt: skip
    perform(play, ops)
    assert set(play.n_done) == {op for op, _, _ in ops}
    newest = max(pos for s, pos in play.readings.seen if s == 0)
    assert play.readings.seen[0, newest][3] == [(list(range(newest - 31, newest + 1)), [0])]


@pytest.mark.parametrize("name", ["dsa-deepseek32", "dsa_iswa-dots3note", "dsa-hy_v4"])
def test_a_shift_changes_what_lightning_indexers_choose(name: str) -> None:
    """Hazard ``indexer-keys-turned-as-stored``: why such memories are not shifted in these tests."""
    play = Play(name, False, 8)
    play.do("decode", 1, 9)
    play.ctx.memory.seq_add(0, -1, -1, 5)
    play.held[0] = Account(play.held[0].tokens, [p + 5 for p in play.held[0].pos])
    events: list[Event] = []
    play.ctx.observe(events.append)
    with pytest.raises(AssertionError, match="block"):
        play.do("decode", 1, 9)
    assert ("lid", "indexer-keys-turned-as-stored") in {(e.cache, e.detail.get("id")) for e in events}


def choosing_blocks(play: Play) -> set[int]:
    """The blocks that must not attend to all tokens before: those with a window, and those with an indexer."""
    found: set[int] = set()
    caches, model = play.readings.spec.caches, PLAYED[play.name]
    for name, cache in caches.items():
        pooled = name == "attn" and "idx" in caches
        lightning = name == "mla" and model.indexer_top_k < MAX_TOKENS
        if name in ("swa", "raw.swa") or pooled or lightning:
            found |= set(cache.map_layer_ids)
    return found
