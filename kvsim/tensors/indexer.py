"""The lightning indexer: which cells a token attends to (DSA, DSA-iSWA; also DeepSeek-V4 and the k-pool).

A few small heads score every cell; only the k best visible cells take part in attention. The keys of
these heads live in a cache of their own (``lid``), one per cell, whose table must equal that of the
attention cache: a selection names cells of one and is applied to the other.

Mirrors ``src/models/deepseek32.cpp`` and the lightning indexer of ``src/llama-graph.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import CacheUsageError
from kvsim.memory import BoolArray, IntArray
from kvsim.tensors.hadamard import hadamard
from kvsim.tensors.rope import Rope, rope
from kvsim.tensors.topk import top_k

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class IndexerVariant:
    """How an architecture turns its index queries and keys before they meet.

    ``trailing``: the last dimensions are rotated, not the first. ``hadamard``: a Hadamard matrix of the
    head's size follows, which leaves scores as they are but for a quantised key.
    """

    neox: bool
    trailing: bool = False
    hadamard: bool = True


VARIANTS = {
    "deepseek32": IndexerVariant(neox=True),
    "dots3note": IndexerVariant(neox=True),
    "glm-dsa": IndexerVariant(neox=False),
    "hy_v4": IndexerVariant(neox=False, trailing=True, hadamard=False),
    "deepseek4": IndexerVariant(neox=False, trailing=True),
}


def index_vectors(x: Floats, pos: IntArray, rotation: Rope, variant: IndexerVariant) -> Floats:
    """Index queries ``[token, head, d]`` or keys ``[token, d]`` as they are scored, and keys are stored.

    ``rotation`` is the main attention's: base, scale and YaRN are shared, pairing and offset are not.
    """
    d = x.shape[-1]
    offset = d - rotation.n_rot if variant.trailing else 0
    turned = rope(x, pos, replace(rotation, offset=offset, neox=variant.neox))
    return hadamard(turned, d) if variant.hadamard else turned


def head_weights(raw: Floats, head_size: int) -> Floats:
    """Scale the projected head weights ``[token, head]`` by 1/sqrt(head_size * heads) (rule I4)."""
    scaled: Floats = raw / np.sqrt(head_size * raw.shape[-1]).astype(raw.dtype)
    return scaled


def index_scores(q: Floats, keys: Floats, weights: Floats, visible: BoolArray) -> Floats:
    """Scores ``[token, cell]``: each head's ReLU of q.k, summed with the head's weight (rule I5).

    ``q [token, head, d]``, ``keys [cell, d]`` as stored, ``weights [token, head]`` of any sign,
    ``visible [token, cell]``. An invisible cell scores -inf, a visible one may be negative.
    """
    scores = np.zeros((len(q), len(keys)), q.dtype)
    for head in range(q.shape[1]):
        scores += weights[:, head, None] * np.maximum(q[:, head] @ keys.T, 0)
    return np.where(visible, scores, -np.inf)


def select(scores: Floats, k: int, visible: BoolArray) -> BoolArray:
    """Final mask ``[token, cell]``: the ``k`` best cells that are also visible.

    With fewer than ``k`` visible cells exactly those remain (spec dsa.md 3).
    """
    return chosen(top_k(scores, k), scores.shape[-1]) & visible


def chosen(indices: IntArray, n: int) -> BoolArray:
    """The sets ``indices [..., k]`` as a mask ``[..., n]``."""
    mask = np.zeros((*indices.shape[:-1], n), np.bool_)
    np.put_along_axis(mask, indices, True, axis=-1)
    return mask


def deciding_layers(has_indexer: Sequence[bool]) -> list[int]:
    """For each layer the layer whose selection it uses: its own, or the nearest before it (rule I8).

    Raises CacheUsageError if the first layers have none.
    """
    deciding: list[int] = []
    for layer, own in enumerate(has_indexer):
        if not own and not deciding:
            raise CacheUsageError(
                "layer 0 shares its selection, but no layer before it has an indexer; llama.cpp refuses "
                "the model. Let the first layer have one"
            )
        deciding.append(layer if own else deciding[-1])
    return deciding
