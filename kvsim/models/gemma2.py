"""Gemma 2: norms before and after, soft-capped scores and logits, windows in every other block
(``src/models/gemma2.cpp``)."""

from __future__ import annotations

import numpy as np

from kvsim.memory import IntArray
from kvsim.models.layer_memory import LayerMemory
from kvsim.models.layers import Floats, HeadShapes, Weights, gelu_tanh
from kvsim.models.params import ModelParams

LAYERS_27B = 46
"""The largest Gemma 2 scales its queries by the width of the model instead of a head's."""


class Gemma2:
    def __init__(self, model: ModelParams, weights: Weights) -> None:
        self.model, self.weights = model, weights
        self.heads = HeadShapes(model, weights)
        self.score_cap = weights.meta.number("attn_logit_softcapping", 50.0)
        self.logit_cap = weights.meta.number("final_logit_softcapping", 30.0)

    def forward(self, tokens: IntArray | None, pos: IntArray, memory: LayerMemory) -> Floats:
        """Logits ``[token, n_vocab]`` of a ubatch."""
        w = self.weights
        x = w.embed(tokens) * np.sqrt(self.model.n_embd)
        for il in range(self.model.n_layer):
            block = f"blk.{il}"
            out = self._attention(il, w.norm(x, f"{block}.attn_norm"), pos, memory)
            x = x + w.norm(out, f"{block}.post_attention_norm")
            out = self._feed_forward(il, w.norm(x, f"{block}.ffn_norm"))
            x = x + w.norm(out, f"{block}.post_ffw_norm")
        logits: Floats = np.tanh(w.logits(w.norm(x, "output_norm")) / self.logit_cap)
        return self.logit_cap * logits

    def _attention(self, il: int, x: Floats, pos: IntArray, memory: LayerMemory) -> Floats:
        q, k, v = self.heads.split(il, self.weights, x)
        width = self.model.n_embd / q.shape[1] if self.model.n_layer == LAYERS_27B else q.shape[-1]
        q, k = self.heads.turn(il, q, pos) * width**-0.5, self.heads.turn(il, k, pos)
        out = memory.attend(il, q, k, v, scale=1.0, softcap=self.score_cap)
        return self.weights.linear(out.reshape(len(x), -1), f"blk.{il}.attn_output")

    def _feed_forward(self, il: int, x: Floats) -> Floats:
        w, block = self.weights, f"blk.{il}.ffn"
        gated = gelu_tanh(w.linear(x, f"{block}_gate")) * w.linear(x, f"{block}_up")
        return w.linear(gated, f"{block}_down")
