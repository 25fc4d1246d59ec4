"""What a simulation counts: every token once, times as histograms, the cells now and then.

Tokens of prompts are reused, computed, reprocessed (computed before, lost, and computed again) or refused;
tokens of answers are generated or cut off. The sums must come out (:meth:`Totals.check`).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from kvsim.errors import IntegrityError
from kvsim.memory import PrepareFailure
from kvsim.workload.request import Request

MOST_FAILURES = 100
"""How many failed decodes are kept with their numbers; all are counted."""

MOST_SAMPLES = 1024
"""More are thinned out to half."""


@dataclass
class Totals:
    """Sums over a simulation.

    ``fed_back`` tokens of answers were decoded: all but each answer's last. ``rollbacks``: how often a
    conversation went back to an earlier token of itself, giving up the ``taken_back`` tokens after it.
    """

    requests: int = 0
    finished: int = 0
    truncated: int = 0
    rejected: int = 0
    aborted: int = 0
    prompt: int = 0
    reused: int = 0
    computed: int = 0
    reprocessed: int = 0
    refused: int = 0
    answer: int = 0
    generated: int = 0
    cut: int = 0
    fed_back: int = 0
    decoded: int = 0
    decodes: int = 0
    failed_decodes: int = 0
    shifts: int = 0
    shifted_cells: int = 0
    forgotten: int = 0
    rollbacks: int = 0
    taken_back: int = 0
    purged_slots: int = 0
    preempted: int = 0
    reclaimed: int = 0
    searched: int = 0
    checkpoints: int = 0
    restored: int = 0

    def check(self) -> None:
        """Raise IntegrityError unless every token is accounted for, once all requests are through."""
        sums = {
            "requests": (self.requests, self.finished + self.truncated + self.rejected + self.aborted),
            "tokens of prompts": (self.prompt, self.reused + self.computed + self.reprocessed + self.refused),
            "tokens of answers": (self.answer, self.generated + self.cut),
            "decoded tokens": (self.decoded, self.computed + self.reprocessed + self.fed_back + self.again),
        }
        for what, (total, parts) in sums.items():
            if total != parts:
                raise IntegrityError(f"{total} {what}, but {parts} are accounted for")

    again: int = 0
    """Tokens of answers and prompts that a preempted request had to compute once more (paged policy)."""


class Histogram:
    """Positive numbers in bins of two per cent; zero has its own."""

    WIDTH = math.log(1.02)

    def __init__(self) -> None:
        self.n = 0
        self.sum = 0.0
        self.max = 0.0
        self._bins: Counter[int] = Counter()
        self._zeros = 0

    def add(self, value: float) -> None:
        self.n += 1
        self.sum += value
        self.max = max(self.max, value)
        if value <= 0:
            self._zeros += 1
        else:
            self._bins[math.floor(math.log(value) / self.WIDTH)] += 1

    def quantile(self, q: float) -> float:
        """The value that a part ``q`` of all does not exceed, to two per cent; 0 if there are none."""
        left = math.ceil(q * self.n) - self._zeros
        if left <= 0:
            return 0.0
        for b in sorted(self._bins):
            left -= self._bins[b]
            if left <= 0:
                return min(self.max, math.exp((b + 1) * self.WIDTH))
        return self.max

    def to_json(self) -> dict[str, float]:
        mean = self.sum / self.n if self.n else 0.0
        quantiles = {f"p{round(100 * q)}": self.quantile(q) for q in (0.5, 0.9, 0.99)}
        return {"n": self.n, "mean": mean, **quantiles, "max": self.max}


@dataclass(frozen=True)
class CacheSample:
    """One cache at one time, all streams together. ``largest_hole`` and ``holes`` are of free cells alone."""

    used: int
    reclaimable: int
    largest_hole: int
    holes: int
    live_by_slot: tuple[int, ...]
    reclaimable_by_slot: tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """``time`` seconds after the first arrival: requests that wait and that are served, and the caches by
    name. So far: failed decodes, requests that came, those that found a part of their prompt, and tokens of
    prompts by what became of them."""

    time: float
    waiting: int
    serving: int
    failed_decodes: int
    reprocessed: int
    caches: dict[str, CacheSample]
    requests: int = 0
    hits: int = 0
    reused: int = 0
    computed: int = 0


@dataclass(frozen=True)
class FailedDecode:
    """A decode that found no place, at ``time``, with its four numbers."""

    time: float
    asked: int
    free: int
    reclaimable: int
    largest_hole: int
    cache: str

    @classmethod
    def of(cls, time: float, why: PrepareFailure) -> FailedDecode:
        return cls(time, why.asked, why.free, why.reclaimable, why.largest_hole, why.cache)


@dataclass
class Account:
    """All that is counted. ``reasons`` says why something could not be reused, by request; ``reprocessed``
    how many tokens had to be computed again for that reason."""

    totals: Totals = field(default_factory=Totals)
    wait: Histogram = field(default_factory=Histogram)
    first_token: Histogram = field(default_factory=Histogram)
    latency: Histogram = field(default_factory=Histogram)
    reasons: Counter[str] = field(default_factory=Counter)
    reprocessed: Counter[str] = field(default_factory=Counter)
    hits: int = 0
    failures: list[FailedDecode] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    peak: dict[str, int] = field(default_factory=dict)
    every: float = 1.0
    """Seconds between samples of the cells; doubled when there are too many."""
    _next: float = 0.0

    def asked(self, request: Request) -> None:
        """A request has come."""
        self.totals.requests += 1
        self.totals.prompt += request.n_prompt
        self.totals.answer += request.n_answer

    def answered(self, request: Request, n_sampled: int) -> bool:
        """Nothing more is generated for a request. Returns whether its answer is complete."""
        made = min(n_sampled, request.n_answer)
        self.totals.generated += made
        self.totals.cut += request.n_answer - made
        return made == request.n_answer

    def failed(self, time: float, why: PrepareFailure) -> None:
        self.totals.failed_decodes += 1
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(FailedDecode.of(time, why))

    def due(self, time: float) -> bool:
        """Whether it is time for a sample."""
        return time >= self._next

    def now(self, time: float, waiting: int, serving: int, caches: dict[str, CacheSample]) -> Sample:
        """A sample with the sums so far."""
        sums = self.totals
        return Sample(
            time, waiting, serving, sums.failed_decodes, sums.reprocessed, caches,
            requests=sums.requests, hits=self.hits, reused=sums.reused, computed=sums.computed,
        )  # fmt: skip

    def sample(self, sample: Sample) -> None:
        """Keep a sample; when there are too many, every second one goes and later ones come half as often."""
        self.samples.append(sample)
        for name, cache in sample.caches.items():
            self.peak[name] = max(self.peak.get(name, 0), cache.used)
        if len(self.samples) >= MOST_SAMPLES:
            del self.samples[1::2]
            self.every *= 2
        self._next = sample.time + self.every

    def to_json(self) -> dict[str, Any]:
        return {
            "totals": asdict(self.totals),
            "wait": self.wait.to_json(),
            "first_token": self.first_token.to_json(),
            "latency": self.latency.to_json(),
            "prefix_hits": self.hits,
            "not_reused": dict(self.reasons.most_common()),
            "reprocessed_by": dict(self.reprocessed.most_common()),
            "peak_used": self.peak,
            "failures": [asdict(each) for each in self.failures],
            "samples": [asdict(each) for each in self.samples],
        }
