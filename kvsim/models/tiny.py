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

N_VOCAB = 128
EMBD, HEAD, N_HEAD, FF, N_EXPERT = 128, 64, 2, 96, 2
Q_RANK, LATENT, ROPE_PART, V_HEAD = 32, 64, 32, 32
INDEX_HEADS, INDEX_SIZE = 4, 64
INNER, D_STATE, D_CONV, DT_RANK = 256, 16, 4, 2
HYPER = 4
WINDOW = 32

Shapes = dict[str, tuple[int, ...]]


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


# -- parts of a block ------------------------------------------------------------------------------


def _attention(qk_norm: bool = False, bias: bool = False) -> Shapes:
    width = N_HEAD * HEAD
    parts: Shapes = {f"attn_{name}.weight": (width, EMBD) for name in "qkv"}
    parts |= {"attn_norm.weight": (EMBD,), "attn_output.weight": (EMBD, width)}
    parts |= {f"attn_{name}_norm.weight": (HEAD,) for name in "qk" if qk_norm}
    return parts | {f"attn_{name}.bias": (width,) for name in "qkv" if bias}


def _feed_forward() -> Shapes:
    return {
        "ffn_norm.weight": (EMBD,),
        "ffn_gate.weight": (FF, EMBD),
        "ffn_up.weight": (FF, EMBD),
        "ffn_down.weight": (EMBD, FF),
    }


def _experts(embd: int = EMBD, ff: int = FF) -> Shapes:
    return {
        "ffn_norm.weight": (embd,),
        "ffn_gate_inp.weight": (N_EXPERT, embd),
        "ffn_gate_exps.weight": (N_EXPERT, ff, embd),
        "ffn_up_exps.weight": (N_EXPERT, ff, embd),
        "ffn_down_exps.weight": (N_EXPERT, embd, ff),
        "ffn_gate_shexp.weight": (ff, embd),
        "ffn_up_shexp.weight": (ff, embd),
        "ffn_down_shexp.weight": (embd, ff),
        "exp_probs_b.bias": (N_EXPERT,),
    }


def _latent_attention(rope_part: int = ROPE_PART) -> Shapes:
    """Keys and values from one latent vector (MLA), one head."""
    key = HEAD - rope_part
    return {
        "attn_norm.weight": (EMBD,),
        "attn_q_a_norm.weight": (Q_RANK,),
        "attn_kv_a_norm.weight": (LATENT,),
        "attn_q_a.weight": (Q_RANK, EMBD),
        "attn_q_b.weight": (HEAD, Q_RANK),
        "attn_kv_a_mqa.weight": (LATENT + rope_part, EMBD),
        "attn_k_b.weight": (LATENT, key),
        "attn_v_b.weight": (V_HEAD, LATENT),
        "attn_output.weight": (EMBD, V_HEAD),
    }


def _indexer() -> Shapes:
    return {
        "indexer.k_norm.weight": (INDEX_SIZE,),
        "indexer.k_norm.bias": (INDEX_SIZE,),
        "indexer.proj.weight": (INDEX_HEADS, EMBD),
        "indexer.attn_k.weight": (INDEX_SIZE, EMBD),
        "indexer.attn_q_b.weight": (INDEX_HEADS * INDEX_SIZE, Q_RANK),
    }


def _mamba(norms: bool = False) -> Shapes:
    parts: Shapes = {
        "attn_norm.weight": (EMBD,),
        "ssm_in.weight": (2 * INNER, EMBD),
        "ssm_conv1d.weight": (INNER, D_CONV),
        "ssm_conv1d.bias": (INNER,),
        "ssm_x.weight": (DT_RANK + 2 * D_STATE, INNER),
        "ssm_dt.weight": (INNER, DT_RANK),
        "ssm_dt.bias": (INNER,),
        "ssm_a": (INNER, D_STATE),
        "ssm_d": (INNER,),
        "ssm_out.weight": (EMBD, INNER),
    }
    sizes = {
        "ssm_dt_norm.weight": (DT_RANK,),
        "ssm_b_norm.weight": (D_STATE,),
        "ssm_c_norm.weight": (D_STATE,),
    }
    return parts | sizes if norms else parts


