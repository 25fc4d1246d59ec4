"""A header for a context of ours, so that its operations can be written as a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from kvsim.models.context_params import ContextParams, ResolvedContext, resolve
from kvsim.models.memory_spec import memory_spec
from kvsim.models.params import LayerParams, ModelParams
from kvsim.trace.header import Header

_NOT_WRITTEN = {
    *("arch", "layers", "router_layer", "rope_scaling", "rope_yarn_log_mul", "rope_attn_factor"),
    *("n_ctx_train", "n_ctx_orig_yarn", "n_embd_head_k_full", "has_kv_lora", "causal_attn"),
    *("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"),
}
"""Fields of a model that a header has among the resolved parameters, or not at all."""


def header_of(
    model: ModelParams,
    params: ContextParams,
    *,
    sizes: Mapping[str, int] | None = None,
    name: str = "",
    source: str = "kvsim",
    seed: int = 0,
    interval: bool = False,
) -> Header:
    """The first line of a trace of a context with these parameters.

    ``sizes``: cells per stream of the caches that were made smaller than llama.cpp makes them. ``name`` says
    which model, or which configuration. ``interval``: what follows begins in the middle of a simulation.

    Raises ValueError for a model that keeps no memory.
    """
    resolved = resolve(model, params)
    spec = memory_spec(model, resolved)
    if spec is None:
        raise ValueError(f"{model.arch} keeps no memory, so there is nothing to trace")
    caches = {leaf: cache.to_json() for leaf, cache in spec.caches.items()}
    config: dict[str, Any] = {
        "params": _params(params, resolved),
        "cparams": _cparams(resolved),
        "hparams": _hparams(model),
        "caches": {leaf: {**cache, "size": (sizes or {}).get(leaf, cache["size"])}
                   for leaf, cache in caches.items()},
        "recurrent": spec.recurrent and spec.recurrent.to_json(),
        "rope_layers": [_rope(resolved, layer) for layer in model.layers],
        "can_shift": all(cache["can_shift"] for cache in caches.values()),
    }  # fmt: skip
    if spec.compressors:
        config["dsv4"] = {leaf: ring.to_json() for leaf, ring in spec.compressors.items()}
    if sizes:
        config["made_smaller"] = sorted(sizes)
    if interval:
        config["interval"] = True
    return Header(source, model.arch, spec.kind, name or model.arch, seed, config)


def _params(params: ContextParams, resolved: ResolvedContext) -> dict[str, Any]:
    names = ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "type_k", "type_v")
    given = {name: getattr(params, name) for name in names}
    flags = {"kv_unified": params.kv_unified, "swa_full": params.swa_full}
    return {**given, **flags, "flash_attn": int(resolved.flash_attn), "embeddings": params.embeddings}


def _cparams(resolved: ResolvedContext) -> dict[str, Any]:
    left_out = ("swa_full", "type_k", "type_v", "mtp")
    return {name: value for name, value in asdict(resolved).items() if name not in left_out}


def _hparams(model: ModelParams) -> dict[str, Any]:
    written = {f.name: getattr(model, f.name) for f in fields(model) if f.name not in _NOT_WRITTEN}
    return {
        **written,
        "n_layer_all": model.n_layer_all,
        "n_layer": model.n_layer,
        "n_pos_per_embd": model.n_pos_per_embd,
        "swa_type": int(model.swa_type),
        "rope_type": int(model.rope_type),
        "rope_sections": list(model.rope_sections),
        "layers": [_layer(model, il) for il in range(model.n_layer_all)],
    }


def _layer(model: ModelParams, il: int) -> dict[str, Any]:
    layer = model.layers[il]
    names = ("is_swa", "is_recr", "indexer_full", "n_head_kv", "n_embd_head_k", "n_embd_head_v")
    widths = ("n_embd_k_gqa", "n_embd_v_gqa", "n_rot", "compress_ratio")
    return {"has_kv": model.has_kv(il), **{name: getattr(layer, name) for name in (*names, *widths)}}


def _rope(resolved: ResolvedContext, layer: LayerParams) -> dict[str, Any]:
    factors = None if layer.rope_factors is None else list(layer.rope_factors)
    return {"freq_base": resolved.rope_freq_base, "freq_scale": resolved.rope_freq_scale, "factors": factors}
