"""MiniMax-M3's block-sparse attention: blocks of *positions* are chosen, then read through the cells.

The index head scores every position of the token's sequence; the best score of each block of ``b``
consecutive positions is the block's score, per group of query heads. Where the positions lie in the
cells doesn't matter::

    cells     pos  0 1 . 6 7 4 5 .          pos_slot  0 1 0 0 5 6 3 4    (0 where no cell holds it)
    blocks of 4    [0 1 2 3] [4 5 6 7]      cell_blk  0 0 0 1 1 1 1 0

``mine`` is the mask of the cells that carry the sequence. Cells, positions and masks are those of one
stream. Mirrors ``src/llama-kv-cache-msa.cpp`` and ``src/models/minimax-m3.cpp``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.memory import BoolArray, IntArray
from kvsim.tensors.topk import top_k

Floats = NDArray[np.floating[Any]]

FORCED = np.float32(1e30)
"""Added to the score of a local block; what the block really scored is lost to rounding."""

NO_SCORE = np.finfo(np.float32).min
"""Score of a block without a visible position: a maximum over nothing but -inf (f32 pooling)."""


def padded_positions(pos_max: int, n_pad: int, block: int) -> int:
    """Positions that the graph looks at: enough for ``pos_max`` of *any* sequence of the cache.

    A multiple of ``max(n_pad, 256)``, then padded to whole blocks.
    """
    step = max(n_pad, 256)
    n_pos = max(step, -(-(pos_max + 1) // step) * step)
    return -(-n_pos // block) * block


def slots_of_positions(pos: IntArray, mine: BoolArray, n_pos: int) -> IntArray:
    """``pos_slot int32[n_pos]``: the cell of each position, the last one if repeated, 0 if none.

    Positions from ``n_pos`` on are skipped.
    """
    cells = np.flatnonzero(mine & (pos >= 0) & (pos < n_pos)).astype(np.int32)
    slots = np.zeros(n_pos, np.int32)
    slots[pos[cells]] = cells
    return slots


def blocks_of_cells(pos: IntArray, mine: BoolArray, block: int) -> IntArray:
    """``cell_blk int32[cell]``: the position block of each cell of the sequence, 0 for the others."""
    return np.where(mine, pos // block, 0).astype(np.int32)


def visible_positions(tok_pos: IntArray, pos: IntArray, mine: BoolArray, n_pos: int) -> BoolArray:
    """``pos_mask bool[token, n_pos]``: held by a cell of the sequence and not after the token.

    Causal whatever the context says, and without a window (the cache has none).
    """
    held = np.zeros(n_pos, np.bool_)
    held[pos[mine & (pos >= 0) & (pos < n_pos)]] = True
    return held & (np.arange(n_pos) <= tok_pos[:, None])


def local_bias(tok_pos: IntArray, block: int, n_local: int, n_blocks: int) -> Floats:
    """``bias float32[token, n_blocks]``: FORCED for the block of the token and those just before it."""
    back = (tok_pos // block)[:, None] - np.arange(n_blocks)
    return np.where((back >= 0) & (back < n_local), FORCED, np.float32(0))


def block_scores(q: Floats, keys: Floats, slots: IntArray, visible: BoolArray, block: int) -> Floats:
    """Best score in each block, ``[token, group, n_blocks]``; NO_SCORE where nothing is visible.

    ``q [token, group, d]``, ``keys [cell, d]``; not scaled, no ReLU (rule S1).
    """
    scores = np.where(visible[:, None], q @ keys[slots].T, -np.inf)
    best: Floats = scores.reshape(*scores.shape[:-1], -1, block).max(axis=-1)
    return np.maximum(best, NO_SCORE)


def choose_blocks(scores: Floats, bias: Floats, k: int) -> IntArray:
    """Chosen blocks ``int32[token, group, min(k, n_blocks)]``; local ones come first and count (S2)."""
    return top_k((scores + bias[:, None]).astype(np.float32), k)


def visible_cells(blocks: IntArray, cell_blk: IntArray, visible: BoolArray) -> BoolArray:
    """Batch regime: final mask ``[token, group, cell]``, cells of chosen blocks that are visible.

    ``visible [token, cell]`` is the ordinary causal mask; it also keeps out the cells of other
    sequences, whose ``cell_blk`` of 0 means nothing.
    """
    in_block: BoolArray = (blocks[..., None] == cell_blk).any(axis=-2)
    return in_block & visible[:, None]


def gathered_cells(
    blocks: IntArray, slots: IntArray, visible: BoolArray, block: int
) -> tuple[IntArray, BoolArray]:
    """Decode regime: the cells to gather, ``[token, group, k*block]``, and which of them count.

    In the order of ``blocks``; positions that no cell holds read cell 0 and don't count.
    """
    steps = np.arange(block, dtype=np.int32)
    positions: IntArray = (blocks[..., None] * block + steps).reshape(*blocks.shape[:-1], -1)
    token = np.arange(len(blocks))[:, None, None]
    return slots[positions], visible[token, positions]
