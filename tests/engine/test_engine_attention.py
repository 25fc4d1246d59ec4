"""Attention through a cache on a device: the reference's results, and sparse beside dense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_recordings import slack, traces

from engine import EngineFactory, attention, indexer
from engine.kv_view import KVView as EngineView
from kvsim.batch import Batch
from kvsim.caches.factory import LeafFactory
from kvsim.caches.kv_view import KVView
from kvsim.context import Context
from kvsim.models.cached_rows import store_rows
from kvsim.replay import context_of
from kvsim.tensors.attention import attention as reference_attention

GOLDENS = Path(__file__).parents[2] / "fixtures" / "goldens" / "attention"

TOLERANCE = {"f32": 2e-6, "f16": 2.5e-3, "bf16": 5e-3, "q8_0": 3.5e-2, "q4_0": 3.5e-2}
"""Exact attention over rounded rows, by their type (fixtures/goldens/README.md, attention)."""


def views(context: Context, batches: list[Batch]) -> dict[str, object]:
    """What the graph of the last batch sees."""
    for batch in batches[:-1]:
        assert context.decode(batch) == 0
    context.allocator.init(batches[-1], context.memory)
    prepared = context.memory.init_batch(context.allocator, context.resolved.n_ubatch)
    prepared.apply()
    return dict(prepared.views)


def decoded(header: object, device: str) -> tuple[dict[str, object], dict[str, object]]:
    """Views of the same batch: the engine's and the reference's; two sequences, one of them edited."""
    batches = [
        Batch.tokens_of(0, list(range(12)), 0),
        *([Batch.tokens_of(1, list(range(7)), 0)] if header.n_seq_max > 1 else []),
        Batch.tokens_of(0, [1, 2, 3]),
    ]
    factories = EngineFactory(data=True, device=device), LeafFactory(data=True)
    ours, reference = (views(context_of(header, leaves), batches) for leaves in factories)
    return ours, reference


@pytest.mark.parametrize("kind", ["kv", "iswa", "hybrid"])
def test_attention_equals_the_reference_over_the_same_rows(kind: str, device: str) -> None:
    rng = np.random.default_rng(3)
    n_checked = 0
    for trace in traces(kind):
        ours, reference = decoded(trace.header, device)
        for name, view in reference.items():
            if not isinstance(view, KVView) or not view.cache.store.v:
                continue
            twin = ours[name]
            assert isinstance(twin, EngineView)
            layer = view.cache.spec.layers[0]
            n, heads, size = view.ubatch.n_tokens, layer.n_head_kv, layer.n_embd_head_k
            width_v = layer.n_embd_v_own // heads
            k, v = rng.normal(size=(n, heads, size)), rng.normal(size=(n, heads, width_v))
            q = rng.normal(size=(n, 2 * heads, size)).astype(np.float32)
            store_rows(view, layer.il, k, v)
            for kind_of_row, slab, twin_slab in (
                ("k", view.cache.store.k, twin.cache.store.k),
                ("v", view.cache.store.v, twin.cache.store.v),
            ):
                raw = torch.from_numpy(slab[layer.il]).to(device)
                flat = twin_slab[layer.il]
                flat.copy_(raw.view(flat.dtype).reshape(flat.shape))
                del kind_of_row
            mask = view.mask()
            assert np.array_equal(twin.mask().cpu().numpy(), mask)
            out = attention.attend(
                twin, layer.il, torch.from_numpy(q).to(device), twin.mask(), scale=size**-0.5
            )
            want = reference_result(view, layer, q, mask)
            allowed = slack(device) * TOLERANCE[layer.k.name]
            assert np.abs(out.cpu().numpy() - want).max() <= allowed * np.abs(want).max()
            n_checked += 1
    assert n_checked >= 8


def reference_result(view: KVView, layer: object, q: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """By definition, in float64, un-spread as the rows are spread."""
    from kvsim.tensors.hadamard import hadamard

    spec, store, outs, start = view.cache.spec, view.cache.store, [], 0
    q = q.astype(np.float64)
    q = hadamard(q, spec.n_rot_k) if spec.n_rot_k else q
    for stream, cells in zip(view.slot.strm, view.slot.idxs, strict=True):
        rows = slice(start, start + len(cells))
        start += len(cells)
        k, v = (
            decode(layer.il, stream, slice(0, view.n_kv))
            .astype(np.float64)
            .reshape(view.n_kv, layer.n_head_kv, -1)
            for decode in (store.decode_k, store.decode_v)
        )
        outs.append(reference_attention(q[rows], k, v, mask[rows], scale=layer.n_embd_head_k**-0.5))
    out = np.concatenate(outs)
    return hadamard(out, spec.n_rot_v) if spec.n_rot_v else out


@pytest.mark.parametrize("path", sorted(GOLDENS.glob("*.npz")), ids=lambda path: path.stem)
def test_recorded_results_within_the_error_of_exact_attention(path: Path, device: str) -> None:
    """The error that the recordings' README states for exact attention over the stored rows, by type; flash
    attention reads f32 rows as f16."""
    with np.load(path) as file:
        arrays = dict(file)
    meta = json.loads(arrays["meta_json"].tobytes())
    for cache in meta["caches"].values():
        for layer in cache["layers"]:
            rounded_to = "f16" if layer["type_k"] == "f32" and meta["flash_attn"] else layer["type_k"]
            out = recorded_attention(arrays, f"l{layer['il']}.", meta, device)
            want = arrays[f"l{layer['il']}.out"]
            assert np.abs(out - want).max() <= slack(device) * TOLERANCE.get(rounded_to, 3.5e-2)


def recorded_attention(arrays: Any, prefix: str, meta: Any, device: str) -> np.ndarray:
    """The engine's result from the recorded queries and rows, stream by stream."""
    masks = arrays[f"{prefix}mask"]
    n_stream, n_row, n_kv = masks.shape
    queries = arrays[f"{prefix}q"].reshape(n_stream, n_row, meta["n_head"], -1)
    outs = []
    for stream, mask in enumerate(masks):
        k, v = (arrays[f"{prefix}{x}"][stream, :n_kv].reshape(n_kv, meta["n_head_kv"], -1) for x in "kv")
        heads = (torch.from_numpy(x.astype(np.float32)).to(device) for x in (queries[stream], k, v))
        bias = None
        if "slopes" in arrays:
            distance = np.where(mask > -np.inf, mask, 0)
            bias = torch.from_numpy(arrays["slopes"][:, None, None] * distance)[None].to(device)
        out = attention.read_cells(
            *(x.transpose(0, 1)[None] for x in heads),
            torch.from_numpy(mask > -np.inf).to(device),
            scale=float(arrays[f"{prefix}scale"]),
            softcap=meta["softcap"] or 0.0,
            bias=bias,
        )
        outs.append(out[0].transpose(0, 1).cpu().numpy())
    return np.concatenate(outs)


