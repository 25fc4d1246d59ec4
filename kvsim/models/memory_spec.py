"""From a model and a context to the specification of its memory's leaves.

Mirrors the constructors named in :mod:`kvsim.models.cache_spec`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvsim.errors import CacheUsageError
from kvsim.models.arch import ALWAYS_ROTATED, MemoryPlan, memory_plan, non_causal_kind
from kvsim.models.cache_spec import CacheSpec, CompressorSpec, LayerSpec, MemorySpec, RecurrentSpec
from kvsim.models.cache_types import cache_type
from kvsim.models.context_params import ResolvedContext, pad
from kvsim.models.params import LayerParams, ModelParams, RopeType, SwaType

CSA_RATIO = 4
HCA_RATIO = 128


def memory_spec(model: ModelParams, ctx: ResolvedContext) -> MemorySpec | None:
    """What the memory of this context is built from; None for a model that keeps nothing.

    Raises ModelError or CacheUsageError where llama.cpp refuses or aborts.
    """
    plan = memory_plan(model, ctx.mtp)
    if plan is None:
        return None
    caches = _BUILDERS[plan.kind](model, ctx, plan)
    recurrent = _recurrent(model, ctx, plan) if plan.kind in _WITH_RECURRENT else None
    compressors = _compressors(model, ctx) if plan.kind == "dsv4" else {}
    return MemorySpec(plan.kind, caches, recurrent, compressors, plan.shares_target)


def _cache(
    model: ModelParams,
    ctx: ResolvedContext,
    blocks: tuple[int, ...],
    *,
    size: int | None = None,
    window: bool = True,
    unified: bool | None = None,
    reuse: dict[int, int] | None = None,
    has_mask: bool = True,
) -> CacheSpec:
    """One ``llama_kv_cache`` over ``blocks``. ``window``: it masks by the model's window."""
    owned = [il for il in blocks if model.has_kv(il)]
    layers = tuple(_cache_layer(model, ctx, il) for il in owned)
    map_layer_ids = {il: i for i, il in enumerate(owned)}
    for il, source in (reuse or {}).items():
        if il in blocks:
            map_layer_ids[il] = map_layer_ids[source]
    n_rot_k, n_rot_v = _hadamard_sizes(model, ctx, owned)
    ngram = model.ple_n_heads > 0
    return CacheSpec(
        n_stream=1 if (ctx.kv_unified if unified is None else unified) else ctx.n_seq_max,
        size=ctx.n_ctx_seq if size is None else size,
        n_seq_max=ctx.n_seq_max,
        n_pad=1,
        n_swa=model.n_swa if window else 0,
        swa_type=model.swa_type if window else SwaType.NONE,
        v_trans=not ctx.flash_attn,
        n_rot_k=n_rot_k,
        n_rot_v=n_rot_v,
        can_shift=model.arch != "step35" and model.n_pos_per_embd == 1,
        has_cell_ext=model.n_pos_per_embd > 1 or ngram,
        rope_type=model.rope_type,
        layers=layers,
        map_layer_ids=map_layer_ids,
        n_pos_per_embd=model.n_pos_per_embd,
        non_causal=non_causal_kind(model.arch),
        use_alibi=model.use_alibi,
        has_mask=has_mask,
        ngram_token=(model.ple_image_token_id or model.ple_eos_token_id) if ngram else None,
    )


def _cache_layer(model: ModelParams, ctx: ResolvedContext, il: int) -> LayerSpec:
    layer = model.layers[il]
    # a transposed V is addressed element by element, so all its blocks get the widest row
    n_embd_v = model.n_embd_v_gqa_max if not ctx.flash_attn else layer.n_embd_v_gqa
    has_v = not model.is_mla
    return LayerSpec(
        il=il,
        k=cache_type(ctx.type_k),
        n_embd_k=layer.n_embd_k_gqa,
        v=cache_type(ctx.type_v) if has_v else None,
        n_embd_v=n_embd_v if has_v else 0,
        n_head_kv=layer.n_head_kv,
        n_rot=layer.n_rot,
        rope_offset=layer.n_embd_head_k - layer.n_rot if model.has_kv_lora else 0,
        has_rope=layer.has_rope and il != model.router_layer and _turns(model, layer),
        freq_base=model.rope_freq_base_train_swa if layer.is_swa else ctx.rope_freq_base,
        freq_scale=model.rope_freq_scale_train_swa if layer.is_swa else ctx.rope_freq_scale,
        factors=layer.rope_factors,
        n_embd_v_own=layer.n_embd_v_gqa if has_v else 0,
    )


