"""Llama: RMS norm, rotated grouped-query attention, SwiGLU (``src/models/llama.cpp``)."""

from __future__ import annotations

from kvsim.memory import IntArray
from kvsim.models.layer_memory import LayerMemory
from kvsim.models.layers import Floats, HeadShapes, Weights, feed_forward
from kvsim.models.params import ModelParams


class Llama:
    def __init__(self, model: ModelParams, weights: Weights) -> None:
        self.model, self.weights = model, weights
        self.heads = HeadShapes(model, weights)

    def forward(self, tokens: IntArray | None, pos: IntArray, memory: LayerMemory) -> Floats:
        """Logits ``[token, n_vocab]`` of a ubatch."""
        w = self.weights
        x = w.embed(tokens)
        for il in range(self.model.n_layer):
            x = x + self._attention(il, w.norm(x, f"blk.{il}.attn_norm"), pos, memory)
            x = x + feed_forward(w, il, w.norm(x, f"blk.{il}.ffn_norm"))
        return w.logits(w.norm(x, "output_norm"))

    def _attention(self, il: int, x: Floats, pos: IntArray, memory: LayerMemory) -> Floats:
        q, k, v = self.heads.split(il, self.weights, x)
        q, k = self.heads.turn(il, q, pos), self.heads.turn(il, k, pos)
        out = memory.attend(il, q, k, v, scale=q.shape[-1] ** -0.5)
        return self.weights.linear(out.reshape(len(x), -1), f"blk.{il}.attn_output")
