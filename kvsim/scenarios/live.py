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
        self.lane, self.header = lane, header
        self.pos: dict[str, list[int]] = {}
        self.last: dict[str, list[dict[str, Any]]] = {
            name: [_stream({"head": 0, "used": 0, "cells": []})] * cache["n_stream"]
            for name, cache in header.caches.items()
        }

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
        return Step(i, op.op, op.args, ret, ubatches, self._picture(), extra)

    def _picture(self) -> dict[str, Any]:
        seen = self.lane.snapshot()
        self.pos = seen["pos"]
        unseen: dict[str, list[int]] = {}
        for name, streams in self.last.items():
            found = seen["caches"].get(name) or [None] * len(streams)
            hidden = [s for s, stream in enumerate(found) if stream is None]
            if hidden:
                unseen[name] = hidden
            self.last[name] = [
                old if new is None else _stream(new) for old, new in zip(streams, found, strict=True)
            ]
        recurrent = self.header.config["recurrent"]
        if recurrent is not None:
            unseen["recurrent"] = [0]
        after: dict[str, Any] = {
            "caches": dict(self.last),
            "recurrent": recurrent and _no_states(recurrent, self.header.n_seq_max),
            "pos": self.pos,
        }
        return {**after, "unseen": unseen} if unseen else after


def _stream(seen: dict[str, Any]) -> dict[str, Any]:
    cells = [[i, pos, list(owners or ()), 0, -1, 0, 0] for i, pos, owners in seen["cells"]]
    return {"head": seen["head"], "used": seen["used"], "has_shift": False, "cells": cells}


def _no_states(recurrent: dict[str, Any], n_seq_max: int) -> dict[str, Any]:
    """A recurrent part of which nothing is known."""
    cells = [[i, -1, -1, -1, -1, []] for i in range(recurrent["size"])]
    numbers = {"head": 0, "size": recurrent["size"], "used": 0, "n": 0, "rs_z": -1}
    return {**numbers, "n_rs_seq": recurrent["n_rs_seq"], "rs_idx": [0] * n_seq_max, "cells": cells}
