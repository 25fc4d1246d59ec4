"""Rows on a device beside kvsim's: the same operations leave the same bytes, in stores and in saved
states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_recordings import KINDS, traces

from engine import EngineFactory
from kvsim.batch import Batch
from kvsim.caches.attention_leaf import AttentionLeaf
from kvsim.caches.factory import LeafFactory
from kvsim.context import Context
from kvsim.models.context_params import ContextParams
from kvsim.models.known import known_model
from kvsim.replay import context_of
from kvsim.state import ON_DEVICE


def pair(header: object, device: str) -> tuple[Context, Context]:
    ours = context_of(header, EngineFactory(data=True, device=device))
    return ours, context_of(header, LeafFactory(data=True))


def fill(ours: Context, reference: Context, seed: int) -> None:
    """The same random rows into every cell, ring and state of both, as bytes."""
    rng = np.random.default_rng(seed)
    for name, leaf in reference.memory.leaves().items():
        twin = ours.memory.leaves()[name]
        if not isinstance(leaf, AttentionLeaf):
            for part, layers in leaf.store.rows.items():
                for il, rows in layers.items():
                    rows[:] = rng.normal(size=rows.shape)
                    twin.store.rows[part][il].copy_(torch.from_numpy(rows))
            continue
        cells = np.arange(leaf.size, dtype=np.int32)
        for layer in leaf.spec.layers:
            for stream in range(leaf.n_stream):
                leaf.store.encode_k(layer.il, stream, cells, rng.normal(size=(leaf.size, layer.n_embd_k)))
                twin.store.write_k(layer.il, stream, cells, leaf.store.read_k(layer.il, stream, cells))
                if layer.v is not None:
                    rows = rng.normal(
                        size=(leaf.size, layer.n_embd_v_own if leaf.spec.v_trans else layer.n_embd_v)
                    )
                    leaf.store.encode_v(layer.il, stream, cells, rows)
                    twin.store.write_v(layer.il, stream, cells, leaf.store.read_v(layer.il, stream, cells))


def assert_equal_rows(ours: Context, reference: Context, what: str) -> None:
    for name, leaf in reference.memory.leaves().items():
        twin = ours.memory.leaves()[name]
        if not isinstance(leaf, AttentionLeaf):
            for part, layers in leaf.store.rows.items():
                for il, rows in layers.items():
                    assert np.array_equal(twin.store.rows[part][il].cpu().numpy(), rows), (
                        f"{what}: {part} of {name}"
                    )
            continue
        for slabs, twins in ((leaf.store.k, twin.store.k), (leaf.store.v, twin.store.v)):
            for il, slab in slabs.items():
                raw = twins[il].contiguous().view(torch.uint8).cpu().numpy().reshape(slab.shape)
                assert np.array_equal(raw, slab), f"{what}: rows of {name}, layer {il}"


@pytest.mark.parametrize("kind", KINDS)
def test_saved_states_have_the_same_bytes_and_come_back_alike(kind: str, device: str) -> None:
    """Sequence states, whole states, rollback states, with rows; restored into another sequence."""
    for trace in traces(kind)[:3]:
        ours, reference = pair(trace.header, device)
        for context in (ours, reference):
            for seq in range(min(2, context.resolved.n_seq_max)):
                assert context.decode(Batch.tokens_of(seq, list(range(11 + seq)), 0)) == 0
        fill(ours, reference, 1)
        last = min(1, reference.resolved.n_seq_max - 1)
        for flags in (0, 1, ON_DEVICE):
            blob = reference.state_seq_get(0, flags)
            assert ours.state_seq_get(0, flags) == blob
            assert ours.state_seq_set(blob, last, flags) == reference.state_seq_set(blob, last, flags)
        assert_equal_rows(ours, reference, trace.path)
        whole = reference.state_get()
        assert ours.state_get() == whole
        assert ours.state_set(whole) == reference.state_set(whole) == len(whole)
        assert_equal_rows(ours, reference, trace.path)
        assert ours.memory.snapshot() == reference.memory.snapshot()


def shiftable(context: Context) -> bool:
    """Whether an update can turn the keys: not those of latent rows that are quantised."""
    caches = [leaf for leaf in context.memory.leaves().values() if isinstance(leaf, AttentionLeaf)]
    turned = all(not leaf.spec.is_quantized_k or leaf.spec.n_rot_k for leaf in caches)
    return context.memory.can_shift and context.model.n_pos_per_embd == 1 and turned


@pytest.mark.parametrize("kind", ["kv", "iswa", "msa", "dsa", "dsa_iswa", "hybrid_idx"])
def test_stream_copies_and_shifts_leave_the_same_rows(kind: str, device: str) -> None:
    """Quantised keys equal byte for byte; of floats turned in float32 the last bit may differ."""
    n_shifted = 0
    for trace in traces(kind):
        ours, reference = pair(trace.header, device)
        for context in (ours, reference):
            assert context.decode(Batch.tokens_of(0, list(range(9)), 0)) == 0
        fill(ours, reference, 2)
        for context in (ours, reference):
            if context.resolved.n_seq_max > 1:
                context.memory.seq_cp(0, 1, -1, -1)
            if shiftable(context):
                context.memory.seq_rm(0, 0, 3)
                context.memory.seq_add(0, 3, -1, -3)
                n_shifted += 1
            context.update()
        assert_equal_rows(ours, reference, trace.path)
    assert n_shifted > 0


@pytest.mark.parametrize("delta", [2**31 - 1, 2**31 - 3])
def test_positions_that_pass_the_end_of_32_bits_are_freed_as_in_the_reference(delta: int) -> None:
    model, params = known_model("gemma3-1b"), ContextParams(n_ctx=256, kv_unified=True)
    pictures = []
    for leaves in (LeafFactory(), EngineFactory()):
        context = Context(model, params, leaves=leaves)
        context.decode(Batch.tokens_of(0, range(5)))
        context.memory.seq_add(0, -1, -1, delta)
        pictures.append(context.memory.snapshot().to_json())
    assert pictures[0]["pos"]["0"] == [delta, 2**31 - 1]
    assert pictures[1] == pictures[0]
