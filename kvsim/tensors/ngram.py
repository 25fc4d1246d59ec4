"""n-gram embeddings (Qwen4-exp): the tokens before a token, found through the cells, hashed to table rows.

A token's predecessors may lie in an earlier ubatch, so they are looked up in the attention cache, which
keeps the token id of each cell. The hash row is then that of the 2, 3, ... newest tokens. A third
recurrent row keeps the inputs of the module's convolution (:func:`kvsim.tensors.scan.conv_snapshots_all`).

Mirrors ``src/llama-kv-cache.cpp: get_prev_tokens`` and ``src/models/qwen4exp.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kvsim.memory import IntArray

History = tuple[IntArray, IntArray]
"""Positions of a sequence's cells, sorted by position and then cell, and the token ids in that order."""


def previous_tokens(
    pos: IntArray, seq: Sequence[int], n: int, by_order: bool, history: Callable[[int], History]
) -> IntArray:
    """The ``n`` predecessors of each token: token ids ``int32[token, n]``, oldest first, -1 where none.

    ``seq`` holds the first sequence id of each token. The d-th predecessor of a plain token is at the
    largest position <= pos - d that the sequence holds. With embeddings in the ubatch (``by_order``) a whole
    image may share a position; then the position is that of the entry d before in the ubatch, of the same
    sequence, and before its first entry counts down from there. At equal positions the highest cell wins.
    ``history(s)`` describes the cells of s after the ubatch was placed, so that the ubatch itself is visible.
    """
    found = np.full((len(pos), n), -1, np.int32)
    for s in dict.fromkeys(seq):
        rows = np.flatnonzero(np.array(seq) == s)
        held, tokens = history(s)
        for d in range(1, n + 1):
            wanted = _positions_back(pos[rows], d) if by_order else pos[rows] - d
            at = np.searchsorted(held, wanted, side="right")
            known = (wanted >= 0) & (at > 0)
            found[rows[known], n - d] = tokens[at[known] - 1]
    return found


def _positions_back(pos: IntArray, d: int) -> IntArray:
    """Position of the entry ``d`` earlier; before the first one, as far before its position."""
    rank = np.arange(len(pos)) - d
    return np.where(rank >= 0, pos[np.maximum(rank, 0)], pos[0] + rank).astype(np.int32)


def hash_rows(
    tokens: IntArray,
    previous: IntArray,
    eos: int,
    multipliers: Sequence[int],
    vocab_sizes: Sequence[int],
    offsets: Sequence[int],
) -> IntArray:
    """Rows of the embedding table, ``int32[token, head]``.

    ``tokens`` are the tokens themselves (the image token for embeddings), ``previous [token, n-1]`` is
    oldest first. A missing predecessor or an EOS reads as EOS, and so does everything before it; the
    token's own EOS hides nothing. Head h belongs to the (2 + h // heads_per_ngram)-grams. The product
    with the multipliers (up to about 2e13) is 64-bit, modulo 2^64.
    """
    context = np.concatenate([tokens[:, None], previous[:, ::-1]], axis=1)
    cut = np.logical_or.accumulate((context[:, 1:] < 0) | (context[:, 1:] == eos), axis=1)
    context[:, 1:][cut] = eos
    mixed = np.bitwise_xor.accumulate(context.astype(np.uint64) * np.array(multipliers, np.uint64), axis=1)
    per_gram = len(vocab_sizes) // previous.shape[1]
    grams = 1 + np.arange(len(vocab_sizes)) // per_gram
    rows = mixed[:, grams] % np.array(vocab_sizes, np.uint64) + np.array(offsets, np.uint64)
    return rows.astype(np.int32)
