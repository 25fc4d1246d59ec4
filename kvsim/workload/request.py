"""One request of a workload: when it comes, what it asks, how long the answer is.

The traces have no text, but a cache cares only which tokens are equal. So tokens are numbers made up such
that two prompts share a prefix exactly where the trace says so, and as ranges, of which a queue can hold
many::

    prompt   0..511  512..1023  7168..7421       three ranges, 1,278 tokens
    answer   1073741824..1073741867              what the model will say, 44 tokens
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from kvsim.errors import KvsimError

FIRST_ANSWER = 1 << 30
"""Ids below are tokens of prompts, from here on of answers."""

MAX_TOKENS = 10_000_000
"""Most tokens of one prompt or answer; more is taken for a damaged number."""


class WorkloadError(KvsimError):
    """A workload cannot be read. Carries where: ``path`` and ``line`` (1-based, 0: the file as a whole)."""

    def __init__(self, reason: str, path: str = "", line: int = 0) -> None:
        self.reason = reason
        self.path = path
        self.line = line
        place = f"{path}:{line}: " if line else f"{path}: "
        super().__init__(f"{place if path else ''}{reason}")


@dataclass(frozen=True, slots=True)
class Request:
    """Request number ``id``, ``arrival`` seconds after the first; its prompt as ranges of token ids, its
    answer as one."""

    id: int
    arrival: float
    prompt: tuple[range, ...]
    answer: range

    @property
    def n_prompt(self) -> int:
        return sum(map(len, self.prompt))

    @property
    def n_answer(self) -> int:
        return len(self.answer)

    def tokens(self) -> list[int]:
        """The prompt, token by token."""
        return list(chain.from_iterable(self.prompt))


class FreshTokens:
    """Gives out ranges of ids that nobody had before; after a billion of them they come round again."""

    def __init__(self, first: int = 0) -> None:
        self._first = self._next = first

    def take(self, n: int) -> range:
        if self._next + n > self._first + FIRST_ANSWER - 1:
            self._next = self._first
        self._next += n
        return range(self._next - n, self._next)


def joined(ranges: Iterator[range]) -> tuple[range, ...]:
    """The same ids in as few ranges: one that goes on where the last ended is added to it."""
    out: list[range] = []
    for each in ranges:
        if out and out[-1].stop == each.start:
            out[-1] = range(out[-1].start, each.stop)
        elif each:
            out.append(each)
    return tuple(out)
