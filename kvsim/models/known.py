"""Public models by name, as the metadata their model files carry: ``known_model("gemma3-4b")``."""

from __future__ import annotations

from typing import Any

from kvsim.errors import ModelError
from kvsim.models.gguf_header import model_from_metadata
from kvsim.models.params import ModelParams


def _attention(
    arch: str, n_layer: int, n_embd: int, heads: int, kv_heads: int | list[int], n_ctx: int, **rest: Any
) -> dict[str, Any]:
    """Metadata common to all; ``rest`` are more keys, with ``__`` for a dot."""
    values = {
        "block_count": n_layer,
        "embedding_length": n_embd,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "context_length": n_ctx,
        **{key.replace("__", "."): value for key, value in rest.items()},
    }
    return {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in values.items()}}


def _head(width: int, **rest: Any) -> dict[str, Any]:
    return {"attention__key_length": width, "attention__value_length": width, **rest}


def _gemma(window: int, head: int = 256, **rest: Any) -> dict[str, Any]:
    return _head(head, attention__sliding_window=window, **rest)


def _ssm(conv: int, inner: int, state: int, **rest: int) -> dict[str, Any]:
    return {"ssm__conv_kernel": conv, "ssm__inner_size": inner, "ssm__state_size": state} | {
        f"ssm__{key}": value for key, value in rest.items()
    }


_ROPE_500K: dict[str, Any] = {"rope__freq_base": 500000.0}
_ROPE_1M: dict[str, Any] = {"rope__freq_base": 1000000.0}
_DEEPSEEK: dict[str, Any] = {
    "attention__key_length": 576,
    "attention__value_length": 512,
    "attention__key_length_mla": 192,
    "attention__value_length_mla": 128,
    "attention__kv_lora_rank": 512,
    "rope__dimension_count": 64,
}
_DEEPSEEK_INDEXER: dict[str, Any] = {
    "attention__indexer__head_count": 64,
    "attention__indexer__key_length": 128,
    "attention__indexer__top_k": 2048,
}
_JAMBA_HEADS = [8 if il % 8 == 4 else 0 for il in range(32)]
_LFM2_HEADS = [8 if il in (2, 5, 8, 10, 12, 14) else 0 for il in range(16)]
_QWEN3_NEXT: dict[str, Any] = {"rope__dimension_count": 64, "full_attention_interval": 4}

KNOWN: dict[str, dict[str, Any]] = {
    # plain attention
    "llama2-7b": _attention("llama", 32, 4096, 32, 32, 4096),
    "llama2-13b": _attention("llama", 40, 5120, 40, 40, 4096),
    "llama3-8b": _attention("llama", 32, 4096, 32, 8, 8192, **_ROPE_500K),
    "llama3.1-8b": _attention("llama", 32, 4096, 32, 8, 131072, **_ROPE_500K),
    "llama3.1-70b": _attention("llama", 80, 8192, 64, 8, 131072, **_ROPE_500K),
    "llama3.2-1b": _attention("llama", 16, 2048, 32, 8, 131072, **_ROPE_500K),
    "llama3.2-3b": _attention("llama", 28, 3072, 24, 8, 131072, **_ROPE_500K),
    "mistral-7b": _attention("llama", 32, 4096, 32, 8, 32768, **_ROPE_1M),
    "mixtral-8x7b": _attention("llama", 32, 4096, 32, 8, 32768, **_ROPE_1M),
    "qwen2.5-7b": _attention("qwen2", 28, 3584, 28, 4, 32768, **_ROPE_1M),
    "qwen3-0.6b": _attention("qwen3", 28, 1024, 16, 8, 40960, **_head(128, **_ROPE_1M)),
    "qwen3-4b": _attention("qwen3", 36, 2560, 32, 8, 40960, **_head(128, **_ROPE_1M)),
    "qwen3-8b": _attention("qwen3", 36, 4096, 32, 8, 40960, **_head(128, **_ROPE_1M)),
    "qwen3-30b-a3b": _attention("qwen3moe", 48, 2048, 32, 4, 40960, **_head(128, **_ROPE_1M)),
    "phi3-mini-4k": _attention("phi3", 32, 3072, 32, 32, 4096),
    "deepseek-v3": _attention("deepseek2", 61, 7168, 128, 1, 163840, **_DEEPSEEK),
    # interleaved windows
    "gemma2-2b": _attention("gemma2", 26, 2304, 8, 4, 8192, **_gemma(4096)),
    "gemma2-9b": _attention("gemma2", 42, 3584, 16, 8, 8192, **_gemma(4096)),
    "gemma2-27b": _attention("gemma2", 46, 4608, 32, 16, 8192, **_gemma(4096, 128)),
    "gemma3-1b": _attention("gemma3", 26, 1152, 4, 1, 32768, **_gemma(512, **_ROPE_1M)),
    "gemma3-4b": _attention("gemma3", 34, 2560, 8, 4, 131072, **_gemma(1024, **_ROPE_1M)),
    "gemma3-12b": _attention("gemma3", 48, 3840, 16, 8, 131072, **_gemma(1024, **_ROPE_1M)),
    "gemma3-27b": _attention("gemma3", 62, 5376, 32, 16, 131072, **_gemma(1024, 128, **_ROPE_1M)),
    "gpt-oss-20b": _attention("gpt-oss", 24, 2880, 64, 8, 131072, **_gemma(128, 64)),
    "gpt-oss-120b": _attention("gpt-oss", 36, 2880, 64, 8, 131072, **_gemma(128, 64)),
    "llama4-scout": _attention("llama4", 48, 5120, 40, 8, 10485760, **_head(128, **_ROPE_500K)),
    # an indexer beside the latent cache
    "deepseek-v3.2": _attention("deepseek32", 61, 7168, 128, 1, 163840, **_DEEPSEEK, **_DEEPSEEK_INDEXER),
    # recurrent and hybrid
    "mamba-130m": _attention("mamba", 24, 768, 0, 0, 1048576, **_ssm(4, 1536, 16)),
    "mamba-2.8b": _attention("mamba", 64, 2560, 0, 0, 1048576, **_ssm(4, 5120, 16)),
    "mamba2-2.7b": _attention("mamba2", 64, 2560, 0, 0, 1048576, **_ssm(4, 5120, 128, group_count=1)),
    "jamba-v0.1": _attention("jamba", 32, 4096, 32, _JAMBA_HEADS, 262144, **_ssm(4, 8192, 16)),
    "lfm2-1.2b": _attention("lfm2", 16, 2048, 32, _LFM2_HEADS, 128000, shortconv__l_cache=3),
    "qwen3-next-80b-a3b": _attention(
        "qwen3next",
        48,
        2048,
        16,
        2,
        262144,
        **_head(256, **_QWEN3_NEXT),
        **_ssm(4, 4096, 128, group_count=16),
    ),
}
"""Hyper-parameters as published by the models' makers; only what memory depends on."""


def known_model(name: str) -> ModelParams:
    """The model called ``name``. Raises ModelError that lists the known names."""
    if name not in KNOWN:
        raise ModelError(f"unknown model {name!r}; known are {', '.join(KNOWN)}; or read a file with --gguf")
    return model_from_metadata(KNOWN[name])
