"""Defragmentation is transparent for every member of the family: what a sequence reads does not depend on
where its cells lie. Seen through the probe, as in test_probe.py."""

from __future__ import annotations

import numpy as np
import pytest
from test_probe import MODELS, OTHER, TOKENS, alone, assert_same, context, decode

from kvsim.caches.factory import LeafFactory
from kvsim.caches.hybrid_idx import HybridIdx
from kvsim.caches.kv import KVCache
from kvsim.caches.pool_layout import CLEAN
from kvsim.context import Context
from kvsim.defrag import Defrag, Strategy

WITH_CELLS = [name for name in MODELS if not name.startswith("recurrent")]


def compactable(name: str, strategy: Strategy) -> Context:
    ctx = context(MODELS[name], kv_unified=True)
    for leaf in ctx.memory.leaves().values():
        if isinstance(leaf, KVCache):
            leaf.defrag = Defrag(strategy)
    return ctx


@pytest.mark.parametrize("name", WITH_CELLS)
@pytest.mark.parametrize("strategy", ["classic", "minimal"])
def test_a_moved_sequence_goes_on_as_if_it_had_not_been(name: str, strategy: Strategy) -> None:
    ctx = compactable(name, strategy)
    got, at = [], 0
    for step in (5, 3, 7, 1, 6):
        decode(ctx, [0], OTHER[at : at + step], at)
        got.append(decode(ctx, [1], TOKENS[at : at + step], at))
        at += step
    recurrent = ctx.memory.leaves().get("recurrent")
    assert ctx.memory.seq_rm(0, -1, -1)
    states = recurrent and recurrent.snapshot()
    # DeepSeek-V4 keeps a stream for each sequence even if asked not to: nothing is between its cells
    assert ctx.update(optimize=True) is (not name.startswith("dsv4"))
    assert (recurrent and recurrent.snapshot()) == states
    ctx.memory.check_integrity()
    got.append(decode(ctx, [1], TOKENS[at : at + 6], at))
    assert_same(np.concatenate(got), alone(MODELS[name], TOKENS[: at + 6]))


@pytest.mark.parametrize("name", [n for n in WITH_CELLS if n.split("-")[0] in ("kv", "iswa", "dsa", "msa")])
def test_the_historic_allocator_is_transparent_too(name: str) -> None:
    """Slots of one run, in caches of 64 cells with holes of three: a batch of six finds none, cells move,
    and it goes on."""
    sizes = dict.fromkeys(("kv", "base", "swa", "mla", "lid", "idx"), 64)
    like = context(MODELS[name], kv_unified=True)
    leaves = LeafFactory(data=True, sizes=sizes, contiguous=True, defrag=Defrag())
    ctx = Context(like.model, like.params, like.n_vocab, like.network, leaves)
    for at in range(0, 30, 3):
        decode(ctx, [0], OTHER[at : at + 3], at)
        decode(ctx, [1], TOKENS[at : at + 3], at)
    ctx.memory.seq_rm(0, -1, -1)
    assert_same(decode(ctx, [1], TOKENS[30:36], 30), alone(MODELS[name], TOKENS[:36])[30:])
    caches = [leaf for leaf in ctx.memory.leaves().values() if isinstance(leaf, KVCache)]
    assert any(cache.last_defrag for cache in caches)


def test_an_indexer_that_mirrors_attention_stays_its_mirror() -> None:
    for name in WITH_CELLS:
        if name.startswith("hybrid_idx"):
            ctx = compactable(name, "minimal")
            decode(ctx, [0], OTHER[:9], 0)
            decode(ctx, [1], TOKENS[:9], 0)
            ctx.memory.seq_rm(0, -1, -1)
            assert ctx.update(optimize=True)
            attn, idx = (ctx.memory.leaves()[part] for part in ("attn", "idx"))
            assert isinstance(attn, KVCache)
            assert isinstance(idx, KVCache)
            assert attn.cells[0].rows() == idx.cells[0].rows()
            assert attn.cells[0].pos[:9].tolist() == list(range(9))


@pytest.mark.parametrize("name", [name for name in WITH_CELLS if name.startswith("hybrid_idx")])
def test_pools_are_made_again_after_a_move(name: str) -> None:
    ctx = compactable(name, "classic")
    decode(ctx, [0], OTHER[:9], 0)
    decode(ctx, [1], TOKENS[:9], 0)
    ctx.memory.seq_rm(0, -1, -1)
    decode(ctx, [1], TOKENS[9:10], 9)
    memory = ctx.memory
    assert isinstance(memory, HybridIdx)
    assert memory.stale[1] == CLEAN
    assert ctx.update(optimize=True)
    assert list(memory.stale) == [0] * len(memory.stale)


def test_holes_in_the_raw_window_of_deepseek4_can_be_filled() -> None:
    """Compressed rows lie by position, not by cell, so only the raw rows move."""
    name = "dsv4-deepseek4"
    ctx = context(MODELS[name], n_rs_seq=2)
    for leaf in ctx.memory.leaves().values():
        if isinstance(leaf, KVCache):
            leaf.defrag = Defrag()
    decode(ctx, [0], TOKENS[:10], 0)
    raw = ctx.memory.leaves()["raw.swa"]
    assert isinstance(raw, KVCache)
    raw.heads[0] = 20  # so that the next cells lie apart
    got = decode(ctx, [0], TOKENS[10:16], 10)
    assert ctx.update(optimize=True)
    assert [report.fragmentation_after for report in raw.last_defrag] == [0.0]
    got = np.concatenate([got, decode(ctx, [0], TOKENS[16:24], 16)])
    assert_same(got, alone(MODELS[name], TOKENS[:24])[10:])
