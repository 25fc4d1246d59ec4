"""Sparse attention with a lightning indexer: latent K rows beside indexer keys
(``src/llama-kv-cache-dsa.cpp``, ``src/llama-kv-cache-dsa-iswa.cpp``).

The indexer selects cells of ``lid``, and the selection is applied to cells of ``mla``: that is right
only while the two tables are equal, and nothing enforces it::

    mla   0 0 1 . 1        lid   0 0 1 . 1        selected {0, 2}: the same cells in both
"""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.batch import BatchAllocator
from kvsim.caches.attention_leaf import AttentionLeaf
from kvsim.caches.composite import CompositeMemory, Split
from kvsim.caches.dsa_selection import check_selection
from kvsim.caches.iswa import WindowPair


class DSACache(CompositeMemory):
    """Parts ``mla`` (latent rows, no V) and ``lid`` (indexer keys). Slots are looked for independently.

    A state that fails in ``lid`` takes the sequence out of ``mla`` too; one that fails in ``mla``
    leaves the old cells in ``lid`` (D4).
    """

    kind = "dsa"
    positions = "mla"
    alike = ("mla", "lid")
    undoes_restore = True

    def __init__(self, mla: AttentionLeaf, lid: AttentionLeaf) -> None:
        super().__init__({"mla": mla, "lid": lid}, mla.n_seq_max)
        self.mla = mla
        self.lid = lid
        lid.has_mask = False
        mla.together = lid.together = (mla, lid)

    def splits(self, batch: BatchAllocator, n_ubatch: int, output_all: bool) -> Iterator[Split]:
        yield stream_split(batch, n_ubatch, self.mla.n_stream)

    def check_batch(self, batch: BatchAllocator, n_ubatch: int, output_all: bool) -> None:
        """Refuse what could select cells that ``mla`` does not have."""
        check_selection(self, "mla", "lid", batch, n_ubatch, output_all)


def stream_split(batch: BatchAllocator, n_ubatch: int, n_stream: int) -> Split:
    """One stream takes the simple split, several take equal ones of consecutive sequences."""
    if n_stream == 1:
        return lambda: batch.split_simple(n_ubatch)
    return lambda: batch.split_equal(n_ubatch, sequential=True)


class DSAISWACache(WindowPair):
    """A DSA cache for the layers without window and a window cache for the others (Dots3Note)."""

    kind = "dsa_iswa"
    positions = "swa"
    alike = ("mla", "lid")
    not_in_partial = frozenset({"dsa"})

    def __init__(self, dsa: DSACache, swa: AttentionLeaf, unified: bool) -> None:
        super().__init__({"dsa": dsa, "swa": swa}, swa.n_seq_max)
        self.dsa = dsa
        self.full = dsa.mla
        self.swa = swa
        self.unified = unified

    def check_batch(self, batch: BatchAllocator, n_ubatch: int, output_all: bool) -> None:
        check_selection(self, "mla", "lid", batch, n_ubatch, output_all)
