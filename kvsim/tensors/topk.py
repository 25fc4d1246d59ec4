"""The k best of each row: as a set, and in the order in which llama.cpp's CPU backend lists them.

Selection is a set: which cells attention may see. Only two things depend on the order: which of several
equal scores at the border get in (the ReLU of an indexer makes exact zeros common), and the recorded
index lists. ``ggml_top_k`` runs C++'s ``partial_sort`` and then swaps the first two, so both follow
from the heap that the GNU library builds; :func:`heap_top_k` does the same comparisons and moves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.memory import IntArray

Floats = NDArray[np.floating[Any]]

LOWEST = np.finfo(np.float32).min


def top_k(scores: Floats, k: int) -> IntArray:
    """Indices ``int32[..., min(k, n)]`` of the largest scores of the last axis, in no particular order.

    Where equal scores straddle the border the choice is llama.cpp's, unless they are those of something
    invisible (-inf, or the lowest float32 of a fully masked block): which filler gets in doesn't matter.
    """
    n = scores.shape[-1]
    k = min(k, n)
    if k in (0, n):
        return np.broadcast_to(np.arange(k, dtype=np.int32), (*scores.shape[:-1], k)).copy()
    best = np.argpartition(scores, n - k, axis=-1)[..., n - k :].astype(np.int32)
    border = np.take_along_axis(scores, best, -1).min(axis=-1, keepdims=True)
    tied = ((border > LOWEST) & ((scores >= border).sum(axis=-1, keepdims=True) > k))[..., 0]
    for row in np.argwhere(tied):
        best[tuple(row)] = heap_top_k(scores[tuple(row)], k)
    return best


def heap_top_k(scores: Floats, k: int) -> IntArray:
    """Indices ``int32[..., min(k, n)]`` of the largest scores, listed as llama.cpp lists them.

    Descending, ties in the heap's order, the first two swapped. A Python loop over the row: for
    comparisons with recordings and for ties, not for speed.
    """
    if scores.ndim > 1:
        return np.stack([heap_top_k(row, k) for row in scores.reshape(-1, scores.shape[-1])]).reshape(
            *scores.shape[:-1], -1
        )
    values = scores.tolist()
    k = min(k, len(values))
    heap = list(range(k))
    for hole in range(k // 2 - 1, -1, -1):
        _settle(heap, hole, k, heap[hole], values)
    for i in range(k, len(values)):
        if k and values[i] > values[heap[0]]:
            _settle(heap, 0, k, i, values)
    for end in range(k - 1, 0, -1):
        last, heap[end] = heap[end], heap[0]
        _settle(heap, 0, end, last, values)
    if k > 1:
        heap[0], heap[1] = heap[1], heap[0]
    return np.array(heap, np.int32)


def _settle(heap: list[int], hole: int, n: int, item: int, values: list[float]) -> None:
    """Put ``item`` into the heap (smallest on top) whose place ``hole`` is free.

    The hole first sinks to a leaf along the smaller children, the right one on a tie, and the item
    then rises from there. Sinking the item itself would order ties differently.
    """
    top = hole
    while (child := 2 * hole + 1) < n:
        if child + 1 < n and values[heap[child + 1]] <= values[heap[child]]:
            child += 1
        heap[hole] = heap[child]
        hole = child
    while hole > top and values[heap[parent := (hole - 1) // 2]] > values[item]:
        heap[hole] = heap[parent]
        hole = parent
    heap[hole] = item
