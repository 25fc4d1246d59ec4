"""From a model file's metadata to :class:`ModelParams`.

Source: ``llama_model_base::load_hparams`` (``src/llama-model.cpp``) and ``load_arch_hparams`` of each
architecture (``src/models/*.cpp``). Left out: rope factors of long contexts (``rope_factors_long``),
which change no size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvsim.errors import ModelError
from kvsim.models.arch import KNOWN_ARCHS, REUSE
from kvsim.models.gguf_metadata import read_header
from kvsim.models.indexers import compress_ratios, ngram_rows, own_indexers, with_indexer
from kvsim.models.metadata import Metadata
from kvsim.models.params import MAX_LAYERS, LayerParams, ModelParams, RopeType
from kvsim.models.recurrent_shapes import conv_width, recurrent_blocks, state_width
from kvsim.models.rope_types import rope_type_of
from kvsim.models.windows import Window, window_of

MLA_ARCHS = frozenset(
    {"bailingmoe3", "deepseek2", "deepseek32", "dots3note", "glm-dsa", "glm5-next", "hy_v4", "kimi-k3"}
    | {"kimi-linear", "mistral4"}
)
"""Attention keys are a latent and a rope part; K-only caches if the file says so."""

KV_LORA_ARCHS = MLA_ARCHS | {"minicpm3", "plm"}
LATENT_VALUE_ARCHS = frozenset({"glm5-next", "kimi-k3"})
GRANITES = frozenset({"granite", "granitemoe", "granitehybrid", "graniteswitch"})
YARN_LOG_ARCHS = {"deepseek2": 10.0, "mistral4": 10.0, "deepseek32": 10.0, "mistral3": 1.0}
"""Factor on the file's YaRN log multiplier (DeepSeek's converter stores a tenth)."""


def read_model(path: str | Path) -> ModelParams:
    """The model in a GGUF file. Raises ModelError if the file is damaged, or no model for kvsim."""
    header = read_header(path)
    try:
        model = model_from_metadata(header.values, header.tensors)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    if "rope_freqs.weight" in header.tensors:
        factors = tuple(header.floats("rope_freqs.weight").tolist())
        model = _with_rope_factors(model, factors)
    return model


def model_from_metadata(values: Mapping[str, Any], tensors: Collection[str] = ()) -> ModelParams:
    """The model that a file with these key-value pairs (and tensor names) holds.

    Raises ModelError naming the key that is missing or impossible, or the architecture if unknown.
    """
    meta = Metadata(values, tensors)
    arch = meta.arch
    if arch not in KNOWN_ARCHS:
        raise ModelError(f"unknown architecture {arch!r}")
    n_layer_all, n_layer_nextn = _block_counts(meta)
    n_layer = n_layer_all - n_layer_nextn
    heads = _heads(meta, n_layer_all)
    head_k, head_v, n_rot = _head_sizes(meta, heads)
    kv_heads = meta.per_layer("attention.head_count_kv", n_layer_all, heads)
    is_ffn = [False] * n_layer_all
    if arch in ("nemotron_h", "nemotron_h_moe"):
        is_ffn = [n_ff > 0 for n_ff in meta.per_layer("feed_forward_length", n_layer_all, 0)]
    is_recr = recurrent_blocks(meta, n_layer_all, n_layer, kv_heads, is_ffn)
    base, scale = meta.number("rope.freq_base", 10000.0), _rope_scale(meta)
    window = window_of(meta, n_layer_all, n_layer, is_recr, (base, scale))
    sections = _sections(meta)
    ratios = compress_ratios(meta, n_layer_all)
    full = LayerParams(n_embd_head_k=head_k, n_embd_head_v=head_v, n_rot=n_rot)
    swa = LayerParams(
        is_swa=True,
        n_embd_head_k=meta.integer("attention.key_length_swa", head_k),
        n_embd_head_v=meta.integer("attention.value_length_swa", head_v),
        n_rot=meta.integer("rope.dimension_count_swa", n_rot),
    )
    if arch == "step35":
        full = replace(full, n_rot=n_rot // 2)
    indexers = own_indexers(meta, n_layer)
    histories = ngram_rows(meta, n_layer_all)
    roped = _roped_blocks(meta, n_layer_all)
    layers = tuple(
        replace(
            swa if window.is_swa[il] else full,
            is_recr=is_recr[il],
            is_ffn=is_ffn[il] and not is_recr[il],
            indexer_full=il < n_layer and indexers[il],
            n_head_kv=kv_heads[il],
            compress_ratio=ratios[il],
            n_embd_p=histories[il],
            has_rope=roped[il],
        )
        for il in range(n_layer_all)
    )
    model = ModelParams(
        arch=arch,
        layers=layers,
        n_embd=meta.integer("embedding_length"),
        n_layer_nextn=n_layer_nextn,
        n_layer_kv_from_start=_owners(meta, n_layer_all),
        n_layer_dense_lead=n_layer if arch == "lfm2" else meta.integer("leading_dense_block_count", 0),
        rope_type=rope_type_of(arch, sections, meta.integer("hyper_connection.count", 0)),
        rope_sections=sections,
        n_ctx_train=meta.integer("context_length", hi=2**31 - 1),
        causal_attn=bool(meta.get("attention.causal", True)),
        use_alibi=_alibi(meta, n_layer),
        is_mla=arch in MLA_ARCHS
        and meta.integer("attention.key_length_mla", 0) > 0
        and meta.integer("attention.value_length_mla", 0) > 0,
        has_kv_lora=arch in KV_LORA_ARCHS and meta.integer("attention.kv_lora_rank", 0) > 0,
        n_embd_head_k_full=head_k,
        n_embd_r=conv_width(meta, heads),
        n_embd_s=state_width(meta, heads, head_k),
    )
    model = _with_window(model, window)
    model = _with_rope(model, meta, base, scale)
    model = with_indexer(model, meta)
    return _with_router(model, meta) if arch == "graniteswitch" else model


def _block_counts(meta: Metadata) -> tuple[int, int]:
    n_layer_all = meta.integer("block_count")
    if meta.arch == "nanbeige":  # the same blocks run several times, each pass with rows of its own
        n_layer_all *= max(1, meta.integer("num_loops", 1))
    if not 1 <= n_layer_all <= MAX_LAYERS:
        raise meta.fail("block_count", n_layer_all, f"1 to {MAX_LAYERS}")
    n_layer_nextn = meta.integer("nextn_predict_layers", 0, hi=n_layer_all)
    first_head = f"blk.{n_layer_all - n_layer_nextn}.nextn.eh_proj.weight"
    if meta.arch == "deepseek4" and first_head not in meta.tensors:
        n_layer_nextn = 0
    return n_layer_all, n_layer_nextn


def _heads(meta: Metadata, n_layer_all: int) -> list[int]:
    n_blocks = meta.integer("block_count")
    heads = meta.per_layer("attention.head_count", n_blocks, 0)
    return (heads * (n_layer_all // n_blocks))[:n_layer_all]


def _head_sizes(meta: Metadata, heads: list[int]) -> tuple[int, int, int]:
    """Widths of a key and a value head and the rotated dimensions; 0 for models without heads."""
    if heads[0] == 0 and meta.arch != "plamo2":
        return 0, 0, 0
    n_embd = meta.integer("embedding_length")
    usual = n_embd // heads[0] if heads[0] else 0
    head_k = meta.integer("attention.key_length", usual)
    head_v = meta.integer("attention.value_length", usual)
    if meta.arch in LATENT_VALUE_ARCHS:
        head_v = meta.integer("attention.kv_lora_rank")
    n_rot = meta.integer("rope.dimension_count", head_k) if heads[0] else 0
    return head_k, head_v, n_rot


def _roped_blocks(meta: Metadata, n_layer_all: int) -> list[bool]:
    """Which blocks turn their keys at all: Granite models say so in the file."""
    if meta.arch == "granite_swa":
        return [bool(v) for v in meta.per_layer("attention.rope_pattern", n_layer_all, 1)]
    return [meta.arch not in GRANITES or bool(meta.get("rope.scaling.finetuned", True))] * n_layer_all


def _rope_scale(meta: Metadata) -> float:
    factor = meta.number("rope.scaling.factor", meta.get("rope.scale_linear", 0.0))
    return 1.0 / factor if factor else 1.0


def _sections(meta: Metadata) -> tuple[int, ...]:
    sections = meta.integers("rope.dimension_sections", []) if meta.arch in _SECTIONED else []
    return tuple([*sections, 0, 0, 0, 0][:4])


_SECTIONED = frozenset(
    {"bailingmoe3", "clef", "deepseek32", "dflash", "ernie4_5", "ernie4_5-moe", "glm-dsa", "glm4", "glm4moe"}
    | {"hunyuan-dense", "hunyuan_vl", "paddleocr", "qwen2vl", "qwen35", "qwen35moe", "qwen3tts", "qwen3vl"}
    | {"qwen3vlmoe", "qwen4exp"}
)


def _owners(meta: Metadata, n_layer_all: int) -> int:
    """How many first blocks own a cache, where later ones share (-1 = all)."""
    if meta.arch not in REUSE:
        return -1
    if meta.arch == "gemma3n":
        return 20
    return n_layer_all - meta.integer("attention.shared_kv_layers", 0, hi=n_layer_all)


def _alibi(meta: Metadata, n_layer: int) -> bool:
    if meta.arch in ("jais", "mpt"):
        return meta.number("attention.max_alibi_bias", 0.0) > 0
    return meta.arch in ("bloom", "refact", "jina-bert-v2") or (meta.arch == "baichuan" and n_layer == 40)


def _with_window(model: ModelParams, window: Window) -> ModelParams:
    return replace(
        model,
        n_swa=window.n_swa,
        swa_type=window.type,
        rope_freq_base_train_swa=window.freq_base,
        rope_freq_scale_train_swa=window.freq_scale,
    )


def _with_rope(model: ModelParams, meta: Metadata, base: float, scale: float) -> ModelParams:
    model = replace(
        model,
        rope_freq_base_train=base,
        rope_freq_scale_train=scale,
        rope_scaling=meta.text("rope.scaling.type", "linear"),
        rope_attn_factor=meta.number("rope.scaling.attn_factor", 1.0),
        n_ctx_orig_yarn=meta.integer("rope.scaling.original_context_length", model.n_ctx_train, hi=2**31 - 1),
    )
    if meta.arch in YARN_LOG_ARCHS:
        log_mul = meta.number("rope.scaling.yarn_log_multiplier", 0.0) * YARN_LOG_ARCHS[meta.arch]
        model = replace(model, rope_yarn_log_mul=log_mul)
    if meta.arch in ("grok", "mistral3"):
        model = replace(
            model,
            yarn_beta_fast=meta.number("rope.scaling.yarn_beta_fast", 8.0 if meta.arch == "grok" else 32.0),
            yarn_beta_slow=meta.number("rope.scaling.yarn_beta_slow", 1.0),
        )
    if meta.arch == "grok":
        model = replace(
            model,
            yarn_ext_factor=meta.number("rope.scaling.yarn_ext_factor", -1.0),
            yarn_attn_factor=meta.number("rope.scaling.yarn_attn_factor", 1.0),
        )
    return model


def _with_router(model: ModelParams, meta: Metadata) -> ModelParams:
    """Granite-Switch: one more block with a single head at the end, which routes adapters."""
    router = replace(model.layers[-1], n_head_kv=1)
    return replace(model, layers=(*model.layers, router), n_layer_nextn=1, router_layer=model.n_layer_all)


def _with_rope_factors(model: ModelParams, factors: tuple[float, ...]) -> ModelParams:
    """Frequency factors from the file's tensor; Gemma 4 uses them for blocks without a window only."""
    if model.rope_type is RopeType.NONE:
        return model
    layers = tuple(
        layer if model.arch == "gemma4" and layer.is_swa else replace(layer, rope_factors=factors)
        for layer in model.layers
    )
    return replace(model, layers=layers)
