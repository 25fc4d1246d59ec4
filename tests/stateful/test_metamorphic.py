"""Rules between two runs of one memory: they hold for the whole family, and notice when they do not."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.caches.kv import KVCache
from kvsim.caches.recurrent import RecurrentMemory
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
from kvsim.testing.parts import state_leaves
from kvsim.testing.refinement import Refinement


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize(("info", "config"), configurations(), ids=lambda v: getattr(v, "kind", str(v)))
def test_the_rule_holds(info: CacheInfo, config: Config, rule: Rule) -> None:
    for seed in range(4):
        rule(info, config, SeededPicker(seed))


@pytest.mark.parametrize(
    ("rule", "kind", "mutant"),
    [
        (layout_does_not_matter, "iswa", "trimmed-before-chunk"),
        (layout_does_not_matter, "kv", "rows-restored-elsewhere"),
        (refusal_leaves_no_trace, "hybrid", "halves-cut-apart"),
        (refusal_leaves_no_trace, "iswa", "failed-ubatch-stays"),
        (others_are_not_touched, "kv", "restore-zeroes-others"),
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


@pytest.mark.parametrize("kind", CACHES)
def test_four_rules_can_be_broken_in_every_member(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_ledger(monkeypatch)
    by_cells = {"kv", "dsa", "msa", "hybrid", "hybrid_idx"}
    restored = "copy-too-long" if kind == "recurrent" else "restore-zeroes-others"
    for rule, mutant in (
        (layout_does_not_matter, "contiguous-slots" if kind in by_cells else restored),
        (refusal_leaves_no_trace, "failed-ubatch-stays"),
        (others_are_not_touched, restored),
    ):
        with MUTANTS[mutant].applied(), pytest.raises(BrokenRuleError):
            _play(rule, CACHES[kind], range(40))
    for leaf in (KVCache, RecurrentMemory):
        monkeypatch.setattr(leaf, "seq_rm", lambda *args: True)
    config = next(c for c in CACHES[kind].configs if c.name == ("rollback" if kind == "dsv4" else "tiny"))
    with pytest.raises(BrokenRuleError, match="rolled back"):
        rollback_equals_fresh(CACHES[kind], config, SeededPicker(0))


@pytest.mark.parametrize("kind", [kind for kind in CACHES if kind not in ("kv", "recurrent")])
def test_parts_that_do_not_hold_the_same_are_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last part with tokens removes nothing; the two members that are left out have one part alone."""
    _without_ledger(monkeypatch)
    right = KVCache.seq_rm
    memory = Checked(CACHES[kind], CACHES[kind].configs[0]).memory
    last = [name for name in state_leaves(memory, 0) if isinstance(memory.leaves()[name], KVCache)][-1]

    def removes_elsewhere(self: KVCache, *args: Any) -> bool:
        return self.name == last or right(self, *args)

    monkeypatch.setattr(KVCache, "seq_rm", removes_elsewhere)
    with pytest.raises(BrokenRuleError, match="the parts differ"):
        _play(parts_hold_the_same, CACHES[kind], range(40))


def _play(rule: Rule, info: CacheInfo, seeds: range) -> None:
    for seed in seeds:
        rule(info, info.configs[0], SeededPicker(seed))


def _without_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*args: Any) -> None:
        return None

    for checks, check in ((Refinement, "compare"), (Checked, "_enter"), (Checked, "_check_refusal")):
        monkeypatch.setattr(checks, check, nothing)


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
