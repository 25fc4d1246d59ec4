"""From a specification to a memory. Leaves are made by a factory, so that other leaves (the engine's)
serve the same composites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvsim.caches.dsa import DSACache, DSAISWACache
from kvsim.caches.dsv4 import COMPRESSED, DSV4Cache
from kvsim.caches.dsv4_ring import CompressorRing
from kvsim.caches.hybrid import HybridISWA, HybridMemory
from kvsim.caches.hybrid_idx import HybridIdx
from kvsim.caches.iswa import ISWACache
from kvsim.caches.kv import KVCache
from kvsim.caches.msa import MSACache
from kvsim.caches.recurrent import RecurrentMemory
from kvsim.defrag import Defrag
from kvsim.memory import Memory
from kvsim.models.cache_spec import CacheSpec, CompressorSpec, MemorySpec, RecurrentSpec
from kvsim.models.context_params import ResolvedContext
from kvsim.models.memory_spec import memory_spec
from kvsim.models.params import ModelParams
from kvsim.tensors.recurrent_store import RecurrentStore
from kvsim.tensors.store import KVStore


@dataclass(frozen=True)
class LeafFactory:
    """Makes the leaves. ``data``: with rows behind the cells; without, only metadata is kept. ``sizes``:
    cells per stream of the caches named in it, where not those of the model (tests use tiny caches).
    ``defrag`` and ``contiguous``: the habits of old, see :class:`KVCache`."""

    data: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    defrag: Defrag | None = None
    contiguous: bool = False

    def kv(self, name: str, spec: CacheSpec, ctx: ResolvedContext) -> KVCache:
        spec = replace(spec, size=self.sizes.get(name, spec.size))
        cache = KVCache(spec, name, KVStore.of(spec, ctx) if self.data else None)
        cache.defrag, cache.contiguous = self.defrag, self.contiguous
        return cache

    def recurrent(self, spec: RecurrentSpec) -> RecurrentMemory:
        store = RecurrentStore(spec.size, spec.n_rs_seq, spec.layers) if self.data else None
        return RecurrentMemory(spec.size, spec.n_rs_seq, spec.layers, spec.n_seq_max, store=store)

    def ring(self, spec: CompressorSpec, kv_size: int) -> CompressorRing:
        return CompressorRing(spec, kv_size, self.data)


def create_memory(model: ModelParams, ctx: ResolvedContext, leaves: LeafFactory) -> Memory | None:
    """The memory of a context (``src/llama-model.cpp: create_memory``), None if the model keeps nothing."""
    spec = memory_spec(model, ctx)
    return None if spec is None else build(spec, model, ctx, leaves)


def build(spec: MemorySpec, model: ModelParams, ctx: ResolvedContext, leaves: LeafFactory) -> Memory:
    """Make the leaves of ``spec`` and put them together."""
    kv = {name: leaves.kv(name, cache, ctx) for name, cache in spec.caches.items()}
    unified = ctx.kv_unified
    if spec.kind == "kv":
        return kv["kv"]
    if spec.kind == "iswa":
        return ISWACache(kv["base"], kv["swa"], unified)
    if spec.kind == "dsa":
        return DSACache(kv["mla"], kv["lid"])
    if spec.kind == "dsa_iswa":
        return DSAISWACache(DSACache(kv["mla"], kv["lid"]), kv["swa"], unified)
    if spec.kind == "msa":
        return MSACache(kv["base"], kv["idx"])
    if spec.kind == "dsv4":
        compressed = {name: kv[name] for name in COMPRESSED}
        rings = {name: leaves.ring(spec.compressors[name], kv[name].size) for name in COMPRESSED}
        return DSV4Cache(ISWACache(kv["raw.base"], kv["raw.swa"], unified=False), compressed, rings)
    assert spec.recurrent is not None
    recurrent = leaves.recurrent(spec.recurrent)
    if spec.kind == "recurrent":
        return recurrent
    if spec.kind == "hybrid":
        return HybridMemory(kv["attn"], recurrent)
    if spec.kind == "hybrid_iswa":
        return HybridISWA(ISWACache(kv["base"], kv["swa"], unified), recurrent)
    if spec.kind == "hybrid_idx":
        kpool, by_order = model.indexer_kpool, model.indexer_kpool_by_order
        return HybridIdx(kv["attn"], recurrent, kv.get("idx"), kpool, by_order)
    raise ValueError(f"unknown memory kind {spec.kind!r}")
