"""Where the engine waits for the device: once per batch while it is prepared, never while it is applied.

On a CPU every way of learning a tensor's values is counted or forbidden; on a GPU torch itself is told to
raise.
"""

from __future__ import annotations

import pytest
import torch
from engine_recordings import KINDS, traces
from no_waiting import at_most_read_backs

from engine import EngineFactory, sync
from kvsim.batch import Batch
from kvsim.context import Context
from kvsim.memory import MemoryStatus
from kvsim.replay import context_of


def contexts(kind: str, device: str) -> list[Context]:
    """A unified context and one with streams, each with some tokens in it."""
    headers = [trace.header for trace in traces(kind)]
    unified = next(h for h in headers if h.config["params"]["kv_unified"])
    streams = next(h for h in headers if not h.config["params"]["kv_unified"])
    made = [context_of(header, EngineFactory(device=device)) for header in (unified, streams)]
    for context in made:
        context.recording = False
        assert context.decode(Batch.tokens_of(0, [1, 2, 3, 4, 5], 0)) == 0
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_prepared_with_one_read_back_and_applied_with_none(kind: str, device: str) -> None:
    for context in contexts(kind, device):
        memory, allocator = context.memory, context.allocator
        for n_tokens in (1, 1, 7, 1):
            with at_most_read_backs(0, device):
                allocator.init(Batch.tokens_of(0, list(range(n_tokens))), memory)
                memory.check_batch(allocator, context.resolved.n_ubatch, False)
                assert memory.init_update().status is MemoryStatus.NO_UPDATE
            with at_most_read_backs(1, device):
                prepared = memory.init_batch(allocator, context.resolved.n_ubatch)
            assert prepared.status is MemoryStatus.SUCCESS
            more = True
            while more:
                with at_most_read_backs(0, device):
                    prepared.apply()
                    for view in prepared.views.values():
                        view.set_inputs()
                    more = prepared.next()
            memory.check_integrity()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hybrid_idx"])
def test_the_shapes_of_a_graph_are_known_on_the_host(kind: str, device: str) -> None:
    """But for pools, whose number only the cells know: those ask once per ubatch."""
    for context in contexts(kind, device):
        context.allocator.init(Batch.tokens_of(0, [1]), context.memory)
        prepared = context.memory.init_batch(context.allocator, context.resolved.n_ubatch)
        with at_most_read_backs(0, device):
            prepared.apply()
            shapes = [view.reuse_key() for view in prepared.views.values()]
        assert any(shapes)


def test_pools_ask_once_per_ubatch(device: str) -> None:
    for context in contexts("hybrid_idx", device):
        context.allocator.init(Batch.tokens_of(0, [1]), context.memory)
        prepared = context.memory.init_batch(context.allocator, context.resolved.n_ubatch)
        prepared.apply()
        with at_most_read_backs(1, device):
            for view in prepared.views.values():
                view.reuse_key()


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_cache_is_refused_with_one_read_back_per_split(kind: str, device: str) -> None:
    """The four numbers of the refusal come with it. A unified window pair tries two splits."""
    for context in contexts(kind, device):
        if kind in ("recurrent", "dsv4"):
            continue  # the first has room for every sequence; the second refuses what has gaps
        while context.decode(Batch.tokens_of(0, [0] * min(16, context.resolved.n_batch))) == 0:
            pass
        context.allocator.init(Batch.tokens_of(0, [0] * min(16, context.resolved.n_batch)), context.memory)
        n_splits = len(list(context.memory.splits(context.allocator, 1, False))) if kind != "kv" else 1
        with at_most_read_backs(n_splits, device):
            prepared = context.memory.init_batch(context.allocator, context.resolved.n_ubatch)
        assert prepared.status is MemoryStatus.FAILED_PREPARE
        assert prepared.failure is not None
        assert prepared.failure.asked > prepared.failure.found


@pytest.mark.parametrize("kind", KINDS)
def test_sequence_operations_ask_nothing(kind: str, device: str) -> None:
    """Shifts, copies, removals are masks; only a rollback of a recurrent state has to be granted, and pools
    ask whether they share cells and where a sequence begins."""
    for context in contexts(kind, device):
        memory = context.memory
        with at_most_read_backs(2 if kind == "hybrid_idx" else 0, device):
            memory.seq_rm(0, 0, -1)
            memory.seq_keep(0)
            if kind != "dsv4" and context.model.n_pos_per_embd == 1:
                memory.seq_add(0, 0, -1, 3)
                memory.seq_div(0, 0, -1, 2)
            memory.clear(False)


def test_the_guard_notices_every_way_to_wait() -> None:
    values = torch.arange(4)
    for look in (
        lambda: int(values[1]),
        lambda: bool(values.any()),
        lambda: values.tolist(),
        lambda: values.numpy(),
        lambda: values.nonzero(),
        lambda: values[values > 1],
        lambda: sync.read_back(values),
    ):
        with pytest.raises(AssertionError), at_most_read_backs(0, "cpu"):
            look()
