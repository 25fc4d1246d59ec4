"""Sparse members through their caches: over every recording, reading only the selected cells gives what the
dense mask of the same selection gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from engine_recordings import traces
from torch import Tensor

from engine import EngineFactory, attention, indexer
from engine.cells import POS
from engine.kv_view import KVView
from kvsim.batch import Ubatch
from kvsim.memory import View
from kvsim.replay import Replayer, context_of

TOP_K = 5
N_HEAD = 4


class SelectingNetwork:
    """Stores random rows in every part and attends twice; keeps the difference and how many visible cells
    were left out."""

    def __init__(self, select: Callable[[KVView, KVView, Tensor], tuple[Tensor, Tensor, Tensor]]) -> None:
        self.select = select
        self.n_compared = self.n_left_out = 0
        self.worst = 0.0
        self.generator = torch.Generator().manual_seed(3)

    def random(self, *shape: int, like: Tensor) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(like.device)

    def run(self, ubatch: Ubatch, views: dict[str, View]) -> object:
        main, index = (views[name] for name in (("mla", "lid") if "mla" in views else ("base", "idx")))
        assert isinstance(main, KVView)
        assert isinstance(index, KVView)
        n = ubatch.n_tokens
        for view in (main, index):
            for layer in view.cache.spec.layers:
                flat = view.k_idxs()
                k = self.random(n, layer.n_embd_k, like=flat)
                v = None if layer.v is None else self.random(n, layer.n_embd_v, like=flat)
                view.cache.store.append(layer.il, flat, k, v)
        layer = main.cache.spec.layers[0]
        q = self.random(n, N_HEAD * layer.n_head_kv, layer.n_embd_head_k, like=main.k_idxs())
        visible = main.mask()
        cells, counts, mask = self.select(main, index, visible)
        # a part without values takes the first half of a key for its value
        options = {"scale": 0.25, "n_latent": 0 if layer.v is not None else layer.n_embd_k // 2}
        dense = attention.attend(main, layer.il, q, mask, **options)
        sparse = attention.attend_selected(main, layer.il, q, cells, counts, **options)
        self.worst = max(self.worst, float((dense - sparse).abs().max()))
        per_head = mask if mask.dim() == 3 else mask[None]
        self.n_left_out += int((visible & ~per_head).sum())
        self.n_compared += 1
        return torch.zeros(n, 1).numpy()


def by_lightning(main: KVView, index: KVView, visible: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best cells of each token: as rows of the cache, which of them count, and as a mask."""
    cache = index.cache
    keys = cache.store.keys(cache.spec.layers[0].il, index.streams, index.n_kv)[:, :, 0].to(torch.float32)
    keys = keys[:, : main.n_kv]
    per_stream = len(visible) // len(keys)
    torch.manual_seed(5)
    q = torch.randn(len(visible), 2, keys.shape[-1], device=keys.device)
    weights = torch.rand(len(visible), 2, device=keys.device)
    rows, counts, masks = [], [], []
    for p, mine in enumerate(keys):
        of = slice(p * per_stream, (p + 1) * per_stream)
        scores = indexer.index_scores(q[of], mine, weights[of], visible[of])
        best, count = indexer.best_cells(scores, TOP_K)
        masks.append(indexer.as_mask(best, count, main.n_kv))
        rows.append(best[:, None] + main.slot.strm[p] * main.cache.size)
        counts.append(count[:, None])
    return torch.cat(rows), torch.cat(counts), torch.cat(masks)


def by_blocks(main: KVView, index: KVView, visible: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best blocks of positions of each token and key head, likewise."""
    cache = index.cache
    keys = cache.store.keys(cache.spec.layers[0].il, index.streams, index.n_kv)[:, :, 0].to(torch.float32)
    n_head_kv = main.cache.spec.layers[0].n_head_kv
    per_stream, block, planes = len(visible) // len(keys), 4, main.cache.table.planes
    torch.manual_seed(5)
    q = torch.randn(len(visible), n_head_kv, keys.shape[-1], device=keys.device)
    tok_pos = torch.as_tensor(main.ubatch.pos0, device=keys.device, dtype=torch.int64)
    n_pos = -(-(int(planes[POS, main.streams, : main.n_kv].max()) + 1) // block) * block
    rows, counts, masks = [], [], []
    for p, mine in enumerate(keys):
        of, stream = slice(p * per_stream, (p + 1) * per_stream), main.slot.strm[p]
        pos = planes[POS, stream, : main.n_kv]
        at = tok_pos[of]
        held = visible[of].any(0)  # of the one sequence of this stream, what some token may see
        slots, known = indexer.cells_of_positions(pos, held, n_pos)
        # of two cells at one position only one is gathered, as in llama.cpp
        held &= slots[pos.clamp(min=0).to(torch.int64)] == torch.arange(len(pos), device=pos.device)
        visible[of] &= held
        seen = indexer.visible_positions(at, known)
        scores = indexer.block_scores(q[of], mine, slots, seen, block)
        blocks = indexer.best_blocks(scores, at, block, 1, 2)
        mask = indexer.cells_of_blocks(blocks, pos, held, visible[of], block, n_pos // block)
        masks.append(mask.repeat_interleave(N_HEAD, 1).transpose(0, 1))
        gathered, count = indexer.gathered_blocks(blocks, slots, seen, block)
        rows.append(gathered + stream * main.cache.size)
        counts.append(count)
    return torch.cat(rows), torch.cat(counts), torch.cat(masks, 1)


@pytest.mark.parametrize(("kind", "select"), [("dsa", by_lightning), ("msa", by_blocks)])
def test_selected_cells_of_a_cache_give_what_its_dense_mask_gives(
    kind: str, select: Callable[..., tuple[Tensor, Tensor, Tensor]], device: str
) -> None:
    n_compared = n_left_out = 0
    for trace in traces(kind, device):
        context = context_of(trace.header, EngineFactory(data=True, device=device))
        if kind == "msa" and not context.memory.base.block_indexed:
            continue  # dense, without blocks
        network = SelectingNetwork(select)
        context.network = network
        replayer = Replayer(context)
        for step in trace:
            replayer.apply(step.op, step.args)
        assert network.worst < 2e-3, str(trace.path)
        n_compared += network.n_compared
        n_left_out += network.n_left_out
    assert n_compared > 40
    assert n_left_out > 400
