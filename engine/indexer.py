"""The indexers of sparse members on a device: lightning (DSA), blocks of positions (MSA).

All shapes are known beforehand: selections are index lists of fixed length, with a flag for those that count.
Where equal scores straddle the border, which of them gets in is torch's choice (llama.cpp's is that of its
heap).
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.rope import hadamard, turn
from kvsim.tensors.indexer import IndexerVariant
from kvsim.tensors.rope import Rope

FORCED = 1e30
"""Added to the score of a block near the token: it is always chosen."""

LOWEST = torch.finfo(torch.float32).min
"""Score of a block of which nothing is visible."""


# -- lightning: the best cells ---------------------------------------------------------------------


def index_vectors(x: Tensor, pos: Tensor, rotation: Rope, variant: IndexerVariant) -> Tensor:
    """Index queries ``[token, head, d]`` or keys ``[token, d]`` as they are scored and stored: turned by the
    rotation of the main attention, with a pairing and an offset of their own, then mixed."""
    d = x.shape[-1]
    kind = Rope(
        **{**rotation.__dict__, "neox": variant.neox, "offset": (d - rotation.n_rot) * variant.trailing}
    )
    turned = turn(x, pos, kind)
    return hadamard(turned, d) if variant.hadamard else turned


def index_scores(q: Tensor, keys: Tensor, weights: Tensor, visible: Tensor) -> Tensor:
    """``[token, cell]``: the ReLU of every head's ``q [token, head, d]`` times ``keys [cell, d]``, summed
    with ``weights [token, head]``; -inf where not ``visible``."""
    fired = torch.relu(q @ keys.T)  # [token, head, cell]
    return (weights[:, None] @ fired)[:, 0].masked_fill(~visible, -torch.inf)


def best_cells(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` best cells ``[token, k]``, and which of them are visible."""
    best = scores.topk(min(k, scores.shape[-1]), sorted=False)
    return best.indices, best.values > -torch.inf


def as_mask(cells: Tensor, counts: Tensor, n: int) -> Tensor:
    """A selection as ``bool[..., n]``."""
    mask = torch.zeros(*cells.shape[:-1], n + 1, dtype=torch.bool, device=cells.device)
    return mask.scatter_(-1, torch.where(counts, cells, n), True)[..., :n]


# -- blocks of positions ---------------------------------------------------------------------------


def cells_of_positions(pos: Tensor, mine: Tensor, n_pos: int) -> tuple[Tensor, Tensor]:
    """The cell of each position (the last of several, 0 if none), and whether there is one: ``[n_pos]`` each.
    ``pos int32[cell]``, ``mine bool[cell]``."""
    at = torch.where(mine & (pos >= 0) & (pos < n_pos), pos, n_pos).to(torch.int64)
    cells = torch.arange(len(pos), device=pos.device)
    slots = torch.full((n_pos + 1,), -1, device=pos.device).scatter_reduce_(0, at, cells, "amax")[:-1]
    return slots.clamp(min=0), slots >= 0


def visible_positions(tok_pos: Tensor, held: Tensor) -> Tensor:
    """``bool[token, n_pos]``: held by a cell and not after the token."""
    return held & (torch.arange(len(held), device=held.device) <= tok_pos[:, None])


def block_scores(q: Tensor, keys: Tensor, slots: Tensor, visible: Tensor, block: int) -> Tensor:
    """Best score in each block, ``[token, group, n_blocks]``; ``q [token, group, d]``, ``keys [cell, d]``."""
    scores = (q @ keys.index_select(0, slots).T).masked_fill(~visible[:, None], -torch.inf)
    return scores.unflatten(-1, (-1, block)).amax(-1).clamp(min=LOWEST)


def best_blocks(scores: Tensor, tok_pos: Tensor, block: int, n_local: int, k: int) -> Tensor:
    """The ``k`` best blocks ``[token, group, k]``; those of the token and just before it always."""
    index = torch.arange(scores.shape[-1], device=scores.device)
    back = (tok_pos // block)[:, None] - index
    near = (back >= 0) & (back < n_local)
    return (scores + FORCED * near.to(torch.float32)[:, None]).topk(min(k, len(index)), sorted=False).indices


def cells_of_blocks(
    blocks: Tensor, pos: Tensor, mine: Tensor, visible: Tensor, block: int, n_blocks: int
) -> Tensor:
    """``bool[token, group, cell]``: visible cells of chosen blocks."""
    chosen = as_mask(blocks, torch.ones_like(blocks, dtype=torch.bool), n_blocks)
    block_of = torch.where(mine, pos // block, 0).to(torch.int64).clamp(0, n_blocks - 1)
    return chosen.index_select(-1, block_of) & visible[:, None]


def gathered_blocks(blocks: Tensor, slots: Tensor, visible: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """The cells to gather ``[token, group, k * block]``, and which of them count."""
    positions = (blocks[..., None] * block + torch.arange(block, device=blocks.device)).flatten(-2)
    counts = visible[:, None].expand(-1, blocks.shape[1], -1).gather(2, positions)
    return slots[positions], counts
