"""Whether the cells an indexer selects exist in the attention cache.

The indexer scores the first ``n_kv`` cells of ``lid`` and its selection is applied to those of ``mla``
(``src/llama-graph.cpp: build_attn``, with indexer). Nothing keeps the two tables equal. After a restore that
failed half-way ``lid`` may reach further, and a selected cell then lies outside::

    mla   n_kv 256      [..............]
    lid   n_kv 512      [..............|.....x........]     x selected: no such row in mla's mask
"""

from __future__ import annotations

from kvsim.batch import BatchAllocator
from kvsim.caches.attention_leaf import AttentionLeaf, AttentionView
from kvsim.caches.composite import CompositeMemory
from kvsim.errors import CacheUsageError
from kvsim.memory import MemoryStatus


def check_selection(
    memory: CompositeMemory, mla: str, lid: str, batch: BatchAllocator, n_ubatch: int, output_all: bool
) -> None:
    """Raise CacheUsageError if the selection of some ubatch could lie outside of ``mla``.

    Caches that are read as a whole agree, and equal tables find equal slots; only otherwise is the batch placed,
    on a copy.
    """
    leaves = memory.leaves()
    attention, index = leaves[mla], leaves[lid]
    assert isinstance(attention, AttentionLeaf)
    assert isinstance(index, AttentionLeaf)
    if index.size <= min(attention.size, attention.n_kv_step) or attention.same_cells(index):
        return
    trial = memory.copy_metadata()
    prepared = trial.init_batch(batch, n_ubatch, output_all)
    more, i = prepared.status is MemoryStatus.SUCCESS, 0
    while more:
        prepared.apply()
        n_mla, n_lid = (_n_kv(prepared.views[name]) for name in (mla, lid))
        if n_lid > n_mla:
            raise CacheUsageError(
                f"in ubatch {i + 1} the indexer would select among {n_lid} cells of {lid!r}, but {mla!r} "
                f"then has {n_mla}: the two caches disagree, as after a restore that failed half-way. "
                f"llama.cpp may abort. Clear the memory, or remove what was restored, before decoding"
            )
        more, i = prepared.next(), i + 1


def _n_kv(view: object) -> int:
    assert isinstance(view, AttentionView)
    return view.n_kv
