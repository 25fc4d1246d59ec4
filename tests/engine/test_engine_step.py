"""A decode step whose shapes repeat: nothing is read back, and a replay gives what single calls give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from engine_recordings import traces
from no_waiting import at_most_read_backs
from torch import Tensor

from engine import EngineFactory, KVCache, RecurrentMemory
from engine.attention import attend
from engine.recurrent import RecurrentView
from engine.step import RepeatedStep
from kvsim.batch import Batch
from kvsim.context import Context
from kvsim.errors import CacheUsageError
from kvsim.memory import BatchContext
from kvsim.replay import context_of


def prepare(context: Context, seqs: Sequence[int]) -> BatchContext:
    """One more token of each of some sequences."""
    batch = Batch.joined(*(Batch.tokens_of(seq, [1]) for seq in seqs))
    context.allocator.init(batch, context.memory)
    prepared = context.memory.init_batch(context.allocator, 8)
    assert len(prepared.ubatches) == 1
    return prepared


def started(kind: str, unified: bool, n_seqs: int, device: str) -> Context:
    """A context in which sequences have five tokens each."""
    headers = [trace.header for trace in traces(kind)]
    header = next(h for h in headers if h.config["params"]["kv_unified"] is unified and h.n_seq_max >= n_seqs)
    context = context_of(header, EngineFactory(data=True, device=device))
    for seq in range(n_seqs):
        assert context.decode(Batch.tokens_of(seq, list(range(5)), 0)) == 0
    return context


def make_compute(
    caches: Mapping[str, KVCache | RecurrentMemory], n: int, device: str
) -> Callable[[Mapping[str, Any]], Tensor]:
    """Store rows of ``n`` tokens in every cache and attend; states are halved and added to."""
    torch.manual_seed(1)
    inputs = {}
    for name, cache in caches.items():
        if isinstance(cache, RecurrentMemory):
            continue
        layer = cache.spec.layers[0]
        q = torch.randn(n, 2 * layer.n_head_kv, layer.n_embd_head_k, device=device)
        k = torch.randn(n, layer.n_embd_k, device=device)
        inputs[name] = q, k, None if layer.v is None else torch.randn(n, layer.n_embd_v, device=device)

    def compute(views: Mapping[str, Any]) -> Tensor:
        outs = [advance(views["recurrent"])] if "recurrent" in views else []
        for name, (q, k, v) in inputs.items():
            view = views[name]
            il = view.cache.spec.layers[0].il
            view.cache.store.append(il, view.k_idxs(), k, v)
            out = attend(view, il, q, view.mask(), scale=0.3, n_latent=0 if v is not None else 8)
            outs.append(out.flatten(1))
        return torch.cat(outs, 1)

    return compute


def advance(view: RecurrentView) -> Tensor:
    """One token of each sequence, in every layer that keeps a state."""
    store, outs = view.memory.store, []
    for il in store.rows["s"]:
        start = store.initial_states("s", il, view.head, view.rs_z, view.s_copy, view.n_seqs)
        state = start / 2 + view.memory.cells.columns[0, view.head : view.head + view.n_seqs, None]
        store.write_states("s", il, view.head, state[None])
        outs.append(state)
    return torch.cat(outs, 1)


@pytest.mark.parametrize(
    ("kind", "unified", "seqs"),
    [
        ("kv", True, [0]),
        ("kv", True, [0, 1]),
        ("kv", False, [1, 2]),
        ("iswa", True, [0]),
        ("iswa", False, [0, 1]),
        ("msa", False, [0]),
        ("dsa", True, [0]),
        ("dsa_iswa", True, [0]),
        ("recurrent", True, [0, 1]),
        ("hybrid", True, [0]),
        ("hybrid", False, [0, 1]),
        ("hybrid_iswa", False, [0, 1]),
    ],
)
def test_a_repeated_step_reads_nothing_back_and_equals_single_calls(
    kind: str, unified: bool, seqs: list[int], device: str
) -> None:
    """The first call runs, the second captures, the others are replays, of all caches of a memory in one."""
    repeated, single = (started(kind, unified, max(seqs) + 1, device) for _ in range(2))
    caches = repeated.memory.leaves()
    compute = make_compute(caches, len(seqs), device)
    step = RepeatedStep(caches, compute)
    for n in range(5):
        ours, theirs = prepare(repeated, seqs), prepare(single, seqs)
        theirs.apply()
        with at_most_read_backs(0, device if n != 1 else "cpu"):
            out = step(slots_of(ours), ours.ubatch)
        for view in theirs.views.values():
            view.set_inputs()
        assert torch.allclose(out, compute(theirs.views), atol=1e-6), f"step {n}"
    assert repeated.memory.snapshot() == single.memory.snapshot()
    for name, cache in caches.items():
        cache.check_integrity()
        twin = single.memory.leaves()[name]
        if isinstance(cache, RecurrentMemory):
            continue
        assert cache.history == twin.history
        assert all(
            map(torch.equal, (cache.table.planes, cache.table.seq), (twin.table.planes, twin.table.seq))
        )


def slots_of(prepared: BatchContext) -> dict[str, Any]:
    """Those of the first ubatch."""
    return {name: slots[0] for name, slots in prepared._slots.items()}


def test_a_step_refuses_other_shapes(device: str) -> None:
    context = started("kv", True, 1, device)
    caches = context.memory.leaves()
    step = RepeatedStep(caches, make_compute(caches, 1, device))
    for seqs in ([0], [0, 0]):
        prepared = prepare(context, seqs)
        if len(seqs) == 1:
            step(slots_of(prepared), prepared.ubatch)
    with pytest.raises(CacheUsageError, match="make another one"):
        step(slots_of(prepared), prepared.ubatch)


def test_a_step_refuses_cells_at_position_minus_one(device: str) -> None:
    context = started("kv", True, 2, device)
    caches = context.memory.leaves()
    step = RepeatedStep(caches, make_compute(caches, 1, device))
    prepared = prepare(context, [0])
    step(slots_of(prepared), prepared.ubatch)
    context.memory.table.watch_minus_one()
    prepared = prepare(context, [0])
    with pytest.raises(CacheUsageError, match="position -1"):
        step(slots_of(prepared), prepared.ubatch)
