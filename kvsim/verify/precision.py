"""Attention as the recorded run computed it: by flash attention or not, and rounded as its types round."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.memory import BoolArray
from kvsim.tensors.attention import attention_weights, weighted_values
from kvsim.tensors.flash import as_operand, flash_attention

Floats = NDArray[np.floating[Any]]


def attend(
    q: Floats,
    k: Floats,
    v: Floats,
    mask: BoolArray,
    *,
    scale: float,
    type_k: str,
    type_v: str,
    flash: bool,
    sinks: Floats | None = None,
) -> Floats:
    """``[token, head, n_v]``; arguments as for :func:`kvsim.tensors.attention.attention`, rows as decoded."""
    if flash:
        return flash_attention(q, k, v, mask, scale=scale, type_k=type_k, type_v=type_v, sinks=sinks)
    weights = attention_weights(as_operand(q, type_k), k, mask, scale=scale, sinks=sinks)
    return weighted_values(as_operand(weights, type_v), v)
