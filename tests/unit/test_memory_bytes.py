"""Bytes of a memory by literal arithmetic, and the largest that fits a budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import CacheUsageError
from kvsim.models.context_params import ContextParams
from kvsim.models.known import KNOWN, known_model
from kvsim.models.memory_bytes import MemoryReport, fit_context, fit_sequences, memory_bytes
from kvsim.models.params import LayerParams, ModelParams, SwaType

GIB = 2**30
DSV4 = ModelParams(
    "deepseek4",
    tuple(
        LayerParams(is_swa=True, n_head_kv=1, n_embd_head_k=64, n_embd_head_v=64, compress_ratio=ratio)
        for ratio in (0, 4, 128)
    ),
    swa_type=SwaType.STANDARD,
    n_swa=32,
    indexer_head_size=128,
    n_embd_head_k_full=64,
)


def report(name: str, **params: object) -> MemoryReport:
    return memory_bytes(known_model(name), replace(ContextParams(), **params))


def test_llama2_7b_takes_2_gib_for_4096_tokens() -> None:
    """32 blocks * 4096 cells * (4096 + 4096) values * 2 bytes."""
    assert report("llama2-7b", n_ctx=4096).total == 2 * GIB


def test_quantised_rows() -> None:
    """q8_0 takes 34 bytes for 32 values, q4_0 18."""
    got = report("llama2-7b", n_ctx=4096, type_k="q8_0", type_v="q4_0")
    assert {part.rows_of: part.bytes for part in got.parts} == {
        "K": 32 * 4096 * 4096 // 32 * 34,
        "V": 32 * 4096 * 4096 // 32 * 18,
    }


def test_gemma3_4b_window_cache() -> None:
    """5 of 34 blocks are dense; the others keep 1024 + 512 cells of 2 * 4 heads * 256 values."""
    got = report("gemma3-4b", n_ctx=131072, swa_full=False)
    assert got.kind == "iswa"
    assert got.by_part() == {"base": 5 * 131072 * 2048 * 2, "swa": 29 * 1536 * 2048 * 2}


def test_swa_full_makes_the_window_cache_as_long() -> None:
    assert report("gemma3-4b", n_ctx=131072, swa_full=True).total == 34 * 131072 * 2048 * 2


def test_latent_attention_has_no_values() -> None:
    """DeepSeek-V3: 61 blocks * 576 values * 2 bytes for a token."""
    got = report("deepseek-v3", n_ctx=256)
    assert got.total == 256 * 61 * 576 * 2
    assert [part.rows_of for part in got.parts] == ["K"]


def test_indexer_keys_beside_the_latents() -> None:
    got = report("deepseek-v3.2", n_ctx=1024)
    assert got.by_part() == {"mla": 1024 * 61 * 576 * 2, "lid": 1024 * 61 * 128 * 2}


def test_recurrent_states_do_not_grow_with_the_context() -> None:
    """Mamba 2.8B: 64 blocks * (3 * 5120 + 16 * 5120) f32 values for a sequence."""
    small, large = report("mamba-2.8b", n_ctx=256), report("mamba-2.8b", n_ctx=65536)
    assert small.total == large.total == 64 * (3 + 16) * 5120 * 4
    assert report("mamba-2.8b", n_ctx=1024, n_seq_max=4).total == 4 * small.total


def test_rollback_planes_multiply_recurrent_states() -> None:
    planes = {n: report("lfm2-1.2b", n_ctx=256, n_rs_seq=n).by_part() for n in (0, 3)}
    assert planes[0]["recurrent"] == 10 * 2048 * 2 * 4
    assert planes[3]["recurrent"] == 4 * planes[0]["recurrent"]
    assert planes[3]["attn"] == planes[0]["attn"]


def test_compressed_rows_and_rings() -> None:
    """n_ctx 1024: 256 rows for csa and lid, 256 (padded from 8) for hca; rings of 8 and 128 rows twice."""
    got = memory_bytes(DSV4, ContextParams(n_ctx=1024, n_ubatch=64, n_rs_seq=1, swa_full=False))
    assert got.by_part() == {
        "raw.swa": 3 * 256 * 64 * 2,
        "csa": 256 * 64 * 2,
        "hca": 256 * 64 * 2,
        "lid": 256 * 128 * 2,
        "csa ring": 2 * 2 * 8 * 128 * 4,
        "hca ring": 2 * 2 * 128 * 64 * 4,
        "lid ring": 2 * 2 * 8 * 256 * 4,
    }


def test_encoders_take_nothing() -> None:
    bert = ModelParams("bert", (LayerParams(),), n_ctx_train=512)
    got = memory_bytes(bert, ContextParams())
    assert (got.kind, got.total) == (None, 0)


def test_a_draft_that_shares_its_targets_rows_takes_nothing() -> None:
    """Gemma4-assistant (models.md 4)."""
    layers = (LayerParams(is_swa=True, n_head_kv=1, n_embd_head_k=64, n_embd_head_v=64), LayerParams())
    draft = ModelParams("gemma4-assistant", layers, swa_type=SwaType.STANDARD, n_swa=8)
    got = memory_bytes(draft, ContextParams(n_ctx=256))
    assert (got.kind, got.total) == ("iswa", 0)


def test_json_has_parts_and_total() -> None:
    got = report("llama2-7b", n_ctx=256).to_json()
    assert got["total"] == 256 * 32 * 8192 * 2
    assert got["parts"][0]["part"] == "kv"
    assert got["parts"][0]["type"] == "f16"


def test_rows_that_no_block_divides_are_refused() -> None:
    odd = ModelParams("llama", (LayerParams(n_head_kv=1, n_embd_head_k=80, n_embd_head_v=80),))
    with pytest.raises(CacheUsageError, match="80 values"):
        memory_bytes(odd, ContextParams(n_ctx=256, type_k="q8_0", flash_attn=False))


# -- the reverse ----------------------------------------------------------------------------------


def test_largest_context_in_a_budget() -> None:
    """Llama 2 7B takes 512 KiB a token: 24 GiB hold 49,152 of them."""
    fit = fit_context(known_model("llama2-7b"), ContextParams(), 24 * GIB)
    assert fit is not None
    assert (fit.params.n_ctx, fit.report.total) == (49152, 24 * GIB)


def test_most_sequences_in_a_budget() -> None:
    """Llama 3 8B takes 128 KiB a token: 24 sequences of 8,192 fill 24 GiB."""
    fit = fit_sequences(known_model("llama3-8b"), ContextParams(n_ctx=8192), 24 * GIB)
    assert fit is not None
    assert (fit.params.n_seq_max, fit.report.n_ctx_seq, fit.report.total) == (24, 8192, 24 * GIB)


def test_nothing_fits() -> None:
    assert fit_context(known_model("llama2-7b"), ContextParams(), 1000) is None
    assert fit_sequences(known_model("llama2-7b"), ContextParams(n_ctx=256), 1000) is None


def test_recurrent_model_fits_its_training_context() -> None:
    fit = fit_context(known_model("mamba-2.8b"), ContextParams(), GIB)
    assert fit is not None
    assert fit.params.n_ctx == 1048576


@pytest.mark.parametrize("name", ["llama3-8b", "gemma3-4b"])
def test_a_budget_without_bounds_is_not_held_to_the_training_context(name: str) -> None:
    """The longest context llama.cpp can be asked for, 2**31 - 257 rounded down to a multiple of 256."""
    fit = fit_context(known_model(name), ContextParams(swa_full=False), 2**63)
    assert fit is not None
    assert fit.params.n_ctx == 2**31 - 512


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(KNOWN)),
    budget=st.integers(1, 64 * GIB),
    kv_unified=st.booleans(),
    n_seq_max=st.integers(1, 8),
)
def test_the_fit_is_the_largest(name: str, budget: int, kv_unified: bool, n_seq_max: int) -> None:
    """It fits, and 256 cells more per stream would not."""
    model = known_model(name)
    asked = ContextParams(kv_unified=kv_unified, n_seq_max=n_seq_max, swa_full=False)
    fit = fit_context(model, asked, budget)
    streams = 1 if kv_unified else n_seq_max
    if fit is None:
        assert memory_bytes(model, replace(asked, n_ctx=256 * streams)).total > budget
        return
    assert fit.report.total <= budget
    if memory_bytes(model, replace(asked, n_ctx=2**30)).total > budget:
        more = replace(fit.params, n_ctx=fit.params.n_ctx + 256 * streams)
        assert memory_bytes(model, more).total > budget
