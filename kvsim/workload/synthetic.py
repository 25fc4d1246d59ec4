"""Made-up workloads: conversations with a shared system prompt, whose lengths and pace can be fitted to a
trace.

Conversations begin at random times. In each, a user says something, the server answers, after a while the
user goes on; every prompt is all that was said before and something new::

    turn 1   system  user          -> answer
    turn 2   system  user  answer  user          -> answer
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.errors import CacheUsageError
from kvsim.workload.request import FIRST_ANSWER, MAX_TOKENS, FreshTokens, Request, joined

MAX_TURNS = 1e6


@dataclass(frozen=True)
class LogNormal:
    """Token counts whose logarithms are normal: ``median`` tokens, spread ``sigma``; from 1 to ``most``."""

    median: float
    sigma: float
    most: int = 131_072

    def __post_init__(self) -> None:
        if not (self.median > 0 and self.sigma >= 0 and self.most >= 1):
            raise CacheUsageError(
                f"lengths with median {self.median}, sigma {self.sigma}, at most {self.most} cannot be "
                "drawn: median and most must be positive, sigma not negative"
            )

    def draw(self, random: np.random.Generator) -> int:
        drawn = math.exp(math.log(self.median) + self.sigma * random.standard_normal())
        return int(min(max(1, round(drawn)), self.most))


@dataclass(frozen=True)
class Quantiles:
    """Token counts as in a trace: ``counts`` are those at equal steps from the least to the most, and in between
    they are drawn in a straight line."""

    counts: tuple[float, ...]

    @classmethod
    def of(cls, lengths: Sequence[int], steps: int = 200) -> Quantiles:
        return cls(tuple(np.quantile(lengths, np.linspace(0, 1, steps + 1)).tolist()))

    def draw(self, random: np.random.Generator) -> int:
        at = random.random() * (len(self.counts) - 1)
        return max(1, round(float(np.interp(at, np.arange(len(self.counts)), self.counts))))


@dataclass(frozen=True)
class Synthetic:
    """``rate`` requests a second, counted over all turns. ``burstiness`` is the coefficient of variation of
    the time between conversations: 1 as chance has it (Poisson), more in bursts, 0 like clockwork. ``turns``
    is the mean number of turns of a conversation, ``think`` the mean seconds between an answer's request and
    the next. The same ``seed`` makes the same requests."""

    n_requests: int
    rate: float
    user: LogNormal | Quantiles
    answer: LogNormal | Quantiles
    system: int = 0
    turns: float = 1.0
    think: float = 60.0
    burstiness: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        wrong = [
            name
            for name, good in {
                "n_requests": self.n_requests >= 0,
                "rate": 0 < self.rate < math.inf,
                "system": 0 <= self.system <= MAX_TOKENS,
                "turns": 1 <= self.turns <= MAX_TURNS,
                "think": 0 <= self.think < math.inf,
                "burstiness": 0 <= self.burstiness < math.inf,
            }.items()
            if not good
        ]
        if wrong:
            raise CacheUsageError(f"{wrong[0]} = {getattr(self, wrong[0])} is out of range")

    def __iter__(self) -> Iterator[Request]:
        """The requests, in order of time."""
        random = np.random.default_rng(self.seed)
        prompts, answers = FreshTokens(), FreshTokens(FIRST_ANSWER)
        system = prompts.take(self.system)
        begins, n, order = 0.0, 0, 0
        open_turns: list[tuple[float, int, tuple[range, ...], int]] = []
        first: float | None = None
        while n < self.n_requests:
            while not open_turns or begins <= open_turns[0][0]:
                turns = int(random.geometric(1 / self.turns))
                heapq.heappush(open_turns, (begins, order, (system,) if system else (), turns))
                order += 1
                begins += self._gap(random)
            time, _, said, turns = heapq.heappop(open_turns)
            prompt = joined(iter((*said, prompts.take(self.user.draw(random)))))
            answer = answers.take(self.answer.draw(random))
            first = time if first is None else first
            yield Request(n, time - first, prompt, answer)
            n += 1
            if turns > 1:
                after = time + random.exponential(self.think)
                heapq.heappush(open_turns, (after, order, (*prompt, answer), turns - 1))
                order += 1

    def _gap(self, random: np.random.Generator) -> float:
        """Seconds until the next conversation begins: gamma distributed."""
        mean = self.turns / self.rate
        if self.burstiness == 0:
            return mean
        shape = 1 / self.burstiness**2
        return float(random.gamma(shape, mean / shape))


def fit(requests: Iterable[Request], n_requests: int = 0, seed: int = 0) -> Synthetic:
    """A synthetic workload with the pace, the burstiness and the lengths of a trace, without conversations.

    ``n_requests`` 0: as many as the trace has. Raises CacheUsageError for a trace of fewer than two requests.
    """
    arrivals, prompts, answers = [], [], []
    for request in requests:
        arrivals.append(request.arrival)
        prompts.append(max(1, request.n_prompt))
        answers.append(max(1, request.n_answer))
    if len(arrivals) < 2 or arrivals[-1] <= arrivals[0]:
        raise CacheUsageError("a trace of fewer than two requests at different times cannot be fitted")
    gaps = np.diff(arrivals)
    return Synthetic(
        n_requests=n_requests or len(arrivals),
        rate=float(1 / gaps.mean()),
        user=Quantiles.of(prompts),
        answer=Quantiles.of(answers),
        burstiness=float(gaps.std() / gaps.mean()),
        seed=seed,
    )
