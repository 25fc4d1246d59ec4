"""Slots for the tests of policies: conversations over recorded models, computed by the probe network."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from small_memories import ISWA, KV, KV_MROPE, TRACES, leaf

from kvsim.batch import Batch
from kvsim.caches.factory import LeafFactory
from kvsim.context import Context
from kvsim.models.context_params import ContextParams, resolve
from kvsim.models.params import ModelParams
from kvsim.models.probe import ProbeNetwork
from kvsim.policies import Slot

HYBRID = "hybrid/jamba-uni-c512-u16-s2-f16-01"
ROLLBACK = "hybrid/qwen35-uni-c512-u32-s4-q8_0-rs2-09"
RECURRENT = "recurrent/mamba-str-c1024-u64-s1-f16-02"
DSV4 = "dsv4/deepseek4-uni-c512-u16-s2-f16-rs2-01"

MODELS = {
    "llama": KV, "mrope": KV_MROPE, "window": ISWA, "hybrid": HYBRID, "rollback": ROLLBACK,
    "recurrent": RECURRENT, "dsv4": DSV4,
}  # fmt: skip

N_VOCAB = 64
TEXT = [(7 * i * i + 3 * i + 5) % N_VOCAB for i in range(400)]
OTHER = [(5 * i * i + i + 11) % N_VOCAB for i in range(400)]


@cache
def model(name: str, n_swa: int = 0) -> ModelParams:
    """The recorded model, with another window if ``n_swa``."""
    with gzip.open(TRACES / f"{MODELS[name]}.jsonl.gz", "rt", encoding="utf-8") as lines:
        made = ModelParams.from_header(json.loads(lines.readline()))
    return replace(made, n_swa=n_swa) if n_swa else made


def new_context(
    name: str = "llama", n_swa: int = 0, sizes: dict[str, int] | None = None, **asked: object
) -> Context:
    usual = {"n_ctx": 256, "n_ubatch": 8, "n_seq_max": 2, "swa_full": False, "kv_unified": True}
    types = {"flash_attn": False, "type_k": "f32", "type_v": "f32"}
    params = ContextParams(**{**usual, **types, **asked})
    probe = ProbeNetwork(model(name, n_swa), resolve(model(name, n_swa), params), N_VOCAB)
    leaves = LeafFactory(data=True, sizes=sizes or {})
    return Context(model(name, n_swa), params, n_vocab=N_VOCAB, network=probe, leaves=leaves)


def new_slot(name: str = "llama", n_ctx: int = 0, seq: int = 0, **asked: object) -> Slot:
    return Slot(new_context(name, **asked), seq, n_ctx)


def next_logits(slot: Slot, token: int = 3) -> NDArray[np.float32]:
    """The logits after one more token, which stays in the slot."""
    assert slot.feed([token]) == 0, slot.context.last_failure
    return slot.context.logits_of(-1)


def fresh_logits(tokens: list[int], name: str = "llama", **asked: object) -> NDArray[np.float32]:
    """The logits after ``tokens`` in a context that held nothing before."""
    context = new_context(name, **asked)
    assert context.decode(Batch.tokens_of(0, tokens, 0)) == 0, context.last_failure
    return context.logits_of(-1)


def assert_as_fresh(slot: Slot, name: str = "llama", token: int = 3, **asked: object) -> None:
    """Going on from the slot gives what a fresh context gives for the same tokens."""
    want = fresh_logits([*slot.tokens, token], name, **asked)
    np.testing.assert_allclose(next_logits(slot, token), want, rtol=0, atol=1e-4)


__all__ = [
    "OTHER",
    "TEXT",
    "assert_as_fresh",
    "fresh_logits",
    "leaf",
    "new_context",
    "new_slot",
    "next_logits",
]
