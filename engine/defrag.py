"""Defragmentation as a compaction on the device: prefix sums say which cell goes where (spec decode.md 6).

::

    before   X X . . X X . X X . . X . X X        9 used: holes before cell 9, fillers from it on
    holes        0 1     2                        rank of each hole
    fillers                        0   1 2        rank of each filler
    after    X X 1 2 X X 0 X X . . . . . .        a run of holes takes the last fillers left, in their order

The result is that of kvsim's classic plan. How many cells move is asked once, when an update is prepared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from engine.cells import POS
from engine.sync import read_back, upload
from kvsim.defrag import DefragReport, Move
from kvsim.errors import CacheUsageError

if TYPE_CHECKING:
    from engine.kv import KVCache


@dataclass(frozen=True)
class StreamMoves:
    """Cells of one stream that move, in pairs; ``fragmentation`` is the share of empty cells before."""

    stream: int
    src: np.ndarray
    dst: np.ndarray
    fragmentation: float

    @property
    def moves(self) -> tuple[Move, ...]:
        """The runs of cells that go together."""
        breaks = np.flatnonzero((np.diff(self.src) != 1) | (np.diff(self.dst) != 1)) + 1
        starts, ends = [0, *breaks], [*breaks, len(self.src)]
        return tuple(
            Move(int(self.src[a]), int(self.dst[a]), int(b - a)) for a, b in zip(starts, ends, strict=True)
        )


def plan_update(cache: KVCache, optimize: bool) -> list[StreamMoves]:
    """What an update of ``cache`` is to move; nothing without a strategy. Caches that belong together make
    the same moves, or none if they have drifted apart."""
    leader = cache.together[0]
    strategy = leader.defrag
    if strategy is None or (not optimize and strategy.threshold <= 0):
        return []
    if strategy.strategy != "classic":
        raise CacheUsageError(
            f"the engine compacts in the classic way, not {strategy.strategy!r}: use Defrag('classic')"
        )
    if not all(leader is other or leader.same_cells(other) for other in cache.together):
        return []
    n_layer = max(len(each.spec.layers) for each in cache.together)
    plans = [_sources(cache, stream, strategy.max_moves(n_layer)) for stream in range(cache.n_stream)]
    answers = read_back(torch.stack([torch.cat(plan) for plan in plans])) if cache.high else []
    found = []
    for stream, answer in enumerate(answers):
        n_kv, n_used, half_alive = answer[:3].tolist()
        source = answer[3:]
        dst = np.flatnonzero(source >= 0)
        if len(dst) and not half_alive and strategy.wanted(n_kv, n_used, cache.spec.n_pad, optimize):
            found.append(StreamMoves(stream, source[dst], dst, (n_kv - n_used) / n_kv))
    return found


def _sources(cache: KVCache, stream: int, max_moves: int) -> tuple[Tensor, Tensor]:
    """The stream's length, used cells and half-alive cells; and for each cell the one that goes there, -1:
    none."""
    hi, table = cache.high, cache.table
    index = table.index[:hi]
    live = table.planes[POS, stream, :hi] != -1
    n_used = live.sum()
    hole, filler = ~live & (index < n_used), live & (index >= n_used)
    rank = hole.cumsum(0) - 1
    before = torch.nn.functional.pad(hole[:-1], (1, 0))
    after = torch.nn.functional.pad(hole[1:], (0, 1))
    first = torch.where(hole & ~before, rank, -1).cummax(0).values
    end = torch.where(hole & ~after, rank + 1, hi).flip(0).cummin(0).values.flip(0)
    wanted = filler.sum() - end + rank - first + 1  # which of the fillers, from 1
    fillers = filler.cumsum(0)
    source = torch.searchsorted(fillers, wanted).clamp(max=max(hi - 1, 0))
    follows = before & (torch.roll(source, 1) + 1 == source)
    move = (hole & ~follows).cumsum(0)
    source = torch.where(hole & (move <= max_moves), source, -1)
    last = torch.where(live, index + 1, 0).amax() if hi else torch.zeros_like(n_used)
    half_alive = torch.zeros_like(n_used) if table.minus_one is None else table.minus_one.used[stream].sum()
    return torch.stack([last, n_used, half_alive]), source


def defragment(cache: KVCache, plans: Sequence[StreamMoves]) -> tuple[DefragReport, ...]:
    """Move cells and rows; the next search begins at cell 0."""
    bytes_per_cell = sum(layer.row_k + layer.row_v for layer in cache.spec.layers)
    reports = []
    for plan in plans:
        src, dst = upload(np.stack([plan.src, plan.dst]), cache.device)
        cache.table.move(plan.stream, src, dst)
        if cache.store is not None:
            cache.store.move_cells(plan.stream, src, dst)
        live = cache.table.planes[POS, plan.stream, : cache.high] != -1
        last, n_used = read_back(
            torch.stack([torch.where(live, cache.table.index[: cache.high] + 1, 0).amax(), live.sum()])
        )
        n_bytes = len(plan.src) * bytes_per_cell
        reports.append(
            DefragReport(plan.stream, plan.moves, n_bytes, plan.fragmentation, float((last - n_used) / last))
        )
    return tuple(reports)
