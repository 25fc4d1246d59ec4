"""Seeded sessions on every configuration: no difference from the ledger that no hazard explains."""

from __future__ import annotations

import pytest

from kvsim.testing.cache_info import CacheInfo, Config, configurations
from kvsim.testing.difftest import Campaign, session_of

ALL = [pytest.param(info, config, id=f"{info.kind}-{config}") for info, config in configurations()]


@pytest.mark.parametrize(("info", "config"), ALL)
@pytest.mark.parametrize("profile", ["usual", "nasty"])
def test_a_session_refines_the_ledger(info: CacheInfo, config: Config, profile: str) -> None:
    campaign = Campaign(memory=info.kind, config=config.name, seed=20, profile=profile)
    report, failure = session_of(campaign, 0, campaign.configs())
    assert failure is None, failure.error
    assert report.ops >= 400
