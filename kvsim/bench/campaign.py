"""What an operation of ``kvsim difftest`` costs: the reference beside the ledger, every check on."""

from __future__ import annotations

import time
from collections.abc import Iterator

from kvsim.bench.measure import Goal, Row
from kvsim.testing.cache_info import CACHES
from kvsim.testing.difftest import SESSION, Campaign, session_of

ROUNDS = 2
"""Times that all configurations of a member are played, once each after a first round that is not counted."""


def campaign_table() -> Iterator[Row]:
    """Seconds of the processor per operation, for every member of the family."""
    for kind in CACHES:
        yield Row(
            f"{kind}, operation with every check", _cost(Campaign(memory=kind)), goal=Goal("rate", 5000)
        )


def _cost(campaign: Campaign) -> float:
    """The best of the rounds, in the processor's time: other programs do not count."""
    configs = campaign.configs()
    best = float("inf")
    for turn in range(1 + ROUNDS):
        begun = time.process_time()
        for k in range(len(configs)):
            session_of(campaign, k, configs)
        spent = time.process_time() - begun
        best = min(best, spent) if turn else best
    return best / (SESSION * len(configs))
