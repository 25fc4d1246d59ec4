"""Hyper-connections (DeepSeek-V4): a layer reads a mix of ``hc`` residual copies and writes to all.

The mixing weights come from the token itself. The matrix that carries the copies over is pushed towards
doubly stochastic (rows and columns sum to 1) by Sinkhorn's iteration, so that residuals neither grow nor
fade. ``eps`` keeps sums off zero and enters in several places; the attention sees it only through its
input. Mirrors ``src/models/deepseek4.cpp`` (hyper-connection mixing).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Mixing:
    """Weights per token: ``pre, post [token, hc]`` and ``carry [token, source copy, target copy]``."""

    pre: Floats
    post: Floats
    carry: Floats


def mixing_weights(mix: Floats, scale: Floats, bias: Floats, hc: int, iterations: int, eps: float) -> Mixing:
    """Weights from the projection ``mix [token, 2*hc + hc*hc]`` of the normed copies.

    ``scale[3]`` (pre, post, carry) and ``bias[2*hc + hc*hc]`` are parameters of the layer.
    """
    pre, post, carry = np.split(mix, [hc, 2 * hc], axis=-1)
    pre_bias, post_bias, carry_bias = np.split(bias, [hc, 2 * hc])
    logits = (carry * scale[2] + carry_bias).reshape(-1, hc, hc)
    return Mixing(
        pre=read_weights(pre, scale[0], pre_bias, eps),
        post=2 * _sigmoid(post * scale[1] + post_bias),
        carry=sinkhorn(logits, iterations, eps),
    )


def read_weights(mix: Floats, scale: Floats, bias: Floats, eps: float) -> Floats:
    """How much of each copy is read, each in (eps, 1 + eps). The model's output head uses only this."""
    weights: Floats = _sigmoid(mix * scale + bias) + eps
    return weights


def sinkhorn(logits: Floats, iterations: int, eps: float) -> Floats:
    """Make ``[..., source, target]`` nearly doubly stochastic; positive, columns last.

    The first round is a softmax over the targets plus eps, then columns (sums over the sources) are
    divided by their sum plus eps; every further round divides rows, then columns.
    """
    weights: Floats = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True) + eps
    weights = weights / (weights.sum(axis=-2, keepdims=True) + eps)
    for _ in range(iterations - 1):
        weights = weights / (weights.sum(axis=-1, keepdims=True) + eps)
        weights = weights / (weights.sum(axis=-2, keepdims=True) + eps)
    return weights


def layer_input(copies: Floats, mixing: Mixing) -> Floats:
    """What the layer reads, ``[token, d]``, of ``copies [token, hc, d]``."""
    mixed: Floats = np.einsum("th,thd->td", mixing.pre, copies)
    return mixed


def next_copies(copies: Floats, output: Floats, mixing: Mixing) -> Floats:
    """The copies after the layer, ``[token, hc, d]``, from its ``output [token, d]``."""
    fed: Floats = mixing.post[..., None] * output[:, None]
    carried: Floats = np.einsum("nst,nsd->ntd", mixing.carry, copies)
    return fed + carried


def _sigmoid(x: Floats) -> Floats:
    y: Floats = 1 / (1 + np.exp(-x))
    return y
