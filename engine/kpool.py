"""What the graph of the pooled indexer gets, and does with pools, on a device (spec hybrid.md 3.2 to 3.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.pool_layout import PoolView
from engine.rope import turn
from engine.rows import FIRST, POS
from engine.sync import upload
from kvsim.tensors.rope import Rope


@dataclass
class PoolInputs:
    """As :class:`kvsim.tensors.kpool.PoolInputs`: global cells but for ``pool_idxs`` and ``tail_idxs``, which
    are local to their stream; *none* is ``n_kv``."""

    pool_cells: Tensor
    pool_idxs: Tensor
    pool_mask: Tensor
    tail_idxs: Tensor
    tail_real: Tensor
    new_pool_idxs: Tensor
    new_pool_rep: Tensor


def pool_inputs(view: PoolView) -> PoolInputs:
    """The inputs of a placed ubatch. ``view.n_pool`` and ``view.n_new_padded`` are the shapes."""
    return _Builder(view).build()


class _Builder:
    def __init__(self, view: PoolView) -> None:
        self.view, self.layout, self.rows = view, view.layout, view.slot.rows
        self.size, self.n_cells, self.n_kv = view.layout.size, view.cache.size, view.n_kv
        device = view.cache.device
        ids = view.layout.ids
        row_of = np.zeros(max(ids) + 1, np.int64)
        row_of[ids] = np.arange(len(ids))
        self.row = upload(row_of, device)[self.rows.packed[FIRST]]
        self.pos = self.rows.packed[POS]
        self.stream = upload([view.cache.stream_of(s) for s in ids], device)
        cell = view.slot.flat % self.n_cells
        self.rank = (self.layout.keys[self.row] < ((self.pos + 1) * self.n_cells + cell)[:, None]).sum(1)

    def build(self) -> PoolInputs:
        layout, n_pool = self.layout, self.view.n_pool
        n, most = layout.starts.shape
        real = torch.arange(most, device=self.pos.device) < layout.n_pools[:, None]
        at = (layout.starts[..., None] + torch.arange(self.size, device=self.pos.device)).flatten(1)
        local = layout.keys.gather(1, at.clamp(max=layout.keys.shape[1] - 1)) % self.n_cells
        local = local.view(n, most, self.size)
        members = local + (self.stream * self.n_cells)[:, None, None]
        first = layout.n_pools.cumsum(0) - layout.n_pools
        number = torch.where(
            real, first[:, None] + torch.arange(most, device=self.pos.device), n_pool
        ).flatten()
        filler = self._first_at(self.row[:1], self.pos[:1]) + self.stream[self.row[:1]] * self.n_cells
        pool_cells = filler.repeat(n_pool + 1).index_copy(0, number, members[..., -1].flatten())[:-1]
        if self.view.cache.n_stream > 1:  # members of streams that the ubatch has nothing of are none
            here = (self.stream[:, None] == self.stream[self.row]).any(1)
            local = torch.where(here[:, None, None], local, self.n_kv)
        none = torch.full((n_pool + 1, self.size), self.n_kv, device=self.pos.device)
        pool_idxs = none.index_copy(0, number, local.flatten(0, 1))[:-1]
        tails = self._tails()
        new_idxs, new_rep = self._new_pools(members, real)
        return PoolInputs(
            pool_cells, pool_idxs, self._visible(number.view(n, most), real, n_pool),
            torch.where(tails >= 0, tails, self.n_kv), tails >= 0, new_idxs, new_rep,
        )  # fmt: skip

    def _first_at(self, row: Tensor, pos: Tensor) -> Tensor:
        """The lowest cell of a sequence at a position, -1 if there is none."""
        keys = self.layout.keys[row]
        at = (keys < ((pos + 1) * self.n_cells)[:, None]).sum(1, keepdim=True).clamp(max=keys.shape[1] - 1)
        key = keys.gather(1, at)[:, 0]
        return torch.where(key // self.n_cells - 1 == pos, key % self.n_cells, -1)

    def _visible(self, number: Tensor, real: Tensor, n_pool: int) -> Tensor:
        """``bool[token, n_pool]``: pools of the token's sequence that are complete at it."""
        layout = self.layout
        j = torch.arange(number.shape[1], device=number.device)
        if layout.by_order:
            seen = j < ((self.rank + 1) // self.size)[:, None]
        else:
            last = (layout.starts + self.size - 1).clamp(max=layout.keys.shape[1] - 1)
            ends = layout.keys.gather(1, last) // self.n_cells - 1
            seen = ends[self.row] <= self.pos[:, None]
        at = torch.where(seen & real[self.row], number[self.row], n_pool)
        mask = torch.zeros(len(self.pos), n_pool + 1, dtype=torch.bool, device=number.device)
        return mask.scatter_(1, at, True)[:, :-1]

    def _tails(self) -> Tensor:
        """Local cells ``[token, size - 1]`` behind the last complete pool, newest first, -1 where there is
        none."""
        keys = self.layout.keys[self.row]
        back = torch.arange(self.size - 1, device=self.pos.device)
        if self.layout.by_order:
            at = (self.rank[:, None] - back).clamp(min=0, max=keys.shape[1] - 1)
            cells = keys.gather(1, at) % self.n_cells
            length = (self.rank + 1) % self.size
        else:
            first = keys[:, 0] // self.n_cells - 1
            cells = torch.stack([self._first_at(self.row, self.pos - k) for k in range(self.size - 1)], 1)
            length = (self.pos - first + 1) % self.size
        return torch.where(back < length[:, None], cells, -1)

    def _new_pools(self, members: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Members and last member of the pools to pool again; padded with cells that hold no pooled key, the
        lowest first, where what is computed for them does not matter."""
        n_new = self.view.n_new_padded
        count = self.view.new.flatten().to(torch.int64).cumsum(0)
        wanted = torch.arange(1, n_new + 1, device=count.device)
        at = torch.searchsorted(count, wanted).clamp(max=len(count) - 1)
        is_new = wanted <= count[-1]
        reps = torch.where(real, members[..., -1], -1).flatten()
        n_all = self.n_cells * self.view.cache.n_stream
        held = torch.zeros(n_all + 1, dtype=torch.bool, device=count.device)
        held.index_fill_(0, torch.where(reps >= 0, reps, n_all), True)
        free = (~held[:-1]).to(torch.int64).cumsum(0)
        scratch = torch.searchsorted(free, (wanted - count[-1]).clamp(min=1))
        chosen = members.flatten(0, 1)[at]
        idxs = torch.where(is_new[:, None], chosen, scratch[:, None])
        return idxs, idxs[:, -1]


# -- keys and selection ----------------------------------------------------------------------------


def pool_gated(keys: Tensor, gates: Tensor, ape: Tensor) -> Tensor:
    """GLM5-Next: members' keys ``[pool, size, d]`` weighted per channel by the softmax of gate + ``ape[size,
    d]``."""
    return ((gates + ape).softmax(1) * keys).sum(1)


def pool_mean(keys: Tensor, norm: Tensor, eps: float, pos: Tensor, rotation: Rope) -> Tensor:
    """Qwen4-exp: the mean of the members' keys, normed, turned to ``pos int[4, pool]`` of the first
    member."""
    mean = keys.mean(1)
    scale = torch.rsqrt(mean.square().mean(-1, keepdim=True) + eps)
    return turn(mean * scale * norm, pos, rotation)


def selection_mask(inputs: PoolInputs, top: Tensor, visible: Tensor) -> Tensor:
    """Final mask ``[token, cell]``: members of the chosen pools ``top [token, k]`` that are visible, and the
    tail."""
    n_kv = visible.shape[1]
    shown = inputs.pool_mask.gather(1, top)
    members = torch.where(shown[..., None], inputs.pool_idxs[top], n_kv).flatten(1)
    mask = torch.zeros(len(top), n_kv + 1, dtype=torch.bool, device=top.device)
    mask.scatter_(1, members, True).scatter_(1, inputs.tail_idxs, True)
    return mask[:, :n_kv] & visible
