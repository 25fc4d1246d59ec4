"""What a cache holds at one time, counted for a sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvsim import window
from kvsim.caches.kv import KVCache
from kvsim.models.params import SwaType
from kvsim.workload.account import CacheSample


def sample_cache(cache: KVCache, n_slots: int) -> CacheSample:
    """A cache as it is now. Sequences of a server have no gaps, so that ends tell counts."""
    live, passed = [0] * n_slots, [0] * n_slots
    for s in range(n_slots):
        lo, hi = cache.seq_pos_min(s), cache.seq_pos_max(s)
        if hi >= 0:
            live[s] = hi - lo + 1
        if hi >= 0 and cache.spec.swa_type is not SwaType.NONE:
            start = window.window_start(cache.spec.swa_type, cache.spec.n_swa, hi + 1)
            passed[s] = max(0, min(start - lo, live[s]))
    holes = _holes([table.pos == -1 for table in cache.cells])
    return CacheSample(
        used=sum(table.used for table in cache.cells),
        reclaimable=sum(passed),
        largest_hole=int(holes.max(initial=0)),
        holes=len(holes),
        live_by_slot=tuple(live),
        reclaimable_by_slot=tuple(passed),
    )


def _holes(free: Sequence[np.ndarray]) -> np.ndarray:
    """Lengths of the runs of free cells of all streams."""
    padded = np.zeros((len(free), len(free[0]) + 2), np.bool_)  # no run reaches from a stream to the next
    padded[:, 1:-1] = free
    flat = padded.ravel()
    edges = np.flatnonzero(flat[1:] != flat[:-1])
    return edges[1::2] - edges[::2]
