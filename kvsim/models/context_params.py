"""What a caller asks of a context, and what llama.cpp makes of it (``config.params`` and ``config.cparams``).

Source: ``src/llama-context.cpp``, the constructor and ``llama_init_from_model``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.errors import CacheUsageError
from kvsim.memory import MAX_SEQ
from kvsim.models.cache_types import cache_type
from kvsim.models.params import ModelParams
from kvsim.models.record import Record

CONTEXT_PAD = 256
"""Contexts and caches are padded to a multiple of this."""

MAX_CTX = 2**31 - 1 - CONTEXT_PAD
MAX_HEADER_CELLS = 2**24
"""A recording of more cells than this is damaged: it could not have been replayed by its own recorder."""

DEFAULT_N_BATCH = 2048
DEFAULT_N_UBATCH = 512

ROLLBACK_ARCHS = frozenset(
    {"kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h", "nemotron_h_moe"}
    | {"lfm2", "lfm2moe", "bailingmoe3"}
)
"""Architectures that keep rollback snapshots (``llm_arch_supports_rs_rollback``); others get n_rs_seq = 0."""


@dataclass(frozen=True)
class ContextParams:
    """What a caller asks for (``llama_context_params``).

    Zero or None means the model's own value, or llama.cpp's default. ``flash_attn`` None is "auto":
    on, except for Grok. ``mtp`` asks for the context of the model's prediction heads.
    """

    n_ctx: int = 0
    n_batch: int = DEFAULT_N_BATCH
    n_ubatch: int = DEFAULT_N_UBATCH
    n_seq_max: int = 1
    n_rs_seq: int = 0
    kv_unified: bool = False
    swa_full: bool = True
    flash_attn: bool | None = None
    type_k: str = "f16"
    type_v: str = "f16"
    embeddings: bool = False
    causal_attn: bool | None = None
    mtp: bool = False
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    rope_scaling: str | None = None
    yarn_orig_ctx: int = 0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_fast: float = -1.0
    yarn_beta_slow: float = -1.0

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> ContextParams:
        """The parameters a recording was made with. Raises TraceError on a field that cannot be."""
        params = Record(header, "header").record("config").record("params")
        n_ctx = params.integer("n_ctx", lo=1, hi=MAX_HEADER_CELLS)
        n_seq_max = params.integer("n_seq_max", lo=1, hi=MAX_SEQ)
        if n_seq_max * CONTEXT_PAD > MAX_HEADER_CELLS:
            raise params.fail("n_seq_max", f"= {n_seq_max} makes more than {MAX_HEADER_CELLS} cells")
        return cls(
            n_ctx=n_ctx,
            n_batch=params.integer("n_batch", lo=1, hi=MAX_CTX, default=n_ctx),
            n_ubatch=params.integer("n_ubatch", hi=MAX_CTX),
            n_seq_max=n_seq_max,
            n_rs_seq=params.integer("n_rs_seq", hi=2**16, default=0),
            kv_unified=params.flag("kv_unified"),
            swa_full=params.flag("swa_full", default=False),
            flash_attn=params.flag("flash_attn"),
            type_k=params.text("type_k"),
            type_v=params.text("type_v"),
            embeddings=params.flag("embeddings", default=False),
        )


@dataclass(frozen=True)
class ResolvedContext:
    """What the context really has (``config.cparams``, plus the two row types and ``swa_full``).

    ``n_ctx_seq`` is the number of cells per stream, ``n_ctx`` that of all streams.
    """

    n_ctx: int
    n_ctx_seq: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_rs_seq: int
    kv_unified: bool
    flash_attn: bool
    causal_attn: bool
    embeddings: bool
    rope_freq_base: float
    rope_freq_scale: float
    n_ctx_orig_yarn: int
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    swa_full: bool = False
    type_k: str = "f16"
    type_v: str = "f16"
    mtp: bool = False

    @property
    def n_stream(self) -> int:
        return 1 if self.kv_unified else self.n_seq_max


def pad(n: int, to: int = CONTEXT_PAD) -> int:
    """``n`` rounded up to a multiple of ``to``."""
    return (n + to - 1) // to * to


def resolve(model: ModelParams, params: ContextParams) -> ResolvedContext:
    """Merge what was asked for with the model's defaults, the way llama.cpp does.

    Raises CacheUsageError where llama.cpp refuses to create the context.
    """
    n_seq_max = max(1, params.n_seq_max)
    n_ctx = params.n_ctx or model.n_ctx_train
    _check_sizes(params, n_ctx, n_seq_max)
    flash_attn = _flash_attention(model, params)
    _check_types(model, params, flash_attn)
    _check_mtp(model, params)

    causal = model.causal_attn if params.causal_attn is None else params.causal_attn
    # the batch is clamped before the context is padded: n_ctx 100 gives 256 cells and n_batch 100
    n_batch = min(n_ctx, params.n_batch) if causal else params.n_batch
    n_ubatch = min(n_batch, params.n_ubatch or params.n_batch)
    n_ctx = n_ctx_seq = pad(n_ctx)
    if not params.kv_unified:
        n_ctx_seq = pad(n_ctx // n_seq_max)
        n_ctx = n_ctx_seq * n_seq_max
    return ResolvedContext(
        n_ctx=n_ctx,
        n_ctx_seq=n_ctx_seq,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_seq_max=n_seq_max,
        n_rs_seq=params.n_rs_seq if model.arch in ROLLBACK_ARCHS else 0,
        kv_unified=params.kv_unified,
        flash_attn=flash_attn,
        causal_attn=causal,
        embeddings=params.embeddings,
        swa_full=params.swa_full,
        type_k=params.type_k,
        type_v=params.type_v,
        mtp=params.mtp,
        **_rope(model, params),
    )


def _check_sizes(params: ContextParams, n_ctx: int, n_seq_max: int) -> None:
    for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq"):
        value = getattr(params, name)
        if not 0 <= value <= MAX_CTX:
            raise CacheUsageError(f"{name} = {value} is not between 0 and {MAX_CTX}")
    if n_seq_max > MAX_SEQ:
        raise CacheUsageError(f"n_seq_max = {n_seq_max}: llama.cpp knows at most {MAX_SEQ} sequences")
    if n_ctx == 0:
        raise CacheUsageError("n_ctx = 0 means the model's own, but the model states none: give one")
    if params.n_batch == 0:
        raise CacheUsageError("n_batch = 0 leaves nothing to decode; give at least 1")


def _flash_attention(model: ModelParams, params: ContextParams) -> bool:
    wanted = True if params.flash_attn is None else params.flash_attn
    return wanted and model.arch != "grok"


def _check_types(model: ModelParams, params: ContextParams, flash_attn: bool) -> None:
    type_k, type_v = cache_type(params.type_k), cache_type(params.type_v)
    if (model.is_mla or model.arch == "deepseek4") and type_k != type_v:
        raise CacheUsageError(
            f"type_k = {type_k.name} and type_v = {type_v.name} differ, but {model.arch} stores one row for "
            f"both: give the same type twice"
        )
    if type_v.is_quantized and not flash_attn:
        raise CacheUsageError(
            f"a V cache of type {type_v.name} needs flash attention: turn it on, or store V as f16"
        )
    if not flash_attn:
        return
    for il, layer in enumerate(model.layers[: model.n_layer]):
        for side, dtype, width in (("K", type_k, layer.n_embd_head_k), ("V", type_v, layer.n_embd_head_v)):
            if width % dtype.block:
                raise CacheUsageError(
                    f"layer {il}: {side} heads of {width} values cannot be stored as {dtype.name}, whose "
                    f"blocks hold {dtype.block}; choose f16"
                )


def _check_mtp(model: ModelParams, params: ContextParams) -> None:
    if params.mtp and (model.n_layer_nextn == 0 or model.router_layer >= 0):
        raise CacheUsageError(f"{model.arch} has no prediction heads (MTP) to make a context for")


def _rope(model: ModelParams, params: ContextParams) -> dict[str, Any]:
    """Rope and YaRN values. YaRN's magnitude is stored so that the rope kernel's own factor cancels."""
    scaling = params.rope_scaling or model.rope_scaling
    scale = 1.0 if scaling == "none" else params.rope_freq_scale or model.rope_freq_scale_train
    ext = params.yarn_ext_factor if params.yarn_ext_factor >= 0 else model.yarn_ext_factor
    if ext < 0:
        ext = 1.0 if scaling == "yarn" else 0.0
    attn = params.yarn_attn_factor if params.yarn_attn_factor >= 0 else model.yarn_attn_factor
    if ext != 0:
        attn = _yarn_magnitude(model, 1.0 / scale)
    return {
        "rope_freq_base": params.rope_freq_base or model.rope_freq_base_train,
        "rope_freq_scale": scale,
        "n_ctx_orig_yarn": params.yarn_orig_ctx or model.n_ctx_orig_yarn or model.n_ctx_train,
        "yarn_ext_factor": ext,
        "yarn_attn_factor": attn * model.rope_attn_factor,
        "yarn_beta_fast": params.yarn_beta_fast if params.yarn_beta_fast >= 0 else model.yarn_beta_fast,
        "yarn_beta_slow": params.yarn_beta_slow if params.yarn_beta_slow >= 0 else model.yarn_beta_slow,
    }


def _yarn_magnitude(model: ModelParams, factor: float) -> float:
    def mscale(m: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0

    if model.rope_yarn_log_mul == 0:
        magnitude = mscale(1.0)
    else:
        all_dims = model.rope_yarn_log_mul
        own = all_dims if model.arch == "deepseek2" else 1.0
        magnitude = mscale(own) / mscale(all_dims)
    return magnitude / (1.0 + 0.1 * math.log(factor))
