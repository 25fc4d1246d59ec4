"""The order in which llama.cpp sees the sequence ids of one token.

llama.cpp keeps them in a hash set (``src/llama-batch.h: llama_batch_ext::token``), so the order of
iteration is the standard library's, and element 0 of that order decides: it masks, it is rolled back,
it is what the other ids are coupled to. This module follows GNU libstdc++, with which the reference
recordings were made: one linked list of all elements, hash = the id itself.

The elements of a bucket are neighbours in the list. A new element goes to the front of its bucket's
run, or to the front of the whole list if its bucket is empty. So ids that never share a bucket come out
in reverse::

    insert 2, 0, 1      1 . 0 . 2
    insert 13 (13 buckets, the bucket of 0 is taken)   1 . 13 . 0 . 2
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

BUCKET_COUNTS = (13, 29, 59, 127, 257, 541)
"""Sizes the table grows through; it grows when it would hold more elements than buckets."""


def _link(order: list[int], seq: int, n_buckets: int) -> None:
    """Insert ``seq`` where libstdc++ links the new node."""
    bucket = seq % n_buckets
    at = next((i for i, other in enumerate(order) if other % n_buckets == bucket), 0)
    order.insert(at, seq)


def hash_set_order(ids: Iterable[int]) -> tuple[int, ...]:
    """Distinct non-negative ids in the order a libstdc++ hash set lists them after these insertions.

    A repeated id keeps its first place. Growing relinks every element, in list order, by the same rule.
    """
    order: list[int] = []
    seen: set[int] = set()
    sizes = iter(BUCKET_COUNTS)
    n_buckets = next(sizes)
    for seq in ids:
        if seq in seen:
            continue
        if len(order) == n_buckets:
            n_buckets = next(sizes)
            relinked: list[int] = []
            for old in order:
                _link(relinked, old, n_buckets)
            order = relinked
        seen.add(seq)
        _link(order, seq, n_buckets)
    return tuple(order)


@lru_cache(maxsize=4096)
def seen_order(ids: tuple[int, ...]) -> tuple[int, ...]:
    """:func:`hash_set_order`, remembered: a batch repeats few distinct sets many times."""
    return ids if len(ids) == 1 else hash_set_order(ids)
