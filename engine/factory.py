"""Leaves on a device for kvsim's composites."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine.compressor import CompressorRing
from engine.kv import KVCache
from engine.recurrent import RecurrentMemory
from engine.recurrent_store import RecurrentStore
from engine.store import KVStore
from kvsim.caches.factory import LeafFactory
from kvsim.errors import CacheUsageError
from kvsim.models.cache_spec import CacheSpec, CompressorSpec, RecurrentSpec
from kvsim.models.context_params import ResolvedContext


@dataclass(frozen=True)
class EngineFactory(LeafFactory):
    """Makes the leaves on ``device``; the rest is as in kvsim's factory."""

    device: str = "cpu"

    def kv(self, name: str, spec: CacheSpec, ctx: ResolvedContext) -> KVCache:
        spec = replace(spec, size=self.sizes.get(name, spec.size))
        if self.contiguous:
            raise CacheUsageError(
                "the engine takes single cells, not runs of them: leave contiguous off, or use kvsim's "
                "LeafFactory"
            )
        device = torch.device(self.device)
        store = KVStore.of(spec, ctx, device) if self.data else None
        cache = KVCache(spec, name, store, device)
        cache.defrag = self.defrag
        return cache

    def ring(self, spec: CompressorSpec, kv_size: int) -> CompressorRing:
        return CompressorRing(spec, kv_size, self.data, torch.device(self.device))

    def recurrent(self, spec: RecurrentSpec) -> RecurrentMemory:
        device = torch.device(self.device)
        store = RecurrentStore(spec.size, spec.n_rs_seq, spec.layers, device) if self.data else None
        return RecurrentMemory(
            spec.size, spec.n_rs_seq, spec.layers, spec.n_seq_max, store=store, device=device
        )
