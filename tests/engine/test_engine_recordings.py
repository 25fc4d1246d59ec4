"""The engine's leaves in kvsim's composites: every recording of llama.cpp, operation by operation.

Return values, ubatches, slots, masks, cells, heads: zero differences, for all kinds of memory. Beside it
kvsim itself performs the same operations: the shapes that decide whether a graph is reused must be equal too.
"""

from __future__ import annotations

import pytest
from engine_recordings import KINDS, small_ones, traces

from engine import EngineFactory
from kvsim.replay import Replayer, context_of, replay_beside
from kvsim.trace.compare import compare_step


@pytest.mark.parametrize("kind", KINDS)
def test_every_recording_is_reproduced(kind: str, device: str) -> None:
    n = 0
    recordings = traces(kind, device)
    for trace in recordings:
        for recorded, computed in replay_beside(trace, EngineFactory(device=device)):
            differences = compare_step(recorded, computed)
            assert not differences, f"{trace.path}, operation {recorded.i}: {differences[0]}"
            n += 1
    assert n > 70 * len(recordings)


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_are_reused_when_the_reference_reuses_them(kind: str) -> None:
    """Each decision names its reason, so that the shapes that differ are compared too."""
    n_reused = 0
    for trace in traces(kind)[:4]:
        ours, reference = (Replayer(context_of(trace.header, leaves)) for leaves in (EngineFactory(), None))
        for step in trace:
            for replayer in (ours, reference):
                replayer.apply(step.op, step.args)
            decisions, expected = ([r.graph for r in r_.context.records] for r_ in (ours, reference))
            assert decisions == expected, f"{trace.path}, operation {step.i}"
            n_reused += sum(graph.reused for graph in decisions)
    assert n_reused > 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_host_believes_is_what_the_device_holds(kind: str) -> None:
    """Ranges, the last used cell, known sequences: kept on the host so as not to ask, and true after each
    step."""
    for trace in small_ones(kind):
        replayer = Replayer(context_of(trace.header, EngineFactory()))
        memory = replayer.context.memory
        for step in trace:
            replayer.apply(step.op, step.args)
            memory.check_integrity()