def _turns(model: ModelParams, layer: LayerParams) -> bool:
    return model.rope_type is not RopeType.NONE and layer.n_rot > 0


def _hadamard_sizes(model: ModelParams, ctx: ResolvedContext, owned: list[int]) -> tuple[int, int]:
    """Sizes of the rotations of K and V rows (kv_cache.md 1); 0 = none."""
    heads_k = {model.layers[il].n_embd_head_k for il in owned}
    heads_v = set() if model.is_mla else {model.layers[il].n_embd_head_v for il in owned}
    first = model.layers[0]
    by_type = len(heads_k) == 1 and cache_type(ctx.type_k).is_quantized and first.n_embd_head_k % 64 == 0
    by_arch = model.arch in ALWAYS_ROTATED and model.n_embd_head_k_full == model.indexer_head_size
    n_rot_k = 0
    if by_type or by_arch:
        n_rot_k = 64
        if not heads_k:
            raise CacheUsageError(
                f"{model.arch}: attention and indexer heads are both {model.indexer_head_size} wide and a "
                f"cache has no blocks; llama.cpp then doubles the rotation size without end and crashes"
            )
        while len(heads_k) == 1 and min(heads_k) % (2 * n_rot_k) == 0:
            n_rot_k *= 2
    rotate_v = len(heads_v) == 1 and cache_type(ctx.type_v).is_quantized and first.n_embd_head_v % 64 == 0
    return n_rot_k, 64 if rotate_v else 0


def window_size(model: ModelParams, ctx: ResolvedContext, unified: bool) -> int:
    """Cells per stream of a window cache (iswa.md)."""
    if ctx.swa_full:
        return ctx.n_ctx_seq
    return pad(min(ctx.n_ctx_seq, model.n_swa * (ctx.n_seq_max if unified else 1) + ctx.n_ubatch))