def _short_convolution() -> Shapes:
    return {
        "attn_norm.weight": (EMBD,),
        "shortconv.in_proj.weight": (3 * EMBD, EMBD),
        "shortconv.conv.weight": (EMBD, 3),
        "shortconv.out_proj.weight": (EMBD, EMBD),
    }


def _delta_attention() -> Shapes:
    """Kimi's linear attention, one head of 32."""
    size = 32
    parts: Shapes = {f"attn_{name}.weight": (size, EMBD) for name in "qkv"}
    parts |= {f"attn_{name}.bias": (size,) for name in "qkv"}
    parts |= {f"ssm_conv1d_{name}.weight": (size, 1, D_CONV) for name in "qkv"}
    parts |= {f"ssm_{name}_a.weight": (size, EMBD) for name in "fg"}
    parts |= {f"ssm_{name}_b.weight": (size, size) for name in "fg"}
    return parts | {
        "attn_norm.weight": (EMBD,),
        "attn_output.weight": (EMBD, size),
        "ssm_a": (1,),
        "ssm_dt.bias": (size,),
        "ssm_beta.weight": (EMBD,),
        "ssm_norm.weight": (size,),
    }


def _hyper_connections(embd: int) -> Shapes:
    mixes = HYPER * (HYPER + 2)
    parts: Shapes = {}
    for where in ("attn", "ffn"):
        parts[f"hc_{where}_fn.weight"] = (mixes, HYPER * embd)
        parts[f"hc_{where}_base.weight"] = (mixes,)
        parts[f"hc_{where}_scale.weight"] = (3,)
    return parts


def _outside(embd: int = EMBD, norm: str = "output_norm.weight", output: bool = True) -> Shapes:
    parts: Shapes = {"token_embd.weight": (N_VOCAB, embd), norm: (embd,)}
    return parts | {"output.weight": (N_VOCAB, embd)} if output else parts


# -- metadata --------------------------------------------------------------------------------------

BASICS: dict[str, Any] = {
    "context_length": 4096,
    "embedding_length": EMBD,
    "feed_forward_length": FF,
    "attention.head_count": N_HEAD,
    "attention.head_count_kv": N_HEAD,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-6,
    "rope.dimension_count": HEAD,
}
WINDOWED = {"attention.sliding_window": WINDOW}
MAMBA = {
    "ssm.conv_kernel": D_CONV,
    "ssm.inner_size": INNER,
    "ssm.state_size": D_STATE,
    "ssm.time_step_rank": DT_RANK,
}
EXPERTS = {
    "expert_count": N_EXPERT,
    "expert_used_count": N_EXPERT,
    "expert_shared_count": 1,
    "expert_feed_forward_length": FF,
    "expert_gating_func": 2,
    "expert_weights_scale": 1.0,
    "expert_weights_norm": False,
    "leading_dense_block_count": 1,
}
MLA = {
    "attention.head_count": 1,
    "attention.head_count_kv": 1,
    "attention.q_lora_rank": Q_RANK,
    "attention.kv_lora_rank": LATENT,
    "attention.key_length": LATENT + ROPE_PART,
    "attention.value_length": LATENT,
    "attention.key_length_mla": HEAD,
    "attention.value_length_mla": V_HEAD,
    "rope.dimension_count": ROPE_PART,
}
INDEXER = {
    "attention.indexer.head_count": INDEX_HEADS,
    "attention.indexer.key_length": INDEX_SIZE,
    "attention.indexer.top_k": 8,
}
HYPER_CONNECTIONS = {
    "hyper_connection.count": HYPER,
    "hyper_connection.sinkhorn_iterations": 2,
    "hyper_connection.epsilon": 1e-6,
}


