"""How a simulated server is set up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from kvsim.caches.factory import LeafFactory
from kvsim.caches.kv import KVCache
from kvsim.caches.recurrent import RecurrentMemory
from kvsim.errors import CacheUsageError
from kvsim.models.cache_spec import CacheSpec, LayerSpec, RecurrentSpec
from kvsim.models.cache_types import cache_type
from kvsim.models.context_params import ContextParams, ResolvedContext, resolve
from kvsim.models.params import ModelParams


@dataclass(frozen=True)
class ServerConfig:
    """A model, its context, and the server's own settings, named as llama-server names them.

    ``params.n_seq_max`` is ``--parallel``. ``slot_prompt_similarity``: a free slot that holds at least this
    part of the prompt is preferred. ``ctx_checkpoints`` 0 keeps none. ``ctx_shift``: a full conversation
    forgets its oldest tokens rather than end; ``n_keep`` of the first ones stay.
    """

    model: ModelParams
    params: ContextParams
    slot_prompt_similarity: float = 0.1
    ctx_shift: bool = False
    n_keep: int = 0
    cache_reuse: int = 0
    ctx_checkpoints: int = 32
    checkpoint_min_step: int = 8192

    def __post_init__(self) -> None:
        resolved = resolve(self.model, self.params)
        if resolved.n_batch < resolved.n_seq_max:
            raise CacheUsageError(
                f"n_batch = {resolved.n_batch} is less than the {resolved.n_seq_max} slots that may all "
                "generate at a time: raise n_batch, or serve fewer in parallel"
            )
        if not 0 <= self.slot_prompt_similarity <= 1:
            raise CacheUsageError(
                f"slot_prompt_similarity = {self.slot_prompt_similarity} is not between 0 and 1"
            )
        for name in ("cache_reuse", "ctx_checkpoints", "checkpoint_min_step"):
            if getattr(self, name) < 0:
                raise CacheUsageError(f"{name} = {getattr(self, name)} is negative")

    def with_params(self, **changes: Any) -> ServerConfig:
        """The same with other context parameters."""
        return replace(self, params=replace(self.params, **changes))


@dataclass(frozen=True)
class NarrowLeaves(LeafFactory):
    """Makes caches of the full number of cells whose rows are as narrow as rows get.

    A simulation keeps no rows, but states saved for checkpoints have as many bytes as the rows would take.
    With one narrow layer they hold the cells and next to nothing else.
    """

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
