"""kshift: rows before a pending shift and the shift give the rows after it.

Float rows agree within one unit in the last place, quantised rows to the byte.
"""

from __future__ import annotations

from typing import Any

from kvsim.models.cache_types import cache_type
from kvsim.tensors.codecs import decode, encode
from kvsim.tensors.rope import Rope
from kvsim.tensors.shift import KeyShift
from kvsim.verify import ArrayCheck, Arrays, Meta, close, exact
from kvsim.verify.rowcodec import with_quants_of_zero_blocks

NORM = 0
TOLERANCE = {"f32": 1.2e-6, "f16": 3.8e-6}


def check(arrays: Arrays, meta: Meta) -> list[ArrayCheck]:
    return [
        result
        for name, cache in meta["caches"].items()
        for layer in cache["layers"]
        for result in _check_layer(name, cache, layer, arrays, meta)
    ]


def _check_layer(
    name: str, cache: dict[str, Any], layer: dict[str, Any], arrays: Arrays, meta: Meta
) -> list[ArrayCheck]:
    il, kind = layer["il"], cache_type(layer["type_k"])
    key = f"{name}.k_after.l{il}"
    raw = arrays.get(f"{name}.k_before_raw.l{il}")
    before = arrays[f"{name}.k_before.l{il}"]
    rows = (encode(kind.name, before) if raw is None else raw).reshape(-1, kind.row_bytes(layer["n_embd_k"]))
    rows = rows.copy()
    _key_shift(name, cache, layer, meta).apply(rows, arrays[f"{name}.shift"].reshape(-1))
    got = decode(kind.name, rows).reshape(before.shape)
    if raw is None:
        return [close(key, got, arrays[key], TOLERANCE[kind.name])]
    after = arrays[f"{name}.k_after_raw.l{il}"].reshape(rows.shape)
    if kind.name == "iq4_nl":
        rows = with_quants_of_zero_blocks(rows, after)
    return [exact(f"{name}.k_after_raw.l{il}", rows, after), exact(key, got, arrays[key])]


def _key_shift(name: str, cache: dict[str, Any], layer: dict[str, Any], meta: Meta) -> KeyShift:
    """The rotation of one layer, from the recorded hyper-parameters."""
    model, context = meta["hparams"], meta["cparams"]
    block = model["layers"][layer["il"]]
    head_size = model["indexer_head_size"] if name == "lid" else block["n_embd_head_k"]
    windowed = block["is_swa"]
    factors = meta.get("freq_factors")
    rope = Rope(
        n_rot=block["n_rot"],
        offset=head_size - block["n_rot"] if model["is_mla"] else 0,
        neox=cache["rope_type"] != NORM,
        base=model["rope_freq_base_train_swa"] if windowed else context["rope_freq_base"],
        scale=model["rope_freq_scale_train_swa"] if windowed else context["rope_freq_scale"],
        factors=tuple(factors) if factors else None,
        ext_factor=context["yarn_ext_factor"],
        attn_factor=context["yarn_attn_factor"],
        beta_fast=context["yarn_beta_fast"],
        beta_slow=context["yarn_beta_slow"],
        n_ctx_orig=context["n_ctx_orig_yarn"],
    )
    n_head = layer["n_embd_k"] // head_size
    return KeyShift(cache_type(layer["type_k"]), n_head, head_size, rope, cache["n_rot_k"])
