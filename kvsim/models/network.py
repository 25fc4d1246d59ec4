"""From a model file to the network that a :class:`~kvsim.context.Context` computes with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim.batch import Ubatch
from kvsim.errors import ModelError
from kvsim.memory import IntArray, View
from kvsim.models.cached_rows import Watch
from kvsim.models.gemma2 import Gemma2
from kvsim.models.gguf_file import open_gguf
from kvsim.models.gguf_header import read_model
from kvsim.models.jamba import Jamba
from kvsim.models.layer_memory import CachedLayers, LayerMemory
from kvsim.models.layers import Floats, Weights
from kvsim.models.lfm2 import LFM2
from kvsim.models.llama import Llama
from kvsim.models.mamba import Mamba
from kvsim.models.params import ModelParams


class Model(Protocol):
    """A forward pass: logits ``[token, n_vocab]`` of a ubatch, by way of a memory."""

    def forward(self, tokens: IntArray | None, pos: IntArray, memory: LayerMemory) -> Floats: ...


MODELS: dict[str, Callable[[ModelParams, Weights], Model]] = {
    "llama": Llama,
    "gemma2": Gemma2,
    "mamba": Mamba,
    "mamba2": Mamba,
    "jamba": Jamba,
    "lfm2": LFM2,
}
"""Architectures whose forward pass exists."""


class CachedNetwork:
    """A model that reads and writes the caches of the context it runs in."""

    def __init__(self, model: Model, flash_attn: bool) -> None:
        self.model, self.flash_attn = model, flash_attn
        self.watch: Watch | None = None

    def run(self, ubatch: Ubatch, views: Mapping[str, View]) -> NDArray[np.float32]:
        """Logits ``float32[n_tokens, n_vocab]`` in the order of the ubatch."""
        memory = CachedLayers(ubatch, views, self.flash_attn, watch=self.watch)
        return self.model.forward(ubatch.tokens, ubatch.pos0, memory).astype(np.float32)


def load_network(path: str | Path, flash_attn: bool = False) -> tuple[ModelParams, CachedNetwork]:
    """A model file's parameters and network. Raises ModelError if the architecture has no forward pass."""
    params = read_model(path)
    if params.arch not in MODELS:
        known = ", ".join(MODELS)
        raise ModelError(f"{path}: no forward pass for {params.arch!r}; there is one for {known}")
    return params, CachedNetwork(MODELS[params.arch](params, Weights(open_gguf(path))), flash_attn)
