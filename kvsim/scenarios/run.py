"""Performing a scenario on anything that performs operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvsim.errors import KvsimError
from kvsim.ops import Op
from kvsim.scenarios.schema import Scenario, ScenarioError, ScenarioStep
from kvsim.trace import Step

N_TOKENS = 100
"""Token ids that a scenario makes up are below this; every vocabulary has that many."""


class Performer(Protocol):
    """Performs operations and tells what came of them."""

    def last_position(self, seq: int) -> int:
        """The last position of a sequence, -1 if it has none."""
        ...

    def perform(self, i: int, op: Op) -> Step:
        """Perform an operation as line ``i`` of a trace. Raises KvsimError where it cannot be done."""
        ...


@dataclass(frozen=True)
class Unexpected:
    """An answer that is not the one the scenario expects, as other models may give it."""

    step: ScenarioStep
    got: int | None

    def __str__(self) -> str:
        step = self.step
        return f"line {step.line}: {step.op} answered {self.got}, the scenario expects {step.gives}"


def run_scenario(
    scenario: Scenario, performer: Performer, report: Callable[[Unexpected], object] = lambda _: None
) -> Iterator[Step]:
    """The steps of a trace. ``report`` is told of every answer that is not the expected one.

    Raises ScenarioError naming the line of a step that cannot be performed.
    """
    runner = _Runner(performer)
    yield performer.perform(0, Op("init"))
    i = 1
    for step in _unrolled(scenario.steps):
        try:
            done = performer.perform(i, runner.op(step))
        except KvsimError as error:
            raise ScenarioError(f"{scenario.path}, line {step.line}: {step.op}: {error}") from error
        yield done
        if step.gives is not None and done.ret != step.gives:
            report(Unexpected(step, done.ret))
        i += 1


def _unrolled(steps: tuple[ScenarioStep, ...]) -> Iterator[ScenarioStep]:
    for step in steps:
        if step.op == "repeat":
            for _ in range(step.args["times"]):
                yield from _unrolled(step.steps)
        else:
            yield step


@dataclass
class _Runner:
    """Turns steps into operations: positions go on where sequences end, each save gets a slot of its own."""

    performer: Performer
    slots: dict[int, int] = field(default_factory=dict)
    n_saved: int = 0

    def op(self, step: ScenarioStep) -> Op:
        if step.op == "decode":
            return self._decode(step)
        args: dict[str, Any] = dict(step.args)
        if step.op in ("seq_rm", "seq_cp", "seq_add", "seq_div"):
            args = {"p0": -1, "p1": -1, **args}
        if "last" in args:
            args["p0"] = max(0, self.performer.last_position(args["seq"]) + 1 - args.pop("last"))
        if step.op == "clear":
            args = {"data": True, **args}
        if step.op.startswith("state_"):
            args = self._state(step.op, args)
        return Op(step.op, _ordered(step.op, args))

    def _state(self, op: str, args: dict[str, Any]) -> dict[str, Any]:
        slot = args["slot"]
        if op.endswith("_get"):
            self.slots[slot] = self.n_saved
            self.n_saved += 1
        elif slot not in self.slots:
            raise ScenarioError(f"nothing was saved in slot {slot} before")
        flags = {"flags": args.get("flags", 0)} if "seq" in args else {}
        return {**args, **flags, "slot": self.slots[slot]}

    def _decode(self, step: ScenarioStep) -> Op:
        tokens: list[int] = []
        positions: list[int] = []
        seqs: list[list[int]] = []
        out: list[int] = []
        next_of: dict[int, int] = {}
        for part in step.parts:
            ids = part["seq"] if isinstance(part["seq"], list) else [part["seq"]]
            for seq in ids:
                next_of.setdefault(seq, self.performer.last_position(seq) + 1)
            at = part.get("at", next_of[ids[0]])
            n = part["n"] if "n" in part else len(part["tokens"])
            tokens += part.get("tokens", [(31 * ids[0] + at + k) % N_TOKENS for k in range(n)])
            positions += range(at, at + n)
            seqs += [ids] * n
            out += [0] * (n - 1) + [1]
            next_of.update(dict.fromkeys(ids, at + n))
        return Op.decode(tokens, positions, seqs, out)


_ORDER = {
    "seq_rm": ("seq", "p0", "p1"),
    "seq_cp": ("src", "dst", "p0", "p1"),
    "seq_add": ("seq", "p0", "p1", "delta"),
    "seq_div": ("seq", "p0", "p1", "d"),
    "state_seq_get": ("seq", "flags", "slot"),
    "state_seq_set": ("seq", "flags", "slot"),
}


def _ordered(op: str, args: dict[str, Any]) -> dict[str, Any]:
    """The arguments in the order of the recordings."""
    return {name: args[name] for name in _ORDER.get(op, args)}
