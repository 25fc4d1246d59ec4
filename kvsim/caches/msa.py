"""Block-sparse attention: K and V beside indexer keys (``src/llama-kv-cache-msa.cpp``).

Selection happens over *positions*: blocks of consecutive positions are scored through a map from
positions to cells, so that the order of cells does not matter (tensors/msa_select.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.batch import BatchAllocator
from kvsim.caches.attention_leaf import AttentionLeaf
from kvsim.caches.composite import CompositeMemory, Split
from kvsim.caches.dsa import stream_split


class MSACache(CompositeMemory):
    """Parts ``base`` (K and V) and ``idx`` (one indexer key per token). Slots are looked for independently;
    a failed restore is not undone in the other part (M3)."""

    kind = "msa"
    positions = "base"
    alike = ("base", "idx")

    def __init__(self, base: AttentionLeaf, idx: AttentionLeaf) -> None:
        super().__init__({"base": base, "idx": idx}, base.n_seq_max)
        self.base = base
        self.idx = idx
        idx.has_mask = False
        one_sequence_a_stream = base.n_stream > 1 or base.n_seq_max == 1
        if one_sequence_a_stream and not base.spec.v_trans:  # else attention is dense, without blocks
            base.block_indexed = True
        base.together = idx.together = (base, idx)

    def splits(self, batch: BatchAllocator, n_ubatch: int, output_all: bool) -> Iterator[Split]:
        yield stream_split(batch, n_ubatch, self.base.n_stream)
