"""What a campaign did, as numbers that can be saved, merged and read."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.narrate.words import count
from kvsim.testing.coverage import StateSketch, rules_of, unreached

VERSION = 2


@dataclass
class Report:
    """Sums over sessions.

    ``plan`` says which campaign it was: reports merge, and a run resumes, only if theirs are equal.
    ``shards`` has per shard (``3/16``) how many sessions of it are done, in order.
    """

    plan: dict[str, Any]
    shards: dict[str, int] = field(default_factory=dict)
    ops: int = 0
    seconds: float = 0.0
    by_config: Counter[str] = field(default_factory=Counter)
    facts: Counter[str] = field(default_factory=Counter)
    states: StateSketch = field(default_factory=StateSketch)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Add the numbers of another report.

        Raises KvsimError if it is of another campaign, or if both have run the same shard.
        """
        if other.plan != self.plan:
            apart = [k for k in {**self.plan, **other.plan} if self.plan.get(k) != other.plan.get(k)]
            raise KvsimError(f"reports of different campaigns cannot be merged: {', '.join(apart)} differ")
        check_division([*self.shards, *other.shards])
        twice = self.shards.keys() & other.shards.keys()
        if twice:
            raise KvsimError(
                f"shard {', '.join(sorted(twice))} is in both reports: it would be counted twice"
            )
        self.shards |= other.shards
        self.count(other)

    def count(self, part: Report) -> None:
        """Add the numbers of a part of this campaign."""
        self.ops += part.ops
        self.seconds += part.seconds
        self.by_config += part.by_config
        self.facts += part.facts
        self.states.merge(part.states)
        self.failures += part.failures

    @property
    def memories(self) -> set[str]:
        """The members of the family that were played."""
        return {name.partition("/")[0] for name in self.by_config}

    @property
    def rate(self) -> float:
        """Operations per second of one process."""
        return self.ops / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "kvsim_difftest": VERSION,
            "plan": self.plan,
            "shards": self.shards,
            "ops": self.ops,
            "seconds": round(self.seconds, 3),
            "by_config": dict(sorted(self.by_config.items())),
            "facts": dict(sorted(self.facts.items())),
            "states": self.states.smallest,
            "n_states": self.states.n_states,
            "rules_unreached": unreached(self.facts, self.memories),
            "failures": self.failures,
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it, so that a killed process leaves the old file or the new one.

        Raises KvsimError if it cannot be written; the old file is then as it was.
        """
        target = Path(path)
        beside = target.with_name(f"{target.name}.part")
        try:
            beside.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
            beside.replace(target)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise KvsimError(f"{path} cannot be written: {error.strerror}") from error

    def lines(self) -> Iterable[str]:
        """The report as text: the same numbers always give the same lines."""
        sessions = sum(self.shards.values())
        sums = ((self.ops, "operation"), (sessions, "session"), (self.states.n_states, "state"))
        ops, played, states = (count(*each) for each in sums)
        yield f"{ops} in {played}, {states} seen"
        if self.shards.keys() - {"1/1"}:
            of = next(iter(self.shards)).partition("/")[2]
            yield f"  shards: {len(self.shards)} of {of}"
        for name, n in sorted(self.by_config.items()):
            yield f"  {name}: {n:,}"
        rules, missed = rules_of(self.memories), unreached(self.facts, self.memories)
        yield f"rules of the specification covered: {len(rules) - len(missed)} of {len(rules)}"
        if missed:
            yield f"  never reached: {', '.join(missed)}"
        hazards = {fact[7:]: n for fact, n in self.facts.items() if fact.startswith("hazard:")}
        yield f"hazards met: {', '.join(f'{name} {n}' for name, n in sorted(hazards.items())) or 'none'}"
        codes = {fact: n for fact, n in self.facts.items() if fact.startswith("decode")}
        yield f"decodes: {', '.join(f'{code} {n}' for code, n in sorted(codes.items())) or 'none'}"


def check_division(shards: Iterable[str]) -> None:
    """Raise KvsimError if shards come from different divisions: 1/2 has sessions of 1/3."""
    numbers = sorted({int(shard.partition("/")[2]) for shard in shards})
    if len(numbers) > 1:
        raise KvsimError(
            f"shards of {numbers[0]} and of {numbers[1]} have sessions in common, which would be counted twice"
        )


def read_report(path: str | os.PathLike[str]) -> Report:
    """Read a report. Raises KvsimError if it is none."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise KvsimError(f"{path}: not a file")  # a device may have no end
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["kvsim_difftest"] != VERSION:
            raise KvsimError(f"{path}: a report of version {data['kvsim_difftest']!r}, this reads {VERSION}")
        return _report_of(data)
    except OSError as error:
        raise KvsimError(f"{path}: {error.strerror}") from error
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise KvsimError(f"{path}: not a report of kvsim difftest ({error})") from error


def _report_of(data: dict[str, Any]) -> Report:
    """Raises ValueError naming the first part that is not what a report has there."""
    for name in ("shards", "by_config", "facts"):
        if not isinstance(data[name], dict) or not all(map(_is_count, data[name].values())):
            raise ValueError(f"{name} is no mapping to counts")
    seconds, states, failures = data["seconds"], data["states"], data["failures"]
    if not all(re.fullmatch(r"[1-9]\d{0,8}/[1-9]\d{0,8}", shard, re.ASCII) for shard in data["shards"]):
        raise ValueError("shards are not named as 3/16 is")
    if not isinstance(data["plan"], dict):
        raise ValueError("plan is no mapping")
    if not _is_count(data["ops"]):
        raise ValueError("ops is no count")
    if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
        raise ValueError("seconds is no time")
    if not isinstance(states, list) or not all(_is_count(state) and state < 2**64 for state in states):
        raise ValueError("states is no list of fingerprints")
    if not isinstance(failures, list) or not all(isinstance(failure, dict) for failure in failures):
        raise ValueError("failures is no list of mappings")
    return Report(
        data["plan"], data["shards"], data["ops"], seconds, Counter(data["by_config"]), Counter(data["facts"]),
        StateSketch(states), failures,
    )  # fmt: skip


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def merged(paths: Iterable[str | os.PathLike[str]]) -> Report:
    """The reports of several shards as one. Raises KvsimError if they are not of one campaign."""
    total: Report | None = None
    for path in paths:
        report = read_report(path)
        if total is None:
            total = report
        else:
            total.add(report)
    if total is None:
        raise KvsimError("no reports to merge")
    return total
