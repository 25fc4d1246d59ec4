"""What a layer of a model needs of the memory, and how the caches give it.

A model computes a ubatch layer by layer and knows nothing of cells: an attention layer hands over the
queries, keys and values of the ubatch's tokens and gets back what they attend to; a recurrent layer asks
for the states of its sequences and hands over the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim.batch import Ubatch
from kvsim.caches.kv_view import KVView
from kvsim.caches.recurrent import RecurrentView
from kvsim.errors import CacheUsageError
from kvsim.memory import View
from kvsim.models.cached_rows import Watch, attend_rows, store_rows
from kvsim.tensors.recurrent_store import RecurrentStore

Floats = NDArray[np.floating[Any]]


class LayerMemory(Protocol):
    """The memory as a layer sees it, for one ubatch of ``n_seqs`` sets of ``n_seq_tokens`` tokens.

    ``n_planes`` is how many states of each sequence to hand over: the newest, and those some tokens
    before it that a rollback may ask for.
    """

    n_seqs: int
    n_seq_tokens: int
    n_planes: int

    def attend(self, il: int, q: Floats, k: Floats, v: Floats, scale: float, softcap: float = 0.0) -> Floats:
        """Store ``k`` and ``v [token, kv head, dim]``, and give what ``q [token, head, dim]`` attends to."""
        ...

    def states(self, il: int, part: str) -> Floats:
        """The states ``[n_seqs, width]`` the sequences start from; ``part`` is "r" or "s"."""
        ...

    def write_states(self, il: int, part: str, snapshots: Sequence[Floats]) -> None:
        """Store the newest states ``[n_seqs, ...]`` and, after it, older ones."""
        ...


class CachedLayers:
    """The caches of a memory, as the views of one ubatch show them. Their leaves must hold rows.

    Source: ``src/llama-graph.cpp: build_attn, build_rs``.
    """

    def __init__(
        self,
        ubatch: Ubatch,
        views: Mapping[str, View],
        flash_attn: bool,
        causal: bool = True,
        watch: Watch | None = None,
    ) -> None:
        self.n_seqs = ubatch.n_seqs
        self.n_seq_tokens = ubatch.n_seq_tokens
        self.flash_attn = flash_attn
        self.causal = causal
        self.watch = watch
        self._kv = [view for view in views.values() if isinstance(view, KVView)]
        self._recurrent = next((view for view in views.values() if isinstance(view, RecurrentView)), None)
        self.n_planes = 1 + (self._recurrent.memory.n_rs_seq if self._recurrent else 0)

    def attend(self, il: int, q: Floats, k: Floats, v: Floats, scale: float, softcap: float = 0.0) -> Floats:
        view = self._view_of(il)
        store_rows(view, il, k, v)
        mask = view.mask(self.causal)
        return attend_rows(
            view, il, q, mask, scale=scale, softcap=softcap, flash_attn=self.flash_attn, watch=self.watch
        )

    def _view_of(self, il: int) -> KVView:
        for view in self._kv:
            if il in view.cache.spec.map_layer_ids:
                return view
        raise CacheUsageError(f"no cache holds block {il}: the model and its memory do not fit together")

    def states(self, il: int, part: str) -> Floats:
        view, store = self._states()
        return store.initial_states(part, il, view.head, view.rs_z, view.s_copy, view.n_seqs)

    def write_states(self, il: int, part: str, snapshots: Sequence[Floats]) -> None:
        view, store = self._states()
        planes = np.stack([snapshot.reshape(view.n_seqs, -1) for snapshot in snapshots])
        store.write_states(part, il, view.head, planes.astype(np.float32))

    def _states(self) -> tuple[RecurrentView, RecurrentStore]:
        if self._recurrent is None or self._recurrent.memory.store is None:
            raise CacheUsageError("the memory keeps no recurrent states: make it with LeafFactory(data=True)")
        return self._recurrent, self._recurrent.memory.store
