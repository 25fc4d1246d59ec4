"""A probe: a network with seeded random weights for any member of the family, so that everything can be
decoded without a model file.

Its blocks look at the tokens alone, not at one another::

    token, position -> query, key, value of every block -> cache -> what each block reads -> logits

So what a block reads can be worked out from a list of tokens and positions without any cache, after
shifts and removals too, and logits tell whether a cache is transparent. Sizes, windows, rope, indexers
and compressors are those of the model; a recurrent block is a decaying sum and a shift register.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.batch import Ubatch
from kvsim.caches.hybrid_idx import IdxView
from kvsim.caches.kv_view import KVView
from kvsim.caches.recurrent import RecurrentView
from kvsim.memory import BoolArray, View
from kvsim.models import probe_sparse
from kvsim.models.cache_spec import CacheSpec, LayerSpec
from kvsim.models.cached_rows import Floats, Watch, attend_rows, owner_of, store_rows
from kvsim.models.context_params import ResolvedContext
from kvsim.models.params import ModelParams, RopeType
from kvsim.models.probe_dsv4 import read_compressed
from kvsim.models.probe_recurrent import read_states
from kvsim.tensors.rope import Rope, rope
from kvsim.tensors.store import layer_rope

HEADS_PER_GROUP = 2
"""Query heads for each KV head."""

READ_WIDTH = 32
"""Every block's reading is projected to this many values, whose sum gives the logits."""

WatchScores = Callable[[int, int, slice, Floats, BoolArray], object]
"""Hears what a lightning indexer decided: block, stream, rows of the ubatch, scores and chosen cells of each."""

WINDOWED, PLAIN = "swa", ("kv", "attn", "base", "mla")


class ProbeNetwork:
    """See above. ``n_vocab`` is the number of logits; token ids beyond it wrap around.

    An embedding counts as one more token, the same for all. Two probes of the same model and seed agree.
    """

    def __init__(
        self, model: ModelParams, context: ResolvedContext, n_vocab: int = 128, seed: int = 0
    ) -> None:
        self.model, self.context = model, context
        self.n_vocab, self.seed = n_vocab, seed
        self.watch: Watch | None = None
        self.watch_scores: WatchScores | None = None
        self._tables: dict[str, Floats] = {}

    def run(self, ubatch: Ubatch, views: Mapping[str, View]) -> NDArray[np.float32]:
        """Logits ``float32[n_tokens, n_vocab]`` in the order of the ubatch."""
        total = np.zeros((ubatch.n_tokens, READ_WIDTH))
        for name, reading in self.readings(ubatch, views).items():
            width = reading.shape[-1]
            total += reading @ self.table(f"{name} out", width, READ_WIDTH) / np.sqrt(width)
        return (total @ self.table("logits", READ_WIDTH, self.n_vocab)).astype(np.float32)

    def readings(self, ubatch: Ubatch, views: Mapping[str, View]) -> dict[str, Floats]:
        """What each block reads, ``[token, width]``, by ``<leaf> <block>``."""
        readings: dict[str, Floats] = {}
        if "raw" in views:
            return read_compressed(self, ubatch, views)
        for name, view in views.items():
            if isinstance(view, RecurrentView):
                readings |= read_states(self, ubatch, view)
            elif isinstance(view, KVView) and name in (*PLAIN, WINDOWED):
                for il in view.cache.spec.map_layer_ids:
                    readings[f"{name} {il}"] = self._attention(il, ubatch, view, views)
        return readings

    # -- attention -----------------------------------------------------------------------------

    def _attention(self, il: int, ubatch: Ubatch, view: KVView, views: Mapping[str, View]) -> Floats:
        layer, spec = owner_of(view, il), view.cache.spec
        latent = layer.v is None
        k = self.vectors(f"k {il}", ubatch, layer.n_head_kv, layer.n_embd_head_k)
        q = self.vectors(f"q {il}", ubatch, HEADS_PER_GROUP * layer.n_head_kv, layer.n_embd_head_k)
        v = None
        if not latent:
            v = self.vectors(f"v {il}", ubatch, layer.n_head_kv, self.model.layers[il].n_embd_head_v)
        turn = self.rotation(layer, spec)
        if turn is not None:
            pos = ubatch.pos if turn.sections is not None else ubatch.pos0
            q, k = rope(q, pos, turn), rope(k, pos, turn)
        store_rows(view, il, k, v, rotate=not latent)
        mask = view.mask(self.context.causal_attn)
        chosen = self._selection(il, ubatch, view, views, mask)
        if chosen is not None:
            mask = chosen
        out = attend_rows(
            view,
            il,
            q,
            mask,
            scale=layer.n_embd_head_k**-0.5,
            flash_attn=self.context.flash_attn,
            n_latent=self.model.layers[il].n_embd_head_v,
            rotate=not latent,
            watch=self.watch,
        )
        return out.reshape(ubatch.n_tokens, -1)

    def _selection(
        self, il: int, ubatch: Ubatch, view: KVView, views: Mapping[str, View], mask: BoolArray
    ) -> BoolArray | None:
        """The cells an indexer leaves of ``mask`` for block ``il``; None where there is no indexer."""
        if "lid" in views and view is not views.get(WINDOWED):
            return probe_sparse.lightning(self, il, ubatch, views["lid"], mask)
        index = views.get("idx")
        if not isinstance(index, KVView) or il not in index.cache.spec.map_layer_ids:
            return None
        if isinstance(index, IdxView):
            return probe_sparse.pooled(self, il, ubatch, index, mask)
        return probe_sparse.blocks(self, il, ubatch, view, index, mask)

    def rotation(self, layer: LayerSpec, spec: CacheSpec) -> Rope | None:
        """How a block's keys turn with their positions; None if they do not."""
        if not layer.has_rope:
            return None
        turn, sections = layer_rope(layer, spec, self.context), self.model.rope_sections
        if spec.n_pos_per_embd <= 1:
            return turn
        interleaved = spec.rope_type is RopeType.IMROPE
        return replace(turn, sections=sections, interleaved=interleaved)  # type: ignore[arg-type]

    # -- random numbers ------------------------------------------------------------------------

    def table(self, name: str, *shape: int) -> Floats:
        """Standard normal numbers that depend on the seed, the name and the shape alone."""
        key = f"{name} {shape}"
        if key not in self._tables:
            rng = np.random.default_rng([self.seed, zlib.crc32(key.encode())])
            self._tables[key] = rng.standard_normal(shape)
        return self._tables[key]

    def vectors(self, name: str, ubatch: Ubatch, *shape: int) -> Floats:
        """A vector (or several) for each token of a ubatch, ``[token, *shape]``; equal for equal tokens."""
        table = self.table(name, self.n_vocab + 1, *shape)
        rows: Floats = table[self._ids(ubatch)]
        return rows

    def _ids(self, ubatch: Ubatch) -> NDArray[Any]:
        if ubatch.tokens is None:
            return np.full(ubatch.n_tokens, self.n_vocab)
        ids: NDArray[Any] = ubatch.tokens % self.n_vocab
        return np.where(ubatch.is_embd, self.n_vocab, ids) if ubatch.is_embd is not None else ids
