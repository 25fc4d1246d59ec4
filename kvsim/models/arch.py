"""Which memory an architecture gets, and which of its blocks go into which part (models.md).

Mirrors ``llama_model::create_memory`` (``src/llama-model.cpp``). Names are the GGUF names of
``general.architecture`` (``src/llama-arch.cpp``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from kvsim.errors import ModelError
from kvsim.models.params import ModelParams, SwaType

MEMORY_KINDS = (
    *("kv", "iswa", "recurrent", "hybrid", "hybrid_iswa", "hybrid_idx"),
    *("dsa", "dsa_iswa", "msa", "dsv4"),
)
"""Every memory of the family, by the name a recording gives it."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


NO_MEMORY = _names(
    """bert clef dream eurobert gemma-embedding jina-bert-v2 jina-bert-v3 llada llada-moe modern-bert neo-bert
    nomic-bert nomic-bert-moe rnd1 wavtokenizer-dec"""
)
"""Encoders and diffusion models: they see a whole text at once and keep nothing."""

RECURRENT = _names("arwkv7 mamba mamba2 rwkv6 rwkv6qwen2 rwkv7")

HYBRID = _names(
    """bailingmoe3 falcon-h1 granitehybrid jamba kimi-k3 kimi-linear lfm2 lfm2moe minimax-01 nemotron_h
    nemotron_h_moe plamo2 qwen35 qwen35moe qwen3next qwen4exp"""
)
"""Attention and recurrent blocks (deepseek4 and glm5-next too, but those have rules of their own)."""

ATTENTION = _names(
    """afmoe apertus arcee arctic baichuan bailingmoe bailingmoe2 bitnet bloom chameleon chatglm codeshell
    cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2 deepseek2-ocr dflash dots1 eagle3
    ernie4_5 ernie4_5-moe exaone exaone-moe exaone4 falcon gemma gemma2 gemma3 gemma3n gemma4
    gemma4-assistant glm4 glm4moe gpt-oss gpt2 gptj gptneox granite granite_swa granitemoe graniteswitch
    grok grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais jais2 laguna llama
    llama-embed llama4 maincoder maple mellum mimo2 minicpm minicpm3 minimax-m2 mistral3 mistral4 mpt
    muse-glimmer nanbeige nemotron olmo olmo2 olmoe openelm orion paddleocr pangu-embedded phi2 phi3
    phimoe plamo plamo3 plm pockettts qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3tts qwen3vl
    qwen3vlmoe refact seed_oss smallthinker smollm3 spark2_5 stablelm starcoder starcoder2 step35 t5
    t5encoder talkie xverse"""
)
"""Plain attention: an interleaved pair of caches if the model has a window, else one cache."""

DENSE_MTP = _names("bailingmoe3 nemotron_h_moe qwen35 qwen35moe qwen3next")
"""Hybrids whose prediction heads are plain attention."""

TRUNK_ONLY_HYBRID = _names("minimax-01 qwen35 qwen35moe qwen3next qwen4exp")

REUSE = frozenset({"gemma3n", "gemma4"})
"""Blocks from ``n_layer_kv_from_start`` on read the cache of the last owner of their own kind."""

SEPARATE_INPUTS = _names("cogvlm deepseek4 dflash eagle3 gemma4-assistant graniteswitch")
"""Architectures that refuse a batch of tokens and embeddings together (``llm_arch_supports_mixed_batch``)."""

ALWAYS_ROTATED = _names("deepseek32 deepseek4 dots3note glm-dsa")
"""Their indexer keys are stored Hadamard-rotated whatever the type."""


class NonCausal(IntEnum):
    """What turning causal attention off changes (``llama_non_causal_type``)."""

    ALL = 0
    SWA_ONLY = 1
    """Only the window cache; the base cache stays causal."""
    SWA_FULL = 2
    """Everything, and the window does not apply within the ubatch."""


