"""Attention over the cells of a cache, by definition: scores, softmax, weighted values.

Several query heads share a key head: of 4 query and 2 key heads, 0 and 1 use the first, 2 and 3 the
second. Precision is that of the arguments: float64 in, float64 out. How llama.cpp rounds on the way
is in flash.py.

MLA in absorbed form needs nothing more: one key head, rows ``[latent | rope part]``, queries already
multiplied by the key up-projection, and ``v = k[..., :n_latent]``; the result is a latent vector per head.

Upstream: ``src/llama-graph.cpp: build_attn_mha``, ``ggml/src/ggml-cpu/ops.cpp: soft_max``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import CacheUsageError
from kvsim.memory import BoolArray, IntArray

Floats = NDArray[np.floating]


def attention(
    q: Floats,
    k: Floats,
    v: Floats,
    mask: BoolArray,
    *,
    scale: float,
    softcap: float = 0.0,
    bias: Floats | None = None,
    sinks: Floats | None = None,
) -> Floats:
    """What each query head reads: ``[token, head, n_v]``.

    ``q [token, head, n_k]``, ``k [cell, head_kv, n_k]``, ``v [cell, head_kv, n_v]``. ``mask`` says which
    cells count, ``bool[token, cell]`` or ``bool[head, token, cell]``; cells that no token may see are not
    read, whatever they hold. Scores are ``scale * q.k``, then ``softcap * tanh(score / softcap)`` if not
    0, then plus ``bias`` (to broadcast to ``[head, token, cell]``). ``sinks [head]`` are further scores that
    take weight and add nothing. A token that sees nothing gets 0 (without flash attention, llama.cpp has
    NaN there).
    """
    seen = np.flatnonzero(mask.any(axis=tuple(range(mask.ndim - 1))))
    weights = attention_weights(
        q, k[seen], mask[..., seen], scale=scale, softcap=softcap,
        bias=None if bias is None else bias[..., seen], sinks=sinks,
    )  # fmt: skip
    return weighted_values(weights, v[seen])


def attention_scores(q: Floats, k: Floats) -> Floats:
    """``q.k`` of every head, token and cell, ``[head, token, cell]``."""
    n_token, n_head, width = q.shape
    n_cell, n_head_kv, _ = k.shape
    if n_head % n_head_kv:
        raise CacheUsageError(f"{n_head} query heads cannot share {n_head_kv} key heads evenly")
    grouped = q.swapaxes(0, 1).reshape(n_head_kv, -1, width)
    scores: Floats = np.matmul(grouped, k.transpose(1, 2, 0)).reshape(n_head, n_token, n_cell)
    return scores


def attention_weights(
    q: Floats,
    k: Floats,
    mask: BoolArray,
    *,
    scale: float,
    softcap: float = 0.0,
    bias: Floats | None = None,
    sinks: Floats | None = None,
) -> Floats:
    """The softmax of the scores, ``[head, token, cell]``; arguments as for :func:`attention`."""
    z = attention_scores(q, k) * scale
    if softcap:
        z = softcap * np.tanh(z / softcap)
    if bias is not None:
        z = z + bias
    z = np.where(mask, z, -np.inf)
    top = z.max(axis=-1, keepdims=True, initial=-np.inf)
    sink = np.full(len(z), -np.inf, z.dtype) if sinks is None else sinks.astype(z.dtype)
    top = np.maximum(top, sink[:, None, None])
    top = np.where(np.isfinite(top), top, 0)
    e = np.exp(z - top)
    total = e.sum(axis=-1, keepdims=True) + np.exp(sink[:, None, None] - top)
    weights: Floats = np.divide(e, total, out=np.zeros_like(e), where=total != 0)
    return weights


def weighted_values(weights: Floats, v: Floats) -> Floats:
    """Sum of ``v [cell, head_kv, n_v]`` with ``weights [head, token, cell]``: ``[token, head, n_v]``."""
    n_head, n_token, n_cell = weights.shape
    n_head_kv, width = v.shape[1:]
    grouped = weights.reshape(n_head_kv, -1, n_cell)
    read: Floats = np.matmul(grouped, v.swapaxes(0, 1)).reshape(n_head, n_token, width)
    return read.swapaxes(0, 1)


def alibi_slopes(n_head: int, max_bias: float = 8.0) -> NDArray[np.float32]:
    """How fast the attention of each head falls with distance, ``float32[n_head]``.

    A geometric series for a power of two of heads; further heads lie between its members.
    """
    whole = 1 << (n_head.bit_length() - 1)
    head = np.arange(n_head)
    exponent = np.where(head < whole, (head + 1) / whole, (2 * (head - whole) + 1) / (2 * whole))
    slopes: NDArray[np.float32] = (2.0 ** (-max_bias * exponent)).astype(np.float32)
    return slopes


def alibi_bias(slopes: NDArray[np.float32], pos: IntArray, row_pos: IntArray) -> NDArray[np.float32]:
    """``-slope * |p_cell - p_token|``, ``float32[head, token, cell]``."""
    distance = np.abs(pos - row_pos[:, None]).astype(np.float32)
    bias: NDArray[np.float32] = -slopes[:, None, None] * distance
    return bias
