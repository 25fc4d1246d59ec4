"""Recurrent layers: convolutions and states that roll along a sequence, with snapshots to roll back to.

A recurrent cell owns one row in each plane of a layer's tensors: plane 0 holds the state now, plane d
the state d tokens ago, so row = ``plane * size + cell``. One ubatch::

    zero row rs_z ; states = rows[s_copy]               gather
    run the layer over the tokens of n_seqs sequences
    rows[plane*size + head + i] = snapshot of sequence i    scatter
    rows[head+n_seqs ...] = states[n_seqs ...]          cells that only moved

A snapshot list has plane 0 first. The scans keep the newest ``n_planes`` states of the ubatch and no
more: planes older than the ubatch keep what an earlier one wrote, and a rollback that deep is not exact.

Mirrors ``src/llama-graph.cpp: build_rs`` and, in ``src/models/``, ``mamba-base.cpp``,
``delta-net-base.cpp`` and ``lfm2.cpp``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.memory import IntArray

Floats = NDArray[np.floating[Any]]


def gather(rows: Floats, s_copy: IntArray, rs_z: int) -> Floats:
    """The states ``[n_rs, width]`` that the ubatch starts from; row ``rs_z`` (-1: none) is zeroed first.

    Zeroing multiplies by 0, as llama.cpp does, so a row that holds NaN or Inf becomes NaN.
    """
    if rs_z >= 0:
        with np.errstate(invalid="ignore"):
            rows[rs_z] *= 0
    return rows[s_copy]


def scatter(rows: Floats, states: Floats, snapshots: Sequence[Floats], head: int, size: int) -> None:
    """Write snapshots (each ``[n_seqs, ...]``) and, from :func:`gather`, the states that only moved.

    ``size`` is the number of cells, ``head`` the first cell of the ubatch.
    """
    n_seqs = len(snapshots[0])
    rows[head + n_seqs : head + len(states)] = states[n_seqs:]
    for plane, snapshot in enumerate(snapshots):
        first = plane * size + head
        rows[first : first + n_seqs] = snapshot.reshape(n_seqs, -1)


# -- convolutions ------------------------------------------------------------------------------


def conv_window(states: Floats, x: Floats) -> Floats:
    """Kept inputs and new ones, ``[seq, channel, width + token]``, oldest first.

    ``states [seq, channel * width]`` as stored, ``x [seq, channel, token]``.
    """
    return np.concatenate([states.reshape(*x.shape[:2], -1), x], axis=-1)


def causal_conv(window: Floats, kernel: Floats) -> Floats:
    """Depthwise convolution ``[seq, channel, token]`` of a window with ``kernel [channel, width + 1]``."""
    views = np.lib.stride_tricks.sliding_window_view(window, kernel.shape[-1], axis=-1)
    out: Floats = np.einsum("sctk,ck->sct", views, kernel)
    return out


def conv_snapshots(window: Floats, n_tokens: int, n_planes: int) -> list[Floats]:
    """The newest inputs after the last token and after each of the ``n_planes - 1`` before it.

    At most ``n_tokens`` of them (LFM2, Mamba-2).
    """
    width = window.shape[-1] - n_tokens
    return [window[..., n_tokens - d : n_tokens - d + width] for d in range(min(n_tokens, n_planes))]


def conv_snapshots_all(window: Floats, n_tokens: int, n_planes: int) -> list[Floats]:
    """As :func:`conv_snapshots`, but every plane is written: those older than the ubatch all get the
    inputs as they were before it (delta nets, n-gram history)."""
    width = window.shape[-1] - n_tokens
    starts = [max(0, n_tokens - d) for d in range(n_planes)]
    return [window[..., start : start + width] for start in starts]


# -- states ------------------------------------------------------------------------------------


def ssm_scan(
    state: Floats, x: Floats, dt: Floats, a: Floats, b: Floats, c: Floats, n_planes: int
) -> tuple[Floats, list[Floats]]:
    """Mamba's selective scan. Returns ``y [seq, token, head, dim]`` and the snapshots of the state.

    ``state [seq, head, dim, n]``, ``x [seq, token, head, dim]``, ``dt [seq, token, head]`` before the
    softplus, ``a [head, n]`` (Mamba; dim is 1 there and a head is a channel) or ``[head, 1]`` (Mamba-2),
    ``b, c [seq, token, group, n]``, each group serving head/group consecutive heads.
    """
    per_group = x.shape[2] // b.shape[2]
    b, c = np.repeat(b, per_group, axis=2), np.repeat(c, per_group, axis=2)
    step = softplus(dt)[..., None]
    decay = np.exp(step * a)
    ys, states = [], deque[Floats](maxlen=n_planes)
    for t in range(x.shape[1]):
        fed = (x[:, t] * step[:, t])[..., None] * b[:, t, :, None]
        state = state * decay[:, t, :, None] + fed
        ys.append((state * c[:, t, :, None]).sum(axis=-1))
        states.appendleft(state)
    return np.stack(ys, axis=1), list(states)


def softplus(x: Floats) -> Floats:
    """log(1 + e^x); x itself above 20, where they agree in float32."""
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def delta_net(
    state: Floats, q: Floats, k: Floats, v: Floats, gate: Floats, beta: Floats, n_planes: int
) -> tuple[Floats, list[Floats]]:
    """Gated delta net and KDA. Returns ``out [seq, token, head, S]`` and the snapshots of the state.

    The state ``[seq, head, value dim, key dim]`` decays, then learns what it got wrong about ``k -> v``.
    ``q, k [seq, token, key head, S]`` (head h uses key head h modulo their number), ``v`` per head,
    ``gate [seq, token, head, 1]`` (gated delta net) or ``[..., S]`` (KDA, one per key dim) is the log of
    the decay, ``beta [seq, token, head]`` the learning rate.
    """
    n_heads, key_size = v.shape[2], q.shape[-1]
    served = np.arange(n_heads) % k.shape[2]
    q, k = q[:, :, served], k[:, :, served]
    outs, states = [], deque[Floats](maxlen=n_planes)
    for t in range(v.shape[1]):
        state = state * np.exp(gate[:, t])[:, :, None]
        recalled = np.einsum("shji,shi->shj", state, k[:, t])
        delta = beta[:, t, :, None] * (v[:, t] - recalled)
        state = state + delta[..., None] * k[:, t, :, None]
        outs.append(np.einsum("shji,shi->shj", state, q[:, t]) / np.sqrt(key_size).astype(q.dtype))
        states.appendleft(state)
    return np.stack(outs, axis=1), list(states)
