"""Which blocks are recurrent, and how wide their state rows are.

Source: ``llama_hparams::n_embd_r`` and ``n_embd_s`` (``src/llama-hparams.cpp``), and
``load_arch_hparams`` of each architecture (``src/models/*.cpp``).
"""

from __future__ import annotations

from kvsim.models.arch import RECURRENT
from kvsim.models.metadata import Metadata

INTERVAL_ARCHS = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
"""Every how many blocks one is attention, if the file does not list the recurrent ones."""

UNGROUPED_SSM = frozenset({"mamba", "jamba"})


def recurrent_blocks(
    meta: Metadata, n_layer_all: int, n_layer: int, kv_heads: list[int], is_ffn: list[bool]
) -> list[bool]:
    """Whether each block is recurrent; ``is_ffn`` marks those that have no mixer at all."""
    arch = meta.arch
    if arch in RECURRENT or arch == "falcon-h1":
        return [True] * n_layer_all
    if arch in INTERVAL_ARCHS:
        if meta.get("attention.recurrent_layers", None) is not None:
            return [bool(v) for v in meta.per_layer("attention.recurrent_layers", n_layer_all)]
        interval = meta.integer("full_attention_interval", INTERVAL_ARCHS[arch])
        if interval == 0:
            raise meta.fail("full_attention_interval", interval, "at least 1")
        return [il < n_layer and (il + 1) % interval != 0 for il in range(n_layer_all)]
    if arch not in _BY_KV_HEADS:
        return [False] * n_layer_all
    last = n_layer_all if arch == "glm5-next" else n_layer
    return [il < last and kv_heads[il] == 0 and not is_ffn[il] for il in range(n_layer_all)]


_BY_KV_HEADS = frozenset(
    {"bailingmoe3", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe"}
    | {"nemotron_h", "nemotron_h_moe", "plamo2"}
)
"""Hybrids whose recurrent blocks are those without KV heads."""


def conv_width(meta: Metadata, heads: list[int]) -> int:
    """Width of an R row (``llama_hparams::n_embd_r``)."""
    n_embd = meta.integer("embedding_length")
    if meta.arch in _RWKV:
        return meta.integer("token_shift_count", 2) * n_embd
    if meta.arch in ("lfm2", "lfm2moe"):
        return n_embd * (meta.integer("shortconv.l_cache") - 1)
    kernel = meta.integer("ssm.conv_kernel", 0)
    if meta.arch in _KDA:
        return 3 * (kernel - 1 if kernel else 3) * heads[0] * meta.integer("kda.head_dim")
    if meta.arch not in _SSM or kernel == 0:
        return 0
    groups = 0 if meta.arch in UNGROUPED_SSM else meta.integer("ssm.group_count")
    return (kernel - 1) * (meta.integer("ssm.inner_size") + 2 * groups * meta.integer("ssm.state_size"))


def state_width(meta: Metadata, heads: list[int], head_k: int) -> int:
    """Width of an S row (``llama_hparams::n_embd_s``)."""
    if meta.arch in _RWKV:
        return meta.integer("embedding_length") * meta.integer("wkv.head_size")
    if meta.arch in _KDA:
        return meta.integer("kda.head_dim") ** 2 * heads[0]
    if meta.arch == "minimax-01":
        return head_k**2 * heads[0]
    return meta.integer("ssm.state_size") * meta.integer("ssm.inner_size") if meta.arch in _SSM else 0


_RWKV = frozenset({"rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_KDA = frozenset({"kimi-linear", "kimi-k3", "glm5-next", "bailingmoe3"})
_SSM = frozenset(
    {"mamba", "mamba2", "jamba", "falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe", "plamo2"}
    | {"qwen3next", "qwen35", "qwen35moe", "qwen4exp"}
)
