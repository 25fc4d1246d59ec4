"""Which entries of a batch go into the next ubatch (``src/llama-batch.cpp: split_simple`` and its kin).

A :class:`Splitter` knows of each entry only its *sequence set*, the sequences it belongs to, as a bit
mask. It answers with batch indices in execution order; :class:`~kvsim.batch.BatchAllocator` builds ubatches.
Between two :meth:`Splitter.reset` use one kind of split only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class Splitter:
    """Takes a batch apart. ``masks[i]`` is the set of entry i, ``rows_of`` has the entries of each set."""

    def __init__(self, masks: Sequence[int], rows_of: dict[int, list[int]]) -> None:
        self._masks = masks
        self._rows_of = rows_of
        self.reset()

    def reset(self) -> None:
        """Give all entries back."""
        self.n_used = 0
        self._used = bytearray(len(self._masks))
        self._first_unused = dict.fromkeys(self._rows_of, 0)  # per set, an index into its rows

    @property
    def all_used(self) -> bool:
        return self.n_used == len(self._masks)

    def _take(self, rows: list[int]) -> list[int]:
        for i in rows:
            self._used[i] = 1
        self.n_used += len(rows)
        return rows

    def simple(self, n: int) -> Sequence[int]:
        """S1: the next up to ``n`` entries (at least one) as they come; none when all are used."""
        rows = range(self.n_used, min(self.n_used + max(n, 1), len(self._masks)))
        self.n_used += len(rows)
        return rows

    def seq(self, n: int) -> Sequence[int]:
        """S2: from the first unused on, up to ``n`` entries, the set of each a subset of the one before."""
        first = self._used.find(0)
        if first < 0:
            return []
        rows = []
        current = self._masks[first]
        for i in range(first, len(self._masks)):
            mask = self._masks[i]
            if not self._used[i] and mask & current == mask:
                current = mask
                rows.append(i)
                if len(rows) >= n:
                    break
        return self._take(rows)

    def equal(self, n: int, sequential: bool, n_keep_tail: int) -> tuple[Sequence[int], int]:
        """S3: equally many entries of several disjoint sets, set after set, and how many sets that are."""
        if self.all_used:
            return [], 0
        waiting = self._waiting()
        masks = _consecutive_sets(waiting, n) if sequential else _disjoint_sets(waiting, n)
        sets = [waiting[mask] for mask in masks]
        length = max(1, min(min(map(len, sets)), n // len(sets)))
        lengths = keep_tails([len(rows) for rows in sets], length, n, n_keep_tail)
        rows = [i for rows, k in zip(sets, lengths, strict=False) for i in rows[:k]]
        return self._take(rows), len(lengths)

    def _waiting(self) -> dict[int, list[int]]:
        """The unused entries of each set, the sets in the order of their first one."""
        waiting = []
        for mask, rows in self._rows_of.items():
            k = self._first_unused[mask]
            while k < len(rows) and self._used[rows[k]]:
                k += 1
            self._first_unused[mask] = k
            if k < len(rows):
                waiting.append((rows[k:], mask))
        return {mask: rows for rows, mask in sorted(waiting)}


def _disjoint_sets(waiting: dict[int, list[int]], n: int) -> list[int]:
    """Sets in the order of the batch that share no sequence, at most n + 1 of them."""
    taken: list[int] = []
    union = 0
    for mask in waiting:
        if not mask & union:
            taken.append(mask)
            union |= mask
            if len(taken) > n:
                break
    return taken


def _consecutive_sets(waiting: dict[int, list[int]], n: int) -> list[int]:
    """The first waiting sequence s, then s + 1 if it has an entry behind that, and so on; at most n + 1.

    Scanning the batch ``1 0 2`` takes 1, passes over 0 and takes 2.
    """
    mask, rows = next(iter(waiting.items()))
    at = rows[0]
    taken = [mask]
    while len(taken) <= n:
        mask <<= 1
        rows = waiting.get(mask, [])
        k = bisect_right(rows, at)
        if k == len(rows):
            break
        at = rows[k]
        taken.append(mask)
    return taken


def keep_tails(waiting: list[int], length: int, n: int, tail: int) -> list[int]:
    """S4: how many entries of each set to take so that the last ``tail`` of none are cut in two.

    ``waiting`` entries per set, of which ``length`` each would be taken. Sets that would be left with a
    part of their tail wait, with all behind them. If that is the first set, it goes alone: to its end
    if that fits into ``n``, else only as far as its tail::

        tail 4, n 8, waiting 10 (length 8)          take 6, then 4
        tail 4, n 8, waiting 5 and 5 (length 4)     take 5 of the first, then 5 of the second
    """
    lengths: list[int] = []
    for entries in waiting:
        if 0 < entries - length < tail:
            break
        lengths.append(length)
    return lengths or [waiting[0] if waiting[0] <= n else waiting[0] - tail]
