"""The engine on the CPU beside what else there is, in turns in one run: transformers' caches for appending
and decoding, bare attention, numpy (kvsim) and llama.cpp's library for sequence operations."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.attention import attend
from engine.factory import EngineFactory
from engine.kv_view import KVView
from kvsim.batch import Batch
from kvsim.bench.cells import UNSHARE, clock, edits, filled, library, params_for
from kvsim.bench.measure import Goal, Row, side_by_side
from kvsim.context import Context
from kvsim.models.context_params import ContextParams
from kvsim.models.params import LayerParams, ModelParams, RopeType

N_LAYER, N_HEAD, N_HEAD_KV, HEAD_SIZE = 16, 32, 8, 64
"""Those of a small Llama (3.2, 1B)."""
CONTEXT, FILLED = 4096, 3072
STEPS, REPEATS = 60, 25
ABSENT = "transformers (not installed: pip install 'kvsim[bench]')"


def engine_table(n_cells: int, lib: Path | None = None) -> Iterator[Row]:
    """The rows, one after the other as they are measured."""
    yield from decode_rows()
    yield attention_row()
    yield from edit_rows(n_cells, lib)


# -- a model's decode step -------------------------------------------------------------------------


@dataclass
class Inputs:
    """What one token brings: queries for every block, keys and values."""

    q: Tensor
    k: Tensor
    v: Tensor

    @classmethod
    def random(cls) -> Inputs:
        torch.manual_seed(0)
        q = torch.randn(1, N_HEAD, 1, HEAD_SIZE)
        return cls(q, torch.randn(1, N_HEAD_KV, 1, HEAD_SIZE), torch.randn(1, N_HEAD_KV, 1, HEAD_SIZE))


class EngineSide:
    """The engine with ``FILLED`` tokens of one sequence."""

    def __init__(self, inputs: Inputs) -> None:
        layer = LayerParams(
            n_head_kv=N_HEAD_KV, n_embd_head_k=HEAD_SIZE, n_embd_head_v=HEAD_SIZE, n_rot=HEAD_SIZE
        )
        model = ModelParams("llama", (layer,) * N_LAYER, n_embd=N_HEAD * HEAD_SIZE, rope_type=RopeType.NORM)
        params = ContextParams(
            n_ctx=CONTEXT,
            n_batch=1024,
            n_ubatch=512,
            n_seq_max=1,
            flash_attn=True,
            type_k="f32",
            type_v="f32",
        )
        self.context = Context(model, params, leaves=EngineFactory(data=True))
        for _ in range(FILLED // 512):
            assert self.context.decode(Batch.tokens_of(0, [0] * 512)) == 0
        self.q = inputs.q.flatten(0, 1).transpose(0, 1)
        self.k, self.v = inputs.k.view(1, -1), inputs.v.view(1, -1)
        self.batch = Batch.tokens_of(0, [0])

    def append(self) -> KVView:
        """Find a cell, place the token, store its rows in every block."""
        context = self.context
        context.allocator.init(self.batch, context.memory)
        prepared = context.memory.init_batch(context.allocator, 512)
        prepared.apply()
        view = prepared.views["kv"]
        assert isinstance(view, KVView)
        for il in range(N_LAYER):
            view.cache.store.append(il, view.k_idxs(), self.k, self.v)
        return view

    def decode(self) -> Tensor:
        view = self.append()
        mask = view.mask()
        for il in range(N_LAYER):
            out = attend(view, il, self.q, mask, scale=HEAD_SIZE**-0.5)
        return out


class TransformersSide:
    """One of transformers' caches with ``FILLED`` tokens."""

    def __init__(self, inputs: Inputs, static: bool) -> None:
        from transformers import DynamicCache, LlamaConfig, StaticCache

        config = LlamaConfig(
            num_hidden_layers=N_LAYER,
            num_attention_heads=N_HEAD,
            num_key_value_heads=N_HEAD_KV,
            head_dim=HEAD_SIZE,
        )
        self.static = static
        self.cache: Any = (
            StaticCache(config, max_cache_len=CONTEXT) if static else DynamicCache(config=config)
        )
        self.inputs, self.n = inputs, FILLED
        start = torch.zeros(1, N_HEAD_KV, FILLED, HEAD_SIZE)
        for il in range(N_LAYER):
            self.cache.update(start, start, il)

    def append(self) -> list[tuple[Tensor, Tensor]]:
        self.n += 1
        return [self.cache.update(self.inputs.k, self.inputs.v, il) for il in range(N_LAYER)]

    def decode(self) -> Tensor:
        rows = self.append()
        # a static cache is read as a whole, under a mask
        mask = (torch.arange(CONTEXT) < self.n)[None, None, None] if self.static else None
        for k, v in rows:
            out = scaled_dot_product_attention(self.inputs.q, k, v, attn_mask=mask, enable_gqa=True)
        return out


