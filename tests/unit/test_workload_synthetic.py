"""Made-up workloads: what they share, and that they are like what they were fitted to."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import CacheUsageError
from kvsim.workload.read import Workload
from kvsim.workload.synthetic import LogNormal, Quantiles, Synthetic, fit

CHAT = Path("fixtures/workloads/azure_llm_2023_conv.csv.gz")
SOME = Synthetic(400, 2.0, LogNormal(50, 0.5), LogNormal(20, 0.5), system=30, turns=4, think=5, seed=7)


def test_the_same_seed_makes_the_same_requests() -> None:
    assert list(SOME) == list(SOME)
    assert list(SOME) != list(replace(SOME, seed=8))


def test_requests_come_in_order_and_go_on() -> None:
    """Every prompt begins with the system prompt; one of a later turn is all that was said, and more."""
    requests = list(SOME)
    assert [r.id for r in requests] == list(range(400))
    assert requests[0].arrival == 0
    assert all(a.arrival <= b.arrival for a, b in pairwise(requests))
    said = {}
    for r in requests:
        tokens = r.tokens()
        assert tokens[:30] == list(range(30))
        said[r.answer.start] = [*tokens, *r.answer]
    later = [r for r in requests if len(r.prompt) > 2]
    for r in later:
        before = said[r.prompt[-2].start]
        assert r.tokens()[: len(before)] == before
        assert r.n_prompt > len(before)
    assert 0.65 < len(later) / len(requests) < 0.8  # three turns of four


def test_a_rate_is_held() -> None:
    seconds = list(replace(SOME, n_requests=4000, turns=1))[-1].arrival
    assert seconds == pytest.approx(2000, rel=0.1)
    regular = list(replace(SOME, n_requests=5, turns=1, burstiness=0))
    assert [r.arrival for r in regular] == [0, 0.5, 1, 1.5, 2]


@pytest.mark.parametrize(
    "name", ["azure_llm_2023_conv.csv", "azure_llm_2023_code.csv", "mooncake_conversation_4000.jsonl"]
)
def test_a_fit_is_like_the_trace(name: str) -> None:
    """Pace, burstiness, and lengths from the shortest to the longest, whatever their distribution."""
    trace = list(Workload(CHAT.with_name(f"{name}.gz")))
    made = list(fit(trace, seed=1))
    assert len(made) == len(trace)
    assert made[-1].arrival == pytest.approx(trace[-1].arrival, rel=0.1)
    for name in ("n_prompt", "n_answer"):
        real, drawn = ([getattr(r, name) for r in rs] for rs in (trace, made))
        for part in (0.1, 0.5, 0.9, 0.99):
            assert np.quantile(drawn, part) == pytest.approx(np.quantile(real, part), rel=0.15, abs=1)
        assert max(drawn) <= max(real)
        assert min(drawn) >= 1
    gaps, drawn_gaps = (np.diff([r.arrival for r in rs]) for rs in (trace, made))
    assert drawn_gaps.std() / drawn_gaps.mean() == pytest.approx(gaps.std() / gaps.mean(), rel=0.2)


def test_lengths_between_two_quantiles_lie_on_a_line() -> None:
    """A quarter of all counts is from 1 to 5, a quarter from 5 to 9, half are 9."""
    random = np.random.default_rng(0)
    drawn = [Quantiles((1, 5, 9, 9, 9)).draw(random) for _ in range(4000)]
    assert set(drawn) == set(range(1, 10))
    assert np.mean(drawn) == pytest.approx(3 / 4 + 7 / 4 + 9 / 2, rel=0.03)


@pytest.mark.parametrize(
    "change",
    [{"rate": 0}, {"turns": 0.5}, {"turns": math.inf}, {"think": -1}, {"think": math.nan}, {"system": -1},
     {"system": 10**11}, {"burstiness": -1}, {"burstiness": math.inf}],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(CacheUsageError, match=next(iter(change))):
        replace(SOME, **change)


def test_lengths_need_a_spread() -> None:
    with pytest.raises(CacheUsageError, match="median 0"):
        LogNormal(0, 1)
    with pytest.raises(CacheUsageError, match="fewer than two"):
        fit(list(SOME)[:1])
