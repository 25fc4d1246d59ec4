"""Jamba: Mamba blocks, and attention without rope in some (``src/models/jamba.cpp``)."""

from __future__ import annotations

from kvsim.memory import IntArray
from kvsim.models.layer_memory import LayerMemory
from kvsim.models.layers import Floats, HeadShapes, Weights, feed_forward
from kvsim.models.mamba import mamba_mixer
from kvsim.models.params import ModelParams


class Jamba:
    def __init__(self, model: ModelParams, weights: Weights) -> None:
        self.model, self.weights = model, weights
        self.heads = HeadShapes(model, weights)

    def forward(self, tokens: IntArray | None, pos: IntArray, memory: LayerMemory) -> Floats:
        """Logits ``[token, n_vocab]`` of a ubatch; only masks know of positions."""
        w = self.weights
        x = w.embed(tokens)
        for il, layer in enumerate(self.model.layers):
            mixed = w.norm(x, f"blk.{il}.attn_norm")
            x = x + (
                mamba_mixer(w, il, mixed, memory) if layer.is_recr else self._attention(il, mixed, memory)
            )
            x = x + feed_forward(w, il, w.norm(x, f"blk.{il}.ffn_norm"))
        return w.logits(w.norm(x, "output_norm"))

    def _attention(self, il: int, x: Floats, memory: LayerMemory) -> Floats:
        q, k, v = self.heads.split(il, self.weights, x)
        out = memory.attend(il, q, k, v, scale=q.shape[-1] ** -0.5)
        return self.weights.linear(out.reshape(len(x), -1), f"blk.{il}.attn_output")