def decode_rows() -> Iterator[Row]:
    """One token at a time into a cache of 4096, of which 3072 are filled: rows alone, then with attention."""
    inputs = Inputs.random()
    what = f"{N_LAYER} blocks, {FILLED:,} of {CONTEXT:,} cells"
    for static, goal in ((True, Goal("within", 3)), (False, None)):
        name = "StaticCache" if static else "DynamicCache"
        ours = EngineSide(inputs)
        try:
            theirs = TransformersSide(inputs, static)
        except ImportError:
            yield Row(f"append of one token, {what}", median_alone(ours.append), ABSENT, goal=goal)
            yield Row(f"decode of one token, {what}", median_alone(ours.decode), ABSENT)
            continue
        measured = side_by_side(ours.append, theirs.append, STEPS)
        yield Row(f"append of one token, {what}", measured[0], name, measured[1], goal)
        measured = side_by_side(ours.decode, theirs.decode, STEPS)
        yield Row(f"decode of one token, {what}", measured[0], f"{name} and SDPA", measured[1])


def median_alone(step: Callable[[], object]) -> float:
    return side_by_side(step, lambda: None, STEPS)[0]


def attention_row() -> Row:
    """Attention of one token through the cache, beside the same on contiguous tensors."""
    inputs = Inputs.random()
    side = EngineSide(inputs)
    view = side.append()
    mask = view.mask()
    where = view.streams
    k, v = (
        x(0, where, view.n_kv).transpose(1, 2).contiguous()
        for x in (view.cache.store.keys, view.cache.store.values)
    )
    seen = mask[None, None]
    bare = partial(scaled_dot_product_attention, inputs.q, k, v, attn_mask=seen, enable_gqa=True)
    through = partial(attend, view, 0, side.q, mask, scale=HEAD_SIZE**-0.5)
    ours, theirs = side_by_side(through, bare, STEPS * 3)
    return Row(
        f"decode attention over {view.n_kv:,} cells",
        ours,
        "bare SDPA, contiguous",
        theirs,
        Goal("within", 1.3),
    )


# -- sequence operations ---------------------------------------------------------------------------


def edit_rows(n_cells: int, lib: Path | None) -> Iterator[Row]:
    """Operations on whole sequences of a full cache: the engine beside numpy, and beside llama.cpp's
    library."""
    params = params_for(n_cells)
    reference = filled(params, n_cells - 64)
    ours = Context(reference.model, params, leaves=EngineFactory())
    assert ours.state_set(reference.state_get())
    with tempfile.TemporaryDirectory() as folder:
        live = library(Path(folder), params, reference, lib)
        try:
            for edit in edits(n_cells):
                before = [edit.undo] if edit.undo.op == "seq_cp" else []
                steps = [*before, *[edit.op, edit.undo] * REPEATS, UNSHARE]
                measured = slice(len(before), len(steps) - 1, 2)
                took = [clock(ours, [step]) + clock(reference, [step]) for step in steps]
                mine, numpys = (median(side) for side in zip(*took[measured], strict=True))
                yield Row(edit.name, mine, "numpy (kvsim)", numpys, Goal("within", 1))
                if live is None:
                    yield Row(edit.name, mine, "llama.cpp (not installed)")
                else:
                    theirs = median(live.clock(steps)[measured])
                    yield Row(edit.name, mine, f"llama.cpp {live.version}", theirs)
        finally:
            if live is not None:
                live.close()
