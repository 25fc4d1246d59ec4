"""Into which ubatches a batch of runs is split, run by run instead of token by token.

A run is some tokens of one sequence; no sequence has two of them in a batch. What comes out is what
:class:`kvsim.splitter.Splitter` makes of the single tokens, to which tests hold it, in a time that does not
grow with the length of prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

Parts = list[tuple[int, int]]
"""A ubatch: the runs it takes from, by their index in the batch, and how many tokens of each, in order."""


def simple_split(lengths: Sequence[int], n_ubatch: int) -> list[Parts]:
    """The tokens as they come, ``n_ubatch`` at a time."""
    ubatches: list[Parts] = []
    room = 0
    for i, left in enumerate(lengths):
        while left:
            if room == 0:
                ubatches.append([])
                room = n_ubatch
            n = min(left, room)
            ubatches[-1].append((i, n))
            left, room = left - n, room - n
    return ubatches


def equal_split(seqs: Sequence[int], lengths: Sequence[int], n_ubatch: int, sequential: bool) -> list[Parts]:
    """Equally many tokens of several runs; ``sequential``: only of sequences whose ids follow each other."""
    left = list(lengths)
    waiting = [i for i, n in enumerate(left) if n]
    ubatches: list[Parts] = []
    while waiting:
        taken = _following(seqs, waiting, n_ubatch + 1) if sequential else waiting[: n_ubatch + 1]
        n = max(1, min(min(left[i] for i in taken), n_ubatch // len(taken)))
        ubatches.append([(i, n) for i in taken])
        for i in taken:
            left[i] -= n
        waiting = [i for i in waiting if left[i]]
    return ubatches


def _following(seqs: Sequence[int], waiting: Sequence[int], most: int) -> list[int]:
    """The first run, then that of the next id if it comes later in the batch, and so on."""
    at = {seqs[i]: i for i in waiting}
    taken = [waiting[0]]
    while len(taken) < most:
        following = at.get(seqs[taken[-1]] + 1, -1)
        if following < taken[-1]:
            break
        taken.append(following)
    return taken