def _by_window(model: ModelParams, blocks: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    full = tuple(il for il in blocks if not model.layers[il].is_swa)
    return full, tuple(il for il in blocks if model.layers[il].is_swa)


def _kv(model: ModelParams, ctx: ResolvedContext, plan: MemoryPlan) -> dict[str, CacheSpec]:
    return {"kv": _cache(model, ctx, plan.attn)}


def _attn(model: ModelParams, ctx: ResolvedContext, plan: MemoryPlan) -> dict[str, CacheSpec]:
    return {"attn": _cache(model, ctx, plan.attn)}


def _iswa(
    model: ModelParams, ctx: ResolvedContext, plan: MemoryPlan, unified: bool | None = None
) -> dict[str, CacheSpec]:
    full, windowed = _by_window(model, plan.attn)
    reuse = dict(plan.reuse)
    size = window_size(model, ctx, ctx.kv_unified if unified is None else unified)
    return {
        "base": _cache(model, ctx, full, window=False, unified=unified, reuse=reuse),
        "swa": _cache(model, ctx, windowed, size=size, unified=unified, reuse=reuse),
    }


def _hybrid_idx(model: ModelParams, ctx: ResolvedContext, plan: MemoryPlan) -> dict[str, CacheSpec]:
    caches = _attn(model, ctx, plan)
    if plan.idx is not None:
        width = model.indexer_head_size * (model.indexer_kpool_row if model.indexer_kpool else 1)
        # raw keys, K only, turned after pooling: a K-shift leaves their bytes alone
        keys = replace(_one_key_head(model, width), rope_type=RopeType.NONE, is_mla=True)
        caches["idx"] = _cache(keys, ctx, plan.idx, has_mask=False)
    return caches


def _dsa(
    model: ModelParams, ctx: ResolvedContext, plan: MemoryPlan, window: bool = True
) -> dict[str, CacheSpec]:
    keys = replace(_one_key_head(model, model.indexer_head_size), rope_type=RopeType.NEOX)
    return {
        "mla": _cache(model, ctx, plan.attn, window=window),
        "lid": _cache(keys, ctx, plan.idx or (), window=window, has_mask=False),
    }


def _dsa_iswa(model: ModelParams, ctx: ResolvedContext, plan: MemoryPlan) -> dict[str, CacheSpec]:
    full, windowed = _by_window(model, plan.attn)
    caches = _dsa(model, ctx, replace(plan, attn=full), window=False)
    caches["swa"] = _cache(model, ctx, windowed, size=window_size(model, ctx, ctx.kv_unified))
    return caches


def _msa(model: ModelParams, ctx: ResolvedContext, plan: MemoryPlan) -> dict[str, CacheSpec]:
    keys = _one_key_head(model, model.indexer_head_size)
    return {"base": _cache(model, ctx, plan.attn), "idx": _cache(keys, ctx, plan.idx or (), has_mask=False)}


def _dsv4(model: ModelParams, ctx: ResolvedContext, plan: MemoryPlan) -> dict[str, CacheSpec]:
    rows = replace(model, is_mla=True)  # K only
    heads = tuple(
        replace(x, n_head_kv=1, n_embd_head_k=model.indexer_head_size, n_embd_head_v=model.indexer_head_size)
        for x in model.layers
    )
    keys = replace(rows, layers=heads, n_embd_head_k_full=model.indexer_head_size, rope_type=RopeType.NEOX)
    csa, hca = (_compressed(model, plan.attn, ratio) for ratio in (CSA_RATIO, HCA_RATIO))
    size_csa, size_hca = (pad(max(1, -(-ctx.n_ctx_seq // ratio))) for ratio in (CSA_RATIO, HCA_RATIO))
    # everything is kept per sequence, even if a unified cache was asked for
    raw = _iswa(rows, ctx, plan, unified=False)
    compressed = {
        "csa": _cache(rows, ctx, csa, size=size_csa, window=False, unified=False),
        "hca": _cache(rows, ctx, hca, size=size_hca, window=False, unified=False),
        "lid": _cache(keys, ctx, csa, size=size_csa, window=False, unified=False),
    }
    caches = {"raw.base": raw["base"], "raw.swa": raw["swa"], **compressed}
    return {name: replace(cache, has_mask=False) for name, cache in caches.items()}


def _compressed(model: ModelParams, blocks: tuple[int, ...], ratio: int) -> tuple[int, ...]:
    return tuple(il for il in blocks if model.layers[il].compress_ratio == ratio)


def _one_key_head(model: ModelParams, width: int) -> ModelParams:
    """The model as an indexer cache sees it: one key head of ``width``, but for window layers."""
    layers = tuple(
        replace(x, n_head_kv=1, n_embd_head_k=x.n_embd_head_k if x.is_swa else width) for x in model.layers
    )
    return replace(model, layers=layers, n_embd_head_k_full=width)


def _recurrent(model: ModelParams, ctx: ResolvedContext, plan: MemoryPlan) -> RecurrentSpec:
    return RecurrentSpec(
        size=max(1, ctx.n_seq_max),
        n_seq_max=ctx.n_seq_max,
        n_rs_seq=ctx.n_rs_seq,
        layers=tuple(
            (model.n_embd_r, model.n_embd_s, model.layers[il].n_embd_p) if il in plan.recr else (0, 0, 0)
            for il in range(model.n_layer)
        ),
    )


def _compressors(model: ModelParams, ctx: ResolvedContext) -> dict[str, CompressorSpec]:
    trunk = tuple(range(model.n_layer))
    head = model.layers[0].n_embd_head_k

    def ring(ratio: int, state_size: int, width: int) -> CompressorSpec:
        blocks = _compressed(model, trunk, ratio)
        return CompressorSpec(ratio, state_size, width, ctx.n_seq_max, ctx.n_rs_seq, blocks)

    return {
        "csa": ring(CSA_RATIO, 2 * CSA_RATIO, 2 * head),
        "hca": ring(HCA_RATIO, HCA_RATIO, head),
        "lid": ring(CSA_RATIO, 2 * CSA_RATIO, 2 * model.indexer_head_size),
    }


_BUILDERS: dict[str, Callable[[ModelParams, ResolvedContext, MemoryPlan], dict[str, CacheSpec]]] = {
    "kv": _kv,
    "iswa": _iswa,
    "recurrent": lambda model, ctx, plan: {},
    "hybrid": _attn,
    "hybrid_iswa": _iswa,
    "hybrid_idx": _hybrid_idx,
    "dsa": _dsa,
    "dsa_iswa": _dsa_iswa,
    "msa": _msa,
    "dsv4": _dsv4,
}

_WITH_RECURRENT = frozenset({"recurrent", "hybrid", "hybrid_iswa", "hybrid_idx"})
