"""Attention over the cells of a cache, by ``scaled_dot_product_attention``.

Dense members read the first ``n_kv`` cells under a mask. Sparse ones gather the cells that were selected for
each token and read only those; both give the same, since a cell that is not selected has no weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.kv_view import KVView
from engine.rope import hadamard
from engine.store import owner_layer
from engine.sync import read_back, upload


def attend(
    view: KVView, il: int, q: Tensor, mask: Tensor, *, scale: float, n_latent: int = 0, **extra: Any
) -> Tensor:
    """What ``q [token, head, dim]`` reads of block ``il``'s rows: ``[token, head, dim of v]``.

    ``mask bool[token, n_kv]`` (or ``[head, token, n_kv]``) over the cells of each token's stream. A cache of
    keys only gives the first ``n_latent`` values of a key for its value. ``extra``: ``softcap``, ``bias``,
    ``sinks`` as for :func:`read_cells`.
    """
    spec, store = view.cache.spec, view.cache.store
    layer = owner_layer(spec, il)
    n, where = view.n_stream, view.streams
    k = store.keys(layer.il, where, view.n_kv)
    v = k[..., :n_latent] if layer.v is None else store.values(layer.il, where, view.n_kv)
    v = v.to(k.dtype)
    q = hadamard(q, spec.n_rot_k) if spec.n_rot_k else q
    heads = q.to(k.dtype).unflatten(0, (n, -1)).transpose(1, 2)
    per_head = mask if mask.dim() == 3 else mask[None]
    seen = per_head.unflatten(1, (n, -1)).transpose(0, 1)
    out = read_cells(heads, k.transpose(1, 2), v.transpose(1, 2), seen, scale=scale, **extra)
    out = out.transpose(1, 2).flatten(0, 1).to(q.dtype)
    return hadamard(out, spec.n_rot_v) if layer.v is not None and spec.n_rot_v else out


def attend_numbers(
    view: KVView, il: int, q: NDArray[np.float32], *, scale: float, n_latent: int = 0
) -> NDArray[np.float32]:
    """As :func:`attend` under the view's own mask, for queries that are not on the device; nor is the result."""
    queries = upload(q, view.cache.device, torch.float32)
    read = attend(view, il, queries, view.mask(), scale=scale, n_latent=n_latent)
    return read_back(read).astype(np.float32, copy=False)


def attend_selected(
    view: KVView, il: int, q: Tensor, cells: Tensor, counts: Tensor, *, scale: float, n_latent: int = 0
) -> Tensor:
    """As :func:`attend`, of each token's ``cells int64[token, group, n]`` (``stream * size + cell``) those
    that ``counts bool[token, group, n]``; every group of heads has its own."""
    spec, store = view.cache.spec, view.cache.store
    layer = owner_layer(spec, il)
    q = hadamard(q, spec.n_rot_k) if spec.n_rot_k else q
    k = store.gather_k(layer.il, cells)  # [token, group, n, head, dim]
    v = k[..., :n_latent] if layer.v is None else store.gather_v(layer.il, cells)
    out = read_gathered(q, k, v, counts, scale=scale).to(q.dtype)
    return hadamard(out, spec.n_rot_v) if layer.v is not None and spec.n_rot_v else out


def read_gathered(q: Tensor, k: Tensor, v: Tensor, counts: Tensor, *, scale: float) -> Tensor:
    """Attention of ``q [token, head, dim]`` to cells of its own, ``k, v [token, group, n, head_kv, dim]``.
    With several groups each has its share of the key heads."""
    n_group, v = k.shape[1], v.to(k.dtype)
    if n_group > 1:
        share = k.shape[3] // n_group
        k, v = (
            torch.stack([x[:, g, :, g * share : (g + 1) * share] for g in range(n_group)], 1) for x in (k, v)
        )
    heads = q.to(k.dtype).unflatten(1, (n_group, -1)).flatten(0, 1)[:, :, None]
    k, v, counts = (x.flatten(0, 1) for x in (k, v, counts))
    out = read_cells(heads, k.transpose(1, 2), v.transpose(1, 2), counts[:, None, None], scale=scale)
    return out[:, :, 0].unflatten(0, (len(q), n_group)).flatten(1, 2)


def read_cells(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    *,
    scale: float,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """``q [batch, head, token, dim]``, ``k, v [batch, head_kv, cell, dim]``, ``mask`` to broadcast; a token
    that sees nothing gets 0.

    ``softcap``, ``bias`` (added to scores) and ``sinks [head]`` (scores that take weight and add nothing) are
    rare and computed step by step.
    """
    if not softcap and bias is None and sinks is None:
        grouped = q.shape[1] != k.shape[1]
        if grouped and q.shape[2] == 1 and (mask.dim() < 3 or mask.shape[-3] == 1):
            # one token: the heads that share a key head are as many tokens, and its rows are read once
            shared = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
            out = scaled_dot_product_attention(shared, k, v, attn_mask=mask, scale=scale)
            out = out.reshape(*q.shape[:3], v.shape[3])
        else:
            out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
        return torch.where(mask.any(-1, keepdim=True), out, 0)
    n_rep = q.shape[1] // k.shape[1]
    z = (q.unflatten(1, (-1, n_rep)) @ k[:, :, None].transpose(-1, -2)).flatten(1, 2).to(
        torch.float32
    ) * scale
    z = softcap * torch.tanh(z / softcap) if softcap else z
    z = (z if bias is None else z + bias).masked_fill(~mask, -torch.inf)
    if sinks is not None:
        z = torch.cat([z, sinks.view(1, -1, 1, 1).expand(*z.shape[:-1], 1)], -1)
    weights = torch.where(z.amax(-1, keepdim=True) == -torch.inf, 0, z.softmax(-1))
    weights = weights[..., : k.shape[2]].to(v.dtype).unflatten(1, (-1, n_rep))
    return (weights @ v[:, :, None]).flatten(1, 2)
