"""Tiny model files with random weights, one or more for every memory: what llama.cpp itself can load.

Each is a table: metadata, then the tensors of a block by name with their shapes (slowest axis first, so a
matrix is ``[out, in]``). Blocks are put together from parts, as the architectures are. Widths are the
smallest that keep every path of a cache alive: heads of 64 values, so that quantised keys can be shifted.

Upstream: ``load_arch_hparams`` and ``load_arch_tensors`` of ``src/models/<arch>.cpp``.
Left out: tokenizers (the vocabulary is 128 nameless tokens).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.errors import ModelError
from kvsim.models.gguf_header import model_from_metadata
from kvsim.models.params import ModelParams
from kvsim.models.tiny_parts import (
    BASICS,
    D_CONV,
    EMBD,
    EXPERTS,
    HEAD,
    HYPER,
    HYPER_CONNECTIONS,
    INDEX_HEADS,
    INDEX_SIZE,
    INDEXER,
    LATENT,
    MAMBA,
    MLA,
    N_HEAD,
    N_VOCAB,
    Q_RANK,
    ROPE_PART,
    V_HEAD,
    WINDOWED,
    Shapes,
    attention,
    delta_attention,
    experts,
    feed_forward,
    hyper_connections,
    indexer,
    latent_attention,
    mamba,
    outside,
    short_convolution,
)


@dataclass(frozen=True)
class TinyModel:
    """Metadata without the architecture's prefix, tensors outside of blocks, and those of each block."""

    arch: str
    values: Mapping[str, Any]
    outside: Shapes
    blocks: tuple[Shapes, ...]

    def tensors(self) -> Shapes:
        """All tensors by full name."""
        inside = {
            f"blk.{il}.{name}": shape for il, block in enumerate(self.blocks) for name, shape in block.items()
        }
        return {**self.outside, **inside}

    def params(self) -> ModelParams:
        """The model as a memory sees it, without writing a file."""
        values = {f"{self.arch}.{key}": value for key, value in self.values.items()}
        return model_from_metadata({"general.architecture": self.arch, **values})


def _model(arch: str, values: Mapping[str, Any], *blocks: Shapes, tensors: Shapes | None = None) -> TinyModel:
    return TinyModel(arch, {**BASICS, "block_count": len(blocks), **values}, tensors or outside(), blocks)


def _lfm2(windowed: bool) -> TinyModel:
    attends, convolves = attention(qk_norm=True) | feed_forward(), short_convolution() | feed_forward()
    blocks = [attends, convolves, attends] if windowed else [attends, convolves]
    heads = [N_HEAD if block is attends else 0 for block in blocks]
    values = {"attention.head_count": heads, "attention.head_count_kv": heads, "shortconv.l_cache": 3}
    if windowed:
        values |= WINDOWED | {"attention.sliding_window_pattern": [True, False, False]}
    return _model("lfm2", values, *blocks, tensors=outside(norm="token_embd_norm.weight"))


