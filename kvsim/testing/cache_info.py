"""The table of configurations worth testing, one entry per member of the family.

As torch's ``OpInfo`` does for operators: every suite iterates over it, so a new member is tested by all of
them once it is entered here. The models are as small as they can be: one or two blocks, key heads of four
values; the caches are far smaller than llama.cpp would make them, so that they are full all the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvsim.caches.factory import LeafFactory
from kvsim.context import Context, Network
from kvsim.models.context_params import ContextParams
from kvsim.models.params import LayerParams, ModelParams, RopeType, SwaType


@dataclass(frozen=True)
class Config:
    """One configuration. ``sizes``: cells per stream by leaf, where not the model's."""

    name: str
    model: ModelParams
    params: ContextParams
    sizes: Mapping[str, int] = field(default_factory=dict)

    def context(
        self, leaves: LeafFactory, network: Network | None = None, recording: bool = False
    ) -> Context:
        """A fresh context of this configuration."""
        return Context(self.model, self.params, network=network, leaves=leaves, recording=recording)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class CacheInfo:
    """A member of the family: its configurations, and what a caller may ask of it.

    ``edits``: whether seq_add and seq_div are possible at all. ``partial``: whether states of the window or
    recurrent part alone differ from whole ones. ``removes_any``: whether seq_rm knows -1.
    """

    kind: str
    configs: tuple[Config, ...]
    edits: bool = True
    partial: bool = False
    removes_any: bool = True


ATTENTION = LayerParams(n_head_kv=1, n_embd_head_k=4, n_embd_head_v=4, n_rot=4)
WINDOW = replace(ATTENTION, is_swa=True)


def _params(n_seq_max: int, unified: bool, n_ubatch: int, **more: bool | int) -> ContextParams:
    return ContextParams(
        n_ctx=256 * n_seq_max, n_batch=64, n_ubatch=n_ubatch, n_seq_max=n_seq_max, kv_unified=unified,
        swa_full=bool(more.pop("swa_full", False)), **more,  # type: ignore[arg-type]
    )  # fmt: skip


LLAMA = ModelParams("llama", (ATTENTION,), n_embd=4, rope_type=RopeType.NORM)
QWEN2VL = ModelParams("qwen2vl", (ATTENTION,), n_embd=4, rope_type=RopeType.MROPE)
NO_ROPE = replace(LLAMA, arch="mpt", rope_type=RopeType.NONE)

_KV = (
    Config("tiny", LLAMA, _params(3, True, 4), {"kv": 12}),
    Config("streams", LLAMA, _params(3, False, 4), {"kv": 8}),
    Config("one-sequence", LLAMA, _params(1, False, 3), {"kv": 9}),
    Config("awkward", LLAMA, _params(5, True, 1, flash_attn=False), {"kv": 7}),
    Config("no-rope", NO_ROPE, _params(2, True, 4), {"kv": 10}),
    Config("mrope", QWEN2VL, _params(3, True, 4), {"kv": 12}),
    Config("mrope-streams", QWEN2VL, _params(2, False, 4), {"kv": 10}),
)


def _windowed(swa_type: SwaType, n_swa: int, arch: str = "gemma3") -> ModelParams:
    layers = (WINDOW, ATTENTION)
    return ModelParams(arch, layers, n_embd=4, rope_type=RopeType.NEOX, swa_type=swa_type, n_swa=n_swa)


_ISWA = (
    Config("tiny", _windowed(SwaType.STANDARD, 4), _params(3, True, 4), {"base": 16, "swa": 10}),
    Config("streams", _windowed(SwaType.STANDARD, 3), _params(3, False, 4), {"base": 12, "swa": 8}),
    Config("window-of-1", _windowed(SwaType.STANDARD, 1), _params(2, True, 2), {"base": 12, "swa": 4}),
    Config("chunked", _windowed(SwaType.CHUNKED, 4), _params(2, True, 4), {"base": 16, "swa": 10}),
    Config("symmetric", _windowed(SwaType.SYMMETRIC, 4), _params(2, True, 4), {"base": 16, "swa": 10}),
    Config(
        "full", _windowed(SwaType.STANDARD, 4), _params(3, True, 4, swa_full=True), {"base": 14, "swa": 14}
    ),
    Config("one-sequence", _windowed(SwaType.STANDARD, 4), _params(1, False, 4), {"base": 16, "swa": 8}),
)

# wider than the index keys: equal widths would bring the Hadamard rotation in
_LATENT = replace(ATTENTION, indexer_full=True, n_embd_head_k=8)
_DSA_MODEL = ModelParams(
    "deepseek32", (_LATENT,), n_embd=4, rope_type=RopeType.NORM, is_mla=True, has_kv_lora=True,
    n_embd_head_k_full=8, indexer_head_size=4, indexer_n_head=1, indexer_top_k=2,
)  # fmt: skip
_DSA = (
    Config("tiny", _DSA_MODEL, _params(3, True, 4), {"mla": 12, "lid": 12}),
    Config("streams", _DSA_MODEL, _params(3, False, 4), {"mla": 8, "lid": 8}),
)
_DSA_ISWA_MODEL = replace(
    _DSA_MODEL, arch="dots3note", layers=(WINDOW, _LATENT), swa_type=SwaType.STANDARD, n_swa=3
)
_DSA_ISWA = (
    Config("tiny", _DSA_ISWA_MODEL, _params(3, True, 4), {"mla": 14, "lid": 14, "swa": 9}),
    Config("streams", _DSA_ISWA_MODEL, _params(2, False, 4), {"mla": 12, "lid": 12, "swa": 8}),
)
_MSA_MODEL = ModelParams(
    "minimax-m3", (ATTENTION,), n_embd=4, rope_type=RopeType.NEOX, indexer_head_size=4, indexer_block_size=4
)
_MSA = (
    Config("tiny", _MSA_MODEL, _params(3, True, 4), {"base": 12, "idx": 12}),
    Config("streams", _MSA_MODEL, _params(3, False, 4), {"base": 8, "idx": 8}),
)

