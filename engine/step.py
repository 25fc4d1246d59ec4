"""A decode step whose shapes repeat: captured once as a CUDA graph, then replayed without the host in
between.

    prepare (one read-back) -> copy cells and tokens into fixed buffers -> replay: place, mask, attention, ...

On a CPU the same functions are called one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.kv import DeviceSlot, KVCache
from engine.kv_view import KVView
from kvsim.errors import CacheUsageError


class RepeatedStep:
    """Places a ubatch in ``cache`` and computes with what it sees: ``compute(view)`` gives the result.

    The first call runs step by step, the second one captures. What is captured holds for one number of tokens
    in given streams, one ``n_kv`` and the sequences known by then; for others :attr:`key` differs and a step
    of its own is needed.
    """

    def __init__(self, cache: KVCache, compute: Callable[[KVView], Tensor]) -> None:
        self.cache, self.compute = cache, compute
        self.key: tuple[Any, ...] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._slot: DeviceSlot | None = None
        self._out: Tensor | None = None

    def key_of(self, slot: DeviceSlot) -> tuple[Any, ...]:
        """What must repeat for a step to be replayed."""
        ids = tuple(tuple(sorted(known)) for known in self.cache.table.ids)
        rows = slot.rows
        return slot.strm, len(slot.flat), self.cache.n_kv_of(slot), rows.one_sequence_per_part, ids

    def __call__(self, slot: DeviceSlot) -> Tensor:
        """Place the prepared ubatch and return the result; valid until the next call."""
        key = self.key_of(slot)
        if self.key is None:
            self._begin(slot, key)
        if key != self.key or self._slot is None:
            raise CacheUsageError(
                f"the step was made for {self.key}, this ubatch has {key}: make another one"
            )
        self._slot.flat.copy_(slot.flat)
        self._slot.rows.packed.copy_(slot.rows.packed)
        self.cache.note_applied(slot, slot.rows.ubatch)
        self.cache.note_placed(slot, self.cache.windowed)
        if self._graph is not None:
            self._graph.replay()
        elif self.cache.device.type == "cuda" and self._out is not None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.device(self.cache.device), torch.cuda.graph(self._graph):
                self._out = self._run()
            self._graph.replay()
        else:
            self._out = self._run()
        assert self._out is not None
        return self._out

    def _begin(self, slot: DeviceSlot, key: tuple[Any, ...]) -> None:
        if self.cache.table.minus_one is not None:
            raise CacheUsageError(
                "cells at position -1 cannot be followed in a captured step: decode without one"
            )
        self.key = key
        rows = replace(slot.rows, packed=slot.rows.packed.clone())
        self._slot = replace(slot, flat=slot.flat.clone(), rows=rows, ends=None)

    def _run(self) -> Tensor:
        assert self._slot is not None
        rows = replace(self._slot.rows)  # anew: what it derives from its buffer is part of the step
        slot = replace(self._slot, rows=rows)
        self.cache.write_cells(slot.flat, rows, slot.strm, self.cache.windowed, hi=self.cache.size)
        return self.compute(KVView(self.cache, slot, rows.ubatch))
