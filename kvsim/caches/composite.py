"""Composites: named parts and one policy. The broadcasting lives here, once.

A member of the family says which parts it has, how a batch is split, in which order slots are looked
for, whose positions count, and what a saved state holds. Everything else follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from kvsim.batch import BatchAllocator, Ubatch
from kvsim.caches.attention_leaf import AttentionLeaf
from kvsim.errors import StateError
from kvsim.events import Event
from kvsim.memory import (
    BatchContext,
    FailedContext,
    Leaf,
    Memory,
    MemoryContext,
    PrepareFailure,
    UpdateContext,
)
from kvsim.state import PARTIAL_ONLY, StateReader, StateWriter

Split = Callable[[], Ubatch | None]


class CompositeMemory(Memory):
    """A memory made of parts, visited in the order they are given.

    ``positions`` names the part whose positions count for the whole. ``not_in_partial`` are the parts
    that a PARTIAL_ONLY state leaves out. ``alike`` are two leaves whose cells correspond, though each looks
    for its own slots. ``undoes_restore``: if a later part fails to restore, the
    parts read before it drop the sequence; where llama.cpp doesn't, a hazard says so.
    """

    positions: str
    alike: tuple[str, str] | None = None
    not_in_partial: frozenset[str] = frozenset()
    undoes_restore = False

    def __init__(self, parts: Mapping[str, Memory], n_seq_max: int) -> None:
        self.parts = dict(parts)
        self.n_seq_max = n_seq_max

    @cached_property
    def _leaves(self) -> dict[str, Leaf]:
        return {name: leaf for part in self.parts.values() for name, leaf in part.leaves().items()}

    def leaves(self) -> dict[str, Leaf]:
        return self._leaves

    # -- preparing changes ---------------------------------------------------------------------

    def splits(self, batch: BatchAllocator, n_ubatch: int, output_all: bool) -> Iterator[Split]:
        """The ways to split a batch, in the order they are tried."""
        raise NotImplementedError

    def prepare_order(self) -> Sequence[str]:
        """Leaf names in the order in which slots are looked for."""
        return list(self.leaves())

    def mirrored(self) -> Mapping[str, str]:
        """Leaves that take the slots of another one instead of looking for their own."""
        return {}

    def init_batch(self, batch: BatchAllocator, n_ubatch: int, output_all: bool = False) -> MemoryContext:
        """Try the splits one after the other until every part finds room for all ubatches."""
        failure: PrepareFailure | None = None
        for split in self.splits(batch, n_ubatch, output_all):
            ubatches = batch.split_all(split)
            if ubatches is None:
                continue
            slots = self._prepare(ubatches)
            if isinstance(slots, dict):
                self._compare_slots(slots)
                return self.batch_context(ubatches, slots)
            failure = slots
        return FailedContext(failure)

    def batch_context(self, ubatches: Sequence[Ubatch], slots: Mapping[str, Sequence[Any]]) -> MemoryContext:
        return BatchContext(ubatches, self.leaves(), slots)

    def _prepare(self, ubatches: Sequence[Ubatch]) -> dict[str, list[Any]] | PrepareFailure | None:
        """Slots for every leaf, or why one refused. Earlier leaves have then looked, later ones not."""
        leaves, order = self.leaves(), self.prepare_order()
        found = leaves[order[0]].prepare_all([leaves[name] for name in order], ubatches)
        if not isinstance(found, list):
            return found
        slots = dict(zip(order, found, strict=True))
        for name, source in self.mirrored().items():
            slots[name] = slots[source]
        return slots

    def _compare_slots(self, slots: Mapping[str, Sequence[Any]]) -> None:
        """Tell an observer if two leaves that should be alike take different cells."""
        if self.observer is None or self.alike is None:
            return
        one, other = ([slot.to_json() for slot in slots[name]] for name in self.alike)
        if one != other:
            self.hazard("indexer-slots-diverge")

    def init_update(self, optimize: bool = False) -> UpdateContext:
        """All parts' pending work. Nothing is taken if one of them must refuse."""
        leaves = self.leaves().values()
        for leaf in leaves:
            leaf.check_update()
        return UpdateContext([leaf.take_update(optimize) for leaf in leaves])

    # -- sequence operations: to every part, in order ------------------------------------------

    def clear(self, data: bool) -> None:
        for part in self.parts.values():
            part.clear(data)

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        done = [part.seq_rm(seq, p0, p1) for part in self.parts.values()]  # every part, whatever one says
        return all(done)

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        for part in self.parts.values():
            part.seq_cp(src, dst, p0, p1)

    def seq_keep(self, seq: int) -> None:
        for part in self.parts.values():
            part.seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        for part in self.parts.values():
            part.seq_add(seq, p0, p1, delta)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        for part in self.parts.values():
            part.seq_div(seq, p0, p1, d)

    def seq_pos_min(self, seq: int) -> int:
        return self.parts[self.positions].seq_pos_min(seq)

    def seq_pos_max(self, seq: int) -> int:
        return self.parts[self.positions].seq_pos_max(seq)

    def seq_range(self, seq: int) -> tuple[int, int]:
        return self.parts[self.positions].seq_range(seq)

    @property
    def can_shift(self) -> bool:
        """All attention caches can, and are of one size."""
        caches = [leaf for leaf in self.leaves().values() if isinstance(leaf, AttentionLeaf)]
        return all(cache.can_shift for cache in caches) and len({cache.size for cache in caches}) == 1

    # -- saved states --------------------------------------------------------------------------

    def state_parts(self, flags: int) -> list[tuple[str, Memory]]:
        """The parts a state with these flags holds, in order."""
        left_out = self.not_in_partial if flags & PARTIAL_ONLY else frozenset()
        return [(name, part) for name, part in self.parts.items() if name not in left_out]

    def state_write(self, io: StateWriter, seq: int = -1, flags: int = 0) -> None:
        for _, part in self.state_parts(flags):
            part.state_write(io, seq, flags)

    def state_read(self, io: StateReader, seq: int = -1, flags: int = 0) -> None:
        done: list[tuple[str, Memory]] = []
        for name, part in self.state_parts(flags):
            try:
                part.state_read(io, seq, flags)
            except StateError:
                self._after_failed_restore(done, name, seq)
                raise
            done.append((name, part))

    def _after_failed_restore(self, done: Sequence[tuple[str, Memory]], failed: str, seq: int) -> None:
        if self.undoes_restore:
            for _, part in done:
                for leaf in part.leaves().values():
                    if isinstance(leaf, AttentionLeaf):
                        leaf.drop_sequence(seq)
            if done:
                self.hazard("failed-restore-loses-sequence", seq=seq)
        if not self.undoes_restore and done:
            self.hazard("half-restored", restored=[name for name, _ in done], failed=failed, seq=seq)
        elif len(self.parts) > len(done) + 1:
            untouched = [name for name in self.parts if name != failed and name not in dict(done)]
            self.hazard("half-restored", restored=[], failed=failed, untouched=untouched, seq=seq)

    # -- pictures, proof -----------------------------------------------------------------------

    def memory_breakdown(self) -> dict[str, int]:
        return {
            f"{name}.{tensor}": n
            for name, leaf in self.leaves().items()
            for tensor, n in leaf.memory_breakdown().items()
        }

    def check_integrity(self) -> None:
        for part in self.parts.values():
            part.check_integrity()

    def hazard(self, hazard: str, **detail: Any) -> None:
        if self.observer is not None:
            self.observer(Event("hazard", self.kind, detail={"id": hazard, **detail}))

    def observe(self, observer: Any) -> None:
        super().observe(observer)
        for part in self.parts.values():
            part.observe(observer)
