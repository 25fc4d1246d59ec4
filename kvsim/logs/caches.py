"""Which cache of which context printed a search: the print itself does not say."""

from __future__ import annotations

from kvsim.logs.facts import VISIBLE, Facts
from kvsim.logs.searches import Search


def context_of(search: Search, contexts: list[Facts], last: list[dict[tuple[int, int], Search]]) -> int:
    """The index of the context that printed it: one with such a cache, of several the one that it continues.

    ``last`` has for each context the last search by stream and window. A draft model's context may be made
    alike: then the nearest counts decide, and of equals the context that was made last.
    """
    able = [
        i for i, facts in enumerate(contexts) if facts.has_cache(search.size, search.stream, search.n_swa)
    ]
    if not able:
        return len(contexts) - 1

    def distance(i: int) -> tuple[int, int]:
        before = last[i].get((search.stream, search.n_swa))
        used, head = (0, 0) if before is None else (before.used, before.head)
        return abs(search.used - used) + abs(search.head - head), -i

    return min(able, key=distance)


class CacheNames:
    """Names the cache of each search of one context, in the order of the log.

    A window cache is told by its window. Two caches without one, filled alike, search one after the other:
    the second repeats the prints of the first for all ubatches of a batch.
    """

    def __init__(self, memory: str) -> None:
        names = VISIBLE[memory]
        self._windowed = "swa" if "swa" in names else names[0]
        self._plain = [name for name in names if name != "swa"]
        self._first: list[tuple[int, ...]] = []
        self._expected: list[tuple[int, ...]] = []

    def name(self, search: Search) -> str:
        if search.n_swa > 0 and (self._windowed == "swa" or len(self._plain) == 1):
            return self._windowed
        if len(self._plain) == 1:
            return self._plain[0]
        if not self._expected and self._first and search.counts == self._first[0]:
            self._expected, self._first = self._first, []
        if self._expected and search.counts == self._expected[0]:
            self._expected.pop(0)
            return self._plain[1]
        self._expected = []
        self._first.append(search.counts)
        return self._plain[0]
