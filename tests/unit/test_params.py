"""What a context makes of the parameters it is given, and what a header may not say."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import CacheUsageError, TraceError
from kvsim.models.context_params import ContextParams, resolve
from kvsim.models.params import LayerParams, ModelParams, RopeType, SwaType

TRACE = Path(__file__).parents[2] / "fixtures/traces/iswa/gemma3n-str-c256-u16-s2-f16-10.jsonl.gz"
LAYER = LayerParams(n_head_kv=2, n_embd_head_k=64, n_embd_head_v=64, n_rot=64)
LLAMA = ModelParams("llama", (LAYER, LAYER), n_ctx_train=4096, rope_type=RopeType.NORM)


def test_context_is_padded_to_256_cells() -> None:
    ctx = resolve(LLAMA, ContextParams(n_ctx=300, kv_unified=True))
    assert (ctx.n_ctx, ctx.n_ctx_seq) == (512, 512)


def test_context_of_streams_may_grow() -> None:
    """kv_cache.md 1: 600 is padded to 768, three streams get 256 each; four get 256 each: 1024."""
    three = resolve(LLAMA, ContextParams(n_ctx=600, n_seq_max=3))
    four = resolve(LLAMA, ContextParams(n_ctx=600, n_seq_max=4))
    assert (three.n_ctx, three.n_ctx_seq) == (768, 256)
    assert (four.n_ctx, four.n_ctx_seq) == (1024, 256)


def test_context_defaults_to_the_training_context() -> None:
    assert resolve(LLAMA, ContextParams()).n_ctx == 4096
    with pytest.raises(CacheUsageError, match="n_ctx = 0"):
        resolve(replace(LLAMA, n_ctx_train=0), ContextParams())


def test_batch_is_clamped_to_the_context_before_padding_if_causal() -> None:
    assert resolve(LLAMA, ContextParams(n_ctx=100)).n_batch == 100
    assert resolve(LLAMA, ContextParams(n_ctx=100, causal_attn=False)).n_batch == 2048


def test_ubatch_is_clamped_to_the_batch_and_zero_means_the_batch() -> None:
    assert resolve(LLAMA, ContextParams(n_batch=64, n_ubatch=512)).n_ubatch == 64
    assert resolve(LLAMA, ContextParams(n_batch=64, n_ubatch=0)).n_ubatch == 64


def test_snapshots_only_for_architectures_that_roll_back() -> None:
    assert resolve(LLAMA, ContextParams(n_rs_seq=2)).n_rs_seq == 0
    assert resolve(replace(LLAMA, arch="qwen35"), ContextParams(n_rs_seq=2)).n_rs_seq == 2


def test_quantised_values_need_flash_attention() -> None:
    with pytest.raises(CacheUsageError, match="needs flash attention"):
        resolve(LLAMA, ContextParams(type_v="q8_0", flash_attn=False))
    assert resolve(LLAMA, ContextParams(type_v="q8_0")).flash_attn


def test_grok_has_no_flash_attention() -> None:
    assert not resolve(replace(LLAMA, arch="grok"), ContextParams()).flash_attn


def test_one_row_for_keys_and_values_needs_one_type() -> None:
    with pytest.raises(CacheUsageError, match="the same type twice"):
        resolve(replace(LLAMA, is_mla=True), ContextParams(type_k="q8_0"))


def test_blocks_must_divide_the_head_with_flash_attention() -> None:
    odd = replace(LLAMA, layers=(replace(LAYER, n_embd_head_k=80),))
    with pytest.raises(CacheUsageError, match="K heads of 80 values"):
        resolve(odd, ContextParams(type_k="q4_0"))
    assert resolve(odd, ContextParams(type_k="q4_0", flash_attn=False)).type_k == "q4_0"


def test_unknown_type_names_the_known_ones() -> None:
    with pytest.raises(CacheUsageError, match=r"'q3_k'.*q8_0"):
        resolve(LLAMA, ContextParams(type_k="q3_k"))


def test_too_many_sequences() -> None:
    with pytest.raises(CacheUsageError, match="at most 256"):
        resolve(LLAMA, ContextParams(n_seq_max=257))


def test_mtp_needs_prediction_heads() -> None:
    with pytest.raises(CacheUsageError, match="no prediction heads"):
        resolve(LLAMA, ContextParams(mtp=True))


def test_yarn_magnitude_cancels_what_the_rope_kernel_multiplies() -> None:
    """With plain YaRN both are 1 + 0.1 ln(factor): nothing is left but the model's own factor."""
    yarn = replace(LLAMA, rope_scaling="yarn", rope_freq_scale_train=0.25, rope_attn_factor=1.5)
    ctx = resolve(yarn, ContextParams())
    assert ctx.yarn_ext_factor == 1.0
    assert ctx.yarn_attn_factor == pytest.approx(1.5)


def test_yarn_log_multiplier_of_deepseek() -> None:
    """mscale 1, mscale_all_dim 0.5, factor 4: (1 + .1386294) / (1 + .0693147) / (1 + .1386294)."""
    deepseek = replace(
        LLAMA, arch="deepseek32", rope_scaling="yarn", rope_freq_scale_train=0.25, rope_yarn_log_mul=0.5
    )
    assert resolve(deepseek, ContextParams()).yarn_attn_factor == pytest.approx(1 / 1.0693147, rel=1e-6)


