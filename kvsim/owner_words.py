"""The owners of a cell as bits: which sequences see it (``src/llama-kv-cells.h``: a bitset per cell).

Bit ``s % 64`` of word ``s // 64`` stands for sequence ``s``. A table of cells has the words as rows:
``uint64[words, n]``.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvsim.memory import BoolArray

WORD_BITS = 64
Words = NDArray[np.uint64]


def seq_words(ids: Iterable[int], n_words: int) -> list[int]:
    """The ids as ``n_words`` 64-bit words, least significant bit first."""
    words = [0] * n_words
    for s in ids:
        words[s // WORD_BITS] |= 1 << (s % WORD_BITS)
    return words


def ids_of_words(words: Iterable[int]) -> list[int]:
    """The sequence ids whose bit is set, ascending."""
    ids = []
    for w, word in enumerate(words):
        while word:
            lowest = word & -word
            ids.append(w * WORD_BITS + lowest.bit_length() - 1)
            word ^= lowest
    return ids


_BITS = tuple(np.uint64(1 << bit) for bit in range(WORD_BITS))


def bit_of(s: int) -> tuple[int, np.uint64]:
    """Where the owner bit of ``s`` is: the word, and the bit in it."""
    word, bit = divmod(s, WORD_BITS)
    return word, _BITS[bit]


def owned_alone(words: Words, s: int) -> BoolArray:
    """Which cells of ``words [words, n]`` carry ``s`` and nobody else."""
    word, bit = bit_of(s)
    if word >= len(words):
        return np.zeros(words.shape[1], np.bool_)
    alone: BoolArray = words[word] == bit
    for other in range(len(words)):
        if other != word:
            alone &= words[other] == 0
    return alone


def only_owner_p1(words: Words) -> NDArray[np.intp]:
    """1 + the owner of each cell that has one alone, 0 for the others. ``words`` is written to."""
    word, base = words[0], np.intp(0)
    if len(words) > 1:
        which = (words != 0).argmax(axis=0)
        word, base = words[which, np.arange(words.shape[1])], which * WORD_BITS
        word[np.count_nonzero(words, axis=0) != 1] = 0
    owner: NDArray[np.intp] = np.frexp(word.astype(np.float64))[1] + base  # log2, and 1
    owner[(word & (word - np.uint64(1)) != 0) | (word == 0)] = 0
    return owner
