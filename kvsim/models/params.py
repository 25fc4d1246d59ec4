"""What a model is, as far as its memory is concerned.

The names are those of a recording's ``config.hparams`` (``src/llama-hparams.h``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, TypeVar

from kvsim.errors import TraceError
from kvsim.models.record import MAX_WIDTH, Record

E = TypeVar("E", bound=IntEnum)

MAX_LAYERS = 512
"""Most blocks a model may have (``LLAMA_MAX_LAYERS``)."""


class SwaType(IntEnum):
    """How a sliding window masks (``llama_swa_type``)."""

    NONE = 0
    STANDARD = 1
    CHUNKED = 2
    SYMMETRIC = 3


class RopeType(IntEnum):
    """How the rotated dimensions pair up (``llama_rope_type``)."""

    NONE = -1
    NORM = 0
    """Neighbours: (0, 1), (2, 3), ..."""
    NEOX = 2
    """Halves: (0, n/2), (1, n/2 + 1), ..."""
    MROPE = 8
    """Halves, with sections of time, height and width."""
    VISION = 24
    IMROPE = 40
    """As MROPE, sections interleaved."""


@dataclass(frozen=True)
class LayerParams:
    """One block of a model.

    ``is_ffn``: nothing but a feed-forward network, so nothing is kept (Nemotron-H). ``indexer_full``:
    it has an indexer of its own.
    ``n_embd_head_k`` is the width of a key head as cached (an MLA row: latent and rope part);
    ``n_rot`` its rotated dimensions; ``compress_ratio`` DeepSeek-V4's compression (0 = none);
    ``n_embd_p`` the row width of the n-gram convolution history (0 = none); ``rope_factors`` divides
    the rope frequencies pairwise; ``has_rope`` is False for a block whose keys are never rotated
    although the model has rope (then a K-shift skips it).
    """

    is_swa: bool = False
    is_recr: bool = False
    is_ffn: bool = False
    indexer_full: bool = False
    n_head_kv: int = 0
    n_embd_head_k: int = 0
    n_embd_head_v: int = 0
    n_rot: int = 0
    compress_ratio: int = 0
    n_embd_p: int = 0
    rope_factors: tuple[float, ...] | None = None
    has_rope: bool = True

    @property
    def n_embd_k_gqa(self) -> int:
        return self.n_head_kv * self.n_embd_head_k

    @property
    def n_embd_v_gqa(self) -> int:
        return self.n_head_kv * self.n_embd_head_v


@dataclass(frozen=True)
class ModelParams:
    """A model's hyper-parameters, as far as its memory depends on them.

    ``layers`` are all blocks; the last ``n_layer_nextn`` of them are prediction heads (MTP) that the
    trunk does not run. ``n_layer_kv_from_start >= 0``: only that many first layers own a cache, later
    ones reuse. ``n_embd_r``/``n_embd_s`` are the recurrent row widths. ``n_embd_head_k_full`` is the
    key head width of non-window layers even where every layer has a window. ``router_layer`` is a
    block that is cached but takes no part in the K-shift (-1 = none). ``is_mla``: K rows alone are
    stored, V is a part of them; ``has_kv_lora``: the rotated dimensions are the last of a key head.
    """

    arch: str
    layers: tuple[LayerParams, ...]
    n_embd: int = 0
    n_layer_nextn: int = 0
    n_layer_kv_from_start: int = -1
    n_layer_dense_lead: int = 0
    n_swa: int = 0
    swa_type: SwaType = SwaType.NONE
    rope_type: RopeType = RopeType.NONE
    rope_sections: tuple[int, ...] = (0, 0, 0, 0)
    rope_freq_base_train: float = 10000.0
    rope_freq_scale_train: float = 1.0
    rope_freq_base_train_swa: float = 10000.0
    rope_freq_scale_train_swa: float = 1.0
    rope_scaling: str = "linear"
    rope_attn_factor: float = 1.0
    rope_yarn_log_mul: float = 0.0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = 1.0
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    n_ctx_train: int = 0
    n_ctx_orig_yarn: int = 0
    causal_attn: bool = True
    use_alibi: bool = False
    is_mla: bool = False
    has_kv_lora: bool = False
    n_embd_head_k_full: int = 0
    indexer_n_head: int = 0
    indexer_head_size: int = 0
    indexer_top_k: int = 0
    indexer_kpool: int = 0
    indexer_kpool_by_order: bool = False
    indexer_kpool_row: int = 3
    indexer_block_size: int = 0
    indexer_local_blocks: int = 0
    ple_n_heads: int = 0
    ple_ngram_size: int = 0
    ple_eos_token_id: int = 0
    ple_image_token_id: int = 0
    n_embd_r: int = 0
    n_embd_s: int = 0
    router_layer: int = -1

    @property
    def n_layer_all(self) -> int:
        return len(self.layers)

    @property
    def n_layer(self) -> int:
        """Blocks of the trunk."""
        return self.n_layer_all - self.n_layer_nextn

    @property
    def n_pos_per_embd(self) -> int:
        """Positions that come with each token of an embedding batch: 4 for M-RoPE, else 1."""
        return 4 if self.rope_type in (RopeType.MROPE, RopeType.IMROPE) else 1

    @property
    def n_embd_v_gqa_max(self) -> int:
        """Widest V row of any block: what transposed V caches are padded to."""
        return max(layer.n_embd_v_gqa for layer in self.layers)

    def has_kv(self, il: int) -> bool:
        """Whether block ``il`` owns a cache of its own, if it is an attention block at all."""
        return self.n_layer_kv_from_start < 0 or il < self.n_layer_kv_from_start

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> ModelParams:
        """The model of a recording (format: fixtures/traces/README.md).

        The header has no YaRN parameters of the model, only resolved ones: those become the model's.
        What the layers keep besides stands in other places: the widths of the n-gram rows in
        ``config.recurrent``, the rope factors in ``config.rope_layers``, and for Nemotron-H the
        feed-forward blocks are those that no cache holds. Raises TraceError naming the field that is
        missing, of the wrong type, out of range or at odds with the others.
        """
        head = Record(header, "header")
        config = head.record("config")
        hparams, cparams = config.record("hparams"), config.record("cparams")
        layers = tuple(_layer(record) for record in hparams.records("layers"))
        if not 1 <= len(layers) <= MAX_LAYERS:
            raise hparams.fail("layers", f"has {len(layers)} entries, not 1 to {MAX_LAYERS}")
        layers = _with_rope_factors(_with_ngram_rows(layers, config), config)
        if head.text("arch").startswith("nemotron_h"):
            layers = _with_ffn_blocks(layers, config)
        ext, attn = cparams.number("yarn_ext_factor"), cparams.number("yarn_attn_factor")
        model = cls(
            arch=head.text("arch"),
            layers=layers,
            n_embd=hparams.integer("n_embd"),
            n_layer_nextn=hparams.integer("n_layer_nextn", hi=len(layers), default=0),
            n_layer_kv_from_start=hparams.integer("n_layer_kv_from_start", lo=-1, hi=len(layers)),
            n_layer_dense_lead=hparams.integer("n_layer_dense_lead", default=0),
            n_swa=hparams.integer("n_swa", hi=2**31 - 1),
            swa_type=_member(hparams, "swa_type", SwaType),
            rope_type=_member(hparams, "rope_type", RopeType),
            rope_sections=tuple(hparams.items("rope_sections")),
            rope_freq_base_train=hparams.number("rope_freq_base_train"),
            rope_freq_scale_train=hparams.number("rope_freq_scale_train"),
            rope_freq_base_train_swa=hparams.number("rope_freq_base_train_swa"),
            rope_freq_scale_train_swa=hparams.number("rope_freq_scale_train_swa"),
            yarn_ext_factor=ext,
            # with YaRN the magnitude is recomputed from the scale, and only this factor is left over
            yarn_attn_factor=1.0 if ext else attn,
            rope_attn_factor=attn if ext else 1.0,
            yarn_beta_fast=cparams.number("yarn_beta_fast"),
            yarn_beta_slow=cparams.number("yarn_beta_slow"),
            n_ctx_orig_yarn=cparams.integer("n_ctx_orig_yarn", hi=2**31 - 1),
            causal_attn=cparams.flag("causal_attn", default=True),
            use_alibi=hparams.flag("use_alibi", default=False),
            is_mla=hparams.flag("is_mla"),
            has_kv_lora=hparams.flag("is_mla"),
            n_embd_head_k_full=next((x for x in layers if not x.is_swa), layers[0]).n_embd_head_k,
            indexer_kpool_by_order=hparams.flag("indexer_kpool_by_order", default=False),
            indexer_n_head=hparams.integer("indexer_n_head", default=0),
            indexer_head_size=hparams.integer("indexer_head_size", default=0),
            indexer_top_k=hparams.integer("indexer_top_k", hi=2**31 - 1, default=0),
            indexer_kpool=hparams.integer("indexer_kpool", default=0),
            indexer_kpool_row=hparams.integer("indexer_kpool_row", default=3),
            indexer_block_size=hparams.integer("indexer_block_size", default=0),
            indexer_local_blocks=hparams.integer("indexer_local_blocks", default=0),
            ple_n_heads=hparams.integer("ple_n_heads", default=0),
            ple_ngram_size=hparams.integer("ple_ngram_size", default=0),
            ple_eos_token_id=hparams.integer("ple_eos_token_id", hi=2**31 - 1, default=0),
            ple_image_token_id=hparams.integer("ple_image_token_id", hi=2**31 - 1, default=0),
            n_embd_r=hparams.integer("n_embd_r", default=0),
            n_embd_s=hparams.integer("n_embd_s", default=0),
        )
        _check_redundant(model, hparams)
        return model


def _layer(record: Record) -> LayerParams:
    layer = LayerParams(
        is_swa=record.flag("is_swa"),
        is_recr=record.flag("is_recr"),
        indexer_full=record.flag("indexer_full", default=False),
        n_head_kv=record.integer("n_head_kv"),
        n_embd_head_k=record.integer("n_embd_head_k"),
        n_embd_head_v=record.integer("n_embd_head_v"),
        n_rot=record.integer("n_rot"),
        compress_ratio=record.integer("compress_ratio", default=0),
    )
    if layer.n_embd_k_gqa > MAX_WIDTH or layer.n_embd_v_gqa > MAX_WIDTH:
        raise record.fail("n_head_kv", f"= {layer.n_head_kv} makes rows wider than {MAX_WIDTH} values")
    record.must_equal("n_embd_k_gqa", layer.n_embd_k_gqa, "n_head_kv * n_embd_head_k")
    record.must_equal("n_embd_v_gqa", layer.n_embd_v_gqa, "n_head_kv * n_embd_head_v")
    return layer


def _with_ngram_rows(layers: tuple[LayerParams, ...], config: Record) -> tuple[LayerParams, ...]:
    if config.data.get("recurrent") is None:
        return layers
    rows = config.record("recurrent").items("layers")
    if len(rows) > len(layers):
        raise TraceError(f"config.recurrent.layers has {len(rows)} entries for {len(layers)} layers")
    widths = []
    for il, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != 3 or not all(isinstance(w, int) for w in row):
            raise TraceError(f"config.recurrent.layers[{il}] must be three widths, not {row!r}")
        widths.append(row[2])
    widths += [0] * (len(layers) - len(widths))
    return tuple(replace(layer, n_embd_p=w) for layer, w in zip(layers, widths, strict=True))


def _with_ffn_blocks(layers: tuple[LayerParams, ...], config: Record) -> tuple[LayerParams, ...]:
    attn = config.record("caches").record("attn")
    held = {record.integer("il") for record in attn.records("layers")}
    return tuple(
        replace(layer, is_ffn=not layer.is_recr and il not in held) for il, layer in enumerate(layers)
    )


def _with_rope_factors(layers: tuple[LayerParams, ...], config: Record) -> tuple[LayerParams, ...]:
    if "rope_layers" not in config.data:
        return layers
    records = list(config.records("rope_layers"))
    if len(records) != len(layers):
        raise config.fail("rope_layers", f"has {len(records)} entries for {len(layers)} layers")
    factors = [record.data.get("factors") for record in records]
    return tuple(
        replace(layer, rope_factors=None if f is None else tuple(f))
        for layer, f in zip(layers, factors, strict=True)
    )


def _member(record: Record, key: str, enum: type[E]) -> E:
    value = record.integer(key, lo=-1)
    try:
        return enum(value)
    except ValueError:
        known = ", ".join(f"{m.value} ({m.name})" for m in enum)
        raise record.fail(key, f"= {value} is unknown; known are {known}") from None


def _check_redundant(model: ModelParams, hparams: Record) -> None:
    """The header says some things twice; where the two disagree it is damaged."""
    hparams.must_equal("n_layer_all", model.n_layer_all, "the number of layers")
    hparams.must_equal("n_layer", model.n_layer, "n_layer_all - n_layer_nextn")
    hparams.must_equal("n_pos_per_embd", model.n_pos_per_embd, "rope_type")
    for il, record in enumerate(hparams.records("layers")):
        record.must_equal("has_kv", model.has_kv(il), "n_layer_kv_from_start")
    if model.swa_type is SwaType.NONE and any(layer.is_swa for layer in model.layers):
        raise hparams.fail("swa_type", "= 0 (no window), but a layer has is_swa")
