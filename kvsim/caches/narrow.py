"""Caches of the full number of cells whose rows are as narrow as rows get.

A simulation keeps no rows, but states saved for checkpoints have as many bytes as the rows would take. With one
narrow layer they hold the cells and next to nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvsim.caches.factory import LeafFactory
from kvsim.caches.kv import KVCache
from kvsim.caches.recurrent import RecurrentMemory
from kvsim.models.cache_spec import CacheSpec, LayerSpec, RecurrentSpec
from kvsim.models.cache_types import cache_type
from kvsim.models.context_params import ResolvedContext


@dataclass(frozen=True)
class NarrowLeaves(LeafFactory):
    """Makes such caches."""

    sizes: dict[str, int] = field(default_factory=dict)

    def kv(self, name: str, spec: CacheSpec, ctx: ResolvedContext) -> KVCache:
        layers = tuple(_narrow(layer) for layer in spec.layers[:1])
        reads = dict.fromkeys(spec.map_layer_ids, 0) if layers else spec.map_layer_ids
        return super().kv(name, replace(spec, layers=layers, map_layer_ids=reads), ctx)

    def recurrent(self, spec: RecurrentSpec) -> RecurrentMemory:
        layers = tuple((min(r, 1), min(s, 1), min(p, 1)) for r, s, p in spec.layers)
        return super().recurrent(replace(spec, layers=layers))


def _narrow(layer: LayerSpec) -> LayerSpec:
    f16 = cache_type("f16")
    width = max(1, layer.n_head_kv)
    has_v = layer.v is not None
    return replace(
        layer, k=f16, n_embd_k=width, v=f16 if has_v else None,
        n_embd_v=width * has_v, n_embd_v_own=width * has_v,
    )  # fmt: skip
