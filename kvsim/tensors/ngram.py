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


def previous_positions(pos: IntArray, seq: Sequence[int], n: int, by_order: bool) -> IntArray:
    """Where to look for the ``n`` predecessors of each token: positions ``int32[token, n]``, oldest first.

    ``seq`` holds the first sequence id of each token. A negative position means that there is none.
    Plain tokens look ``d`` positions back. With embeddings in the ubatch (``by_order``) a whole image
    may share one position, so the d-th token before of the same sequence gives the position; before the
    ubatch's first token of the sequence positions count down from that token's.
    """
    back = np.arange(n, 0, -1, dtype=np.int32)
    if not by_order:
        return pos[:, None] - back
    found = np.empty((len(pos), n), np.int32)
    own: dict[int, list[int]] = {}
    for i, s in enumerate(seq):
        before = own.setdefault(s, [])
        rank = len(before)
        before.append(int(pos[i]))
        found[i] = [before[rank - d] if rank >= d else before[0] + rank - d for d in back.tolist()]
    return found


def previous_tokens(
    positions: IntArray, seq: Sequence[int], token_at_or_before: Callable[[int, int], int]
) -> IntArray:
    """The predecessors' token ids ``int32[token, n]``, -1 where there is none.

    ``token_at_or_before(seq, pos)`` is :meth:`~kvsim.cells.CellTable.seq_pos_tok_le` of the sequence's
    stream, asked after the ubatch was placed, so that the ubatch itself is visible.
    """
    found = [
        [token_at_or_before(s, p) if p >= 0 else -1 for p in row]
        for s, row in zip(seq, positions.tolist(), strict=True)
    ]
    return np.array(found, np.int32).reshape(positions.shape)


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