_STATE = LayerParams(is_recr=True)
_MAMBA = ModelParams("mamba", (_STATE,), n_embd=4, n_embd_r=1, n_embd_s=1)
_RECURRENT = (
    Config("tiny", _MAMBA, _params(3, True, 4)),
    Config("streams", _MAMBA, _params(4, False, 3)),
    Config("one-sequence", _MAMBA, _params(1, False, 4)),
)
_HYBRID_MODEL = ModelParams(
    "jamba", (ATTENTION, _STATE), n_embd=4, rope_type=RopeType.NORM, n_embd_r=1, n_embd_s=1
)
_ROLLBACK_MODEL = replace(_HYBRID_MODEL, arch="lfm2")
_HYBRID = (
    Config("tiny", _HYBRID_MODEL, _params(3, True, 4), {"attn": 12}),
    Config("streams", _HYBRID_MODEL, _params(3, False, 4), {"attn": 8}),
    Config("rollback", _ROLLBACK_MODEL, _params(3, True, 5, n_rs_seq=2), {"attn": 14}),
    Config("rollback-streams", _ROLLBACK_MODEL, _params(2, False, 5, n_rs_seq=3), {"attn": 10}),
)
_HYBRID_ISWA_MODEL = replace(
    _ROLLBACK_MODEL, layers=(ATTENTION, WINDOW, _STATE), swa_type=SwaType.STANDARD, n_swa=3
)
_HYBRID_ISWA = (
    Config("tiny", _HYBRID_ISWA_MODEL, _params(3, True, 4), {"base": 14, "swa": 9}),
    Config("streams", _HYBRID_ISWA_MODEL, _params(2, False, 4), {"base": 12, "swa": 8}),
    Config("rollback", _HYBRID_ISWA_MODEL, _params(3, True, 5, n_rs_seq=2), {"base": 14, "swa": 10}),
)

_POOLED_MODEL = replace(
    _ROLLBACK_MODEL, arch="glm5-next", layers=(replace(ATTENTION, indexer_full=True), _STATE),
    indexer_head_size=4, indexer_kpool=2, indexer_top_k=4,
)  # fmt: skip
_ORDERED_MODEL = replace(
    _POOLED_MODEL,
    arch="qwen4exp",
    rope_type=RopeType.IMROPE,
    indexer_kpool_by_order=True,
    indexer_kpool_row=2,
)
_HYBRID_IDX = (
    Config("tiny", _POOLED_MODEL, _params(3, True, 4), {"attn": 12, "idx": 12}),
    Config("streams", _POOLED_MODEL, _params(3, False, 4), {"attn": 8, "idx": 8}),
    Config("rollback", _POOLED_MODEL, _params(3, True, 5, n_rs_seq=2), {"attn": 14, "idx": 14}),
    Config("mrope", _ORDERED_MODEL, _params(2, True, 4), {"attn": 12, "idx": 12}),
)

_DSV4_MODEL = ModelParams(
    "deepseek4", (WINDOW, replace(WINDOW, compress_ratio=4), replace(WINDOW, compress_ratio=128)), n_embd=4,
    rope_type=RopeType.NORM, swa_type=SwaType.STANDARD, n_swa=4, n_embd_head_k_full=4, indexer_head_size=8,
)  # fmt: skip
_DSV4 = (
    Config("tiny", _DSV4_MODEL, _params(3, True, 4), {"raw.base": 20, "raw.swa": 9}),
    Config("one-sequence", _DSV4_MODEL, _params(1, False, 4), {"raw.base": 20, "raw.swa": 9}),
    Config("rollback", _DSV4_MODEL, _params(2, False, 5, n_rs_seq=2), {"raw.base": 20, "raw.swa": 10}),
)

CACHES: dict[str, CacheInfo] = {
    info.kind: info
    for info in (
        CacheInfo("kv", _KV),
        CacheInfo("iswa", _ISWA, partial=True),
        CacheInfo("dsa", _DSA),
        CacheInfo("dsa_iswa", _DSA_ISWA, partial=True),
        CacheInfo("msa", _MSA),
        CacheInfo("recurrent", _RECURRENT, removes_any=False),
        CacheInfo("hybrid", _HYBRID, partial=True, removes_any=False),
        CacheInfo("hybrid_iswa", _HYBRID_ISWA, partial=True, removes_any=False),
        CacheInfo("hybrid_idx", _HYBRID_IDX, partial=True, removes_any=False),
        CacheInfo("dsv4", _DSV4, edits=False, partial=True),
    )
}
"""Every member of the family that the suites know, by kind."""


def configurations() -> list[tuple[CacheInfo, Config]]:
    """Every configuration of every member."""
    return [(info, config) for info in CACHES.values() for config in info.configs]
