"""The pooled indexer on a device: over every recording, the same pools, masks, tails and lists as the
reference."""

from __future__ import annotations

import numpy as np
import torch
from engine_recordings import traces

from engine import EngineFactory, kpool
from engine.pool_layout import PoolView
from kvsim.caches.pool_inputs import pool_inputs as reference_inputs
from kvsim.caches.pool_layout import IdxView
from kvsim.memory import View
from kvsim.replay import Replayer, context_of
from kvsim.tensors import kpool as reference
from kvsim.tensors.rope import Rope


class Watching:
    """A network that computes nothing and keeps what the pooled views give, for each ubatch."""

    def __init__(self) -> None:
        self.seen: list[dict[str, np.ndarray]] = []

    def run(self, ubatch: object, views: dict[str, View]) -> np.ndarray:
        view = views.get("idx")
        if isinstance(view, PoolView):
            ours = kpool.pool_inputs(view)
            self.seen.append({name: value.cpu().numpy() for name, value in ours.__dict__.items()})
        elif isinstance(view, IdxView) and view.layout is not None:
            inputs = reference_inputs(
                view.layout, ubatch, np.concatenate(view.slot.idxs), view.new, view.n_new_padded,
                kv_size=view.cache.size, n_stream=view.cache.n_stream, n_kv=view.n_kv,
            )  # fmt: skip
            self.seen.append({name: value for name, value in inputs.__dict__.items() if name != "new_first"})
        return np.zeros((ubatch.n_tokens, 1), np.float32)


def test_pool_inputs_equal_the_reference(device: str) -> None:
    n_compared = 0
    for trace in traces("hybrid_idx", device):
        replayers = []
        for leaves in (EngineFactory(device=device), None):
            context = context_of(trace.header, leaves)
            context.network = Watching()
            replayers.append(Replayer(context))
        for step in trace:
            for replayer in replayers:
                replayer.apply(step.op, step.args)
            ours, expected = (replayer.context.network.seen for replayer in replayers)
            assert len(ours) == len(expected)
            for inputs, wanted in zip(ours, expected, strict=True):
                for name, value in wanted.items():
                    assert np.array_equal(inputs[name], value), f"{trace.path}, operation {step.i}: {name}"
                n_compared += 1
            for replayer in replayers:
                replayer.context.network.seen.clear()
    assert n_compared > 100


def test_pooled_keys_and_the_selection_equal_the_reference() -> None:
    rng = np.random.default_rng(7)
    keys, gates, ape = rng.normal(size=(5, 4, 8)), rng.normal(size=(5, 4, 8)), rng.normal(size=(4, 8))
    tensors = [torch.from_numpy(x) for x in (keys, gates, ape)]
    assert np.allclose(kpool.pool_gated(*tensors).numpy(), reference.pool_gated(keys, gates, ape))
    norm, pos = rng.normal(size=8), rng.integers(0, 99, (4, 5)).astype(np.int32)
    for rotation in (Rope(8, sections=(2, 1, 1, 0)), Rope(8, sections=(2, 1, 1, 0), interleaved=True)):
        mean = kpool.pool_mean(tensors[0], torch.from_numpy(norm), 1e-5, torch.from_numpy(pos), rotation)
        assert np.allclose(mean.numpy(), reference.pool_mean(keys, norm, 1e-5, pos, rotation))
