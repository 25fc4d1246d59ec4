"""The tester notices the faults that real caches had in public, each put back in on purpose."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from kvsim.ops import Op
from kvsim.testing.cache_info import CACHES, CacheInfo, Config
from kvsim.testing.difftest import attempt
from kvsim.testing.museum import LIMIT, contestants, hunt, page, read_cases
from kvsim.testing.mutants import MUTANTS, Mutant
from kvsim.testing.subject import ContextSubject, LedgerSubject
from kvsim.trace import read_trace

ROOT = Path(__file__).parents[2]
CASES = read_cases(ROOT / "fixtures" / "bugs" / "cases.jsonl")
FEWEST = 30


def trace_of(mutant: Mutant) -> Path:
    return ROOT / "fixtures" / "museum" / f"{mutant.id}.jsonl"


def read_ops(path: Path) -> tuple[CacheInfo, Config, list[Op]]:
    """The configuration of a trace, and its operations without ``init``."""
    trace = read_trace(path)
    info = CACHES[trace.header.memory]
    config = next(c for c in info.configs if c.name == trace.header.model)
    return info, config, [Op(step.op, step.args) for step in trace][1:]


def test_every_mutant_is_found_and_most_at_once() -> None:
    found = {mutant.id: hunt(mutant, seed=1) for mutant in MUTANTS.values()}
    missed = [name for name, find in found.items() if find is None]
    assert not missed
    needed = [find.n_ops for find in found.values() if find is not None]
    assert len(needed) >= FEWEST
    assert max(needed) <= LIMIT == 50_000
    assert statistics.median(needed) <= 1_000


ALL_IN_CELLS = [
    mutant for mutant in MUTANTS.values() if mutant.id not in ("image-gap-closed", "prefix-copied-whole")
]
"""Without those whose last operation ends llama.cpp, which a trace cannot show."""


@pytest.mark.parametrize("mutant", ALL_IN_CELLS, ids=lambda mutant: mutant.id)
def test_its_shortest_trace_shows_it_and_nothing_in_it_can_be_spared(mutant: Mutant) -> None:
    info, config, ops = read_ops(trace_of(mutant))
    assert attempt(info, config, contestants(mutant), ops) is not None
    for i in range(len(ops)):
        assert attempt(info, config, contestants(mutant), ops[:i] + ops[i + 1 :]) is None
    assert attempt(info, config, [ContextSubject(), LedgerSubject()], ops) is None  # without the fault


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.id)
def test_it_says_what_and_where_it_was_reported(mutant: Mutant) -> None:
    assert mutant.what.endswith(".")
    assert mutant.cases
    for case in mutant.cases:
        assert CASES[case]["reported"]
        assert CASES[case]["source"]
    assert read_trace(trace_of(mutant)).header.config["failure"]["subject"] == mutant.id


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.id)
def test_it_is_gone_after_use(mutant: Mutant) -> None:
    before = [vars(patch.owner).get(patch.name) for patch in mutant.patches]
    with mutant.applied():
        assert [vars(patch.owner).get(patch.name) for patch in mutant.patches] != before
    assert [vars(patch.owner).get(patch.name) for patch in mutant.patches] == before


def test_the_page_is_made_from_the_table() -> None:
    assert "\n\n".join(page(CASES)) + "\n" == (ROOT / "docs" / "museum.md").read_text(encoding="utf-8")
