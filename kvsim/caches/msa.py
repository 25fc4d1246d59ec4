"""Block-sparse attention: K and V beside indexer keys (``src/llama-kv-cache-msa.cpp``).

Selection happens over *positions*: blocks of consecutive positions are scored through a map from
positions to cells, so that the order of cells does not matter (tensors/msa_select.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvsim.batch import BatchAllocator
from kvsim.caches.composite import CompositeMemory, Split
from kvsim.caches.dsa import stream_split
from kvsim.caches.kv import KVCache
from kvsim.caches.kv_view import KVView


class BlockIndexedView(KVView):
    """A base cache whose positions are indexed in blocks: the graph is bound to how far positions go, in any
    sequence of the cache (``src/models/minimax-m3.cpp``)."""

    def reuse_key(self) -> dict[str, Any]:
        pad = max(self.cache.spec.n_pad, 256)
        end = 1 + max(self.cache.seq_pos_max(s) for s in range(self.cache.n_seq_max))
        return {**super().reuse_key(), "n_pos": max(pad, -(-end // pad) * pad)}


class MSACache(CompositeMemory):
    """Parts ``base`` (K and V) and ``idx`` (one indexer key per token). Slots are looked for independently;
    a failed restore is not undone in the other part (M3)."""

    kind = "msa"
    positions = "base"

    def __init__(self, base: KVCache, idx: KVCache) -> None:
        super().__init__({"base": base, "idx": idx}, base.n_seq_max)
        self.base = base
        self.idx = idx
        idx.has_mask = False
        one_sequence_a_stream = base.n_stream > 1 or base.n_seq_max == 1
        if one_sequence_a_stream and not base.spec.v_trans:  # else attention is dense, without blocks
            base.view = BlockIndexedView
        base.together = idx.together = (base, idx)

    def splits(self, batch: BatchAllocator, n_ubatch: int, output_all: bool) -> Iterator[Split]:
        yield stream_split(batch, n_ubatch, self.base.n_stream)
