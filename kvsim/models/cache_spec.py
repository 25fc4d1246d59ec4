"""What each leaf of a memory is built from, as data.

``kvsim.models.memory_spec.memory_spec(model, context)`` makes it, for any architecture: the caches by
name, the recurrent part and DeepSeek-V4's compressor states, which a recording's header has as
``config.caches``, ``config.recurrent`` and ``config.dsv4``. The caches' names, in order of visit:

===============  =================================  ========================================
kind             caches                             source
===============  =================================  ========================================
``kv``           kv                                 ``src/llama-kv-cache.cpp``
``iswa``         base, swa                          ``src/llama-kv-cache-iswa.cpp``
``recurrent``    none                               ``src/llama-memory-recurrent.cpp``
``hybrid``       attn                               ``src/llama-memory-hybrid.cpp``
``hybrid_iswa``  base, swa                          ``src/llama-memory-hybrid-iswa.cpp``
``hybrid_idx``   attn, idx (if it has an indexer)   ``src/llama-memory-hybrid-idx.cpp``
``dsa``          mla, lid                           ``src/llama-kv-cache-dsa.cpp``
``dsa_iswa``     mla, lid, swa                      ``src/llama-kv-cache-dsa-iswa.cpp``
``msa``          base, idx                          ``src/llama-kv-cache-msa.cpp``
``dsv4``         raw.base, raw.swa, csa, hca, lid   ``src/llama-kv-cache-dsv4.cpp``
===============  =================================  ========================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvsim.models.arch import NonCausal
from kvsim.models.cache_types import CacheType
from kvsim.models.params import RopeType, SwaType


@dataclass(frozen=True)
class LayerSpec:
    """One block's storage in a cache: rows of ``n_embd_k`` values of type ``k``, and ``n_embd_v`` of
    type ``v`` (None: no V).

    The rest is what a K-shift needs: in each of ``n_head_kv`` heads, ``n_rot`` dimensions from
    ``rope_offset`` on turn with ``freq_base``, ``freq_scale`` and ``factors``; not at all without
    ``has_rope``.
    """

    il: int
    k: CacheType
    n_embd_k: int
    v: CacheType | None
    n_embd_v: int
    n_head_kv: int
    n_rot: int
    rope_offset: int
    has_rope: bool
    freq_base: float
    freq_scale: float
    factors: tuple[float, ...] | None
    n_embd_v_own: int
    """V values of this block itself, where ``n_embd_v`` is padded to the widest one; saved states use it."""

    @property
    def n_embd_head_k(self) -> int:
        return self.n_embd_k // self.n_head_kv if self.n_head_kv else 0

    @property
    def row_k(self) -> int:
        """Bytes of one K row."""
        return self.k.row_bytes(self.n_embd_k)

    @property
    def row_v(self) -> int:
        """Bytes of one V row (0 without V)."""
        return self.v.row_bytes(self.n_embd_v) if self.v else 0

    def to_json(self) -> dict[str, Any]:
        """As in a header's ``layers``."""
        return {
            "il": self.il,
            "type_k": self.k.name,
            "n_embd_k": self.n_embd_k,
            "type_v": self.v.name if self.v else None,
            "n_embd_v": self.n_embd_v,
        }


@dataclass(frozen=True)
class CacheSpec:
    """One attention cache: ``n_stream`` tables of ``size`` cells, and rows for ``layers``.

    ``map_layer_ids`` gives for a block its index in ``layers`` (several blocks may share one).
    ``n_rot_k``/``n_rot_v`` are the sizes of the Hadamard rotation applied to stored rows (0 = none).
    ``can_shift``: whether positions may be shifted. ``has_cell_ext``: whether saved states keep the
    token and the 2-D position of cells. ``v_trans``: V stored transposed. ``has_mask``: attention
    masks it by position (an indexer's and DeepSeek-V4's caches are masked in their own ways).
    ``ngram_token`` is the token that a cell written from an embedding counts as, where a model has
    n-gram embeddings.
    """

    n_stream: int
    size: int
    n_seq_max: int
    n_pad: int
    n_swa: int
    swa_type: SwaType
    v_trans: bool
    n_rot_k: int
    n_rot_v: int
    can_shift: bool
    has_cell_ext: bool
    rope_type: RopeType
    layers: tuple[LayerSpec, ...]
    map_layer_ids: dict[int, int]
    n_pos_per_embd: int
    non_causal: NonCausal
    use_alibi: bool
    has_mask: bool
    ngram_token: int | None

    @property
    def embd_token(self) -> int:
        """The token id of a cell that was written from an embedding, -1 for none."""
        return -1 if self.ngram_token is None else self.ngram_token

    @property
    def is_quantized_k(self) -> bool:
        return any(layer.k.is_quantized for layer in self.layers)

    def bytes_by_tensor(self) -> dict[str, int]:
        """Bytes of all K and of all V rows (kv_cache.md 1)."""
        cells = self.n_stream * self.size
        return {
            "k": cells * sum(layer.row_k for layer in self.layers),
            "v": cells * sum(layer.row_v for layer in self.layers),
        }

    def to_json(self) -> dict[str, Any]:
        """As in a header's ``config.caches``."""
        names = ("n_stream", "size", "n_seq_max", "n_pad", "n_swa", "v_trans", "n_rot_k", "n_rot_v")
        return {
            **{name: getattr(self, name) for name in names},
            "swa_type": int(self.swa_type),
            "can_shift": self.can_shift,
            "has_cell_ext": self.has_cell_ext,
            "rope_type": int(self.rope_type),
            "layers": [layer.to_json() for layer in self.layers],
            "map_layer_ids": {str(il): i for il, i in self.map_layer_ids.items()},
        }


@dataclass(frozen=True)
class RecurrentSpec:
    """The recurrent part: ``size`` cells with ``1 + n_rs_seq`` planes of rows.

    ``layers`` holds per trunk block the widths of the R (convolution), S (state) and P (n-gram
    history) rows; 0 = none. All are f32. ``n_seq_max`` is the number of sequences known to it.
    """

    size: int
    n_seq_max: int
    n_rs_seq: int
    layers: tuple[tuple[int, int, int], ...]

    def to_json(self) -> dict[str, Any]:
        """As in a header's ``config.recurrent``."""
        return {"size": self.size, "n_rs_seq": self.n_rs_seq, "layers": [list(w) for w in self.layers]}


@dataclass(frozen=True)
class CompressorSpec:
    """A DeepSeek-V4 compressor's ring: ``state_size`` rows of ``n_embd_state`` f32 values, twice
    (key and score), per stream and plane, for the blocks ``layers``."""

    ratio: int
    state_size: int
    n_embd_state: int
    n_stream: int
    n_rs_seq: int
    layers: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """As in a header's ``config.dsv4``."""
        names = ("ratio", "state_size", "n_embd_state", "n_stream", "n_rs_seq")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class MemorySpec:
    """Everything needed to build a memory of ``kind``.

    ``shares_target``: its cells and rows are those of the model it drafts for; it has none of its own.
    """

    kind: str
    caches: dict[str, CacheSpec]
    recurrent: RecurrentSpec | None
    compressors: dict[str, CompressorSpec]
    shares_target: bool = False
