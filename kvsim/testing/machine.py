"""Hypothesis chooses the operations: a cache under pytest, in three lines.

    class MyMachine(CacheMachine):
        subject = MyCache

    TestMyCache = MyMachine.TestCase

Each run plays MyCache beside the reference, which the ledger watches. A failure is shrunk by delta debugging,
which knows what operations are and so needs seconds where Hypothesis needs minutes, and saved as a trace; the
message says how to open it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from inspect import getattr_static
from pathlib import Path
from typing import Any, ClassVar, TypeVar

try:
    from hypothesis import Phase, Verbosity, settings
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
except ModuleNotFoundError as error:
    if error.name != "hypothesis":
        raise
    raise ModuleNotFoundError(
        "kvsim.testing.machine needs hypothesis: pip install 'kvsim[test]'", name=error.name
    ) from error

from kvsim.ops import Op
from kvsim.testing import generate
from kvsim.testing.cache_info import CACHES, CacheInfo, Config
from kvsim.testing.difftest import attempt, playable
from kvsim.testing.match import DifferenceError, Match
from kvsim.testing.profiles import PROFILES, Profile, spoiled
from kvsim.testing.recorded import told, write_failure
from kvsim.testing.shrink import shrink
from kvsim.testing.subject import OPERATIONS, LedgerSubject, Observes, Subject

T = TypeVar("T")


class DrawnPicker:
    """Chooses what Hypothesis draws: simple choices first, so that failures shrink to them."""

    def __init__(self, data: st.DataObject) -> None:
        self._draw = data.draw

    def integer(self, lo: int, hi: int) -> int:
        return self._draw(st.integers(lo, hi))

    def choice(self, options: Sequence[T]) -> T:
        return self._draw(st.sampled_from(list(options)))

    def chance(self, percent: int) -> bool:
        return self._draw(st.integers(0, 99)) >= 100 - percent


class UnshrunkCase:
    """A test case that leaves shrinking and telling to the machine, whatever its settings say otherwise:
    Hypothesis would shrink for minutes, and print the draws behind the operations."""

    def __get__(self, machine: CacheMachine | None, kind: type[CacheMachine]) -> Any:
        case = getattr_static(RuleBasedStateMachine, "TestCase").__get__(None, kind)
        if not hasattr(case.runTest, "__wrapped__"):

            @wraps(case.runTest)
            def run(self: Any) -> None:
                run_state_machine_as_test(kind, settings=unshrunk(self.settings))

            case.runTest = run
        return case


def unshrunk(given: settings) -> settings:
    """The same settings without the phases that make failures simpler, and without a word about draws."""
    phases = [phase for phase in given.phases if phase not in (Phase.shrink, Phase.explain)]
    silent = given.verbosity is Verbosity.normal
    return settings(given, phases=phases, verbosity=Verbosity.quiet if silent else given.verbosity)


class CacheMachine(RuleBasedStateMachine):
    """Two or more subjects that get the same operations (:class:`~kvsim.testing.match.Match`).

    Subclasses say what is tested: ``subject`` makes it (None: the reference alone, against the ledger),
    ``memory`` is a member of the family or ``all``, ``traces`` the folder of saved failures. Several
    subjects are held side by side by overriding :meth:`others`.
    """

    subject: ClassVar[Callable[[], Subject] | None] = None
    memory: ClassVar[str] = "all"
    profile: ClassVar[Profile] = PROFILES["usual"]
    traces: ClassVar[Path] = Path("failures")
    TestCase = UnshrunkCase()

    def others(self) -> list[Subject]:
        """The subjects beside the reference."""
        return _made(type(self))

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self._others = self.others()
        self._slot = 0
        self.info, config = data.draw(st.sampled_from(configurations(type(self))))
        self.match = self._guarded(lambda: Match(self.info, config, [LedgerSubject(), *self._others]), config)

    # -- operations ----------------------------------------------------------------------------

    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        self.perform(generate.decode(DrawnPicker(data), self.match))

    @rule(data=st.data())
    def wrong_batch(self, data: st.DataObject) -> None:
        pick = DrawnPicker(data)
        self.perform(spoiled(generate.decode(pick, self.match), pick, self.match.n_seq_max))

    @rule(data=st.data(), name=st.sampled_from(list(generate.EDITS)))
    def edit(self, data: st.DataObject, name: str) -> None:
        self.perform(generate.EDITS[name][0](DrawnPicker(data), self.match))

    @rule(data=st.data())
    def context_shift(self, data: st.DataObject) -> None:
        for op in generate.context_shift(DrawnPicker(data), self.match):
            self.perform(op)

    @rule(data=st.data())
    def save(self, data: st.DataObject) -> None:
        self.perform(generate.save(DrawnPicker(data), self.match, self._slot))
        self._slot += 1

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        op = generate.restore(DrawnPicker(data), self.match)
        if op is not None:
            self.perform(op)

    def perform(self, op: Op) -> None:
        """Let every subject perform it, unless one of them does not know it or has parted."""
        known = OPERATIONS.intersection(*(subject.operations for subject in self._others))
        parts = any(subject.observes is Observes.BEHAVIOUR for subject in self._others)
        if op.op in known and not (parts and self.match.parted):
            self._guarded(lambda: self.match.perform(op), self.match.config)

    def _guarded(self, run: Callable[[], T], config: Config) -> T:
        __tracebackhide__ = True
        try:
            return run()
        except DifferenceError as found:
            error = self._shortest(found, config)
            self.traces.mkdir(parents=True, exist_ok=True)
            trace = self.traces / f"{type(self).__name__}.jsonl"
            write_failure(trace, config, error)
            raise AssertionError(told(error, trace)) from error.__cause__

    def _shortest(self, found: DifferenceError, config: Config) -> DifferenceError:
        """The same failure by the fewest operations; as it was found, if it does not happen again."""

        def again(ops: Sequence[Op]) -> DifferenceError | None:
            error = attempt(self.info, config, [LedgerSubject(), *self.others()], ops)
            same = error is not None and (error.subject, error.verdict) == (found.subject, found.verdict)
            return error if same else None

        if again(found.ops) is None:
            return found
        return again(shrink(found.ops, lambda ops: again(ops) is not None)) or found

    def teardown(self) -> None:
        for subject in getattr(self, "_others", ()):
            subject.close()


@cache
def configurations(machine: type[CacheMachine]) -> list[tuple[CacheInfo, Config]]:
    """What a machine plays on: the configurations of its memory that its subject implements."""
    subjects = _made(machine)
    try:
        return [
            (info, config)
            for info in CACHES.values()
            if machine.memory in ("all", info.kind)
            for config in playable(machine.profile, info, subjects)
        ]
    finally:
        for subject in subjects:
            subject.close()


def _made(machine: type[CacheMachine]) -> list[Subject]:
    return [] if machine.subject is None else [machine.subject()]
