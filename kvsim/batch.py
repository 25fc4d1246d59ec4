"""Batches: filling in what a caller left out, validating, and splitting into ubatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.memory import BoolArray, IntArray


@dataclass(frozen=True)
class Ubatch:
    """A part of a batch that goes through the graph at once. Rows are in execution order.

    ``pos`` is ``int32[n_pos, n_tokens]`` (4 sections t, y, x, 0 for M-RoPE, else 1).
    ``seq_ids[i]`` are the ids of row i **in the order llama.cpp sees them** (element 0 is the one that
    masks, rollback and coupling use). ``tokens`` is None for embeddings only; ``idx`` is the batch
    index of each row. With ``equal_seqs`` the rows are set-major: ``n_seqs`` sets of ``n_seq_tokens``.
    """

    pos: IntArray
    seq_ids: tuple[tuple[int, ...], ...]
    output: BoolArray
    idx: IntArray
    tokens: IntArray | None
    has_embd: bool
    n_seq_tokens: int
    n_seqs: int
    equal_seqs: bool
    seq_id_unq: tuple[int, ...]

    @property
    def n_tokens(self) -> int:
        return len(self.seq_ids)

    @property
    def n_pos(self) -> int:
        return len(self.pos)

    @property
    def n_seqs_unq(self) -> int:
        return len(self.seq_id_unq)

    @property
    def pos0(self) -> IntArray:
        """The time section of the positions, ``int32[n_tokens]``."""
        return self.pos[0]
