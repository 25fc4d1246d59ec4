"""Indexers, compression and n-gram embeddings: what sparse-attention architectures add.

Source: ``load_arch_hparams`` of each architecture (``src/models/*.cpp``).
"""

from __future__ import annotations

from dataclasses import replace

from kvsim.models.metadata import MISSING, Metadata
from kvsim.models.params import ModelParams

INDEXER_ARCHS = frozenset(
    {"minimax-m3", "deepseek32", "glm-dsa", "glm5-next", "hy_v4", "dots3note", "deepseek4", "qwen4exp"}
)


def compress_ratios(meta: Metadata, n_layer_all: int) -> list[int]:
    """Over how many tokens each block compresses (0 = not)."""
    if meta.arch == "deepseek4":
        return meta.per_layer("attention.compress_ratios", n_layer_all)
    if meta.arch == "qwen4exp":
        return meta.per_layer("attention.compress_ratios", n_layer_all, 0)
    return [0] * n_layer_all


def own_indexers(meta: Metadata, n_layer: int) -> list[bool]:
    """Which blocks own an indexer, where an architecture lets blocks share one."""
    key = "attention.indexer.types"
    default = [0] * n_layer
    if meta.arch == "glm5-next":
        default = [1] * n_layer
    elif meta.arch == "glm-dsa":  # from GLM 5.2 on, known by its context, one block in four
        every = meta.integer("context_length", hi=2**31 - 1) < 2**20
        default = [int(every or il < 2 or il % 4 == 2) for il in range(n_layer)]
    elif meta.arch not in ("dots3note", "hy_v4"):
        return [False] * n_layer
    return [bool(v) for v in meta.per_layer(key, n_layer, default)]


def ngram_rows(meta: Metadata, n_layer_all: int) -> list[int]:
    """Widths of the n-gram convolution history, per block."""
    blocks = meta.integers("ple.layers", []) if meta.arch == "qwen4exp" else []
    if not blocks:
        return [0] * n_layer_all
    streams = meta.integer("hyper_connection.count") * meta.integer("embedding_length")
    width = (meta.integer("ple.conv_kernel") - 1) * meta.integer("ple.ngram_size") * streams
    return [width if il in blocks else 0 for il in range(n_layer_all)]


def with_indexer(model: ModelParams, meta: Metadata) -> ModelParams:
    """The model with its indexer's parameters; HY-V4 may have none, the others must."""
    if meta.arch not in INDEXER_ARCHS:
        return model
    default = 0 if meta.arch == "hy_v4" else MISSING
    model = replace(
        model,
        indexer_n_head=meta.integer("attention.indexer.head_count", default),
        indexer_head_size=meta.integer("attention.indexer.key_length", default),
        indexer_top_k=meta.integer("attention.indexer.top_k", default),
    )
    if meta.arch == "minimax-m3":
        return replace(
            model,
            indexer_block_size=meta.integer("attention.indexer.block_size"),
            indexer_local_blocks=meta.integer("attention.indexer.local_blocks"),
        )
    if meta.arch == "glm5-next":
        return replace(model, indexer_kpool=meta.integer("attention.indexer.kpool"))
    return _with_ngrams(model, meta) if meta.arch == "qwen4exp" else model


def _with_ngrams(model: ModelParams, meta: Metadata) -> ModelParams:
    """Qwen4-exp: pools of one size for all blocks, in cache order, and n-gram embeddings."""
    pools = {layer.compress_ratio for layer in model.layers} - {0}
    if len(pools) > 1:
        raise meta.fail("attention.compress_ratios", sorted(pools), "the same for every block")
    model = replace(
        model,
        indexer_kpool=pools.pop() if pools else 0,
        indexer_kpool_row=2,
        indexer_kpool_by_order=True,
    )
    if not meta.get("ple.layers", None):
        return model
    size = meta.integer("ple.ngram_size")
    return replace(
        model,
        ple_ngram_size=size,
        ple_n_heads=(size - 1) * meta.integer("ple.heads_per_ngram"),
        ple_eos_token_id=meta.integer("ple.eos_token_id", hi=2**31 - 1),
        ple_image_token_id=meta.integer("ple.image_token_id", 0, hi=2**31 - 1),
    )
