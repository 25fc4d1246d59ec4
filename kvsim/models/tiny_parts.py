"""The parts that tiny models are put together from: shapes of a block's tensors, and metadata.

Shapes are slowest axis first, so a matrix is ``[out, in]``.
"""

from __future__ import annotations

from typing import Any

N_VOCAB = 128
EMBD, HEAD, N_HEAD, FF, N_EXPERT = 128, 64, 2, 96, 2
Q_RANK, LATENT, ROPE_PART, V_HEAD = 32, 64, 32, 32
INDEX_HEADS, INDEX_SIZE = 4, 64
INNER, D_STATE, D_CONV, DT_RANK = 256, 16, 4, 2
HYPER = 4
WINDOW = 32

Shapes = dict[str, tuple[int, ...]]


# -- parts of a block ------------------------------------------------------------------------------


def attention(qk_norm: bool = False, bias: bool = False) -> Shapes:
    width = N_HEAD * HEAD
    parts: Shapes = {f"attn_{name}.weight": (width, EMBD) for name in "qkv"}
    parts |= {"attn_norm.weight": (EMBD,), "attn_output.weight": (EMBD, width)}
    parts |= {f"attn_{name}_norm.weight": (HEAD,) for name in "qk" if qk_norm}
    return parts | {f"attn_{name}.bias": (width,) for name in "qkv" if bias}


def feed_forward() -> Shapes:
    return {
        "ffn_norm.weight": (EMBD,),
        "ffn_gate.weight": (FF, EMBD),
        "ffn_up.weight": (FF, EMBD),
        "ffn_down.weight": (EMBD, FF),
    }


def experts(embd: int = EMBD, ff: int = FF) -> Shapes:
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


def latent_attention(rope_part: int = ROPE_PART) -> Shapes:
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


def indexer() -> Shapes:
    return {
        "indexer.k_norm.weight": (INDEX_SIZE,),
        "indexer.k_norm.bias": (INDEX_SIZE,),
        "indexer.proj.weight": (INDEX_HEADS, EMBD),
        "indexer.attn_k.weight": (INDEX_SIZE, EMBD),
        "indexer.attn_q_b.weight": (INDEX_HEADS * INDEX_SIZE, Q_RANK),
    }


def mamba(norms: bool = False) -> Shapes:
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


def short_convolution() -> Shapes:
    return {
        "attn_norm.weight": (EMBD,),
        "shortconv.in_proj.weight": (3 * EMBD, EMBD),
        "shortconv.conv.weight": (EMBD, 3),
        "shortconv.out_proj.weight": (EMBD, EMBD),
    }


def delta_attention() -> Shapes:
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


def hyper_connections(embd: int) -> Shapes:
    mixes = HYPER * (HYPER + 2)
    parts: Shapes = {}
    for where in ("attn", "ffn"):
        parts[f"hc_{where}_fn.weight"] = (mixes, HYPER * embd)
        parts[f"hc_{where}_base.weight"] = (mixes,)
        parts[f"hc_{where}_scale.weight"] = (3,)
    return parts


def outside(embd: int = EMBD, norm: str = "output_norm.weight", output: bool = True) -> Shapes:
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
