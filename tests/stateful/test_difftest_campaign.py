"""The seeded campaign: what it does depends on the seed alone, and what it finds can be repeated."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvsim.cli.difftest import again
from kvsim.errors import KvsimError
from kvsim.ops import Op
from kvsim.replay import replay_beside
from kvsim.testing.cache_info import CACHES
from kvsim.testing.coverage import RULES, StateSketch, rules_of, unreached
from kvsim.testing.difftest import SESSION, Campaign, Shard, attempt, run, session_of, shrink_failure
from kvsim.testing.profiles import PROFILES, cramped
from kvsim.testing.recorded import write_failure
from kvsim.testing.report import Report, merged, read_report
from kvsim.testing.subject import ContextSubject, Picture
from kvsim.trace import compare_step, read_trace

FAULTY = "difftest_subjects:KeepsLast"
QUICK = Campaign(memory="kv", config="tiny", seed=3)


@pytest.fixture(autouse=True)
def _subjects_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def played(campaign: Campaign, n_sessions: int, shard: Shard | None = None, jobs: int = 1) -> Report:
    report = Report(campaign.plan)
    assert run(campaign, report, n_sessions * SESSION, shard, jobs) is None
    return report


def numbers(report: Report) -> dict[str, object]:
    """What must be equal between equal runs: all but the time."""
    return {key: value for key, value in report.to_json().items() if key not in ("seconds", "shards")}


def test_the_same_seed_does_the_same_and_another_does_not() -> None:
    one, again_, other = (played(Campaign(memory="kv", seed=seed), 1) for seed in (3, 3, 4))
    assert numbers(one) == numbers(again_)
    assert one.facts != other.facts


def test_shards_merge_to_the_whole_whatever_the_number_of_processes(tmp_path: Path) -> None:
    whole = played(QUICK, 3, jobs=2)
    files = []
    for i in (1, 2):
        played(QUICK, 3, Shard(i, 2)).write(tmp_path / f"{i}.json")
        files.append(tmp_path / f"{i}.json")
    assert numbers(merged(files)) == numbers(whole)
    assert sum(merged(files).shards.values()) == 3


def test_a_run_goes_on_where_its_report_ends(tmp_path: Path) -> None:
    played(QUICK, 1).write(tmp_path / "r.json")
    report = read_report(tmp_path / "r.json")
    assert run(QUICK, report, 3 * SESSION) is None
    assert numbers(report) == numbers(played(QUICK, 3))


def test_a_killed_process_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dies_here.py").write_text(
        f"from difftest_subjects import DiesOnce\nclass DiesHere(DiesOnce):\n"
        f"    died = {str(tmp_path / 'died')!r}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    report = played(Campaign("dies_here:DiesHere", memory="kv", config="tiny", seed=4), 3, jobs=2)
    assert (tmp_path / "died").exists()
    same = played(Campaign("difftest_subjects:Same", memory="kv", config="tiny", seed=4), 3)
    assert (report.ops, report.facts) == (3 * SESSION, same.facts)


def test_reports_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    one, other = Report(QUICK.plan, {"1/2": 1}), Report(Campaign(memory="kv", seed=9).plan, {"2/2": 1})
    with pytest.raises(KvsimError, match=r"different campaigns cannot be merged: config, seed differ"):
        one.add(other)
    with pytest.raises(KvsimError, match=r"shard 1/2 is in both reports"):
        one.add(Report(QUICK.plan, {"1/2": 3}))
    with pytest.raises(KvsimError, match=r"shards of 2 and of 4 have sessions in common"):
        one.add(Report(QUICK.plan, {"1/4": 1}))
    with pytest.raises(KvsimError, match=r"shards of 1 and of 2 have sessions in common"):
        run(QUICK, one, 4 * SESSION)
    (tmp_path / "no.json").write_text("[1]")
    with pytest.raises(KvsimError, match=r"not a report of kvsim difftest"):
        read_report(tmp_path / "no.json")


def test_a_subject_of_which_only_behaviour_is_compared_may_lay_out_its_cells_as_it_likes() -> None:
    assert played(Campaign("difftest_subjects:Behaves", memory="iswa", seed=2), 3).ops == 3 * SESSION


def test_a_fault_is_found_shrunk_to_one_way_and_saved_as_a_trace(tmp_path: Path) -> None:
    campaign = Campaign(FAULTY, memory="kv", config="tiny", seed=3)
    failure = run(campaign, Report(campaign.plan), 20 * SESSION)
    assert failure is not None
    assert failure.error.verdict == "differs"
    small = shrink_failure(campaign, failure)
    assert [op.op for op in small.ops] == ["decode", "seq_rm"]
    for i in range(len(small.ops)):
        fewer = small.ops[:i] + small.ops[i + 1 :]
        assert attempt(small.info, small.config, campaign.subjects(), fewer) is None
    path = tmp_path / "failure.jsonl"
    write_failure(path, small.config, small.error, campaign.seed)
    differing = [r.i for r, c in replay_beside(read_trace(path)) if compare_step(r, c)]
    assert differing == [2], "only the last step is the subject's"
    assert read_trace(path).header.config["failure"]["subject"] == "the same"


def test_nothing_can_be_spared_where_only_behaviour_is_compared() -> None:
    campaign = Campaign("difftest_subjects:BehavesButKeepsLast", memory="iswa", seed=3)
    failure = run(campaign, Report(campaign.plan), 20 * SESSION)
    assert failure is not None
    small = shrink_failure(campaign, failure)
    assert attempt(small.info, small.config, campaign.subjects(), small.ops) is not None
    assert len(small.ops) < len(failure.error.ops)
    for i in range(len(small.ops)):
        fewer = small.ops[:i] + small.ops[i + 1 :]
        assert attempt(small.info, small.config, campaign.subjects(), fewer) is None


def test_a_failure_that_does_not_come_again_is_left_as_it_was() -> None:
    """A subject that depends on more than its operations: it fails once in a lifetime."""
    campaign = Campaign("difftest_subjects:RaisesOnce", memory="kv", config="tiny")
    failure = run(campaign, Report(campaign.plan), SESSION)
    assert failure is not None
    assert shrink_failure(campaign, failure).shrunk == []


def test_the_command_that_repeats_a_failure_repeats_it() -> None:
    campaign = Campaign(FAULTY, memory="kv", seed=5)
    failure = run(campaign, Report(campaign.plan), 20 * SESSION)
    assert failure is not None
    line = again(campaign, failure)
    n = failure.session + 1
    assert line == (
        f"kvsim difftest --subject {FAULTY} --memory kv --seed 5 --profile usual --shard {n}/{n} "
        f"--ops {n * SESSION}"
    )
    slow = Campaign(command=("./mine", "--flag"), timeout=0.5)
    assert again(slow, failure).startswith(
        "kvsim difftest --exec './mine --flag' --timeout 0.5 --memory all "
    )
    repeated = run(campaign, Report(campaign.plan), n * SESSION, Shard(n, n))
    assert repeated is not None
    assert repeated.error.ops == failure.error.ops


def test_what_a_subject_raises_is_a_finding() -> None:
    campaign = Campaign("difftest_subjects:Raises", memory="kv", config="tiny")
    _, failure = session_of(campaign, 0, campaign.configs())
    assert failure is not None
    assert failure.error.verdict == "raised"
    assert "ZeroDivisionError: three is the most" in str(failure.error)
    [decode] = shrink_failure(campaign, failure).ops
    assert len(decode.args["seq"]) == 4


def test_a_subject_that_leaves_the_process_is_a_finding() -> None:
    class Leaves(ContextSubject):
        def apply(self, op: Op) -> int | None:
            raise SystemExit(3)

    error = attempt(CACHES["kv"], CACHES["kv"].configs[0], [ContextSubject(), Leaves("mine")], [Op.clear()])
    assert error is not None
    assert (error.verdict, error.what.partition(" (")[0]) == ("raised", "SystemExit: 3")


class ShowsNonsense(ContextSubject):
    """From its second picture on."""

    def __init__(self, spoil: Callable[[Picture], Any]) -> None:
        super().__init__("nonsense")
        self._spoil, self._shown = spoil, 0

    def snapshot(self) -> Picture:
        picture = super().snapshot()
        self._shown += 1
        return picture if self._shown == 1 else (self._spoil(picture) or picture)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda picture: picture["caches"]["kv"][0].update(cells=[7]),
        lambda picture: picture["caches"]["kv"][0]["cells"].append([None]),
        lambda picture: picture["caches"]["kv"][0]["cells"].append([{}, 0]),
        lambda picture: picture["caches"]["kv"][0]["cells"].append([]),
        lambda picture: picture["caches"]["kv"][0].update(head=math.nan),
        lambda picture: picture["pos"].update({"0": [math.inf, 10**30]}),
        lambda picture: picture.update(caches=None),
        lambda picture: math.nan,
        lambda picture: picture.update(recurrent={"cells": "x"}),
    ],
)
def test_a_picture_that_is_none_is_a_finding_and_its_trace_can_be_read(
    spoil: Callable[[Picture], Any], tmp_path: Path
) -> None:
    info = CACHES["kv"]
    error = attempt(
        info, info.configs[0], [ContextSubject(), ShowsNonsense(spoil)], [Op.decode([1], [0], [[0]])]
    )
    assert error is not None
    assert (error.verdict, len(error.ops)) == ("differs", 1)
    write_failure(tmp_path / "t.jsonl", info.configs[0], error)
    assert len(list(read_trace(tmp_path / "t.jsonl"))) == 2


def test_failures_cross_processes() -> None:
    campaign = Campaign(FAULTY, memory="kv", config="tiny", seed=3)
    failure = run(campaign, Report(campaign.plan), 20 * SESSION, jobs=2)
    assert failure is not None
    assert str(pickle.loads(pickle.dumps(failure.error))) == str(failure.error)


def test_the_report_is_stable_text() -> None:
    report = Report(QUICK.plan, {"1/1": 2}, 800, 0.5)
    report.by_config.update({"kv/tiny": 800})
    report.facts.update({"decode=0": 7, "hazard:copy-ignores-range": 2, "seq_rm=1": 3})
    report.states.add({"caches": {"kv": [{"head": 0, "cells": []}]}, "recurrent": None})
    first, config, covered, missed, hazards, codes = report.lines()
    assert first == "800 operations in 2 sessions, 1 state seen"
    assert config == "  kv/tiny: 800"
    assert covered == "rules of the specification covered: 1 of 37"
    assert missed.startswith("  never reached: batch V2, ")
    assert hazards == "hazards met: copy-ignores-range 2"
    assert codes == "decodes: decode=0 7"
    report.shards = {"1/3": 1, "3/3": 1}
    assert list(report.lines())[:2] == [first, "  shards: 2 of 3"]


def test_a_rule_is_covered_once_one_of_its_facts_was_seen() -> None:
    assert "kv_cache F1" in unreached({}, ["kv"])
    assert "kv_cache F1" not in unreached({"slot wraps": 1}, ["kv"])


def test_only_rules_of_the_members_that_were_played_can_be_missed() -> None:
    missed = unreached({}, ["kv"])
    assert {rule.split()[0] for rule in missed} == {"batch", "cells", "kv_cache", "decode", "state"}
    assert not {"kv_cache A4", "decode B3", "decode B4", "state Rd4", "state Rc3"} & {*missed}
    assert "kv_cache A4" in unreached({}, ["kv", "iswa"])
    assert "hybrid H3" in unreached({}, ["hybrid_idx"])
    assert rules_of(CACHES) == list(RULES)


def test_rules_are_named_as_in_the_specification() -> None:
    spec = Path(__file__).parents[2] / "docs" / "spec"
    for rule in RULES:
        file, label = rule.split(" ", 1)
        text = (spec / f"{file}.md").read_text(encoding="utf-8")
        assert label.split()[0].lower() in text.lower(), rule


def test_distinct_states_are_counted_once_and_estimated_when_many() -> None:
    def picture(pos: int) -> dict[str, object]:
        return {"caches": {"kv": [{"head": 0, "cells": [[0, pos, [0], 0, 5, 0, 0]]}]}, "recurrent": None}

    one, other = StateSketch(), StateSketch()
    for pos in range(600):
        one.add(picture(pos))
        one.add(picture(pos))
        other.add(picture(pos + 300))
    assert one.n_states == 600
    one.merge(other)
    assert one.n_states == 900
    for pos in range(20_000):
        one.add(picture(pos))
    assert one.n_states == pytest.approx(20_000, rel=0.1)


def test_the_nasty_profile_is_cramped_and_full_of_faults() -> None:
    info = CACHES["iswa"]
    for config in info.configs:
        small = cramped(config)
        assert small.model.n_swa == 1
        assert max(small.sizes.values()) <= config.params.n_ubatch + 2
    report = played(Campaign(memory="iswa", seed=1, profile="nasty"), 2)
    failed = sum(report.facts[f"decode={code}"] for code in (2, -2, -3))
    assert failed > 0.1 * report.facts["decode=0"]


def test_weights_are_checked_and_used() -> None:
    with pytest.raises(KvsimError, match=r"no weight nothing=3: known are decode, context_shift"):
        PROFILES["usual"].with_weights({"nothing": 3})
    plain, copying = (Campaign(memory="kv", weights=w) for w in ((), (("seq_cp", 200),)))
    assert played(copying, 1).facts["seq_cp"] > 3 * played(plain, 1).facts["seq_cp"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory": "nothing"}, r"unknown memory 'nothing': give all, or one of kv"),
        ({"profile": "gentle"}, r"unknown profile 'gentle': give one of usual, nasty"),
        (
            {"subject": "nobody"},
            r"unknown subject 'nobody': give reference, engine, llamacpp, or module:Class",
        ),
        ({"subject": "no.such:Thing"}, r"the subject no.such:Thing cannot be made"),
        (
            {"subject": "difftest_subjects:CannotBeMade"},
            r"difftest_subjects:CannotBeMade cannot be made: RuntimeError: no device",
        ),
        (
            {"subject": "difftest_subjects:Misspelt"},
            r"operations of the same has 'seq_remove': it is a set of clear, decode, ",
        ),
        ({"subject": "pathlib:Path"}, r"pathlib:Path is no Subject: derive it from kvsim.testing.Subject"),
        (
            {"memory": "dsa", "config": "rollback"},
            r"no configuration 'rollback': reference and ledger can be played on tiny, streams$",
        ),
        (
            {"subject": "difftest_subjects:Behaves", "memory": "dsa"},
            r"nothing to test: the same implements iswa, kv",
        ),
    ],
)
def test_what_cannot_be_run_is_said(given: dict[str, str], said: str) -> None:
    with pytest.raises(KvsimError, match=said):
        Campaign(**given).configs()
    with pytest.raises(KvsimError, match=r"shard 4/3: the first is 1/3"):
        Shard(4, 3)