def test_no_scaling_ignores_the_scale() -> None:
    unscaled = replace(LLAMA, rope_scaling="none", rope_freq_scale_train=0.5)
    assert resolve(unscaled, ContextParams()).rope_freq_scale == 1.0
    assert resolve(replace(unscaled, rope_scaling="linear"), ContextParams()).rope_freq_scale == 0.5


@given(
    n_ctx=st.integers(1, 100_000),
    n_seq_max=st.integers(1, 256),
    kv_unified=st.booleans(),
    n_batch=st.integers(1, 5000),
    n_ubatch=st.integers(0, 5000),
)
def test_resolved_sizes_always_fit_together(
    n_ctx: int, n_seq_max: int, kv_unified: bool, n_batch: int, n_ubatch: int
) -> None:
    asked = ContextParams(
        n_ctx=n_ctx, n_seq_max=n_seq_max, kv_unified=kv_unified, n_batch=n_batch, n_ubatch=n_ubatch
    )
    ctx = resolve(LLAMA, asked)
    assert ctx.n_ctx == ctx.n_ctx_seq * ctx.n_stream
    assert ctx.n_ctx_seq % 256 == 0
    assert ctx.n_ctx >= n_ctx
    assert 1 <= ctx.n_ubatch <= ctx.n_batch <= n_ctx


# -- headers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    with gzip.open(TRACE, "rt", encoding="utf-8") as lines:
        header: dict[str, Any] = json.loads(lines.readline())
    return header


def test_header_of_a_model_with_shared_layers(recorded: dict[str, Any]) -> None:
    model = ModelParams.from_header(recorded)
    assert (model.arch, model.n_layer_all, model.n_layer_kv_from_start) == ("gemma3n", 22, 20)
    assert (model.swa_type, model.n_swa, model.rope_type) == (SwaType.STANDARD, 32, RopeType.NEOX)
    assert [il for il, layer in enumerate(model.layers) if not model.has_kv(il)] == [20, 21]
    assert model.layers[0] == LayerParams(
        is_swa=True, n_head_kv=1, n_embd_head_k=64, n_embd_head_v=64, n_rot=64
    )


def hparams(header: dict[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = header["config"]["hparams"]
    return record


def params(header: dict[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = header["config"]["params"]
    return record


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda h: hparams(h).update(n_layer_all=21), "n_layer_all = 21 contradicts the number of layers"),
        (lambda h: hparams(h).update(layers=[]), "0 entries"),
        (lambda h: hparams(h).update(layers={}), "must be a list, not dict"),
        (lambda h: hparams(h).update(n_swa=-1), r"n_swa = -1 is out of range"),
        (lambda h: hparams(h).update(swa_type=7), "swa_type = 7 is unknown"),
        (lambda h: hparams(h).update(swa_type=0), "but a layer has is_swa"),
        (lambda h: hparams(h).update(rope_type=1), "rope_type = 1 is unknown"),
        (lambda h: hparams(h).update(n_pos_per_embd=4), "n_pos_per_embd = 4 contradicts rope_type"),
        (
            lambda h: hparams(h)["layers"][3].update(n_head_kv="two"),
            r"layers\[3\].n_head_kv must be an integer",
        ),
        (
            lambda h: hparams(h)["layers"][3].update(n_embd_k_gqa=65),
            r"layers\[3\].n_embd_k_gqa = 65 contradicts",
        ),
        (lambda h: hparams(h)["layers"][0].update(has_kv=False), r"layers\[0\].has_kv = False contradicts"),
        (lambda h: hparams(h)["layers"][0].update(n_head_kv=2**30), "out of range"),
        (lambda h: hparams(h)["layers"][0].update(is_swa=2), "must be true or false"),
        (lambda h: hparams(h).pop("n_swa"), "n_swa is missing"),
        (lambda h: h["config"]["rope_layers"].pop(), "21 entries for 22 layers"),
        (lambda h: h["config"].pop("cparams"), "config.cparams is missing"),
        (lambda h: h.update(config=3), "config must be an object"),
    ],
)
def test_contradictory_header_says_where(
    recorded: dict[str, Any], damage: Callable[[dict[str, Any]], object], message: str
) -> None:
    header = copy.deepcopy(recorded)
    damage(header)
    with pytest.raises(TraceError, match=message):
        ModelParams.from_header(header)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda h: params(h).update(n_ctx=2**40), "n_ctx = 1099511627776 is out of range"),
        (lambda h: params(h).update(n_ctx=0), "n_ctx = 0 is out of range"),
        (lambda h: params(h).update(n_seq_max=300), "n_seq_max = 300 is out of range"),
        (lambda h: params(h).update(type_k=8), "type_k must be a string"),
        (lambda h: params(h).update(flash_attn="yes"), "flash_attn must be true or false"),
        (lambda h: params(h).pop("n_ubatch"), "n_ubatch is missing"),
    ],
)
def test_impossible_context_says_where(
    recorded: dict[str, Any], damage: Callable[[dict[str, Any]], object], message: str
) -> None:
    header = copy.deepcopy(recorded)
    damage(header)
    with pytest.raises(TraceError, match=message):
        ContextParams.from_header(header)
