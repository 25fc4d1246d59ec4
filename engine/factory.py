"""Leaves on a device for kvsim's composites."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine.kv import KVCache
from kvsim.caches.factory import LeafFactory
from kvsim.models.cache_spec import CacheSpec
from kvsim.models.context_params import ResolvedContext


@dataclass(frozen=True)
class EngineFactory(LeafFactory):
    """Makes the leaves on ``device``; the rest is as in kvsim's factory."""

    device: str = "cpu"

    def kv(self, name: str, spec: CacheSpec, ctx: ResolvedContext) -> KVCache:
        spec = replace(spec, size=self.sizes.get(name, spec.size))
        return KVCache(spec, name, None, torch.device(self.device))
