"""Rules between two runs of one memory: they hold for the whole family, and notice when they do not."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.ops import Op
from kvsim.testing.cache_info import CACHES, CacheInfo, Config, configurations
from kvsim.testing.checked import Checked
from kvsim.testing.content import BrokenRuleError, Run, compare, compare_content
from kvsim.testing.generate import SeededPicker
from kvsim.testing.metamorphic import (
    RULES,
    Rule,
    layout_does_not_matter,
    others_are_not_touched,
    parts_hold_the_same,
    refusal_leaves_no_trace,
    rollback_equals_fresh,
)
from kvsim.testing.mutants import MUTANTS


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize(("info", "config"), configurations(), ids=lambda v: getattr(v, "kind", str(v)))
def test_the_rule_holds(info: CacheInfo, config: Config, rule: Rule) -> None:
    for seed in (1, 2):
        rule(info, config, SeededPicker(seed))


def _restored_beside_another(info: CacheInfo, config: Config, pick: SeededPicker) -> None:
    """One sequence is saved and restored beside another."""
    run = Run(info, config)
    run.batch([(0, 1), (0, 2), (1, 3)])
    before = run.content()
    run.save_and_restore(0)
    compare_content("restored beside others", before, run.content(), run.excused, run.seqs)


@pytest.mark.parametrize(
    ("rule", "kind", "mutant"),
    [
        (layout_does_not_matter, "iswa", "trimmed-before-chunk"),
        (layout_does_not_matter, "kv", "rows-restored-elsewhere"),
        (refusal_leaves_no_trace, "hybrid", "halves-cut-apart"),
        (refusal_leaves_no_trace, "iswa", "failed-ubatch-stays"),
        (_restored_beside_another, "kv", "restore-zeroes-others"),
        (others_are_not_touched, "recurrent", "copy-too-long"),
        (rollback_equals_fresh, "recurrent", "rollback-does-nothing"),
        (parts_hold_the_same, "dsa", "lanes-cut-apart"),
    ],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_the_rule_notices_a_fault(
    rule: Rule, kind: str, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the ledger's checks, which would notice first."""
    _without_ledger(monkeypatch)
    info = CACHES[kind]
    with MUTANTS[mutant].applied(), pytest.raises(BrokenRuleError):
        _play(rule, info, range(40))


def _play(rule: Rule, info: CacheInfo, seeds: range) -> None:
    for seed in seeds:
        rule(info, info.configs[0], SeededPicker(seed))


def _without_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*args: Any) -> None:
        return None

    for check in ("refine", "_enter", "_check_refusal"):
        monkeypatch.setattr(Checked, check, nothing)


def test_runs_that_hold_different_tokens_differ() -> None:
    info = CACHES["kv"]
    one, other = Run(info, info.configs[0]), Run(info, info.configs[0])
    one.batch([(0, 7)])
    other.batch([(0, 8)])
    with pytest.raises(
        BrokenRuleError, match=r"kv, sequence 0 holds \[\(0, 0, 7\)\], and otherwise \[\(0, 0, 8\)\]"
    ):
        compare("two runs", one, other)


def test_what_a_hazard_names_is_excused() -> None:
    """hazard shift-moves-other-owners: sequence 1 moves too, and the rule about others says nothing of it."""
    info = CACHES["kv"]
    run = Run(info, info.configs[0])
    run.batch([(0, 1)])
    run.do(Op.seq_cp(0, 1))
    before = run.content()
    run.do(Op.seq_add(0, 0, -1, 3))
    assert run.content()["kv"][1] == [(3, 3, 1)]
    assert ("kv", 1) in run.excused
    compare_content("a shift and others", before, run.content(), run.excused, [1])