def non_causal_kind(arch: str) -> NonCausal:
    """How the masks of ``arch`` change when causal attention is off."""
    return {"gemma4": NonCausal.SWA_ONLY, "deepseek4": NonCausal.SWA_FULL}.get(arch, NonCausal.ALL)


@dataclass(frozen=True)
class MemoryPlan:
    """What memory a context gets and which blocks each part holds.

    ``attn`` are the blocks whose keys (and values) are cached; a kind with a window splits them by
    ``is_swa``. ``idx`` those with indexer keys (None: no such cache). ``recr`` those with recurrent
    states. ``reuse`` maps a block to the one whose cache it reads. ``shares_target``: the cells and
    rows are those of another context (a draft model beside its target).
    """

    kind: str
    attn: tuple[int, ...] = ()
    idx: tuple[int, ...] | None = None
    recr: tuple[int, ...] = ()
    reuse: Mapping[int, int] = field(default_factory=dict)
    shares_target: bool = False


def memory_kind(arch: str, model: ModelParams, mtp: bool = False) -> str | None:
    """The memory ``arch`` gets: one of MEMORY_KINDS, or None where nothing is kept."""
    plan = memory_plan(replace(model, arch=arch), mtp)
    return None if plan is None else plan.kind


def memory_plan(model: ModelParams, mtp: bool = False) -> MemoryPlan | None:
    """The memory of a model's context; ``mtp`` for the context of its prediction heads.

    None where nothing is kept. Raises ModelError for an unknown architecture, and where llama.cpp
    asserts (a window type without a window layer, a DeepSeek-V4 without a window).
    """
    arch = model.arch
    if arch in NO_MEMORY:
        return None
    if arch in _EXPLICIT:
        return _EXPLICIT[arch](model, mtp)
    if arch in RECURRENT:
        return MemoryPlan("recurrent", recr=_trunk(model))
    if arch in HYBRID and not (mtp and arch in DENSE_MTP):
        return _hybrid(model, mtp)
    if arch in ATTENTION or arch in HYBRID:
        return _attention(model, mtp)
    raise ModelError(f"unknown architecture {arch!r}")


def _blocks(model: ModelParams, want: Callable[[int], bool] = lambda _: True) -> tuple[int, ...]:
    return tuple(il for il in range(model.n_layer_all) if want(il))


def _trunk(model: ModelParams) -> tuple[int, ...]:
    return tuple(range(model.n_layer))


def _heads(model: ModelParams) -> tuple[int, ...]:
    return tuple(range(model.n_layer, model.n_layer_all))


def _indexed(model: ModelParams) -> tuple[int, ...]:
    return tuple(il for il in _trunk(model) if model.layers[il].indexer_full)


def _hybrid(model: ModelParams, mtp: bool) -> MemoryPlan:
    arch, layers = model.arch, model.layers
    recr = tuple(il for il in _trunk(model) if layers[il].is_recr)
    attn = _blocks(model, lambda il: not layers[il].is_recr)
    if arch == "falcon-h1":
        attn, recr = _blocks(model), _trunk(model)
    elif arch in ("nemotron_h", "nemotron_h_moe"):
        attn = tuple(il for il in attn if not layers[il].is_ffn)
    elif arch in TRUNK_ONLY_HYBRID:
        attn = tuple(il for il in attn if il < model.n_layer)
    if model.swa_type is not SwaType.NONE:
        return MemoryPlan("hybrid_iswa", attn=attn, recr=recr)
    if arch != "qwen4exp":
        return MemoryPlan("hybrid", attn=attn, recr=recr)
    if mtp:
        attn, recr = _heads(model), ()
    return MemoryPlan("hybrid_idx", attn=attn, idx=attn if model.indexer_head_size else None, recr=recr)


