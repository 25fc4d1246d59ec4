"""Faults in what a token may see: masks, windows, positions in images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kvsim import window
from kvsim.caches import kv_view
from kvsim.caches.iswa import ISWACache
from kvsim.caches.kv import KVCache
from kvsim.caches.kv_view import KVView
from kvsim.memory import BoolArray
from kvsim.models.params import SwaType
from kvsim.testing.mutants.mutant import Patches, mutant

Masks = Callable[..., BoolArray]


def _as_if(right: Masks, view: KVView, args: tuple[Any, ...], **changed: Any) -> BoolArray:
    """The mask that a cache with another window would have."""
    spec = view.cache.spec
    view.cache.spec = replace(spec, **changed)
    try:
        return right(view, *args)
    finally:
        view.cache.spec = spec


@mutant("B017", memories=("iswa",), symptom="layers that should see everything see the window alone")
def window_leaks_into_base(patch: Patches) -> None:
    """The mask of the cache without window is cut by the window of the model."""

    def init(right: Any, self: ISWACache, base: KVCache, swa: KVCache, unified: bool) -> None:
        right(self, base, swa, unified)
        base.leaked = {"swa_type": swa.spec.swa_type, "n_swa": swa.spec.n_swa}  # type: ignore[attr-defined]

    def mask(right: Masks, self: KVView, *args: Any) -> BoolArray:
        return _as_if(right, self, args, **getattr(self.cache, "leaked", {}))

    patch(ISWACache, "__init__", init)
    patch(KVView, "_stream_mask", mask)


@mutant("B019", memories=("iswa",), symptom="each token sees one key too many")
def window_beside_token(patch: Patches) -> None:
    """The window counts the keys before the token, not the token itself."""

    def mask(right: Masks, self: KVView, *args: Any) -> BoolArray:
        return _as_if(right, self, args, n_swa=self.cache.spec.n_swa + 1)

    patch(KVView, "_stream_mask", mask)


@mutant("B020", memories=("iswa",), symptom="the first tokens of a chunk see too few keys")
def trimmed_before_chunk(patch: Patches) -> None:
    """The cache is cut to the window of the newest token before the chunk attends."""

    def place(right: Any, self: KVCache, slot: Any, ubatch: Any, trial: bool = False) -> Any:
        purged = right(self, slot, ubatch, trial)
        for s in ubatch.seq_id_unq if self.spec.n_swa and not trial else ():
            table = self.cells[self.stream_of(s)]
            start = window.window_start(self.spec.swa_type, self.spec.n_swa, table.seq_pos_max(s))
            table.seq_rm(s, 0, max(start, 0))
        return purged

    patch(KVCache, "_place", place)


@mutant("B022", memories=("iswa",), symptom="attention covers cells that hold nothing")
def mask_as_wide_as_window(patch: Patches) -> None:
    """While the window still fills, its empty cells are visible too."""

    def mask(right: Masks, self: KVView, stream: int, *args: Any) -> BoolArray:
        visible = right(self, stream, *args)
        table = self.cache.cells[stream]
        if table.used < self.cache.spec.n_swa:
            visible = visible | (table.pos[: self.n_kv] == -1)
        return visible

    patch(KVView, "_stream_mask", mask)


@mutant("B026", memories=("iswa",), symptom="the last token of a chunk sees nothing but what comes next")
def chunk_trimmed_early(patch: Patches) -> None:
    """A chunk counts as over when its last token comes, not when the next chunk begins."""

    def mask(right: Masks, self: KVView, stream: int, rows: slice, *args: Any) -> BoolArray:
        visible, spec = right(self, stream, rows, *args), self.cache.spec
        if spec.swa_type is SwaType.CHUNKED:
            start = (self.ubatch.pos0[rows] + 1) // spec.n_swa * spec.n_swa
            visible = visible & (self.cache.cells[stream].pos[: self.n_kv] >= start[:, None])
        return visible

    patch(KVView, "_stream_mask", mask)


@mutant("B028", memories=("iswa",), symptom="garbage once cells are out of order")
def window_by_cell(patch: Patches) -> None:
    """The window is a run of cell indices instead of positions."""

    def mask(right: Masks, self: KVView, stream: int, *args: Any) -> BoolArray:
        n_swa = self.cache.spec.n_swa
        if not n_swa:
            return right(self, stream, *args)
        visible = _as_if(right, self, (stream, *args), swa_type=SwaType.NONE, n_swa=0)
        own = self.slot.idxs[self.slot.strm.index(stream)]
        return visible & (np.arange(self.n_kv) > own[:, None] - n_swa)

    patch(KVView, "_stream_mask", mask)


@mutant("B076", memories=("kv",), symptom="patches of an image see patches that come after them")
def images_masked_by_time(patch: Patches) -> None:
    """The causal mask looks at one position and not at the place in an image."""

    def mask(right: Masks, *args: Any, **kwargs: Any) -> BoolArray:
        return right(*args, **{**kwargs, "cell_xy": None, "row_xy": None})

    patch(kv_view, "attention_mask", mask)


@mutant("B014", memories=("iswa",), symptom="a sequence passes for resumable where its window is gone")
def range_of_base(patch: Patches) -> None:
    """The smallest position that is reported is that of the cache without window."""
    patch.value(ISWACache, "positions", "base")
