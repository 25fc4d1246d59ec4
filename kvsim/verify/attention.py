"""attention: where new rows go and how they are stored, scores, weights and the result, layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.tensors.attention import alibi_slopes, attention_scores, attention_weights, weighted_values
from kvsim.tensors.codecs import decode, encode
from kvsim.tensors.flash import as_operand, flash_attention
from kvsim.verify import ArrayCheck, Arrays, Meta, close, exact

TOLERANCE = {"f32": 7.5e-7, "f16": 1.8e-7, "flash": 1.1e-6}
"""Of the result: by cache type without flash attention, and with it."""

TOLERANCE_KQ = 3e-6
"""Of scores up to about 10, added in float32 there and in float64 here."""

TOLERANCE_PROBS = 2e-7


def check(arrays: Arrays, meta: Meta) -> list[ArrayCheck]:
    checks = []
    if "slopes" in arrays:
        checks.append(exact("slopes", alibi_slopes(meta["n_head"], meta["max_alibi_bias"]), arrays["slopes"]))
    for name, cache in meta["caches"].items():
        for layer in cache["layers"]:
            checks += _check_rows(name, cache, layer, arrays)
            checks += _check_result(layer, arrays, meta)
    return checks


def _check_rows(name: str, cache: dict[str, Any], layer: dict[str, Any], arrays: Arrays) -> list[ArrayCheck]:
    """Destination indices, and the rows found there after writing."""
    il, size, width = layer["il"], cache["size"], layer["n_embd_v"]
    streams, cells = arrays[f"slot_strm.{name}"], arrays[f"slot_idxs.{name}"]
    k_idxs = (streams[:, None] * size + cells).ravel()
    v_idxs = k_idxs
    if cache["v_trans"]:
        columns = np.arange(width) * size
        v_idxs = ((streams * size * width)[:, None, None] + cells[..., None] + columns).ravel()
    checks = [
        exact(f"l{il}.k_idxs", k_idxs, arrays[f"l{il}.k_idxs"]),
        exact(f"l{il}.v_idxs", v_idxs, arrays[f"l{il}.v_idxs"]),
    ]
    for part in "kv":
        kind, current = layer[f"type_{part}"], arrays[f"l{il}.{part}_cur"]
        stored = np.concatenate(
            [arrays[f"l{il}.{part}"][local, at] for local, at in enumerate(cells)]  # streams in the ubatch
        )
        checks.append(exact(f"l{il}.{part}", decode(kind, encode(kind, current)), stored))
    return checks


def _check_result(layer: dict[str, Any], arrays: Arrays, meta: Meta) -> list[ArrayCheck]:
    """Attention of each stream of the ubatch; without flash attention also its scores and weights."""
    il, type_k, type_v = layer["il"], layer["type_k"], layer["type_v"]
    scale, softcap = float(arrays[f"l{il}.scale"]), meta["softcap"] or 0.0
    masks = arrays[f"l{il}.mask"]
    n_stream, n_row, n_kv = masks.shape
    queries = arrays[f"l{il}.q"].reshape(n_stream, n_row, meta["n_head"], -1).astype(np.float64)
    got: dict[str, list[Any]] = {"out": [], "kq": [], "probs": []}
    for s in range(n_stream):
        k, v = (
            arrays[f"l{il}.{part}"][s, :n_kv].reshape(n_kv, meta["n_head_kv"], -1).astype(np.float64)
            for part in "kv"
        )
        mask = masks[s] > -np.inf
        bias = arrays["slopes"][:, None, None] * np.where(mask, masks[s], 0) if "slopes" in arrays else None
        if meta["flash_attn"]:
            out = flash_attention(
                queries[s], k, v, mask,
                scale=scale, type_k=type_k, type_v=type_v, softcap=softcap, bias=bias,
            )  # fmt: skip
        else:
            q = as_operand(queries[s], type_k)
            weights = attention_weights(q, k, mask, scale=scale, softcap=softcap, bias=bias)
            out = weighted_values(as_operand(weights, type_v), v)
            got["kq"].append(attention_scores(q, k))
            got["probs"].append(weights)
        got["out"].append(out)
    tolerance = TOLERANCE["flash" if meta["flash_attn"] else type_k]
    checks = [close(f"l{il}.out", np.concatenate(got["out"]), arrays[f"l{il}.out"], tolerance)]
    if not meta["flash_attn"]:
        for name, limit in (("kq", TOLERANCE_KQ), ("probs", TOLERANCE_PROBS)):
            checks.append(close(f"l{il}.{name}", np.stack(got[name]), arrays[f"l{il}.{name}"], limit))
    return checks
