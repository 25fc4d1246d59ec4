"""How a simulated server is set up."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import CacheUsageError
from kvsim.models.context_params import ContextParams, resolve
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
        for name in ("n_keep", "cache_reuse", "ctx_checkpoints", "checkpoint_min_step"):
            if getattr(self, name) < 0:
                raise CacheUsageError(f"{name} = {getattr(self, name)} is negative")
