"""A scenario on kvsim's own context: no library, no model file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvsim.context import Context
from kvsim.models.known import KNOWN, known_model
from kvsim.models.params import ModelParams
from kvsim.models.tiny import TINY, tiny_model
from kvsim.ops import Op
from kvsim.replay import N_VOCAB, Replayer
from kvsim.scenarios.run import Unexpected, run_scenario
from kvsim.scenarios.schema import Scenario, ScenarioError
from kvsim.trace import Header, Step
from kvsim.trace.describe import header_of


def record_reference(
    scenario: Scenario, model: str | None = None, report: Callable[[Unexpected], object] = lambda _: None
) -> tuple[Header, Iterator[Step]]:
    """The header and the steps of a trace. ``model`` replaces the one the scenario is written for.

    Raises ScenarioError for a model that is not known, or one that keeps no memory.
    """
    name = model or scenario.model
    params = named_model(name)
    try:
        header = header_of(params, scenario.context, name=name)
    except ValueError as error:
        raise ScenarioError(str(error)) from error
    performer = _Reference(Context(params, scenario.context, N_VOCAB, recording=True))
    return header, run_scenario(scenario, performer, report)


def named_model(name: str) -> ModelParams:
    """A tiny model (``kvsim.models.tiny``) or a public one (``kvsim.models.known``) by name."""
    if name in TINY:
        return tiny_model(name).params()
    if name in KNOWN:
        return known_model(name)
    raise ScenarioError(f"there is no model {name!r}; there are {', '.join((*TINY, *KNOWN))}")


class _Reference:
    def __init__(self, context: Context) -> None:
        self.replayer = Replayer(context)

    def last_position(self, seq: int) -> int:
        return self.replayer.context.memory.seq_pos_max(seq)

    def perform(self, i: int, op: Op) -> Step:
        return self.replayer.step(i, op.op, op.args)
