"""Attention masks on the device: one broadcast comparison of rows with cells.

A row sees the cells of its first sequence whose positions lie in an interval that depends on the row alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.rows import BEGIN, FIRST, POS, WORD, WORD_BITS, Rows, X, Y
from kvsim.memory import POS_INF
from kvsim.models.arch import NonCausal
from kvsim.models.cache_spec import CacheSpec
from kvsim.models.params import SwaType


def attention_mask(
    pos: Tensor,
    seq: Tensor,
    rows: Rows,
    spec: CacheSpec,
    causal: bool = True,
    xy: tuple[Tensor, Tensor] | None = None,
    owners_only: bool = False,
) -> Tensor:
    """``bool[P, n, n_kv]`` for the ``n`` rows in each of P streams.

    Cells: ``pos int32[P, 1, n_kv]``, ``seq int32[W, P, 1, n_kv]``, with 2-D positions ``xy`` alike.
    ``owners_only``: wherever the cells of a row's sequence are.
    """
    owned = _owned(seq, rows)
    if owners_only:
        return owned
    p = rows.part(POS)
    lo, hi = _interval(
        p, rows, spec, causal or (spec.non_causal is NonCausal.SWA_ONLY and spec.swa_type is SwaType.NONE)
    )
    seen = owned & (pos >= lo) if hi is None else owned & (pos >= lo) & (pos <= hi)
    if causal and xy is not None:
        (x, y), row_x, row_y = xy, rows.part(X), rows.part(Y)
        seen = seen & ~((pos == p) & ((y > row_y) | ((y == row_y) & (x > row_x))))
    return seen


def _owned(seq: Tensor, rows: Rows) -> Tensor:
    """Cells of each row's first sequence; one look for all rows of a part if it is the same for all."""
    first = rows.part(FIRST)
    if rows.one_sequence_per_part:
        first = first[:, :1]
    bit = (torch.ones_like(first) << (first % WORD_BITS)).to(WORD)
    if len(seq) == 1:
        return (seq[0] & bit) != 0
    word = first // WORD_BITS
    shape = (1, seq.shape[1], first.shape[1], seq.shape[3])
    words = seq.expand(-1, -1, first.shape[1], -1).gather(0, word[None].expand(shape))[0]
    return (words & bit) != 0


def _interval(p: Tensor, rows: Rows, spec: CacheSpec, causal: bool) -> tuple[Tensor, Tensor | None]:
    """First and last visible position of each row; None: no end."""
    lo = torch.zeros_like(p)
    hi: Tensor | None = None
    if spec.swa_type is SwaType.STANDARD:
        lo = p - spec.n_swa + 1
    elif spec.swa_type is SwaType.CHUNKED:
        lo = p // spec.n_swa * spec.n_swa
    elif spec.swa_type is SwaType.SYMMETRIC:
        lo, hi = p - spec.n_swa // 2, p + spec.n_swa // 2
    if causal:
        hi = p if hi is None else torch.minimum(hi, p)
    elif spec.non_causal is NonCausal.SWA_FULL and spec.swa_type is not SwaType.NONE:
        lo, hi = torch.minimum(lo, rows.part(BEGIN)), torch.full_like(p, POS_INF)
    return lo.clamp(min=0), hi
