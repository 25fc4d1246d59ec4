"""Attention in the precision llama.cpp's CPU backend computes it: where and how it rounds.

Flash attention visits cells in order, keeping a running maximum, sum and output; a new maximum scales
down what was collected. The query is rounded to the type that multiplies with K, and the output is
collected in f16 if V is f16. Without flash attention, only the operands of the two products round:
round the query, take the weights, round those, take the weighted values.

Upstream: ``ggml/src/ggml-cpu/ops.cpp: ggml_compute_forward_flash_attn_ext_f16_one_chunk``,
``src/llama-graph.cpp: build_attn_mha``. Left out: the tiled variant for large ubatches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsim.memory import BoolArray
from kvsim.models.cache_types import cache_type
from kvsim.tensors.attention import Floats, attention_scores
from kvsim.tensors.codecs import F32, decode, encode


def round_query(q: Floats, type_k: str) -> F32:
    """Queries as they multiply with keys of ``type_k`` in flash attention."""
    if cache_type(type_k).is_quantized:
        return decode("q8_0", encode("q8_0", q))
    as_type = "bf16" if type_k == "bf16" else "f16"
    return decode(as_type, encode(as_type, q))


def flash_attention(
    q: Floats,
    k: Floats,
    v: Floats,
    mask: BoolArray,
    *,
    scale: float,
    type_k: str,
    type_v: str,
    softcap: float = 0.0,
    bias: Floats | None = None,
    sinks: Floats | None = None,
) -> F32:
    """:func:`~kvsim.tensors.attention.attention` as flash attention rounds it, ``float32[token, head, n_v]``.

    ``k`` and ``v`` are decoded rows of ``type_k`` and ``type_v``; f32 rows are read as f16. Keys must be
    given with heads whose size is a multiple of 32 if they are quantised.
    """
    in_f16 = type_v in ("f16", "f32")
    z = attention_scores(round_query(q, type_k).astype(np.float64), _as_read(k, type_k).astype(np.float64))
    if type_k in ("q4_1", "q5_1"):
        z = z + attention_scores(_q8_1_sum_errors(q), _block_minima(k))
    z = (z * scale).astype(np.float32)
    if softcap:
        z = np.float32(softcap) * np.tanh(z / np.float32(softcap))
    if bias is not None:
        z = z + bias.astype(np.float32)
    z = np.where(mask, z, -np.inf)
    n_head, n_token = z.shape[:2]
    values = np.repeat(_as_read(v, type_v).swapaxes(0, 1), n_head // v.shape[1], axis=0)  # [head, cell, n_v]
    top = np.full((n_head, n_token), -np.inf, np.float32)
    total = np.zeros((n_head, n_token), np.float32)
    out = np.zeros((n_head, n_token, v.shape[2]), np.float32)
    for cell in np.flatnonzero(np.isfinite(z).any(axis=(0, 1))):
        score = z[:, :, cell]
        visible = score > -np.inf
        new_top = np.maximum(top, score)
        with np.errstate(invalid="ignore"):  # -inf minus -inf, where nothing was seen yet
            shrink = np.where(visible, np.exp(top - new_top), np.float32(1))
            weight = np.where(visible, np.exp(score - new_top), np.float32(0))
        out = _collect(out * shrink[..., None], in_f16)
        out = _collect(out + values[:, cell, None] * weight[..., None], in_f16)
        total = total * shrink + weight
        top = new_top
    if sinks is not None:
        sink = sinks.astype(np.float32)[:, None]
        new_top = np.maximum(top, sink)
        shrink = np.exp(top - new_top)
        out = out * shrink[..., None]
        total = total * shrink + np.exp(sink - new_top)
    out = out * np.divide(np.float32(1), total, out=np.zeros_like(total), where=total != 0)[..., None]
    return out.swapaxes(0, 1)


def _q8_1_sum_errors(q: Floats) -> NDArray[np.float64]:
    """By how much the sum that a q8_1 query stores per block, ``f16(d * sum q)``, misses its values' sum.

    It multiplies with the minimum of a q4_1 or q5_1 block. The ``d`` in it is not rounded to f16.
    """
    blocks = np.asarray(q, np.float32).reshape(*q.shape[:-1], -1, 32)
    exact_d = np.abs(blocks).max(axis=-1) / np.float32(127)
    quants = encode("q8_0", blocks)[..., 2:].view(np.int8).sum(axis=-1, dtype=np.int32)
    stored = (exact_d * quants.astype(np.float32)).astype(np.float16).astype(np.float64)
    error: NDArray[np.float64] = stored - exact_d.astype(np.float16).astype(np.float64) * quants
    return error


def _block_minima(k: Floats) -> NDArray[np.float64]:
    """The minimum of each block of decoded q4_1 or q5_1 keys: its smallest value has quant 0."""
    minima: NDArray[np.float64] = k.reshape(*k.shape[:-1], -1, 32).min(axis=-1).astype(np.float64)
    return minima


def _as_read(rows: Floats, type_name: str) -> F32:
    """Cached rows as flash attention reads them: f32 is cast to f16 first."""
    return (rows.astype(np.float16) if type_name == "f32" else rows).astype(np.float32)


def _collect(out: F32, in_f16: bool) -> F32:
    return out.astype(np.float16).astype(np.float32) if in_f16 else out


def as_operand(x: Floats, type_name: str) -> Floats:
    """Queries or weights rounded to multiply with float rows of a type when flash attention is off."""
    return x if type_name == "f32" else decode(type_name, encode(type_name, x)).astype(x.dtype)
