"""LFM2: gated short convolutions, attention with normed heads in some blocks (``src/models/lfm2.cpp``)."""

from __future__ import annotations

import numpy as np

from kvsim.memory import IntArray
from kvsim.models.layer_memory import LayerMemory
from kvsim.models.layers import Floats, HeadShapes, Weights, feed_forward
from kvsim.models.params import ModelParams
from kvsim.tensors.scan import causal_conv, conv_snapshots, conv_window


class LFM2:
    def __init__(self, model: ModelParams, weights: Weights) -> None:
        self.model, self.weights = model, weights
        self.heads = HeadShapes(model, weights)

    def forward(self, tokens: IntArray | None, pos: IntArray, memory: LayerMemory) -> Floats:
        """Logits ``[token, n_vocab]`` of a ubatch."""
        w = self.weights
        x = w.embed(tokens)
        for il, layer in enumerate(self.model.layers):
            mixed = w.norm(x, f"blk.{il}.attn_norm")
            x = x + (
                self._convolution(il, mixed, memory)
                if layer.is_recr
                else self._attention(il, mixed, pos, memory)
            )
            x = x + feed_forward(w, il, w.norm(x, f"blk.{il}.ffn_norm"))
        return w.logits(w.norm(x, "token_embd_norm"))

    def _attention(self, il: int, x: Floats, pos: IntArray, memory: LayerMemory) -> Floats:
        w, block = self.weights, f"blk.{il}"
        q, k, v = self.heads.split(il, w, x)
        q = self.heads.turn(il, w.norm(q, f"{block}.attn_q_norm"), pos)
        k = self.heads.turn(il, w.norm(k, f"{block}.attn_k_norm"), pos)
        out = memory.attend(il, q, k, v, scale=q.shape[-1] ** -0.5)
        return w.linear(out.reshape(len(x), -1), f"{block}.attn_output")

    def _convolution(self, il: int, x: Floats, memory: LayerMemory) -> Floats:
        w, block = self.weights, f"blk.{il}.shortconv"
        parts = w.linear(x, f"{block}.in_proj").reshape(memory.n_seqs, memory.n_seq_tokens, -1)
        b, c, u = np.split(parts, 3, axis=-1)
        window = conv_window(memory.states(il, "r").astype(x.dtype), (b * u).swapaxes(1, 2))
        memory.write_states(il, "r", conv_snapshots(window, memory.n_seq_tokens, memory.n_planes))
        out = c * causal_conv(window, w[f"{block}.conv.weight"]).swapaxes(1, 2)
        return w.linear(out.reshape(len(x), -1), f"{block}.out_proj")
