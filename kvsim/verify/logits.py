"""Goldens from tokens to logits: a script of operations on a context, with the logits of every token.

The recorded model computes through the whole stack: ubatches, slots, cells, stored rows, masks, shifts and
recurrent states must all be right for the logits to be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kvsim.batch import Batch
from kvsim.caches.factory import LeafFactory
from kvsim.context import Context
from kvsim.models.context_params import ContextParams
from kvsim.models.network import load_network
from kvsim.verify import ArrayCheck, Arrays, Meta, close, exact

TOLERANCES = {
    "llama": 3.2e-6,
    "llamahd64": 3.2e-6,
    "gemma2": 1.3e-4,
    "mamba": 5.2e-6,
    "mamba2": 3.1e-6,
    "jamba": 3.3e-6,
    "lfm2": 3.2e-6,
    "lfm2swa": 3.2e-6,
}
"""Largest error by model, f32 caches."""

ROUNDED = {"f16": 6e-4, "q8_0": 1e-6, "q4_0": 2.5e-4}
"""Largest error with flash attention by row type: one value that rounds the other way."""


def check(arrays: Arrays, meta: Meta) -> list[ArrayCheck]:
    context = make_context(meta)
    kind = context.params.type_k
    tolerance = ROUNDED.get(kind) or TOLERANCES[meta["arch"]]
    checks: list[ArrayCheck] = []
    for i, (name, args, *result) in enumerate(meta["ops"]):
        if name == "decode":
            checks += _check_decode(context, f"{i}", args, arrays, tolerance)
        else:
            returned = getattr(context.memory, name)(*args)
            if result:
                checks.append(exact(f"{i}.{name} returned", returned, result[0]))
    return checks


def make_context(meta: Meta) -> Context:
    """The context a golden was recorded with; its model file lies beside the golden."""
    asked: dict[str, Any] = meta["context"]
    flash_attn = bool(asked.get("fa", 0))
    params = ContextParams(
        n_ctx=asked["n_ctx"],
        n_batch=asked["n_ctx"],
        n_ubatch=asked["n_ubatch"],
        n_seq_max=asked["n_seq_max"],
        n_rs_seq=asked.get("n_rs_seq", 0),
        kv_unified=bool(asked.get("kv_unified", 1)),
        swa_full=bool(asked.get("swa_full", 0)),
        flash_attn=flash_attn,
        type_k=asked.get("type_k", "f32"),
        type_v=asked.get("type_v", "f32"),
    )
    model, network = load_network(Path(meta["path"]).with_name(meta["model"]), flash_attn)
    return Context(model, params, network=network, leaves=LeafFactory(data=True), recording=True)


def _check_decode(
    context: Context, name: str, args: Meta, arrays: Arrays, tolerance: float
) -> list[ArrayCheck]:
    n = len(args["tokens"])
    batch = Batch(tokens=args["tokens"], pos=args["pos"], seq_ids=args["seq"], output=[1] * n)
    checks = [exact(f"{name}.decode returned", context.decode(batch), 0)]
    fields = ("idx", "n_seqs", "n_seq_tokens", "equal")
    ubatches = [{field: record.json[field] for field in fields} for record in context.records]
    checks.append(exact(f"{name}.ubatches", np.array(ubatches == args["ubatches"]), True))
    if context.logits is not None:
        got = np.stack([context.logits_of(i) for i in range(n)])
        checks.append(close(f"{name}.{args['logits']}", got, arrays[args["logits"]], tolerance))
    return checks
