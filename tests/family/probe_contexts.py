"""Contexts that compute with a probe, for one recorded model of each architecture and memory."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.batch import Batch
from kvsim.caches.factory import LeafFactory
from kvsim.context import Context
from kvsim.models.context_params import ContextParams, resolve
from kvsim.models.params import ModelParams
from kvsim.models.probe import ProbeNetwork

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
N_VOCAB = 64
TOKENS = [(7 * i * i + 3 * i + 5) % N_VOCAB for i in range(36)]
OTHER = [(5 * i * i + i + 11) % N_VOCAB for i in range(36)]


def recorded_models() -> dict[str, ModelParams]:
    """By memory and model file.

    Lightning indexers get 16 heads in place of the recorded 4: where no head of a cell fires its score
    is 0, and which of several such cells is chosen depends on their order in the cache, in llama.cpp too.
    """
    models: dict[str, ModelParams] = {}
    for path in sorted(TRACES.glob("*/*.jsonl.gz")):
        name = f"{path.parent.name}-{path.name.split('-str-')[0].split('-uni-')[0]}"
        if name not in models:
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                model = ModelParams.from_header(json.loads(lines.readline()))
            models[name] = model if model.arch == "minimax-m3" else replace(model, indexer_n_head=16)
    return models


MODELS = recorded_models()


def context(model: ModelParams, seed: int = 0, **asked: Any) -> Context:
    usual = ContextParams(
        n_ctx=256, n_ubatch=8, n_seq_max=2, swa_full=False, flash_attn=False, type_k="f32", type_v="f32"
    )
    params = replace(usual, **asked)
    probe = ProbeNetwork(model, resolve(model, params), N_VOCAB, seed)
    return Context(model, params, n_vocab=N_VOCAB, network=probe, leaves=LeafFactory(data=True))


def decode(ctx: Context, seqs: list[int], tokens: list[int], start: int) -> NDArray[np.float32]:
    """Logits of every token."""
    n = len(tokens)
    batch = Batch(tokens=tokens, pos=range(start, start + n), seq_ids=[seqs] * n, output=[1] * n)
    assert ctx.decode(batch) == 0, ctx.last_failure
    return np.stack([ctx.logits_of(i) for i in range(n)])
