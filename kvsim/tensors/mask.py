"""Attention masks: which cells each token may attend to (kv_cache.md 6).

For one token the visible cells of its sequence are those whose position lies in an interval: up to the
token itself if causal, not before what the window keeps. Over the tokens of a ubatch the ends of that
interval only move forward, so nearly all cells get the same answer for every token::

    positions    . . . [ lowest lo ... highest lo ][ always seen ][ lowest hi ... highest hi ] . . .
                 never          depends on row                       depends on row            never

Those rows are one copied row, then corrected in the few cells that depend on the row: building a mask
costs about what filling its array costs.

Upstream: ``src/llama-kv-cache.cpp: set_input_kq_mask``, ``src/llama-hparams.h: is_masked_swa``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsim.memory import POS_INF, BoolArray, IntArray
from kvsim.models.arch import NonCausal
from kvsim.models.params import SwaType
from kvsim.window import window_start

XY = tuple[IntArray, IntArray]

SMALL = 4096
"""Entries of a mask of which computing each costs less than being clever."""


def attention_mask(
    pos: IntArray,
    seq: NDArray[np.uint64],
    row_pos: IntArray,
    row_seq: IntArray,
    *,
    swa_type: SwaType = SwaType.NONE,
    n_swa: int = 0,
    causal: bool = True,
    non_causal: NonCausal = NonCausal.ALL,
    cell_xy: XY | None = None,
    row_xy: XY | None = None,
) -> BoolArray:
    """``bool[n_rows, n_kv]``: whether each row may attend to each of the first ``n_kv`` cells of its stream.

    Cells: ``pos int32[n_kv]`` (-1 empty), ``seq uint64[words, n_kv]`` (owner bits). Rows: all tokens of
    the ubatch in this stream, ``row_pos int32[n_rows]`` and ``row_seq`` (their **first** sequence; other
    ids of a token do not count). ``non_causal`` says what ``causal=False`` means for the model.
    With 2-D positions (``cell_xy`` and ``row_xy``, each x and y) a causal row does not see cells of its
    own position that come later in raster order.
    """
    mask = np.empty((len(row_pos), len(pos)), np.bool_)
    causal = causal or (non_causal is NonCausal.SWA_ONLY and swa_type is SwaType.NONE)
    seqs: list[int] = row_seq.tolist()
    positions: list[int] = row_pos.tolist()
    for s in set(seqs):
        own = [i for i, first in enumerate(seqs) if first == s]
        lo, hi = _visible_interval(
            [positions[i] for i in own], swa_type, n_swa, causal, span=non_causal is NonCausal.SWA_FULL
        )
        owned = _owned(seq, s)
        if len(own) > 1 and mask.size <= SMALL and cell_xy is None:
            visible = owned & (pos >= np.array(lo)[:, None]) & (pos <= np.array(hi)[:, None])
            if len(own) == len(mask):
                return visible
            mask[own] = visible
            continue
        rows = np.array(own)
        p = row_pos[rows]
        # Cells at a row's own position depend on the row if they have a place in an image.
        seen_by_all = min(hi) - (cell_xy is not None)
        always = owned & _within(pos, max(lo), seen_by_all)
        if len(rows) == len(mask):
            mask[:] = always
        else:
            mask[rows] = always
        if len(rows) == 1 and cell_xy is None:
            continue
        some = (owned & ~always & _within(pos, min(lo), max(hi))).nonzero()[0]
        if not len(some):
            continue
        visible = (pos[some] >= np.array(lo)[:, None]) & (pos[some] <= np.array(hi)[:, None])
        if causal and cell_xy is not None and row_xy is not None:
            visible &= ~_later_in_image(pos[some], p, _take(cell_xy, some), _take(row_xy, rows))
        if len(rows) == len(mask) and some[-1] - some[0] == len(some) - 1:
            mask[:, some[0] : some[-1] + 1] = visible  # a slice is filled faster than a grid of indices
        else:
            mask[rows[:, None], some] = visible
    return mask


def mask_values(mask: BoolArray, distance: tuple[IntArray, IntArray] | None = None) -> NDArray[np.float32]:
    """The mask as added to attention scores: 0 where visible, else -inf.

    With ALiBi, ``distance`` gives the positions of cells and rows, and a visible cell counts ``-|p0 - p1|``.
    """
    seen: NDArray[np.float32] | float = 0.0
    if distance is not None:
        pos, row_pos = distance
        seen = -np.abs(pos - row_pos[:, None]).astype(np.float32)
    return np.where(mask, seen, -np.inf).astype(np.float32, copy=False)


def _within(pos: IntArray, lo: int, hi: int) -> BoolArray:
    """Positions from ``lo`` to ``hi``; Python's numbers, since numpy's would make every position an int64."""
    within: BoolArray = (pos >= lo) & (pos <= hi)
    return within


def _owned(seq: NDArray[np.uint64], s: int) -> BoolArray:
    word, bit = divmod(s, 64)
    if word >= len(seq):
        return np.zeros(seq.shape[1], np.bool_)
    owned: BoolArray = seq[word] & np.uint64(1 << bit) != 0
    return owned


def _visible_interval(
    positions: list[int], swa_type: SwaType, n_swa: int, causal: bool, span: bool
) -> tuple[list[int], list[int]]:
    """First and last visible position of each row at these positions, before ownership.

    ``span``: without causality, the window ends where the sequence begins in this ubatch.
    """
    lo = [window_start(swa_type, n_swa, p) for p in positions]
    hi = positions if causal else [POS_INF] * len(positions)
    if not causal and swa_type is SwaType.SYMMETRIC:
        hi = [p + n_swa // 2 for p in positions]
    if not causal and span and swa_type is not SwaType.NONE:
        start = min(positions)
        lo, hi = [min(first, start) for first in lo], [POS_INF] * len(positions)
    return [max(first, 0) for first in lo], hi  # an empty cell is at -1


def _later_in_image(pos: IntArray, p: IntArray, cell: XY, row: XY) -> BoolArray:
    """Cells at the row's position but after it in raster order, ``bool[n_rows, n_cells]``."""
    (x, y), (row_x, row_y) = cell, (row[0][:, None], row[1][:, None])
    later: BoolArray = (pos == p[:, None]) & ((y > row_y) | ((y == row_y) & (x > row_x)))
    return later


def _take(xy: XY, at: NDArray[np.intp]) -> XY:
    return xy[0][at], xy[1][at]
