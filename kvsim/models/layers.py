"""Building blocks of the small transformers: weights, embeddings, projections, feed-forward networks.

Everything is computed in float64 from float32 weights; only cached rows are rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.memory import IntArray
from kvsim.models.gguf_file import GGUFFile
from kvsim.models.metadata import Metadata
from kvsim.models.params import ModelParams, RopeType
from kvsim.tensors.norm import rms_norm
from kvsim.tensors.rope import Rope, rope

Floats = NDArray[np.floating[Any]]


class Weights:
    """A model file's tensors in float64, and the few numbers the layers need besides."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self.meta = Metadata(file.values, file.tensor_names)
        self.eps = self.meta.number("attention.layer_norm_rms_epsilon")
        self._tensors: dict[str, Floats] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._file.tensor_names

    def __getitem__(self, name: str) -> Floats:
        """A tensor, ``float64``, slowest axis first. Raises ModelError if the file has none of that name."""
        if name not in self._tensors:
            self._tensors[name] = self._file.tensor(name).astype(np.float64)
        return self._tensors[name]

    def linear(self, x: Floats, name: str) -> Floats:
        """``x`` times the matrix ``<name>.weight``, plus ``<name>.bias`` if there is one."""
        out: Floats = x @ self[f"{name}.weight"].T
        return out + self[f"{name}.bias"] if f"{name}.bias" in self else out

    def norm(self, x: Floats, name: str) -> Floats:
        """RMS norm with ``<name>.weight``."""
        return rms_norm(x, self[f"{name}.weight"], self.eps)

    def embed(self, tokens: IntArray | None) -> Floats:
        """Rows of the embedding table, ``[token, n_embd]``."""
        if tokens is None:
            raise ValueError("the small models compute from token ids only, not from embeddings")
        rows: Floats = self["token_embd.weight"][tokens]
        return rows

    def logits(self, x: Floats) -> Floats:
        """The output matrix, or the embedding table where the two are tied."""
        out: Floats = x @ self["output.weight" if "output.weight" in self else "token_embd.weight"].T
        return out


class HeadShapes:
    """How the projections of one block split into heads."""

    def __init__(self, model: ModelParams, weights: Weights) -> None:
        self.model = model
        self.n_head = weights.meta.per_layer("attention.head_count", model.n_layer_all)

    def split(self, il: int, weights: Weights, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Queries, keys and values of block ``il``: ``[token, head, dim]`` each."""
        layer, block = self.model.layers[il], f"blk.{il}"
        q, k, v = (weights.linear(x, f"{block}.attn_{name}") for name in "qkv")
        return (
            q.reshape(len(x), self.n_head[il], layer.n_embd_head_k),
            k.reshape(len(x), layer.n_head_kv, layer.n_embd_head_k),
            v.reshape(len(x), layer.n_head_kv, layer.n_embd_head_v),
        )

    def turn(self, il: int, x: Floats, pos: IntArray) -> Floats:
        """Queries or keys of block ``il`` turned to their positions."""
        model, layer = self.model, self.model.layers[il]
        base, scale = (
            (model.rope_freq_base_train_swa, model.rope_freq_scale_train_swa)
            if layer.is_swa
            else (model.rope_freq_base_train, model.rope_freq_scale_train)
        )
        params = Rope(layer.n_rot, neox=model.rope_type is RopeType.NEOX, base=base, scale=scale)
        return rope(x, pos, params)


def feed_forward(weights: Weights, il: int, x: Floats) -> Floats:
    """SwiGLU: ``down(silu(gate x) * up x)``."""
    block = f"blk.{il}.ffn"
    gate, up = weights.linear(x, f"{block}_gate"), weights.linear(x, f"{block}_up")
    return weights.linear(silu(gate) * up, f"{block}_down")


def silu(x: Floats) -> Floats:
    out: Floats = x / (1.0 + np.exp(-x))
    return out


def gelu_tanh(x: Floats) -> Floats:
    """The tanh form of GELU as llama.cpp's CPU backend has it: looked up by the f16 of x, result f16."""
    half = x.astype(np.float16).astype(np.float32)
    inner = np.float32(0.79788456080286535587989211986876) * half * (1.0 + np.float32(0.044715) * half * half)
    table = (0.5 * half * (1.0 + np.tanh(inner))).astype(np.float16).astype(x.dtype)
    return np.where(x <= -10, 0.0, np.where(x >= 10, x, table))
