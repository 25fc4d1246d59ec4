"""The pooled indexer of GLM5-Next and Qwen4-exp: P cells share one index key, and are chosen together.

Which cells make a pool is in :mod:`kvsim.caches.pool_layout`, what a graph is told of them in
:mod:`kvsim.caches.pool_inputs`; here is what it does with pools. The pooled key is stored in the row of the
pool's last cell. A token sees the complete pools before it, and the cells after the last of them, its
*tail*, one by one::

    cells     0 1 2 3 | 4 5 6 7 | 8 9        P = 4
    token 9   pool 0, pool 1 if chosen, and its tail 9, 8
    token 6   pool 0 if chosen, and its tail 6, 5, 4

Cells are stream-local or global (``stream * kv_size + cell``).

Mirrors ``src/models/glm5-next.cpp`` and ``src/models/qwen4exp.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.memory import BoolArray, IntArray
from kvsim.tensors.norm import rms_norm
from kvsim.tensors.rope import Rope, rope

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class PoolInputs:
    """What the graph of one ubatch gets. Members and tail cells that don't exist are *none*.

    ``pool_cells [pool]``, ``new_pool_idxs [new, size]``, ``new_pool_rep [new]`` are global cells;
    ``pool_idxs [pool, size]`` and ``tail_idxs [token, size-1]`` (newest first) are stream-local and
    *none* is ``n_kv`` if the selection becomes a mask; if it is gathered they are global and *none* is
    the first cell at the first token's position. ``pool_mask [token, pool]``: complete at the token.
    ``tail_real [token, size-1]``: tail cells that exist. ``new_first``: for each real new pool the global
    cell of its first member.
    """

    pool_cells: IntArray
    pool_idxs: IntArray
    pool_mask: BoolArray
    tail_idxs: IntArray
    tail_real: BoolArray
    new_pool_idxs: IntArray
    new_pool_rep: IntArray
    new_first: IntArray


def token_rows(*parts: Floats) -> Floats:
    """What a token writes: key, with GLM5-Next its gate, and an empty slot for a pooled key."""
    return np.concatenate([*parts, np.zeros_like(parts[0])], axis=-1)


def pool_gated(keys: Floats, gates: Floats, ape: Floats) -> Floats:
    """GLM5-Next: per channel, the members' keys weighted by the softmax of gate + ``ape[size, d]``.

    ``keys, gates [pool, size, d]``.
    """
    logits = gates + ape
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    pooled: Floats = (weights * keys).sum(axis=1) / weights.sum(axis=1)
    return pooled


def pool_mean(keys: Floats, norm: Floats, eps: float, pos: IntArray, rotation: Rope) -> Floats:
    """Qwen4-exp: the mean of the members' raw keys, normed, turned to the first member's position.

    ``keys [pool, size, d]``, ``pos int32[4, pool]``: t, y, x, t of the first member.
    """
    return rope(rms_norm(keys.mean(axis=1), norm, eps), pos, rotation)


def selection_mask(inputs: PoolInputs, top: IntArray, visible: BoolArray) -> BoolArray:
    """Final mask ``[token, cell]``: the members of chosen visible pools and the tail, if attention may look.

    ``top [token, k]`` are the chosen pools, fillers included, ``visible [token, n_kv]`` the ordinary mask.
    """
    n_tokens, n_kv = visible.shape
    shown = np.take_along_axis(inputs.pool_mask, top, axis=1)
    members = np.where(shown[..., None], inputs.pool_idxs[top], n_kv).reshape(n_tokens, -1)
    mask = np.zeros((n_tokens, n_kv + 1), np.bool_)  # the last column takes what doesn't exist
    np.put_along_axis(mask, members, True, axis=1)
    np.put_along_axis(mask, np.where(inputs.tail_real, inputs.tail_idxs, n_kv), True, axis=1)
    return mask[:, :n_kv] & visible


def gathered_selection(inputs: PoolInputs, top: IntArray) -> tuple[IntArray, BoolArray]:
    """Global cells ``[token, k*size + size-1]`` to gather, and which of them count.

    ``top [token, k]`` must be sorted by descending score, so that the visible pools come first.
    """
    n_tokens, k = top.shape
    n_visible = np.minimum(inputs.pool_mask.sum(axis=1), k)
    size = inputs.pool_idxs.shape[1]
    cells = np.concatenate([inputs.pool_idxs[top].reshape(n_tokens, -1), inputs.tail_idxs], axis=1)
    shown = np.repeat(np.arange(k) < n_visible[:, None], size, axis=1)
    return cells, np.concatenate([shown, inputs.tail_real], axis=1)