def _deepseek4() -> TinyModel:
    """Raw window, and rows compressed by 4 (with an index) and by 128, one block each."""
    embd, ff, n_head, head, groups, rank = 64, 48, 8, 32, 8, 16
    common: Shapes = {
        "attn_norm.weight": (embd,),
        "attn_q_a_norm.weight": (Q_RANK,),
        "attn_q_a.weight": (Q_RANK, embd),
        "attn_q_b.weight": (n_head * head, Q_RANK),
        "attn_kv.weight": (head, embd),
        "attn_kv_a_norm.weight": (head,),
        "attn_sinks.weight": (n_head,),
        "attn_output_a.weight": (groups, rank, n_head * head // groups),
        "attn_output_b.weight": (embd, groups * rank),
        **experts(embd, ff),
        **hyper_connections(embd),
    }

    def compressor(of: str, width: int, overlap: int, ratio: int) -> Shapes:
        return {
            f"{of}_compressor_kv.weight": (overlap * width, embd),
            f"{of}_compressor_gate.weight": (overlap * width, embd),
            f"{of}_compressor_ape.weight": (ratio, overlap * width),
            f"{of}_compressor_norm.weight": (width,),
        }

    index: Shapes = {
        "indexer.proj.weight": (INDEX_HEADS, embd),
        "indexer.attn_q_b.weight": (INDEX_HEADS * INDEX_SIZE, Q_RANK),
    }
    by_4 = common | compressor("attn", head, 2, 4) | compressor("indexer", INDEX_SIZE, 2, 4) | index
    by_128 = common | compressor("attn", head, 1, 128)
    hyper: Shapes = {
        "output_hc_fn.weight": (HYPER, HYPER * embd),
        "output_hc_base.weight": (HYPER,),
        "output_hc_scale.weight": (1,),
    }
    values = {
        "embedding_length": embd,
        "feed_forward_length": ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": 1,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.q_lora_rank": Q_RANK,
        "attention.output_group_count": groups,
        "attention.output_lora_rank": rank,
        "attention.compress_rope_freq_base": 160000.0,
        "attention.compress_ratios": [0, 0, 4, 128],
        "hash_layer_count": 0,
        "attention.sliding_window_pattern": [True] * 4,
        "rope.dimension_count": 16,
        "swiglu_clamp_exp": [10.0] * 4,
        "swiglu_clamp_shexp": [10.0] * 4,
        **(
            EXPERTS
            | {"expert_feed_forward_length": ff, "expert_gating_func": 4, "leading_dense_block_count": 0}
        ),
        **WINDOWED,
        **INDEXER,
        **HYPER_CONNECTIONS,
    }
    return _model("deepseek4", values, common, common, by_4, by_128, tensors=outside(embd) | hyper)


def _glm5_next() -> TinyModel:
    """Latent attention with pooled index keys, and one block of linear attention."""
    pooled: Shapes = {
        "indexer_compressor_gate.weight": (INDEX_SIZE, EMBD),
        "indexer_compressor_ape.weight": (4, INDEX_SIZE),
    }
    hyper = hyper_connections(EMBD)
    values = {
        **(MLA | {"attention.key_length": LATENT, "rope.dimension_count": 0}),
        "attention.head_count_kv": [1, 0],
        "attention.indexer.kpool": 4,
        "attention.recurrent_layers": [False, True],
        "ssm.conv_kernel": D_CONV,
        "kda.head_dim": 32,
        "kda.gate_lower_bound": -5.0,
        **EXPERTS,
        **INDEXER,
        **HYPER_CONNECTIONS,
    }
    latent = latent_attention(rope_part=0) | indexer() | pooled | hyper | feed_forward()
    return _model("glm5-next", values, latent, delta_attention() | hyper | experts())


def _minimax_m3() -> TinyModel:
    keys_normed = attention(qk_norm=True)
    index: Shapes = {
        "indexer.q_proj.weight": (N_HEAD * INDEX_SIZE, EMBD),
        "indexer.k_proj.weight": (INDEX_SIZE, EMBD),
        "indexer.q_norm.weight": (INDEX_SIZE,),
        "indexer.k_norm.weight": (INDEX_SIZE,),
    }
    values = (
        EXPERTS
        | INDEXER
        | {
            "attention.indexer.head_count": N_HEAD,
            "attention.indexer.block_size": 4,
            "attention.indexer.local_blocks": 0,
        }
    )
    return _model("minimax-m3", values, keys_normed | feed_forward(), keys_normed | index | experts())


def _dots3note() -> TinyModel:
    gated: Shapes = {"attn_k_norm.weight": (ROPE_PART,), "attn_gate.weight": (1, EMBD)}
    windowed = {
        "attention.sliding_window_pattern": [False, True],
        "attention.key_length_mla_swa": HEAD,
        "attention.value_length_mla_swa": V_HEAD,
        "attention.key_length_swa": LATENT + ROPE_PART,
        "attention.value_length_swa": LATENT,
        "attention.kv_lora_rank_swa": LATENT,
        "attention.indexer.types": [True, False],
        "rope.dimension_count_swa": ROPE_PART,
        "rope.freq_base_swa": 10000.0,
    }
    values = MLA | INDEXER | EXPERTS | WINDOWED | windowed
    latent = latent_attention() | gated
    return _model("dots3note", values, latent | indexer() | feed_forward(), latent | experts())


def _gemma(arch: str, qk_norm: bool, **values: Any) -> TinyModel:
    after: Shapes = {"post_attention_norm.weight": (EMBD,), "post_ffw_norm.weight": (EMBD,)}
    block = attention(qk_norm) | after | feed_forward()
    return _model(arch, {**WINDOWED, **values}, block, block, tensors=outside(output=False))


def tiny_model(name: str) -> TinyModel:
    """The model of that name (see :data:`TINY`). Raises ModelError if there is none."""
    if name not in TINY:
        raise ModelError(f"there is no tiny model {name!r}; there are {', '.join(TINY)}")
    return TINY[name]


TINY: dict[str, TinyModel] = {
    "llama": _model("llama", {}, attention() | feed_forward(), attention() | feed_forward()),
    "llama-1": _model("llama", {"context_length": 1 << 17}, attention() | feed_forward()),
    "qwen2vl": _model(
        "qwen2vl", {"rope.dimension_sections": [16, 16, 0, 0]}, attention(bias=True) | feed_forward()
    ),
    "gemma2": _gemma("gemma2", False),
    "gemma3": _gemma("gemma3", True, **{"attention.sliding_window_pattern": [True, False]}),
    "mamba": _model("mamba", MAMBA, mamba(), mamba()),
    "jamba": _model(
        "jamba",
        MAMBA | {"attention.head_count_kv": [N_HEAD, 0]},
        attention() | feed_forward(),
        mamba(norms=True) | feed_forward(),
    ),
    "lfm2": _lfm2(windowed=False),
    "lfm2-windowed": _lfm2(windowed=True),
    "deepseek32": _model(
        "deepseek32",
        MLA | INDEXER | EXPERTS,
        latent_attention() | indexer() | feed_forward(),
        latent_attention() | indexer() | experts(),
    ),
    "dots3note": _dots3note(),
    "minimax-m3": _minimax_m3(),
    "deepseek4": _deepseek4(),
    "glm5-next": _glm5_next(),
}
"""Every tiny model by name."""


def write_tiny(name: str, path: str | Path, seed: int = 0) -> None:
    """Write a tiny model to a GGUF file; the same name and seed give the same file.

    Raises ModelError for an unknown name, or if the ``gguf`` package is missing.
    """
    model = tiny_model(name)
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise ModelError(
            "writing a model file needs the gguf package: pip install 'kvsim[models]'"
        ) from error
    writer = gguf.GGUFWriter(path, model.arch)
    writer.add_string("tokenizer.ggml.model", "none")
    writer.add_uint32(f"{model.arch}.vocab_size", N_VOCAB)
    for key, value in model.values.items():
        _add_value(writer, f"{model.arch}.{key}", value)
    rng = np.random.default_rng(seed)
    for tensor, shape in model.tensors().items():
        writer.add_tensor(tensor, _weights(tensor, shape, rng))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_value(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def _weights(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    noise = rng.normal(size=shape)
    if name.endswith("ssm_a"):  # states decay
        noise = -np.abs(noise) - 0.5
    elif name.endswith("norm.weight"):
        noise = 1 + noise / 10
    elif name != "token_embd.weight":
        noise = noise / np.sqrt(shape[-1])
    return noise.astype(np.float32)
