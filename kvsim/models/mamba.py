"""Mamba and Mamba-2: a short convolution and a selective state space in place of attention
(``src/models/mamba-base.cpp``, ``mamba.cpp``)."""

from __future__ import annotations

import numpy as np

from kvsim.memory import IntArray
from kvsim.models.layer_memory import LayerMemory
from kvsim.models.layers import Floats, Weights, silu
from kvsim.models.params import ModelParams
from kvsim.tensors.norm import rms_norm
from kvsim.tensors.scan import causal_conv, conv_snapshots, conv_window, ssm_scan


class Mamba:
    """``mixer`` is the kind of block: :func:`mamba_mixer` or :func:`mamba2_mixer`."""

    def __init__(self, model: ModelParams, weights: Weights) -> None:
        self.model, self.weights = model, weights
        self.mixer = mamba2_mixer if model.arch == "mamba2" else mamba_mixer

    def forward(self, tokens: IntArray | None, pos: IntArray, memory: LayerMemory) -> Floats:
        """Logits ``[token, n_vocab]`` of a ubatch; positions play no part."""
        w = self.weights
        x = w.embed(tokens)
        for il in range(self.model.n_layer):
            x = x + self.mixer(w, il, w.norm(x, f"blk.{il}.attn_norm"), memory)
        return w.logits(w.norm(x, "output_norm"))


def mamba_mixer(w: Weights, il: int, x: Floats, memory: LayerMemory) -> Floats:
    """One Mamba block ``[token, n_embd]``: a head is a channel. Keeps the newest state only."""
    block = f"blk.{il}.ssm"
    channels, z = np.split(_by_sequence(w.linear(x, f"{block}_in"), memory), 2, axis=-1)
    u = convolve(w, il, channels, memory, n_planes=1)
    rank = w[f"{block}_dt.weight"].shape[1]
    n_state = w[f"{block}_a"].shape[1]
    dt, b, c = np.split(w.linear(u, f"{block}_x"), [rank, rank + n_state], axis=-1)
    if f"{block}_dt_norm.weight" in w:  # Jamba
        dt, b, c = (w.norm(part, f"{block}_{name}_norm") for part, name in ((dt, "dt"), (b, "b"), (c, "c")))
    dt = dt @ w[f"{block}_dt.weight"].T + w[f"{block}_dt.bias"]
    start = memory.states(il, "s").astype(x.dtype).reshape(memory.n_seqs, u.shape[-1], 1, n_state)
    y, states = ssm_scan(start, u[..., None], dt, w[f"{block}_a"], b[:, :, None], c[:, :, None], n_planes=1)
    memory.write_states(il, "s", states)
    out = (y[..., 0] + u * w[f"{block}_d"]) * silu(z)
    return w.linear(out.reshape(len(x), -1), f"{block}_out")


def mamba2_mixer(w: Weights, il: int, x: Floats, memory: LayerMemory) -> Floats:
    """One Mamba-2 block ``[token, n_embd]``: heads of several channels share a decay."""
    block = f"blk.{il}.ssm"
    n_head = len(w[f"{block}_a"])
    n_inner = w[f"{block}_out.weight"].shape[1]
    n_group, n_state = w.meta.integer("ssm.group_count"), w.meta.integer("ssm.state_size")
    width = n_inner + 2 * n_group * n_state
    z, channels, dt = np.split(
        _by_sequence(w.linear(x, f"{block}_in"), memory), [n_inner, n_inner + width], axis=-1
    )
    u, b, c = np.split(
        convolve(w, il, channels, memory, memory.n_planes), [n_inner, n_inner + n_group * n_state], axis=-1
    )
    grid = u.shape[:2]
    u = u.reshape(*grid, n_head, -1)
    start = memory.states(il, "s").astype(x.dtype).reshape(memory.n_seqs, n_head, u.shape[-1], n_state)
    y, states = ssm_scan(
        start,
        u,
        dt + w[f"{block}_dt.bias"],
        w[f"{block}_a"],
        b.reshape(*grid, n_group, n_state),
        c.reshape(*grid, n_group, n_state),
        memory.n_planes,
    )
    memory.write_states(il, "s", states)
    out: Floats = ((y + u * w[f"{block}_d"]).reshape(*grid, n_inner) * silu(z)).reshape(*grid, n_group, -1)
    if f"{block}_norm.weight" in w:
        out = rms_norm(out, w[f"{block}_norm.weight"], w.eps)
    return w.linear(out.reshape(len(x), n_inner), f"{block}_out")


def convolve(w: Weights, il: int, channels: Floats, memory: LayerMemory, n_planes: int) -> Floats:
    """The short convolution ``[seq, token, channel]``; keeps its newest inputs."""
    block = f"blk.{il}.ssm_conv1d"
    window = conv_window(memory.states(il, "r").astype(channels.dtype), channels.swapaxes(1, 2))
    memory.write_states(il, "r", conv_snapshots(window, channels.shape[1], n_planes))
    out = causal_conv(window, w[f"{block}.weight"]).swapaxes(1, 2)
    return silu(out + w[f"{block}.bias"])


def _by_sequence(x: Floats, memory: LayerMemory) -> Floats:
    """Rows of a ubatch as ``[seq, token, ...]``."""
    return x.reshape(memory.n_seqs, memory.n_seq_tokens, -1)
