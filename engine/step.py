"""A decode step whose shapes repeat: captured once as a CUDA graph, then replayed without the host in
between.

    prepare (one read-back) -> copy cells and tokens into fixed buffers -> replay: place, mask, attention, ...

On a CPU the same functions are called one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.kv import DeviceSlot, KVCache
from engine.kv_view import KVView
from kvsim.errors import CacheUsageError


class RepeatedStep:
    """Places a ubatch in ``caches``, the attention caches of one memory, and computes with what it sees of
    them: ``compute(views)`` gives the result.

    The first call runs step by step, the second one captures. What is captured holds for one number of tokens
    in given streams, one ``n_kv`` of each cache and the sequences known by then; for others :meth:`key_of`
    differs and a step of its own is needed.
    """

    def __init__(
        self, caches: Mapping[str, KVCache], compute: Callable[[Mapping[str, KVView]], Tensor]
    ) -> None:
        self.caches, self.compute = dict(caches), compute
        self.device = next(iter(self.caches.values())).device
        self.key: tuple[Any, ...] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._slots: dict[str, DeviceSlot] = {}
        self._out: Tensor | None = None

    def key_of(self, slots: Mapping[str, DeviceSlot]) -> tuple[Any, ...]:
        """What must repeat for a step to be replayed."""
        return tuple(_key(cache, slots[name]) for name, cache in self.caches.items())

    def __call__(self, slots: Mapping[str, DeviceSlot]) -> Tensor:
        """Place the ubatch that was prepared in these slots and return the result; valid until the next
        call."""
        key = self.key_of(slots)
        if self.key is None:
            self._begin(slots, key)
        if key != self.key:
            raise CacheUsageError(
                f"the step was made for {self.key}, this ubatch has {key}: make another one"
            )
        for name, cache in self.caches.items():
            slot, fixed = slots[name], self._slots[name]
            fixed.flat.copy_(slot.flat)
            fixed.rows.packed.copy_(slot.rows.packed)
            cache.note_applied(slot, slot.rows.ubatch)
            cache.note_placed(slot, cache.windowed)
        if self._graph is not None:
            self._graph.replay()
        elif self.device.type == "cuda" and self._out is not None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.device(self.device), torch.cuda.graph(self._graph):
                self._out = self._run()
            self._graph.replay()
        else:
            self._out = self._run()
        assert self._out is not None
        return self._out

    def _begin(self, slots: Mapping[str, DeviceSlot], key: tuple[Any, ...]) -> None:
        if any(cache.table.minus_one is not None for cache in self.caches.values()):
            raise CacheUsageError(
                "cells at position -1 cannot be followed in a captured step: decode without one"
            )
        self.key = key
        for name in self.caches:
            slot = slots[name]
            rows = replace(slot.rows, packed=slot.rows.packed.clone())
            self._slots[name] = replace(slot, flat=slot.flat.clone(), rows=rows, ends=None)

    def _run(self) -> Tensor:
        views = {}
        for name, cache in self.caches.items():
            fixed = self._slots[name]
            rows = replace(fixed.rows)  # anew: what it derives from its buffer is part of the step
            slot = replace(fixed, rows=rows)
            cache.write_cells(slot.flat, rows, slot.strm, cache.windowed, hi=cache.size)
            views[name] = KVView(cache, slot, rows.ubatch)
        return self.compute(views)


def _key(cache: KVCache, slot: DeviceSlot) -> tuple[Any, ...]:
    ids = tuple(tuple(sorted(known)) for known in cache.table.ids)
    rows = slot.rows
    return slot.strm, len(slot.flat), cache.n_kv_of(slot), rows.one_sequence_per_part, ids
