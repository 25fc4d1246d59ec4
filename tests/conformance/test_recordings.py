"""Every recording of llama.cpp replays without a difference: returns, ubatches, masks, cells, positions."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_decodes import TRACES

from kvsim.caches.kv import KVCache
from kvsim.events import KINDS, Recorder
from kvsim.replay import Replayer, context_of, replay_beside
from kvsim.trace import Difference, compare_step, read_trace

OPERATIONS = {
    "kv": 1217, "iswa": 1110, "recurrent": 952, "hybrid": 1139, "hybrid_iswa": 938, "hybrid_idx": 938,
    "dsa": 933, "dsa_iswa": 916, "msa": 974, "dsv4": 934,
}  # fmt: skip
"""Recorded operations of each memory, so that none goes missing."""


def files(memory: str) -> list[Path]:
    return sorted((TRACES / memory).glob("*.jsonl.gz"))


def differences(path: Path) -> tuple[int, list[tuple[int, Difference]]]:
    """Operations compared, and the fields that differ with the number of their operation."""
    n, found = 0, []
    for recorded, computed in replay_beside(read_trace(path)):
        found += [(recorded.i, difference) for difference in compare_step(recorded, computed)]
        n += 1
    return n, found


def test_no_memory_is_left_out() -> None:
    assert {path.name for path in TRACES.iterdir() if path.is_dir()} == set(OPERATIONS)


@pytest.mark.parametrize("memory", OPERATIONS)
def test_recordings_replay_without_a_difference(memory: str) -> None:
    total = 0
    for path in files(memory):
        n, found = differences(path)
        assert not found, f"{path.name}: operation {found[0][0]}: {found[0][1]}"
        total += n
    assert total == OPERATIONS[memory]


def test_the_comparison_notices_a_wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads put back by stream, not by the slot's local number (kv_cache.md P3)."""

    def keeps_heads(self, ubatches):
        heads = list(self.heads)
        slots = prepare(self, ubatches)
        self.heads = heads
        return slots

    prepare = KVCache.prepare
    monkeypatch.setattr(KVCache, "prepare", keeps_heads)
    found = [f for path in files("kv") for f in differences(path)[1]]
    assert found
    assert all(difference.path.endswith(".head") or "idxs" in difference.path for _, difference in found[:1])


@pytest.mark.parametrize("memory", OPERATIONS)
def test_an_observer_changes_nothing_and_the_books_are_in_order(memory: str) -> None:
    """One recording of each memory, watched; invariants are checked after every operation."""
    path = files(memory)[-1]
    trace = read_trace(path)
    context = context_of(trace.header)
    told = Recorder()
    context.observe(told)
    replayer = Replayer(context)
    for recorded in trace:
        assert replayer.apply(recorded.op, recorded.args) == recorded.ret
        assert context.memory.snapshot().to_json() == recorded.after, (
            f"{path.name}: {recorded.i} {recorded.op}"
        )
        context.memory.check_integrity()
    assert set(told.kinds()) <= set(KINDS)
    assert {"split", "graph", "write"} <= set(told.kinds())
