"""The seeded campaign: operations at volume on a subject beside the reference, which the ledger watches.

A campaign is a row of *sessions*, each a few hundred operations on one configuration. What session ``k`` does
depends on the seed and ``k`` alone, so sessions can be spread over processes (``jobs``), over machines
(``shard``, or a Ray cluster), and taken up again where a report ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from kvsim.caches.factory import LeafFactory
from kvsim.context import BAD_BATCH
from kvsim.errors import KvsimError
from kvsim.ops import Op
from kvsim.spread import over_processes, over_ray
from kvsim.testing import generate
from kvsim.testing.cache_info import CACHES, CacheInfo, Config
from kvsim.testing.coverage import Watcher
from kvsim.testing.match import DifferenceError, Match
from kvsim.testing.pipe import ANSWER_WITHIN, PipeSubject
from kvsim.testing.profiles import PROFILES, Profile, operations
from kvsim.testing.report import Report, check_division
from kvsim.testing.rows import RowsSubject, engine_attend
from kvsim.testing.shrink import shrink
from kvsim.testing.subject import (
    LedgerSubject,
    Observes,
    Subject,
    check_names,
    engine_leaves,
    subject_named,
    supports,
)

SESSION = 400
"""Operations of a session."""


@dataclass(frozen=True)
class Shard:
    """Part ``i`` of ``n`` (from 1) of a campaign."""

    i: int = 1
    n: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.i <= self.n:
            raise KvsimError(f"shard {self}: the first is 1/{self.n}, the last {self.n}/{self.n}")

    def __str__(self) -> str:
        return f"{self.i}/{self.n}"

    def sessions(self, n_ops: int) -> range:
        """Its sessions of a campaign of so many operations."""
        return range(self.i - 1, -(-n_ops // SESSION), self.n)


@dataclass(frozen=True)
class Campaign:
    """What is tested, and with what. ``subject``: ``reference`` (against the ledger alone), ``engine``,
    ``module:Class``; or ``command``: a program that speaks the protocol of docs/protocol.md. ``memory``: a
    member of the family, or ``all``. ``rows``: what a subject tells of its rows, masks, logits and saved states
    is compared with a reference that has them. ``timeout``: seconds that a program has for an answer."""

    subject: str = "reference"
    command: tuple[str, ...] = ()
    memory: str = "all"
    config: str = ""
    seed: int = 1
    profile: str = "usual"
    weights: tuple[tuple[str, int], ...] = ()
    rows: bool = False
    timeout: float = ANSWER_WITHIN

    def __post_init__(self) -> None:
        if self.memory != "all" and self.memory not in CACHES:
            raise KvsimError(f"unknown memory {self.memory!r}: give all, or one of {', '.join(CACHES)}")
        if self.rows and self.subject == "reference" and not self.command:
            raise KvsimError("rows are compared with the reference's: give --subject or --exec too")
        if self.profile not in PROFILES:
            raise KvsimError(f"unknown profile {self.profile!r}: give one of {', '.join(PROFILES)}")

    @property
    def plan(self) -> dict[str, Any]:
        """What a report says about the campaign it is of."""
        named = {"command": list(self.command)} if self.command else {"subject": self.subject}
        weights = {"weights": dict(self.weights)} if self.weights else {}
        where = {"memory": self.memory, **({"config": self.config} if self.config else {})}
        if self.rows:
            where["rows"] = "compared"
        return {**named, **where, "seed": self.seed, "profile": self.profile, **weights, "session": SESSION}

    @property
    def how(self) -> Profile:
        return PROFILES[self.profile].with_weights(dict(self.weights))

    def subjects(self) -> list[Subject]:
        """The leader, and the subject beside it unless the reference itself is tested."""
        if self.subject == "reference" and not self.command:
            return [LedgerSubject()]
        beside = [RowsSubject("reference with rows", _with_rows)] if self.rows else []
        return [LedgerSubject(), *beside, self._tested()]

    def _tested(self) -> Subject:
        if self.command:
            return PipeSubject(self.command, self.timeout)
        if self.rows and self.subject == "engine":
            return RowsSubject("engine", partial(engine_leaves, data=True), engine_attend)
        return subject_named(self.subject)

    def configs(self) -> list[tuple[CacheInfo, Config]]:
        """The configurations in the order of the sessions. Raises KvsimError if there is none."""
        *_, subject = self.subjects()
        try:
            can_be = [
                (info, config)
                for info in CACHES.values()
                if self.memory in ("all", info.kind)
                for config in playable(self.how, info, [subject])
            ]
        finally:
            subject.close()
        if not can_be:
            known = ", ".join(sorted(subject.memories)) or "no memory"
            raise KvsimError(f"nothing to test: {subject.name} implements {known}, none of it was asked for")
        found = [(info, config) for info, config in can_be if self.config in ("", config.name)]
        if not found:
            names = ", ".join(dict.fromkeys(config.name for _, config in can_be))
            raise KvsimError(f"no configuration {self.config!r}: {subject.name} can be played on {names}")
        return found


def playable(how: Profile, info: CacheInfo, subjects: Sequence[Subject]) -> list[Config]:
    """What is played on for a member of the family: what a subject brings, or else of the tester's own what
    all of them implement."""
    for subject in subjects:
        check_names(subject)
        brought = subject.configs(info)
        if brought is not None:
            return list(brought)
    return [config for config in how.configs(info) if all(supports(s, info, config) for s in subjects)]


def _with_rows(config: Config) -> LeafFactory:
    return LeafFactory(data=True, sizes=config.sizes)


@dataclass
class Failure:
    """A difference that a session ended in."""

    session: int
    info: CacheInfo
    config: Config
    error: DifferenceError
    shrunk: list[Op] = field(default_factory=list)

    @property
    def ops(self) -> list[Op]:
        return self.shrunk or self.error.ops

    def by(self, shorter: DifferenceError) -> Failure:
        """The same failure, reached on a shorter way."""
        return replace(self, error=shorter, shrunk=shorter.ops)


def session_of(
    campaign: Campaign, k: int, configs: Sequence[tuple[CacheInfo, Config]]
) -> tuple[Report, Failure | None]:
    """Play session ``k``: what it did, and the difference it ended in, if any.

    Where a subject of which only behaviour is compared has parted, both begin anew.
    """
    info, config = configs[k % len(configs)]
    report, watcher = Report(campaign.plan), Watcher()
    subjects = campaign.subjects()
    pick = generate.SeededPicker(campaign.seed << 32 | k)
    how = campaign.how.limited_to(subjects[-1].operations)
    begun = time.perf_counter()
    failure = None
    try:
        while report.ops < SESSION:
            match = Match(info, config, subjects)
            for op in _played(match, pick, how, watcher):
                report.ops += 1
                watcher.operation(op, match.answer, _violated(match))
                report.states.add(match.picture)
                parted = match.parted and subjects[-1].observes is Observes.BEHAVIOUR
                if report.ops == SESSION or parted or match.excused:
                    break
    except DifferenceError as error:
        failure = Failure(k, info, config, error)
    finally:
        for subject in subjects:
            subject.close()
    report.by_config[f"{info.kind}/{config.name}"] += report.ops
    report.facts = watcher.facts
    report.seconds = time.perf_counter() - begun
    return report, failure


def _played(match: Match, pick: generate.Picker, how: Profile, watcher: Watcher) -> Iterator[Op]:
    """Operations, each given after it was performed."""
    leader = match.subjects[0]
    assert isinstance(leader, LedgerSubject)
    leader.checked.watcher = watcher.event
    for op in operations(match, pick, how):
        match.perform(op)
        yield op


def _violated(match: Match) -> str | None:
    """The rule for which the last operation was refused as a bad batch."""
    leader = match.subjects[0]
    return leader.violated() if match.answer == BAD_BATCH and isinstance(leader, LedgerSubject) else None


def run(
    campaign: Campaign,
    report: Report,
    n_ops: int,
    shard: Shard | None = None,
    jobs: int = 1,
    progress: Callable[[Report], object] = lambda _: None,
    ray: str = "",
) -> Failure | None:
    """Go on with a campaign until its sessions come to ``n_ops`` operations; ``shard`` does its part of them,
    in ``jobs`` processes, or on the Ray cluster ``ray``.

    What is done is added to ``report``, which may hold what an earlier run did. Stops at the first failure in
    the order of the sessions and returns it.
    """
    shard = shard or Shard()
    check_division([*report.shards, str(shard)])
    _configs_of(campaign)  # says what cannot be run
    mine = shard.sessions(n_ops)[report.shards.get(str(shard), 0) :]
    for part, failure in _sessions(campaign, mine, jobs, ray):
        report.count(part)
        report.shards[str(shard)] = report.shards.get(str(shard), 0) + 1
        progress(report)
        if failure is not None:
            return failure
    return None


Played = tuple[Report, Failure | None]
Job = tuple[Campaign, int]


def _sessions(campaign: Campaign, which: Sequence[int], jobs: int, ray: str) -> Iterator[Played]:
    """The sessions in order, several at a time. One whose process dies is played again."""
    if jobs == 1 and not ray:
        yield from (_session((campaign, k)) for k in which)
        return
    todo = [(campaign, k) for k in which]
    spread = over_ray(_session, todo, ray) if ray else over_processes(_session, todo, jobs)
    early: dict[Job, Played] = {}
    given = 0
    for job, played in spread:
        early[job] = played
        while given < len(todo) and todo[given] in early:
            yield early.pop(todo[given])
            given += 1


@cache
def _configs_of(campaign: Campaign) -> list[tuple[CacheInfo, Config]]:
    return campaign.configs()


def _session(job: Job) -> Played:
    campaign, k = job
    return session_of(campaign, k, _configs_of(campaign))


def attempt(
    info: CacheInfo, config: Config, subjects: Sequence[Subject], ops: Sequence[Op]
) -> DifferenceError | None:
    """The difference in which these operations end on fresh subjects; None if there is none, or if one of
    them restores a state that was never saved."""
    match: Match | None = None
    try:
        match = Match(info, config, subjects)
        for op in ops:
            if op.op.endswith("_set") and op.args["slot"] not in match.states:
                return None
            match.perform(op)
    except DifferenceError as error:
        return error
    finally:
        for subject in subjects:
            subject.close()
    return None


def shrink_failure(
    campaign: Campaign, failure: Failure, progress: Callable[[DifferenceError], object] = lambda _: None
) -> Failure:
    """The same failure by the fewest operations: same subject, same kind of verdict.

    ``progress`` is told each shorter way there. ``shrunk`` stays empty if it does not happen again: the subject
    does not depend on its operations alone.
    """
    shortest: DifferenceError | None = None

    def fails(ops: Sequence[Op]) -> bool:
        nonlocal shortest
        error = attempt(failure.info, failure.config, campaign.subjects(), ops)
        if error is None or (error.subject, error.verdict) != (failure.error.subject, failure.error.verdict):
            return False
        shortest = error
        progress(error)
        return True

    if fails(failure.error.ops):
        shrink(failure.error.ops, fails)
    return failure if shortest is None else failure.by(shortest)
