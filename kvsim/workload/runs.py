"""Runs: some tokens of one sequence in a row, and what they become: a batch, columns, a ubatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvsim.batch import Batch, Ubatch
from kvsim.memory import IntArray


class Run(NamedTuple):
    """``tokens`` of one sequence, at positions from ``start`` on."""

    seq: int
    start: int
    tokens: Sequence[int]


def batch_of(runs: Sequence[Run]) -> Batch:
    """The runs as one batch, with an output for the last token of each."""
    tokens: list[int] = []
    pos: list[int] = []
    seq_ids: list[tuple[int, ...]] = []
    output: list[bool] = []
    for run in runs:
        n = len(run.tokens)
        tokens += run.tokens
        pos += range(run.start, run.start + n)
        seq_ids += [(run.seq,)] * n
        output += [False] * (n - 1) + [True]
    return Batch(tokens, None, pos, seq_ids, output)


def first_of(run: Run, n: int) -> Run:
    """Its first ``n`` tokens."""
    return Run(run.seq, run.start, run.tokens[:n])


def goes_on(group: Sequence[Run], run: Run) -> bool:
    """Whether the run goes on where the only run of the group ends: the same sequence, the next token ids."""
    (seq, start, tokens), new = group[0], run.tokens
    if len(group) > 1 or not isinstance(tokens, range) or not isinstance(new, range):
        return False
    return seq == run.seq and start + len(tokens) == run.start and tokens.stop == new.start


def columns_of(group: Sequence[Run]) -> tuple[IntArray, IntArray, IntArray]:
    """Positions, tokens and sequences of a group, in order."""
    n = len(group[0].tokens)
    if len(group) == 1:
        seq, start, tokens = group[0]
        return np.arange(start, start + n, dtype=np.int32), _ids(tokens), np.full(n, seq, np.int32)
    pos = np.arange(n, dtype=np.int32)[:, None] + np.array([run.start for run in group], np.int32)
    ids = np.stack([_ids(run.tokens) for run in group], axis=1)
    return pos.ravel(), ids.ravel(), np.tile(np.array([run.seq for run in group], np.int32), n)


def _ids(tokens: Sequence[int]) -> IntArray:
    if isinstance(tokens, range):
        return np.arange(tokens.start, tokens.stop, dtype=np.int32)
    return np.asarray(tokens, np.int32)


def equal_ubatch(runs: Sequence[Run]) -> Ubatch:
    """Equally long runs as one ubatch, run after run, for states, which ask for no token."""
    n_each = len(runs[0].tokens)
    n = n_each * len(runs)
    pos: IntArray = np.concatenate([np.arange(r.start, r.start + n_each, dtype=np.int32) for r in runs])
    return Ubatch(
        pos=pos[None],
        seq_ids=tuple([ids for run in runs for ids in ((run.seq,),) * n_each]),
        output=np.zeros(n, np.bool_),
        idx=np.arange(n, dtype=np.int32),
        tokens=np.zeros(n, np.int32),
        has_embd=False,
        n_seq_tokens=n_each,
        n_seqs=len(runs),
        equal_seqs=True,
        seq_id_unq=tuple(sorted([run.seq for run in runs])),
    )