def _model(arch: str, values: Mapping[str, Any], *blocks: Shapes, outside: Shapes | None = None) -> TinyModel:
    return TinyModel(arch, {**BASICS, "block_count": len(blocks), **values}, outside or _outside(), blocks)


def _lfm2(windowed: bool) -> TinyModel:
    attention, convolution = (
        _attention(qk_norm=True) | _feed_forward(),
        _short_convolution() | _feed_forward(),
    )
    blocks = [attention, convolution, attention] if windowed else [attention, convolution]
    heads = [N_HEAD if block is attention else 0 for block in blocks]
    values = {"attention.head_count": heads, "attention.head_count_kv": heads, "shortconv.l_cache": 3}
    if windowed:
        values |= WINDOWED | {"attention.sliding_window_pattern": [True, False, False]}
    return _model("lfm2", values, *blocks, outside=_outside(norm="token_embd_norm.weight"))


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
        **_experts(embd, ff),
        **_hyper_connections(embd),
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
    return _model("deepseek4", values, common, common, by_4, by_128, outside=_outside(embd) | hyper)


def _glm5_next() -> TinyModel:
    """Latent attention with pooled index keys, and one block of linear attention."""
    pooled: Shapes = {
        "indexer_compressor_gate.weight": (INDEX_SIZE, EMBD),
        "indexer_compressor_ape.weight": (4, INDEX_SIZE),
    }
    hyper = _hyper_connections(EMBD)
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
    attention = _latent_attention(rope_part=0) | _indexer() | pooled | hyper | _feed_forward()
    return _model("glm5-next", values, attention, _delta_attention() | hyper | _experts())


def _minimax_m3() -> TinyModel:
    attention = _attention(qk_norm=True)
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
    return _model("minimax-m3", values, attention | _feed_forward(), attention | index | _experts())


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
    latent = _latent_attention() | gated
    return _model("dots3note", values, latent | _indexer() | _feed_forward(), latent | _experts())


def _gemma(arch: str, qk_norm: bool, **values: Any) -> TinyModel:
    after: Shapes = {"post_attention_norm.weight": (EMBD,), "post_ffw_norm.weight": (EMBD,)}
    block = _attention(qk_norm) | after | _feed_forward()
    return _model(arch, {**WINDOWED, **values}, block, block, outside=_outside(output=False))


def tiny_model(name: str) -> TinyModel:
    """The model of that name (see :data:`TINY`). Raises ModelError if there is none."""
    if name not in TINY:
        raise ModelError(f"there is no tiny model {name!r}; there are {', '.join(TINY)}")
    return TINY[name]


TINY: dict[str, TinyModel] = {
    "llama": _model("llama", {}, _attention() | _feed_forward(), _attention() | _feed_forward()),
    "llama-1": _model("llama", {"context_length": 1 << 17}, _attention() | _feed_forward()),
    "qwen2vl": _model(
        "qwen2vl", {"rope.dimension_sections": [16, 16, 0, 0]}, _attention(bias=True) | _feed_forward()
    ),
    "gemma2": _gemma("gemma2", False),
    "gemma3": _gemma("gemma3", True, **{"attention.sliding_window_pattern": [True, False]}),
    "mamba": _model("mamba", MAMBA, _mamba(), _mamba()),
    "jamba": _model(
        "jamba",
        MAMBA | {"attention.head_count_kv": [N_HEAD, 0]},
        _attention() | _feed_forward(),
        _mamba(norms=True) | _feed_forward(),
    ),
    "lfm2": _lfm2(windowed=False),
    "lfm2-windowed": _lfm2(windowed=True),
    "deepseek32": _model(
        "deepseek32",
        MLA | INDEXER | EXPERTS,
        _latent_attention() | _indexer() | _feed_forward(),
        _latent_attention() | _indexer() | _experts(),
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