def _attention(model: ModelParams, mtp: bool) -> MemoryPlan:
    attn = _blocks(model)
    if mtp and model.arch in DENSE_MTP:
        attn = _heads(model)
    if model.n_layer_nextn > 0 and model.n_layer > 0 and model.router_layer < 0:
        attn = _heads(model) if mtp else _trunk(model)
    has_window_layer = any(layer.is_swa for layer in model.layers)
    if (model.swa_type is not SwaType.NONE) != has_window_layer:
        raise ModelError(
            f"{model.arch}: the window type is {model.swa_type.name}, but "
            f"{'a' if has_window_layer else 'no'} layer has a window"
        )
    if not has_window_layer:
        return MemoryPlan("kv", attn=attn)
    return MemoryPlan("iswa", attn=attn, reuse=_reuse(model), shares_target=model.arch == "gemma4-assistant")


def _reuse(model: ModelParams) -> dict[int, int]:
    first = model.n_layer_kv_from_start
    if model.arch not in REUSE:
        return {}
    if first < 2:
        raise ModelError(f"{model.arch}: n_layer_kv_from_start is {first}, but must be at least 2")
    return {il: first - (2 if model.layers[il].is_swa else 1) for il in range(first, model.n_layer_all)}


def _minimax_m3(model: ModelParams, mtp: bool) -> MemoryPlan:
    return MemoryPlan(
        "msa", attn=_blocks(model), idx=_blocks(model, lambda il: il >= model.n_layer_dense_lead)
    )


def _deepseek32(model: ModelParams, mtp: bool) -> MemoryPlan:
    if mtp and model.n_layer_nextn:
        return MemoryPlan("kv", attn=_heads(model))
    return MemoryPlan("dsa", attn=_trunk(model), idx=_trunk(model))


def _glm_dsa(model: ModelParams, mtp: bool) -> MemoryPlan:
    if mtp and model.n_layer_nextn:
        return MemoryPlan("kv", attn=_heads(model))
    return MemoryPlan("dsa", attn=_trunk(model), idx=_indexed(model))


def _glm5_next(model: ModelParams, mtp: bool) -> MemoryPlan:
    if mtp:
        if not model.n_layer_nextn:
            raise ModelError("glm5-next has no prediction heads (MTP) to make a context for")
        return MemoryPlan("hybrid_idx", attn=_heads(model), idx=_heads(model))
    attn = tuple(il for il in _trunk(model) if not model.layers[il].is_recr)
    return MemoryPlan(
        "hybrid_idx",
        attn=attn,
        idx=tuple(il for il in attn if model.layers[il].indexer_full),
        recr=tuple(il for il in _trunk(model) if model.layers[il].is_recr),
    )


def _hy_v4(model: ModelParams, mtp: bool) -> MemoryPlan:
    if model.indexer_top_k == 0:
        return MemoryPlan("kv", attn=_blocks(model))
    return MemoryPlan("dsa", attn=_blocks(model), idx=_indexed(model))


def _dots3note(model: ModelParams, mtp: bool) -> MemoryPlan:
    _needs_window(model)
    if mtp and model.n_layer_nextn:
        return MemoryPlan("kv", attn=_heads(model))
    return MemoryPlan("dsa_iswa", attn=_trunk(model), idx=_indexed(model))


def _deepseek4(model: ModelParams, mtp: bool) -> MemoryPlan:
    _needs_window(model)
    if mtp:
        return MemoryPlan("iswa", attn=_heads(model))
    return MemoryPlan("dsv4", attn=_blocks(model))


def _needs_window(model: ModelParams) -> None:
    if model.swa_type is SwaType.NONE:
        raise ModelError(f"{model.arch} must have a sliding window, but its window type is NONE")


_EXPLICIT: dict[str, Callable[[ModelParams, bool], MemoryPlan]] = {
    "minimax-m3": _minimax_m3,
    "deepseek32": _deepseek32,
    "glm-dsa": _glm_dsa,
    "glm5-next": _glm5_next,
    "hy_v4": _hy_v4,
    "dots3note": _dots3note,
    "deepseek4": _deepseek4,
}

KNOWN_ARCHS = NO_MEMORY | RECURRENT | HYBRID | ATTENTION | frozenset(_EXPLICIT)
