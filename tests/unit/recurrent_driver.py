"""Drives a recurrent memory by itself: decode some sequences, look at the cells."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.batch import Batch, BatchAllocator
from kvsim.caches.recurrent import RecurrentMemory, RecurrentView
from kvsim.tensors.recurrent_store import RecurrentStore

LAYERS = [(2, 3, 0), (0, 0, 0), (2, 3, 1)]
"""Row widths (r, s, p) of a small model: the layer in the middle keeps no state."""


def memory_of(size: int, n_rs_seq: int = 0, store: bool = False) -> RecurrentMemory:
    held = RecurrentStore(size, n_rs_seq, LAYERS) if store else None
    return RecurrentMemory(size, n_rs_seq, LAYERS, size, store=held)


def decode(
    memory: RecurrentMemory, *sets: int | Sequence[int], n: int = 1, start: int | None = None
) -> RecurrentView:
    """Decode ``n`` tokens of each set (a sequence, or several that share them), in one ubatch."""
    parts = [Batch.tokens_of(ids, [7] * n, start) for ids in sets]
    batch = BatchAllocator(1, memory.n_seq_max)
    batch.init(Batch.joined(*parts), memory if start is None else None)
    ubatches = batch.split_all(lambda: batch.split_equal(1000, sequential=False))
    assert ubatches is not None
    assert len(ubatches) == 1
    slots = memory.prepare(ubatches)
    assert slots is not None
    view = memory.apply_ubatch(slots[0], ubatches[0])
    view.set_inputs()
    memory.check_integrity()
    return view


def owners(memory: RecurrentMemory) -> list[list[int]]:
    """Per cell its sequences."""
    return [cell[5] for cell in memory.record()["cells"]]


def positions(memory: RecurrentMemory) -> list[int]:
    """Per sequence the position of its state."""
    return [memory.seq_pos_max(seq) for seq in range(memory.n_seq_max)]
