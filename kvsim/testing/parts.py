"""The parts of a memory: what the ledger keeps of each, what a saved state holds, which belong together."""

from __future__ import annotations

from kvsim.caches.composite import CompositeMemory
from kvsim.caches.dsv4 import DSV4Cache
from kvsim.caches.iswa import WindowPair
from kvsim.caches.kv import KVCache
from kvsim.caches.recurrent import RecurrentMemory
from kvsim.ledger import AttentionPart, Part
from kvsim.ledger_states import Histories, StatePart
from kvsim.memory import Memory
from kvsim.models.params import RopeType


def parts_of(memory: Memory, histories: Histories) -> dict[str, Part]:
    """An empty ledger part for every leaf of a memory."""
    parts: dict[str, Part] = {}
    compressed = memory.compressed if isinstance(memory, DSV4Cache) else {}
    for name, leaf in memory.leaves().items():
        if isinstance(leaf, KVCache) and name not in compressed:
            spec = leaf.spec
            rotates = spec.rope_type is not RopeType.NONE
            parts[name] = AttentionPart(
                spec.swa_type, spec.n_swa, spec.n_stream > 1, rotates, spec.n_pos_per_embd >= 3
            )
        elif isinstance(leaf, RecurrentMemory):
            parts[name] = StatePart(histories)
    return parts


def state_leaves(memory: Memory, flags: int) -> list[str]:
    """The leaves that a saved state with these flags holds."""
    if isinstance(memory, DSV4Cache):
        return state_leaves(memory.raw, flags)
    if not isinstance(memory, CompositeMemory):
        return list(memory.leaves())
    return [leaf for _, part in memory.state_parts(flags) for leaf in state_leaves(part, flags)]


def window_pair(memory: Memory) -> tuple[str, str] | None:
    """The names of the cache that sees everything and of the window cache beside it, if there are such."""
    if isinstance(memory, WindowPair):
        return memory.full.name, memory.swa.name
    parts = memory.parts.values() if isinstance(memory, CompositeMemory) else ()
    return next((pair for part in parts if (pair := window_pair(part)) is not None), None)
