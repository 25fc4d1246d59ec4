"""What a probe reads through any memory equals what the definitions give without one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_contexts import MODELS, N_VOCAB, OTHER, TOKENS, context, decode
from readings import Readings

from kvsim.batch import Batch

GAPLESS = ("recurrent", "hybrid", "hybrid_iswa", "hybrid_idx", "dsv4")
"""Memories from which nothing can be removed in the middle."""


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kv_unified", [False, True], ids=["streams", "unified"])
def test_readings_are_true(name: str, kv_unified: bool) -> None:
    """Two sequences in turn, in pieces of several ubatches."""
    ctx = context(MODELS[name], kv_unified=kv_unified)
    readings = Readings(ctx)
    for start, end in ((0, 7), (7, 8), (8, 20), (20, 36)):
        decode(ctx, [1], TOKENS[start:end], start)
        decode(ctx, [0], OTHER[start:end], start)
    readings.assert_true(1, TOKENS, list(range(36)), last=36)
    readings.assert_true(0, OTHER, list(range(36)), last=36)


@pytest.mark.parametrize("arch", ["glm-dsa", "hy_v4"])
def test_layers_that_share_a_selection_are_true(arch: str) -> None:
    """Of the recorded blocks only the first has an indexer; the indexers of these two turn otherwise."""
    recorded = MODELS["dsa-deepseek32"]
    layers = [replace(layer, indexer_full=il == 0) for il, layer in enumerate(recorded.layers)]
    ctx = context(replace(recorded, arch=arch, layers=type(recorded.layers)(layers)))
    assert [layer.il for layer in ctx.memory.leaves()["lid"].spec.layers] == [0]
    readings = Readings(ctx)
    decode(ctx, [0], TOKENS, 0)
    readings.assert_true(0, TOKENS, list(range(36)), last=36)


@pytest.mark.parametrize("name", [n for n in MODELS if n.startswith("msa")])
def test_chosen_blocks_are_true(name: str) -> None:
    """Block-sparse attention runs with flash attention, one sequence per stream; of one token it gathers."""
    model = replace(MODELS[name], indexer_top_k=3)
    ctx = context(model, flash_attn=True)
    readings = Readings(ctx)
    decode(ctx, [0], OTHER[:30], 0)
    decode(ctx, [1], TOKENS[:20], 0)
    for pos in range(20, 36):
        decode(ctx, [1], TOKENS[pos : pos + 1], pos)
    readings.assert_true(1, TOKENS, list(range(36)), last=36, tolerance=5e-3)  # flash attention reads f16
    sparse = ctx.memory.leaves()["idx"].spec.map_layer_ids
    assert {il: n > 0 for il, n in readings.left_out.items()} == {il: il in sparse for il in range(2)}


@pytest.mark.parametrize("name", [n for n in MODELS if "hca" in n or "dsv4" in n])
def test_rows_of_128_tokens_are_true(name: str) -> None:
    ctx = context(MODELS[name], n_ubatch=32)
    readings = Readings(ctx)
    tokens = [(11 * i * i + 7 * i) % N_VOCAB for i in range(140)]
    for start in range(0, 140, 28):
        decode(ctx, [0], tokens[start : start + 28], start)
    readings.assert_true(0, tokens, list(range(140)), last=140)


@pytest.mark.parametrize("name", [n for n in MODELS if n.split("-")[0] not in GAPLESS])
def test_readings_over_a_gap_are_true(name: str) -> None:
    """Positions 6 to 11 are removed; later ones stay where they are."""
    ctx = context(MODELS[name])
    readings = Readings(ctx)
    decode(ctx, [0], TOKENS[:20], 0)
    assert ctx.memory.seq_rm(0, 6, 12)
    decode(ctx, [0], TOKENS[20:28], 20)
    kept = [*range(6), *range(12, 28)]
    readings.assert_true(0, [TOKENS[p] for p in kept], kept, last=8)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from([n for n in sorted(MODELS) if n.startswith("kv-llama")]),
    edits=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8), st.integers(-6, 6)), max_size=4),
)
def test_readings_after_any_removals_and_shifts_are_true(
    name: str, edits: list[tuple[int, int, int]]
) -> None:
    """Each edit removes a range, moves what follows, and decodes three more tokens."""
    ctx = context(MODELS[name])
    readings = Readings(ctx)
    held = dict(enumerate(TOKENS[:20]))
    decode(ctx, [0], TOKENS[:20], 0)
    for p0, n, delta in edits:
        ctx.memory.seq_rm(0, p0, p0 + n)
        held = {p: t for p, t in held.items() if not p0 <= p < p0 + n}
        ctx.memory.seq_add(0, p0 + n, -1, -n + min(delta, n))
        moved = {p: p - n + min(delta, n) if p >= p0 + n else p for p in held}
        if len(set(moved.values())) < len(held) or min(moved.values(), default=0) < 0 or not held:
            return  # two tokens at one position: no order is defined
        held = {moved[p]: t for p, t in held.items()}
        start = max(held) + 1
        new = OTHER[start % 30 : start % 30 + 3]
        assert ctx.decode(Batch.tokens_of(0, new, start)) == 0
        held |= dict(enumerate(new, start))
        pos = sorted(held)
        readings.assert_true(0, [held[p] for p in pos], pos, last=3)
