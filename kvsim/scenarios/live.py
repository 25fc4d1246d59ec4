"""A scenario on a real llama.cpp: the library of the wheel or a build of one's own, with a model file.

What the library doesn't show is marked in the trace (``config.live.unseen``, ``after.unseen``) and has
neutral values; the rest is what it holds, and ``kvsim replay`` compares that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvsim.lanes.library import LaneError
from kvsim.lanes.llamacpp import EndedError, LlamaCpp
from kvsim.lanes.picture import Pictures
from kvsim.ops import Op
from kvsim.scenarios.run import Unexpected, run_scenario
from kvsim.scenarios.schema import Scenario, ScenarioError
from kvsim.trace import Header, Step
from kvsim.trace.describe import header_of
from kvsim.trace.unseen import LIVE_UNSEEN


def record_live(
    scenario: Scenario,
    model: Path,
    lib: Path | None = None,
    report: Callable[[Unexpected], object] = lambda _: None,
) -> tuple[Header, Iterator[Step]]:
    """The header and the steps of a trace of llama.cpp.

    The library runs in a child process, which ends with the last step. Raises ScenarioError if there is no
    such library, model or context; while it runs, at a step that ends llama.cpp, with its last words.
    """
    try:
        lane = LlamaCpp(model, scenario.context, lib, faults=False)
    except LaneError as error:
        raise ScenarioError(str(error)) from error
    version = f"llama.cpp {lane.version}"
    header = header_of(lane.model, scenario.context, name=model.name, source=version)
    header.config["live"] = {"version": version, "unseen": list(LIVE_UNSEEN)}
    return header, _steps(scenario, lane, header, report)


def _steps(
    scenario: Scenario, lane: LlamaCpp, header: Header, report: Callable[[Unexpected], object]
) -> Iterator[Step]:
    with lane:
        yield from run_scenario(scenario, _Live(lane, header), report)


class _Live:
    def __init__(self, lane: LlamaCpp, header: Header) -> None:
        self.lane = lane
        self.pos: dict[str, list[int]] = {}
        self._pictures = Pictures(lane, header)

    def last_position(self, seq: int) -> int:
        return self.pos.get(str(seq), [-1, -1])[1]

    def perform(self, i: int, op: Op) -> Step:
        if op.op != "init":
            try:
                ret = self.lane.apply(op).ret
            except EndedError as error:
                raise ScenarioError(str(error)) from error
        else:
            ret = None
        ubatches: list[dict[str, Any]] | None = [] if op.op == "decode" else None
        extra = {"size": ret} if op.op.endswith("_get") else {}
        after = self._pictures.take()
        self.pos = after["pos"]
        return Step(i, op.op, op.args, ret, ubatches, after, extra)
