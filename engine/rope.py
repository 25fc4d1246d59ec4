"""Rotations on a device: rotary position embedding, and the Hadamard matrix that spreads outliers.

What turns, and by which parameters, is :class:`kvsim.tensors.rope.Rope`; angles are computed in float64 here,
from the definition (``ggml_rope_cache_init``, ``rope_yarn``).

Tables are made once and kept for good: one that was made while a step is captured would be in the graph's memory.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from engine.sync import upload
from kvsim.errors import CacheUsageError
from kvsim.tensors.rope import Rope


@cache
def frequencies(rope: Rope, device: torch.device) -> Tensor:
    """Angle of each pair per position, ``float64[n_rot / 2]``."""
    pair = torch.arange(rope.n_rot // 2, dtype=torch.float64, device=device)
    full = torch.pow(rope.base, -2 * pair / rope.n_rot)
    if rope.factors is not None:
        full = full / upload(rope.factors, device, torch.float64)
    scaled = full * rope.scale
    if not rope.ext_factor:
        return scaled

    def pair_that_turns(times: float) -> float:
        turns = rope.n_ctx_orig / (2 * math.pi * times)
        return rope.n_rot * math.log(turns) / math.log(rope.base) / 2

    first = max(0, math.floor(pair_that_turns(rope.beta_fast)))
    last = min(rope.n_rot - 1, math.ceil(pair_that_turns(rope.beta_slow)))
    share = (1 - ((pair - first) / max(last - first, 0.001)).clamp(0, 1)) * rope.ext_factor
    return torch.lerp(scaled, full, share)


@cache
def sections(rope: Rope, device: torch.device) -> Tensor:
    """Which of the positions t, y, x, extra each pair turns by, ``int64[n_rot / 2]``."""
    assert rope.sections is not None
    t, y, x, extra = rope.sections
    dealt = []
    for pair in range(rope.n_rot // 2):
        at = pair % (t + y + x + extra)
        if rope.interleaved:
            axis = at % 3
            dealt.append(axis if at < 3 * rope.sections[axis] else 3)
        else:
            dealt.append(0 if at < t else 1 if at < t + y else 2 if at < t + y + x else 3)
    return upload(dealt, device)


def turn(x: Tensor, pos: Tensor, rope: Rope) -> Tensor:
    """Turn the heads ``x [token, ..., head_size]`` by ``pos int[token]`` (M-RoPE: ``int[4, token]``); a new
    tensor of the same type. Raises CacheUsageError if the head is too small."""
    start, end = rope.offset, rope.offset + rope.n_rot
    if end > x.shape[-1]:
        raise CacheUsageError(f"values {start} to {end} of a head of {x.shape[-1]} cannot be rotated")
    steps = pos.to(torch.float64)
    at = steps[sections(rope, x.device)].T if rope.sections is not None else steps[:, None]
    angle = at * frequencies(rope, x.device)
    shape = (x.shape[0], *[1] * (x.dim() - 2), rope.n_rot // 2)
    cos = (angle.cos() * rope.magnitude).to(x.dtype).view(shape)
    sin = (angle.sin() * rope.magnitude).to(x.dtype).view(shape)
    part = x[..., start:end]
    pairs = (
        part.unflatten(-1, (2, -1)).unbind(-2)
        if rope.pairs_halves
        else part.unflatten(-1, (-1, 2)).unbind(-1)
    )
    a, b = pairs
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -2 if rope.pairs_halves else -1).flatten(-2)
    return torch.cat([x[..., :start], turned, x[..., end:]], -1)


@cache
def hadamard_matrix(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``H[i, j] = (-1)^popcount(i & j) / sqrt(n)``, rounded to float32 as llama.cpp keeps it."""
    if n < 1 or n & (n - 1):
        raise CacheUsageError(f"there is no Hadamard matrix of size {n}: it must be a power of two")
    index = torch.arange(n, device=device)
    odd = torch.zeros(n, n, dtype=torch.int64, device=device)
    for bit in range(n.bit_length()):
        odd ^= (index[:, None] & index) >> bit & 1
    return ((1 - 2 * odd).to(torch.float32) / math.sqrt(n)).to(dtype)


def hadamard(x: Tensor, n: int) -> Tensor:
    """Rotate ``x[..., m]`` in blocks of ``n``; its own inverse. Raises CacheUsageError if ``n`` does not
    divide m."""
    if x.shape[-1] % n:
        raise CacheUsageError(f"rows of {x.shape[-1]} values are no whole number of blocks of {n}")
    return (x.unflatten(-1, (-1, n)) @ hadamard_matrix(n, x.dtype, x.device)).flatten(-2)
