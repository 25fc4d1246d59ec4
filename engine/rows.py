"""The tokens of one ubatch as the device needs them: one upload each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from engine.sync import upload
from kvsim.batch import Ubatch
from kvsim.memory import POS_INF

WORD_BITS = 32
WORD = torch.int32
"""Owner bits are kept in such words: passes over them cost what they move."""

POS, TOK, X, Y, KEPT, SHIFT = range(6)
"""The planes of a cell table."""

FIRST, BEGIN = 6, 7


def signed_bit(s: int) -> int:
    """The owner bit of ``s`` in its word, as a signed number."""
    bit = 1 << (s % WORD_BITS)
    return bit - (1 << WORD_BITS) if bit >> (WORD_BITS - 1) else bit


def owner_words(seq_ids: tuple[tuple[int, ...], ...], n_words: int) -> np.ndarray:
    """Owner bits of tokens, ``int32[n_words, n_tokens]``."""
    words = np.zeros((n_words, len(seq_ids)), np.uint32)
    of_set: dict[tuple[int, ...], list[int]] = {}
    for row, ids in enumerate(seq_ids):
        of_set.setdefault(ids, []).append(row)
    for ids, rows in of_set.items():
        for s in set(ids):
            words[s // WORD_BITS, rows] |= np.uint32(1 << s % WORD_BITS)
    return words.view(np.int32)


@dataclass
class Rows:
    """One ubatch on the device. ``n_parts`` streams have equally many of its tokens, in order.

    ``cells_int32[6, n]`` is what goes into the planes of the cells, ``words`` the owner bits
    ``int32[n_words, n]``. The rest is for masks, per token: FIRST, its first sequence; BEGIN, the lowest
    position of that sequence in its part.
    """

    ubatch: Ubatch
    n_parts: int
    packed: Tensor
    n_words: int

    @classmethod
    def of(cls, ubatch: Ubatch, n_parts: int, n_words: int, embd_token: int, device: torch.device) -> Rows:
        n = ubatch.n_tokens
        table = np.zeros((8 + n_words, n), np.int64)
        table[0] = ubatch.pos0
        table[1] = embd_token if ubatch.tokens is None else ubatch.tokens
        if ubatch.tokens is not None and ubatch.is_embd is not None:
            table[1, ubatch.is_embd] = embd_token
        if ubatch.n_pos >= 3:
            table[2], table[3] = ubatch.pos[2], ubatch.pos[1]
        table[KEPT] = table[0] == -1
        table[FIRST] = [ids[0] for ids in ubatch.seq_ids]
        table[BEGIN] = (
            table[0]
            if n == n_parts
            else _begins(table[0].reshape(n_parts, -1), table[FIRST].reshape(n_parts, -1)).reshape(-1)
        )
        table[8:] = owner_words(ubatch.seq_ids, n_words)
        return cls(ubatch, n_parts, upload(table, device), n_words)

    @cached_property
    def cells_int32(self) -> Tensor:
        return self.packed[:6].to(torch.int32)

    @cached_property
    def words(self) -> Tensor:
        return self.packed[8:].to(WORD)

    def part(self, field: int) -> Tensor:
        """A column of the table as ``[n_parts, n, 1]``, to broadcast against cells."""
        return self.packed[field].view(self.n_parts, -1, 1)

    @property
    def one_sequence_per_part(self) -> bool:
        """Whether all tokens of a part attend as the same sequence: then one look at the owners will do."""
        first = np.array([ids[0] for ids in self.ubatch.seq_ids]).reshape(self.n_parts, -1)
        return bool((first == first[:, :1]).all())


def _begins(pos: np.ndarray, seq: np.ndarray) -> np.ndarray:
    begins = np.full_like(pos, POS_INF)
    for part_pos, part_seq, out in zip(pos, seq, begins, strict=True):
        for s in set(part_seq.tolist()):
            own = part_seq == s
            out[own] = part_pos[own].min()
    return begins