def test_gathered_cells_give_what_the_dense_mask_gives(device: str) -> None:
    """The lightning indexer's selection, once as a mask over all cells, once read alone."""
    torch.manual_seed(4)
    n, heads, d, n_cell = 6, 4, 16, 200
    q, k = torch.randn(n, heads, d, device=device), torch.randn(n_cell, 1, d, device=device)
    visible = torch.rand(n, n_cell, device=device) < 0.4
    visible[0, 30:] = False
    scores = indexer.index_scores(
        torch.randn(n, 3, 8, device=device),
        torch.randn(n_cell, 8, device=device),
        torch.rand(n, 3, device=device),
        visible,
    )
    cells, counts = indexer.best_cells(scores, 24)
    mask = indexer.as_mask(cells, counts, n_cell)
    assert (mask.sum(1) == torch.minimum(visible.sum(1), torch.tensor(24, device=device))).all()
    dense = attention.read_cells(*(x.transpose(0, 1)[None] for x in (q, k, k[..., :8])), mask, scale=0.25)
    rows = k[cells][:, None]
    sparse = attention.read_gathered(q, rows, rows[..., :8], counts[:, None], scale=0.25)
    assert torch.allclose(dense[0].transpose(0, 1), sparse, atol=slack(device) * 1e-6)


