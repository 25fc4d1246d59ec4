"""Transparency, seen through the probe: what a sequence reads does not depend on how it got into the cache.

The probe's blocks look at tokens and positions only, so decoding the same tokens at the same positions
must give the same logits however they are cut into batches, wherever their cells lie, and whatever else
happened in the memory. Checked for every architecture that recordings exist of.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from probe_contexts import MODELS, OTHER, TOKENS, context, decode

from kvsim.batch import Batch
from kvsim.caches.kv_view import KVView
from kvsim.context import Context
from kvsim.errors import CacheUsageError
from kvsim.memory import BoolArray
from kvsim.models.params import ModelParams

TOLERANCE = 1e-4
"""On logits of up to 90: rows are rounded to float32 in another order."""


ATTENTION = [name for name in MODELS if name.split("-")[0] in ("kv", "iswa", "dsa", "dsa_iswa", "msa")]
ROLLBACK = [name for name in MODELS if MODELS[name].arch in ("lfm2", "qwen35", "qwen4exp", "glm5-next")]


def alone(model: ModelParams, tokens: list[int], start: int = 0, **asked: Any) -> NDArray[np.float32]:
    """The logits of tokens decoded in one ubatch of a fresh context."""
    return decode(context(model, n_ubatch=64, **asked), [0], tokens, start)


def assert_same(got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)


def test_every_memory_has_a_model() -> None:
    assert len(MODELS) == 25
    assert len({name.split("-")[0] for name in MODELS}) == 10


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"kv_unified": True},
        {"kv_unified": True, "flash_attn": True, "type_k": "f16", "type_v": "f16"},
        {"flash_attn": True, "type_k": "q8_0", "type_v": "q8_0"},
    ],
    ids=["streams", "unified", "unified-flash-f16", "streams-flash-q8_0"],
)
def test_pieces_between_another_sequence_equal_one_piece(name: str, asked: dict[str, Any]) -> None:
    want = alone(MODELS[name], TOKENS, **asked)
    ctx = context(MODELS[name], **asked)
    got, at, other_at = [], 0, 0
    for step in (5, 1, 11, 3, 9, 7):
        got.append(decode(ctx, [1], TOKENS[at : at + step], at))
        decode(ctx, [0], OTHER[other_at : other_at + 5], other_at)
        at, other_at = at + step, other_at + 5
    assert_same(np.concatenate(got), want)


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(MODELS)),
    kv_unified=st.booleans(),
    n_ubatch=st.integers(1, 16),
    pieces=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=4, max_size=10),
)
def test_any_interleaving_is_transparent(
    name: str, kv_unified: bool, n_ubatch: int, pieces: list[tuple[int, bool]]
) -> None:
    """Two sequences, in pieces of any size and order, with any ubatch size."""
    ctx = context(MODELS[name], kv_unified=kv_unified, n_ubatch=n_ubatch)
    at, got = [0, 0], ([], [])
    for n, second in pieces:
        s, tokens = int(second), (TOKENS, OTHER)[int(second)]
        part = tokens[at[s] : at[s] + n]
        if part:
            got[s].append(decode(ctx, [s], part, at[s]))
            at[s] += len(part)
    for s, tokens in enumerate((TOKENS, OTHER)):
        if at[s]:
            assert_same(np.concatenate(got[s]), alone(MODELS[name], tokens[: at[s]]))


@pytest.mark.parametrize("name", ATTENTION)
def test_a_removed_tail_leaves_no_trace(name: str) -> None:
    """Within the window that is left: 20 tokens, 4 removed, other 4 in their place."""
    ctx = context(MODELS[name])
    decode(ctx, [0], TOKENS[:16] + OTHER[:4], 0)
    assert ctx.memory.seq_rm(0, 16, -1)
    assert_same(decode(ctx, [0], TOKENS[16:20], 16), alone(MODELS[name], TOKENS[:20])[16:])


@pytest.mark.parametrize("name", ROLLBACK)
def test_a_rolled_back_state_leaves_no_trace(name: str) -> None:
    """The last three tokens in one ubatch, two of them taken back."""
    ctx = context(MODELS[name], n_rs_seq=2)
    decode(ctx, [0], TOKENS[:13], 0)
    decode(ctx, [0], [TOKENS[13], *OTHER[:2]], 13)
    assert ctx.memory.seq_rm(0, 14, -1)
    assert_same(decode(ctx, [0], TOKENS[14:20], 14), alone(MODELS[name], TOKENS[:20])[14:])


def test_a_rolled_back_compressor_leaves_no_trace() -> None:
    """DeepSeek-V4: the rings go back two tokens, over the end of a block of four."""
    model = MODELS["dsv4-deepseek4"]
    ctx = context(model, n_rs_seq=2)
    decode(ctx, [0], TOKENS[:10], 0)
    decode(ctx, [0], [TOKENS[10], *OTHER[:2]], 10)
    assert ctx.memory.seq_rm(0, 11, -1)
    assert_same(decode(ctx, [0], TOKENS[11:20], 11), alone(model, TOKENS[:20])[11:])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kv_unified", [False, True], ids=["streams", "unified"])
def test_a_copy_goes_on_as_the_original(name: str, kv_unified: bool) -> None:
    ctx = context(MODELS[name], kv_unified=kv_unified)
    decode(ctx, [0], TOKENS[:14], 0)
    ctx.memory.seq_cp(0, 1, -1, -1)
    decode(ctx, [0], OTHER[:6], 14)
    assert_same(decode(ctx, [1], TOKENS[14:20], 14), alone(MODELS[name], TOKENS[:20])[14:])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kv_unified", [False, True], ids=["streams", "unified"])
def test_a_restored_sequence_goes_on_as_the_saved_one(name: str, kv_unified: bool) -> None:
    """Saved, and restored as another sequence into other cells of a fresh context."""
    ctx = context(MODELS[name], kv_unified=kv_unified)
    decode(ctx, [0], TOKENS[:14], 0)
    saved = ctx.state_seq_get(0)
    fresh = context(MODELS[name], kv_unified=kv_unified)
    decode(fresh, [0], OTHER[:5], 0)
    assert fresh.state_seq_set(saved, 1) == len(saved)
    assert_same(decode(fresh, [1], TOKENS[14:20], 14), alone(MODELS[name], TOKENS[:20])[14:])


@pytest.mark.parametrize("name", [n for n in MODELS if "qwen4exp" not in n and "recurrent" not in n])
def test_a_shared_prompt_is_read_by_each(name: str) -> None:
    """Recurrent memories split by sequence and refuse shared tokens, n-gram models too."""
    ctx = context(MODELS[name], kv_unified=True)
    shared = decode(ctx, [0, 1], TOKENS[:12], 0)
    assert_same(shared, alone(MODELS[name], TOKENS[:12]))
    decode(ctx, [0], OTHER[:4], 12)
    assert_same(decode(ctx, [1], TOKENS[12:18], 12), alone(MODELS[name], TOKENS[:18])[12:])


@pytest.mark.parametrize("name", ["kv-llama", "kv-llama-h32", "msa-minimax-m3"])
def test_shifted_keys_equal_keys_written_there(name: str) -> None:
    """Ten tokens leave at the front and the rest moves up: as if it had been decoded there."""
    ctx = context(MODELS[name])
    decode(ctx, [0], OTHER[:10], 0)
    decode(ctx, [0], TOKENS[:16], 10)
    ctx.memory.seq_rm(0, 0, 10)
    ctx.memory.seq_add(0, 10, -1, -10)
    assert_same(decode(ctx, [0], TOKENS[16:20], 16), alone(MODELS[name], TOKENS[:20])[16:])


def test_shifted_index_keys_are_wrong_as_in_llama_cpp() -> None:
    """dsa.md, Surprise 2: they are stored Hadamard-mixed, and turned as if they were not."""
    model = MODELS["dsa-deepseek32"]
    ctx = context(model)
    decode(ctx, [0], OTHER[:10], 0)
    decode(ctx, [0], TOKENS[:16], 10)
    ctx.memory.seq_rm(0, 0, 10)
    ctx.memory.seq_add(0, 10, -1, -10)
    got = decode(ctx, [0], TOKENS[16:20], 16)
    assert np.abs(got - alone(model, TOKENS[:20])[16:]).max() > 0.1


@pytest.mark.parametrize("name", [n for n in MODELS if "recurrent" not in n and "hybrid_idx" not in n])
def test_what_another_sequence_holds_would_be_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests can fail: with masks that ignore owners and windows, sequences read one another.

    Recurrent memories have no mask, and pools are chosen by sequence whatever the mask says.
    """
    monkeypatch.setattr(KVView, "mask", _every_used_cell)
    ctx = context(MODELS[name], kv_unified=True)
    decode(ctx, [0], OTHER[:10], 0)
    got = decode(ctx, [1], TOKENS[:6], 0)
    if name.startswith("dsv4"):  # one stream per sequence, so only the causal order is lost
        want = decode(context(MODELS[name]), [0], TOKENS[:1], 0)
        assert np.abs(got[:1] - want).max() > 0.1
    else:
        assert np.abs(got - alone(MODELS[name], TOKENS[:6])).max() > 0.1


def _every_used_cell(view: KVView, causal: bool = True) -> BoolArray:
    table = view.cache.cells[view.slot.strm[0]]
    return np.broadcast_to(table.pos[: view.n_kv] >= 0, (view.ubatch.n_tokens, view.n_kv)).copy()


def test_seeds() -> None:
    model = MODELS["kv-llama"]
    first, again, other = (decode(context(model, seed), [0], TOKENS[:4], 0) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1


def test_embeddings_count_as_one_token() -> None:
    ctx = context(MODELS["kv-llama"])
    batch = Batch(embd=np.zeros((3, 128), np.float32), output=[1, 1, 1])
    assert ctx.decode(batch) == 0
    assert ctx.logits is not None
    assert np.isfinite(ctx.logits).all()


def test_a_memory_without_rows_is_refused() -> None:
    for name in ("kv-llama", "recurrent-mamba"):
        ctx = context(MODELS[name])
        bare = Context(ctx.model, ctx.params, network=ctx.network)
        with pytest.raises(CacheUsageError, match=r"LeafFactory\(data=True\)"):
            bare.decode(Batch.tokens_of(0, [1]))
