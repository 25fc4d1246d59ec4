"""A cache over another cache's cells (``mem_other``, kv_cache.md 10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvsim.batch import Ubatch
from kvsim.caches.kv import KVCache, Purged
from kvsim.defrag import StreamMoves
from kvsim.memory import SlotInfo
from kvsim.models.cache_spec import CacheSpec
from kvsim.state import StateReader, StateWriter


class SharedKVCache(KVCache):
    """A cache that looks at another one's cells (``mem_other``): the draft of a speculative decode.

    It has the source's size and rows. Slots are searched on the shared table, but nothing is ever
    written through it: sequence operations, placements, updates and states are silently skipped.
    """

    def __init__(self, spec: CacheSpec, source: KVCache, name: str = "kv") -> None:
        super().__init__(replace(spec, size=source.size), name, source.store)
        self.source = source
        self.cells = source.cells

    def _place(self, slot: SlotInfo, ubatch: Ubatch, trial: bool = False) -> Purged:
        return {}

    def check_update(self) -> None:
        pass

    def _update(self, copies: Sequence[tuple[int, int]], shift: bool, moves: Sequence[StreamMoves]) -> None:
        pass

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        return True

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        pass

    def seq_keep(self, seq: int) -> None:
        pass

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        pass

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        pass

    def seq_pos_min(self, seq: int) -> int:
        return self.source.seq_pos_min(seq)

    def seq_pos_max(self, seq: int) -> int:
        return self.source.seq_pos_max(seq)

    def seq_range(self, seq: int) -> tuple[int, int]:
        return self.source.seq_range(seq)

    def state_write(self, io: StateWriter, seq: int = -1, flags: int = 0) -> None:
        pass

    def state_read(self, io: StateReader, seq: int = -1, flags: int = 0) -> None:
        pass

    def memory_breakdown(self) -> dict[str, int]:
        return {}
