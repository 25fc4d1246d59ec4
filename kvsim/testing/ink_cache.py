"""Attention caches whose rows say who they are, looked at anew only where something changed.

Instead of keys, a row holds the number of the token instance it was made from and the position its key has
been turned for. So what attention reads can be compared exactly, and a row that was never written, is
stale, was zeroed or not turned is told apart from rounding.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvsim.caches.factory import LeafFactory
from kvsim.caches.kv import KVCache
from kvsim.errors import IntegrityError
from kvsim.memory import IntArray
from kvsim.models.cache_spec import CacheSpec
from kvsim.models.context_params import ResolvedContext
from kvsim.tensors.store import KVStore
from kvsim.testing.look import NOTHING, CacheLook, Held, look_at, no_ink, numbers_of, prove, together

INK_BYTES = 8
"""A key row begins with two int32: the instance and the position it is turned for."""


class InkStore(KVStore):
    """The real store, whose first layer's keys begin with ink. A turn of keys adds to the second number."""

    def __init__(self, spec: CacheSpec) -> None:
        super().__init__(spec.layers, spec.n_stream, spec.size, spec.v_trans)
        self._first = spec.layers[0].il
        if self.k[self._first].shape[-1] < INK_BYTES:
            raise ValueError(f"key rows of less than {INK_BYTES} bytes are too short for ink")
        self._look_at_rows()

    def _look_at_rows(self) -> None:
        self.ink: IntArray = self.k[self._first][..., :INK_BYTES].view(np.int32)
        self.instance, self.turned = self.ink[..., 0], self.ink[..., 1]

    def __deepcopy__(self, memo: dict[int, Any]) -> InkStore:
        """A copy looks at its own rows."""
        twin = copy.copy(self)
        twin.k, twin.v = copy.deepcopy(self.k, memo), copy.deepcopy(self.v, memo)
        twin._look_at_rows()
        return twin

    def apply_shift(self, shift: IntArray) -> None:
        self.turned += shift

    def write(self, rows: IntArray, instances: IntArray, pos: IntArray) -> None:
        """Ink tokens into rows counted over all streams."""
        ink = self.ink.reshape(-1, 2)  # no copy: the rows of all streams lie one behind the other
        ink[rows, 0] = instances
        ink[rows, 1] = pos


@dataclass(frozen=True)
class InkLeaves(LeafFactory):
    """Leaves with ink in their rows."""

    data: bool = True

    def kv(self, name: str, spec: CacheSpec, ctx: ResolvedContext) -> KVCache:
        spec = replace(spec, size=self.sizes.get(name, spec.size))
        return InkCache(spec, name, InkStore(spec) if spec.layers else None)


class InkCache(KVCache):
    """The reference's cache. Its pictures and the proof of its invariants cost what has changed: a stream
    in which no byte did is not looked at again. Both tell what the last :meth:`look` has seen."""

    def __init__(self, spec: CacheSpec, name: str, store: InkStore | None) -> None:
        super().__init__(spec, name, store)
        self._seen = CacheLook([NOTHING] * spec.n_stream)
        self._proved = self._seen
        self._lay_out()

    def __getstate__(self) -> dict[str, Any]:
        """A copy lays its own tables out."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_numbers", "_ink")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lay_out()

    def _lay_out(self) -> None:
        """Let the tables keep their numbers in one block each: to see that nothing has changed is then one
        comparison, not one for every kind of number. A table that went over to another array would be found by
        :meth:`check_everything`."""
        self._numbers = [numbers_of(table) for table in self.cells]
        for table, numbers in zip(self.cells, self._numbers, strict=True):
            table.pos, table.shift, table.tok, table.x, table.y = numbers
        has_ink = isinstance(self.store, InkStore)
        self._ink = list(self.store.ink) if has_ink else [no_ink(self.size)] * self.n_stream

    def look(self) -> CacheLook:
        """Look at every stream as it is now, with the rows that it will have once the queued copies have run. What
        has not changed stays the same object."""
        ink = self._ink
        if self.pending_copies:
            ink = list(ink)
            for src, dst in self.pending_copies:
                ink[dst] = ink[src]
        two_d = self.spec.n_pos_per_embd >= 3
        streams = [
            look_at(table, head, two_d, numbers, rows, before)
            for table, head, numbers, rows, before in zip(
                self.cells, self.heads, self._numbers, ink, self._seen.streams, strict=True
            )
        ]
        if streams != self._seen.streams:
            self._seen = CacheLook(streams)
        return self._seen

    def records(self) -> list[dict[str, Any]]:
        return self._seen.records

    def check_integrity(self) -> None:
        """The invariants of the streams that have changed."""
        if self._seen is self._proved:
            return
        for stream, (look, proved) in enumerate(zip(self._seen.streams, self._proved.streams, strict=True)):
            if look is not proved:
                try:
                    prove(self.cells[stream], look)
                except IntegrityError as err:
                    raise IntegrityError(f"cache {self.name!r}, stream {stream}: {err}") from err
            if not 0 <= self.heads[stream] <= self.size:
                raise IntegrityError(
                    f"cache {self.name!r}, stream {stream}: head {self.heads[stream]} is outside"
                )
        self._proved = self._seen

    def check_everything(self) -> None:
        """All invariants as the reference proves them, and all pictures as it makes them. Raises
        IntegrityError."""
        super().check_integrity()
        for stream, (record, look) in enumerate(zip(super().records(), self._seen.streams, strict=True)):
            if record != look.record:
                raise IntegrityError(
                    f"cache {self.name!r}, stream {stream}: it is {record}, but was seen as {look.record}"
                )


def cells_of(cache: KVCache) -> Held:
    """What the cells of a cache hold for every sequence."""
    if isinstance(cache, InkCache):
        return cache.look().held
    two_d, ink = cache.spec.n_pos_per_embd >= 3, no_ink(cache.size)
    return together([look_at(table, 0, two_d, numbers_of(table), ink) for table in cache.cells])
