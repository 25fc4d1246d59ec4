"""A decode step whose shapes repeat: nothing is read back, and a replay gives what single calls give."""

from __future__ import annotations

import pytest
import torch
from engine_recordings import DEVICES, traces
from no_waiting import at_most_read_backs

from engine import EngineFactory
from engine.attention import attend
from engine.kv_view import KVView
from engine.step import RepeatedStep
from kvsim.batch import Batch
from kvsim.context import Context
from kvsim.errors import CacheUsageError
from kvsim.replay import context_of


def prepared_slot(context: Context) -> object:
    context.allocator.init(Batch.tokens_of(0, [1]), context.memory)
    prepared = context.memory.init_batch(context.allocator, 1)
    return prepared._slots["kv"][0], prepared


def started(device: str) -> Context:
    trace = next(t for t in traces("kv") if t.header.config["params"]["kv_unified"])
    context = context_of(trace.header, EngineFactory(data=True, device=device))
    assert context.decode(Batch.tokens_of(0, list(range(5)), 0)) == 0
    return context


def make_compute(context: Context, device: str):
    cache = context.memory
    layer = cache.spec.layers[0]
    torch.manual_seed(1)
    q = torch.randn(1, 2 * layer.n_head_kv, layer.n_embd_head_k, device=device)
    k, v = torch.randn(1, layer.n_embd_k, device=device), torch.randn(1, layer.n_embd_v, device=device)

    def compute(view: KVView) -> torch.Tensor:
        view.cache.store.append(layer.il, view.k_idxs(), k, v)
        return attend(view, layer.il, q, view.mask(), scale=0.3)

    return compute


@pytest.mark.parametrize("device", DEVICES)
def test_a_repeated_step_reads_nothing_back_and_equals_single_calls(device: str) -> None:
    repeated, single = started(device), started(device)
    compute = make_compute(repeated, device)
    step = RepeatedStep(repeated.memory, compute)
    for n in range(6):
        slot, _ = prepared_slot(repeated)
        with at_most_read_backs(0, device if n > 1 else "cpu"):  # the second call captures
            out = step(slot)
        _, prepared = prepared_slot(single)
        prepared.apply()
        assert torch.allclose(out, compute(prepared.views["kv"]), atol=1e-6)
        repeated.memory.check_integrity()
    assert repeated.memory.snapshot() == single.memory.snapshot()


def test_a_step_refuses_other_shapes() -> None:
    context = started("cpu")
    step = RepeatedStep(context.memory, make_compute(context, "cpu"))
    slot, _ = prepared_slot(context)
    step(slot)
    context.allocator.init(Batch.tokens_of(0, [1, 2]), context.memory)
    prepared = context.memory.init_batch(context.allocator, 2)
    with pytest.raises(CacheUsageError, match="make another one"):
        step(prepared._slots["kv"][0])
