"""The memory family on a device: the interfaces of kvsim, cells and rows as torch tensors.

:class:`EngineFactory` makes the leaves; kvsim's composites, batches and decode loop work with them unchanged.
What the two have in common is the interface, never an algorithm, so that each can be held against the other.

::

    sync           the two doors between host and device: everything that is read back is counted
    rows, cells, index      tokens of a ubatch; cell tables and the operations on them; cells at position -1
    prepare, kv, kv_view, mask, kv_state, defrag     the attention cache
    recurrent*     states, one cell per sequence
    dsv4_plan, compressor     DeepSeek-V4's rings and what one ubatch does with them
    pool_layout, kpool, indexer     what sparse members select
    codecs, rope, store, attention     rows: types, rotations, K-shift, what a graph reads
    step           a decode step whose shapes repeat, as one CUDA graph over all caches of a memory
    bench, gpu_check     beside numpy, transformers and llama.cpp on a CPU; beside plain copies on a GPU
"""

from engine.factory import EngineFactory
from engine.kv import KVCache
from engine.recurrent import RecurrentMemory

__all__ = ["EngineFactory", "KVCache", "RecurrentMemory"]
