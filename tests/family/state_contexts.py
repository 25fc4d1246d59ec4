"""Tiny contexts of every memory, with rows of random bytes, for tests of saved states and refused calls."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from probe_contexts import MODELS

from kvsim.batch import Batch
from kvsim.caches.dsv4 import DSV4Cache
from kvsim.caches.factory import LeafFactory
from kvsim.context import Context
from kvsim.events import Recorder
from kvsim.memory import Memory
from kvsim.models.cache_spec import MemorySpec
from kvsim.models.context_params import ContextParams
from kvsim.models.memory_spec import memory_spec
from kvsim.models.params import LayerParams, ModelParams
from kvsim.state_format import KVSection, parse_state

MODEL_OF = {
    "kv": "kv-llama",
    "iswa": "iswa-gemma2",
    "recurrent": "recurrent-mamba",
    "hybrid": "hybrid-jamba",
    "hybrid_iswa": "hybrid_iswa-lfm2-l4",
    "hybrid_idx": "hybrid_idx-glm5-next",
    "dsa": "dsa-deepseek32",
    "dsa_iswa": "dsa_iswa-dots3note",
    "msa": "msa-minimax-m3",
    "dsv4": "dsv4-deepseek4",
}
"""Kind of memory -> one recorded model that has it."""

KINDS = tuple(MODEL_OF)
ATTENTION = tuple(kind for kind in KINDS if kind != "recurrent")
HYBRIDS = ("hybrid", "hybrid_iswa", "hybrid_idx")

CELLS = 24
"""Cells per stream of every attention cache."""


def tiny(name: str) -> ModelParams:
    """A recorded model with rows of a few values and a window of 4."""
    model = MODELS[name]

    def narrow(layer: LayerParams) -> LayerParams:
        return replace(
            layer, n_head_kv=min(layer.n_head_kv, 1), n_embd_head_k=min(layer.n_embd_head_k, 4),
            n_embd_head_v=min(layer.n_embd_head_v, 2), n_rot=min(layer.n_rot, 2), rope_factors=None,
        )  # fmt: skip

    return replace(
        model, layers=tuple(narrow(layer) for layer in model.layers), n_embd_head_k_full=4,
        n_swa=4 if model.n_swa else 0, n_embd_r=min(model.n_embd_r, 3), n_embd_s=min(model.n_embd_s, 2),
        indexer_head_size=min(model.indexer_head_size, 2),
    )  # fmt: skip


def context(
    kind: str,
    unified: bool = True,
    model: str = "",
    cells: int = CELLS,
    wide: bool = False,
    seed: int = 0,
    **asked: Any,
) -> Context:
    """An empty context of three sequences; its rows are random, by ``seed``, so that a row that moves shows.
    ``wide``: with the rows of the recorded model."""
    usual = ContextParams(
        n_ctx=256, n_ubatch=64, n_seq_max=3, kv_unified=unified, flash_attn=True, type_k="f16"
    )
    params = (MODELS.__getitem__ if wide else tiny)(model or MODEL_OF[kind])
    names = ("kv", "base", "swa", "attn", "idx", "mla", "lid", "raw.base", "raw.swa")
    sizes = dict.fromkeys(names if kind != "dsv4" else names[-2:], cells)
    made = Context(params, replace(usual, **asked), n_vocab=128, leaves=LeafFactory(data=True, sizes=sizes))
    rng = np.random.default_rng(seed)
    for rows in row_arrays(made.memory):
        rows.view(np.uint8).reshape(-1)[:] = rng.integers(0, 120, rows.nbytes, np.uint8)
    return made


def spec_of(ctx: Context) -> MemorySpec:
    """What the parser needs to know, with the sizes of the tiny caches."""
    spec = memory_spec(ctx.model, ctx.resolved)
    assert spec is not None
    return spec


def decode(ctx: Context, seqs: int | Sequence[int], n: int, start: int | None = None) -> None:
    """Decode ``n`` tokens of one sequence, or shared by several, in one batch."""
    ids = [seqs] if isinstance(seqs, int) else list(seqs)
    first = ctx.memory.seq_pos_max(ids[0]) + 1 if start is None else start
    batch = Batch(
        tokens=[(7 * p + ids[0]) % 128 for p in range(first, first + n)],
        pos=range(first, first + n), seq_ids=[ids] * n,
    )  # fmt: skip
    assert ctx.decode(batch) == 0, ctx.last_failure


def content(ctx: Context, blob: bytes, partial: bool = False) -> dict[str, Any]:
    """What a sequence state says, without the sequence and the stream it was saved from."""
    said: dict[str, Any] = {}
    for name, section in parse_state(blob, spec_of(ctx), partial).sections.items():
        if isinstance(section, KVSection):
            said[name] = [
                ([(cell.pos, cell.ext) for cell in stream.cells], *([bytes(rows.data) for rows in part]
                 for part in (stream.k, stream.v)))
                for stream in section.streams if stream.cells
            ]  # fmt: skip
        else:
            said[name] = section
    return said


def row_arrays(memory: Memory) -> list[Any]:
    """Every array of rows behind a memory."""
    arrays: list[Any] = []
    for leaf in memory.leaves().values():
        if leaf.name == "recurrent" and leaf.store is not None:
            arrays += [rows for layers in leaf.store.rows.values() for rows in layers.values()]
        elif leaf.store is not None:
            arrays += [*leaf.store.k.values(), *leaf.store.v.values()]
    if isinstance(memory, DSV4Cache):
        arrays += [
            rows for ring in memory.rings.values() for state in ring.states.values()
            for rows in (state.kv, state.score)
        ]  # fmt: skip
    return [rows for rows in arrays if rows.size]


def everything(memory: Memory) -> tuple[Any, ...]:
    """The picture of a memory and all its rows, to be compared with a later one."""
    return memory.snapshot().to_json(), tuple(rows.tobytes() for rows in row_arrays(memory))


def twin(memory: Memory) -> Memory:
    """The same memory once more, rows included."""
    return copy.deepcopy(memory)


def positions(memory: Memory, seq: int) -> dict[str, list[int]]:
    """By leaf, the sorted positions of a sequence."""
    held = {}
    picture = memory.snapshot()
    for name, leaf in memory.leaves().items():
        if name in picture.caches:
            stream = picture.caches[name][seq if len(picture.caches[name]) > 1 else 0]
            held[name] = sorted(cell[1] for cell in stream["cells"] if seq in cell[2])
        else:
            held[name] = [leaf.seq_pos_max(seq)] if leaf.seq_pos_max(seq) >= 0 else []
    return held


def hazards(recorder: Recorder) -> set[str]:
    return {event.detail["id"] for event in recorder.events if event.kind == "hazard"}