def test_gathered_blocks_give_what_the_dense_mask_gives(device: str) -> None:
    """Blocks of positions, chosen per group of heads, whose cells lie anywhere."""
    torch.manual_seed(5)
    block, n_pos, groups, d = 8, 64, 2, 16
    pos = torch.full((96,), -1, dtype=torch.int32, device=device)
    cells = torch.randperm(96, device=device)[:50]
    pos[cells] = torch.arange(50, dtype=torch.int32, device=device)
    mine = pos >= 0
    tok_pos = torch.tensor([3, 20, 49], device=device)
    slots, held = indexer.cells_of_positions(pos, mine, n_pos)
    seen = indexer.visible_positions(tok_pos, held)
    scores = indexer.block_scores(
        torch.randn(3, groups, 8, device=device), torch.randn(96, 8, device=device), slots, seen, block
    )
    blocks = indexer.best_blocks(scores, tok_pos, block, 1, 3)
    assert (blocks == (tok_pos // block)[:, None, None]).any(-1).all()  # its own block is always chosen
    causal = mine & (pos <= tok_pos[:, None])
    mask = indexer.cells_of_blocks(blocks, pos, mine, causal, block, n_pos // block)
    q, k, v = (
        torch.randn(3, 8, d, device=device),
        torch.randn(96, 4, d, device=device),
        torch.randn(96, 4, d, device=device),
    )
    per_head = mask.repeat_interleave(4, 1).transpose(0, 1)
    dense = attention.read_cells(*(x.transpose(0, 1)[None] for x in (q, k, v)), per_head[None], scale=0.25)
    gathered, counts = indexer.gathered_blocks(blocks, slots, seen, block)
    sparse = attention.read_gathered(q, k[gathered], v[gathered], counts, scale=0.25)
    assert torch.allclose(dense[0].transpose(0, 1), sparse, atol=slack(device) * 1e-6)


def test_a_token_that_sees_nothing_reads_nothing(device: str) -> None:
    q, k = torch.randn(1, 2, 1, 8, device=device), torch.randn(1, 2, 5, 8, device=device)
    nothing = torch.zeros(1, 1, 1, 5, dtype=torch.bool, device=device)
    for extra in ({}, {"softcap": 10.0}):
        out = attention.read_cells(q, k, k, nothing, scale=1.0, **extra)
        assert (out == 0).all()


def test_softcap_bias_and_sinks_equal_the_reference() -> None:
    rng = np.random.default_rng(6)
    q, k, v = rng.normal(size=(3, 4, 8)), rng.normal(size=(9, 2, 8)), rng.normal(size=(9, 2, 5))
    mask = rng.random((3, 9)) < 0.6
    mask[:, 0] = True
    bias, sinks = rng.normal(size=(4, 3, 9)), rng.normal(size=4)
    want = reference_attention(q, k, v, mask, scale=0.3, softcap=5.0, bias=bias, sinks=sinks)
    tensors = (torch.from_numpy(x.astype(np.float32)).transpose(0, 1)[None] for x in (q, k, v))
    out = attention.read_cells(
        *tensors, torch.from_numpy(mask), scale=0.3, softcap=5.0,
        bias=torch.from_numpy(bias.astype(np.float32))[None],
        sinks=torch.from_numpy(sinks.astype(np.float32)),
    )  # fmt: skip
    assert np.abs(out[0].transpose(0, 1).numpy() - want).max() < 1e-6
