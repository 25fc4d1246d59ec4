"""Row codecs on a device: float rows to ggml bytes and back (``ggml/src/ggml-quants.c``).

Float types are kept as tensors of their own dtype. A quantised row is bytes, in blocks of 32 values::

    q8_0   d | 32 quants          value = d * q
    q4_0   d | 16 bytes           value = d * (q - 8); values j and j + 16 in the halves of byte j
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvsim.errors import CacheUsageError
from kvsim.models.cache_types import CacheType

FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BLOCK = 32


def check_type(kind: CacheType) -> None:
    """Raise CacheUsageError for a type the engine does not store."""
    if kind.name not in (*FLOATS, "q8_0", "q4_0"):
        raise CacheUsageError(
            f"the engine stores f32, f16, bf16, q8_0 and q4_0 rows, not {kind.name}: choose one of these, or "
            f"keep metadata only"
        )


def stored_shape(kind: CacheType, n: int) -> tuple[torch.dtype, int]:
    """Dtype and number of elements in which a row of ``n`` values is stored."""
    check_type(kind)
    return (FLOATS[kind.name], n) if kind.name in FLOATS else (torch.uint8, kind.row_bytes(n))


def encode(kind: CacheType, rows: Tensor) -> Tensor:
    """Store ``float[..., n]`` as ``kind``: its dtype, or ``uint8[..., row bytes]``."""
    if kind.name in FLOATS:
        dtype = FLOATS[kind.name]
        return rows if rows.dtype == dtype else rows.to(torch.float32).to(dtype)
    x = rows.to(torch.float32).unflatten(-1, (-1, BLOCK))
    raw = _encode_q8_0(x) if kind.name == "q8_0" else _encode_q4_0(x)
    return raw.flatten(-2)


def decode(kind: CacheType, stored: Tensor) -> Tensor:
    """``float32[..., n]`` of what :func:`encode` gave."""
    if kind.name in FLOATS:
        return stored.to(torch.float32)
    raw = stored.unflatten(-1, (-1, kind.n_bytes))
    d = raw[..., :2].contiguous().view(torch.float16).to(torch.float32)
    if kind.name == "q8_0":
        q = raw[..., 2:].contiguous().view(torch.int8).to(torch.float32)
    else:
        packed = raw[..., 2:]
        q = torch.cat([packed & 15, packed >> 4], -1).to(torch.float32) - 8
    return (q * d).flatten(-2)


def _inverse(d: Tensor) -> Tensor:
    return torch.where(d == 0, torch.zeros_like(d), 1 / d)


def _half_bytes(d: Tensor) -> Tensor:
    return d.to(torch.float16).view(torch.uint8)


def _encode_q8_0(x: Tensor) -> Tensor:
    """The divisor is a tensor because CUDA multiplies by the inverse of a plain number, which is a last bit
    off."""
    largest = x.abs().amax(-1, keepdim=True)
    d = largest / largest.new_full((), 127)
    q = torch.round(x * _inverse(d)).to(torch.int8)
    return torch.cat([_half_bytes(d), q.view(torch.uint8)], -1)


def _encode_q4_0(x: Tensor) -> Tensor:
    """The value of largest magnitude, the first of equal ones, becomes the lowest quant."""
    largest = x.gather(-1, x.abs().argmax(-1, keepdim=True)) + 0.0
    d = largest / -8
    q = (x * _inverse(d) + 8.5).clamp(max=15).to(torch.uint8)
    packed = (q[..., : BLOCK // 2] & 15) | (q[..., BLOCK // 2 :] << 4)
    return torch.cat([_half_bytes(d), packed], -1)
