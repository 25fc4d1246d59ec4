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
from engine.recurrent import RecurrentMemory, RecurrentView
from kvsim.batch import Ubatch
from kvsim.errors import CacheUsageError
from kvsim.memory import View

Compute = Callable[[Mapping[str, Any]], Tensor]
"""What a model does with the views of the caches, by name."""


class RepeatedStep:
    """Places a ubatch in ``caches``, those of one memory, and computes with what it sees of them.

    The first call runs step by step, the second one captures. What is captured holds for one number of tokens
    in given streams, one ``n_kv`` of each cache and the sequences known by then; for others :meth:`key_of`
    differs and a step of its own is needed.
    """

    def __init__(self, caches: Mapping[str, KVCache | RecurrentMemory], compute: Compute) -> None:
        self.caches, self.compute = dict(caches), compute
        self.device = next(iter(self.caches.values())).device
        self.key: tuple[Any, ...] | None = None
        self._parts: dict[str, _Attention | _States] = {}
        self._graph: torch.cuda.CUDAGraph | None = None
        self._out: Tensor | None = None

    def key_of(self, slots: Mapping[str, Any], ubatch: Ubatch) -> tuple[Any, ...]:
        """What must repeat for a step to be replayed."""
        return tuple(
            _Attention.key(cache, slots[name])
            if isinstance(cache, KVCache)
            else _States.key(slots[name], ubatch)
            for name, cache in self.caches.items()
        )

    def __call__(self, slots: Mapping[str, Any], ubatch: Ubatch) -> Tensor:
        """Place the ubatch that was prepared in these slots and return the result; valid until the next
        call."""
        key = self.key_of(slots, ubatch)
        if self.key is None:
            self._begin(slots, ubatch)
            self.key = key
        if key != self.key:
            raise CacheUsageError(
                f"the step was made for {self.key}, this ubatch has {key}: make another one"
            )
        for name, part in self._parts.items():
            part.take(slots[name], ubatch)
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

    def _begin(self, slots: Mapping[str, Any], ubatch: Ubatch) -> None:
        for name, cache in self.caches.items():
            slot = slots[name]
            self._parts[name] = (
                _Attention(cache, slot) if isinstance(cache, KVCache) else _States(cache, slot, ubatch)
            )

    def _run(self) -> Tensor:
        return self.compute({name: part.run() for name, part in self._parts.items()})


class _Attention:
    """A cache, with the cells and tokens of the ubatch in buffers of their own."""

    def __init__(self, cache: KVCache, slot: DeviceSlot) -> None:
        self.cache = cache
        rows = replace(slot.rows, packed=slot.rows.packed.clone())
        self.fixed = replace(slot, flat=slot.flat.clone(), rows=rows, ends=None)

    @staticmethod
    def key(cache: KVCache, slot: DeviceSlot) -> tuple[Any, ...]:
        if cache.table.minus_one is not None:
            raise CacheUsageError(
                "cells at position -1 cannot be followed in a captured step: decode without one"
            )
        ids = tuple(tuple(sorted(known)) for known in cache.table.ids)
        return slot.strm, len(slot.flat), cache.n_kv_of(slot), slot.rows.one_sequence_per_part, ids

    def take(self, slot: DeviceSlot, ubatch: Ubatch) -> None:
        self.fixed.flat.copy_(slot.flat)
        self.fixed.rows.packed.copy_(slot.rows.packed)
        self.cache.note_applied(slot, ubatch)
        self.cache.note_placed(slot, self.cache.windowed)

    def run(self) -> View:
        cache, rows = self.cache, replace(self.fixed.rows)  # anew: what it derives is part of the step
        slot = replace(self.fixed, rows=rows)
        cache.write_cells(slot.flat, rows, slot.strm, cache.windowed, hi=cache.size)
        return KVView(cache, slot, rows.ubatch)


class _States:
    """A recurrent memory, with the positions of the ubatch in a buffer of their own."""

    def __init__(self, memory: RecurrentMemory, slot: tuple[int, int, int], ubatch: Ubatch) -> None:
        self.memory, self.slot, self.ubatch = memory, slot, ubatch
        self.fixed = memory.placement(ubatch)

    @staticmethod
    def key(slot: tuple[int, int, int], ubatch: Ubatch) -> tuple[Any, ...]:
        return slot, ubatch.n_seq_tokens, ubatch.seq_ids

    def take(self, slot: tuple[int, int, int], ubatch: Ubatch) -> None:
        self.fixed.last.copy_(self.memory.placement(ubatch).last)
        self.memory.note_applied(ubatch)

    def run(self) -> View:
        self.memory.cells.place(self.fixed)
        view = RecurrentView(self.memory, self.slot, self.ubatch)
        view.set_inputs()
        return view
