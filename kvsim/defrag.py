"""Defragmentation: moving the last cells of a cache into its holes (spec decode.md 6).

llama.cpp had this until August 2025, when placing tokens into arbitrary cells made it unnecessary; here
it is a strategy that a cache can be given (``KVCache.defrag``), off by default. A *move* is one contiguous
run of cells, copied at once in every layer::

    before   X X . . X X . X X . . X . X X        9 used, n_kv 15
    after    X X a b X X c X X . . . . . .        classic: 13,14 -> 2,3 and 11 -> 6: two moves

Only holes below the number of used cells are filled, from cells at or after it, so sources and targets
never overlap and cells only move down. Sequences stay interleaved as they were.

The planners come first and know nothing of caches; :func:`plan_update` and :func:`defragment` are the two
halves of an update: what to move, decided while it is prepared, and the moving.

Upstream: ``src/llama-kv-cache-unified.cpp: defrag_prepare, build_graph_defrag``, July 2025.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from kvsim.events import Event
from kvsim.memory import BoolArray, IntArray

if TYPE_CHECKING:
    from kvsim.caches.kv import KVCache

Strategy = Literal["classic", "minimal"]

EXACT_SEGMENTS = 12
"""Up to this many holes and filler segments together, the minimal strategy is exactly minimal."""


@dataclass(frozen=True)
class Move:
    """``length`` cells from ``src`` on go to ``dst`` on."""

    src: int
    dst: int
    length: int


@dataclass(frozen=True)
class DefragReport:
    """What a defragmentation did to one stream. Fragmentation is the share of empty cells before the last
    used one; ``n_bytes`` counts the rows copied, over all layers, K and V."""

    stream: int
    moves: tuple[Move, ...]
    n_bytes: int
    fragmentation_before: float
    fragmentation_after: float

    @property
    def n_cells(self) -> int:
        return sum(move.length for move in self.moves)


@dataclass(frozen=True)
class Defrag:
    """When and how to defragment.

    ``threshold``: also run without being asked when more than this share of at least 2048 cells is empty
    (0 or less: only when asked). ``max_nodes``: graph nodes there are, which bounds the moves: a move costs
    6 per layer, and 2 per layer are taken already.
    """

    strategy: Strategy = "classic"
    threshold: float = 0.0
    max_nodes: int = 8192

    def max_moves(self, n_layer: int) -> int:
        """Move budget of one update (D2)."""
        return max(0, (self.max_nodes - 2 * n_layer) // (6 * n_layer)) if n_layer else 0

    def wanted(self, n_kv: int, n_used: int, n_pad: int, optimize: bool) -> bool:
        """Whether to run now (D1)."""
        if optimize:
            return True
        empty = max(0.0, 1 - (n_used + n_pad) / n_kv) if n_kv else 0.0
        return self.threshold > 0 and n_kv >= 2048 and empty > self.threshold

    def plan(self, empty: BoolArray, n_layer: int) -> list[Move]:
        """The moves for the cells up to the last used one; ``empty`` tells which of them are."""
        budget = self.max_moves(n_layer)
        planner = plan_classic if self.strategy == "classic" else plan_minimal
        return planner(empty, budget)


def fragmentation(empty: BoolArray) -> float:
    """Share of empty cells before the last used one."""
    used = np.flatnonzero(~empty)
    return float(empty[: used[-1] + 1].mean()) if len(used) else 0.0


def segments(flags: BoolArray, offset: int = 0) -> list[tuple[int, int]]:
    """Maximal runs of true values as (start, length)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return [(int(a) + offset, int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def plan_classic(empty: BoolArray, max_moves: int) -> list[Move]:
    """The historic plan (D3): each hole, from the first on, takes the last cells that are still to move, in
    their order. Stops in the middle when the budget is used up, which leaves a valid cache.

    ``max_moves`` 0 moves nothing. (The historic code asked only whether the number of moves *equals* the
    budget, after counting one, and so never stopped with a budget of 0.)
    """
    n_used = int(np.count_nonzero(~empty))
    tail = np.flatnonzero(~empty[n_used:]) + n_used
    moves: list[Move] = []
    end = len(tail)
    for start, length in segments(empty[:n_used]):
        sources, end = tail[end - length : end], end - length
        for first, count in _runs(sources):
            if len(moves) == max_moves:
                return moves
            moves.append(Move(int(sources[first]), start + first, count))
    return moves


def _runs(cells: IntArray | np.ndarray[tuple[int], np.dtype[np.int64]]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive cells as (index of the first, length)."""
    breaks = np.flatnonzero(np.diff(cells) != 1) + 1
    bounds = [0, *breaks.tolist(), len(cells)]
    return ((a, b - a) for a, b in pairwise(bounds) if b > a)


def plan_minimal(empty: BoolArray, max_moves: int) -> list[Move]:
    """As few moves as there can be: a group of segments whose lengths add up to those of a group of holes
    needs one move less than it has segments and holes. Exactly minimal up to :data:`EXACT_SEGMENTS`; beyond
    that, equal lengths are paired first and the rest is filled in order of length."""
    n_used = int(np.count_nonzero(~empty))
    holes = segments(empty[:n_used])
    fillers = segments(~empty[n_used:], n_used)
    moves: list[Move] = []
    for group_holes, group_fillers in _groups(holes, fillers):
        moves += _fill(group_holes, group_fillers)
    return moves[:max_moves]


Segments = list[tuple[int, int]]


def _groups(holes: Segments, fillers: Segments) -> Iterator[tuple[Segments, Segments]]:
    """Split holes and fillers into as many groups of equal total length as possible."""
    paired, holes, fillers = _equal_pairs(holes, fillers)
    yield from paired
    if len(holes) + len(fillers) > EXACT_SEGMENTS:
        by_length = sorted(holes, key=lambda s: -s[1]), sorted(fillers, key=lambda s: -s[1])
        yield by_length
        return
    balance = tuple([length for _, length in holes] + [-length for _, length in fillers])
    for members in _zero_sum_groups(balance):
        group_holes = [holes[i] for i in members if i < len(holes)]
        group_fillers = [fillers[i - len(holes)] for i in members if i >= len(holes)]
        yield group_holes, group_fillers


def _equal_pairs(
    holes: Segments, fillers: Segments
) -> tuple[list[tuple[Segments, Segments]], Segments, Segments]:
    """Pair holes with fillers of the same length. Some best grouping has all these pairs: two groups that
    hold the two halves of a pair can be merged without them."""
    left: dict[int, Segments] = {}
    for filler in fillers:
        left.setdefault(filler[1], []).append(filler)
    paired: list[tuple[Segments, Segments]] = []
    rest: Segments = []
    for hole in holes:
        match = left.get(hole[1])
        if match:
            paired.append(([hole], [match.pop(0)]))
        else:
            rest.append(hole)
    return paired, rest, [filler for same in left.values() for filler in same]


def _zero_sum_groups(balance: Sequence[int]) -> list[list[int]]:
    """The most groups with sum 0 that the numbers can be split into (they sum to 0 as a whole)."""

    @cache
    def best(mask: int) -> tuple[int, int]:
        """(number of closed groups, last index taken) for the best order in which ``mask`` was filled."""
        if mask == 0:
            return 0, -1
        total = sum(balance[i] for i in range(len(balance)) if mask >> i & 1)
        options = ((best(mask & ~(1 << i))[0], i) for i in range(len(balance)) if mask >> i & 1)
        groups, last = max(options)
        return groups + (total == 0), last

    order, mask = [], (1 << len(balance)) - 1
    while mask:
        last = best(mask)[1]
        order.append(last)
        mask &= ~(1 << last)
    groups: list[list[int]] = [[]]
    total = 0
    for i in reversed(order):
        groups[-1].append(i)
        total += balance[i]
        if total == 0:
            groups.append([])
    return [group for group in groups if group]


def _fill(holes: Segments, fillers: Segments) -> list[Move]:
    """Fill the holes of one group from its fillers: at most one move less than segments."""
    moves: list[Move] = []
    sources = iter(fillers)
    src, left = next(sources, (0, 0))
    for start, length in holes:
        while length:
            if left == 0:
                src, left = next(sources)
            n = min(left, length)
            moves.append(Move(src, start, n))
            src, left, start, length = src + n, left - n, start + n, length - n
    return moves


# -- an update -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamMoves:
    """The moves planned for one stream."""

    stream: int
    moves: tuple[Move, ...]

    def cells(self) -> tuple[IntArray, IntArray]:
        """Source and target of every cell that moves."""
        src = [np.arange(m.src, m.src + m.length, dtype=np.int32) for m in self.moves]
        dst = [np.arange(m.dst, m.dst + m.length, dtype=np.int32) for m in self.moves]
        return np.concatenate(src), np.concatenate(dst)


def plan_update(cache: KVCache, optimize: bool) -> list[StreamMoves]:
    """The moves an update of ``cache`` is to make, empty if it has no strategy or there is nothing to move.

    Caches that belong together (an attention cache and its indexer) get one plan, that of the first of them;
    none, if their tables have drifted apart. A stream in which a cell sits at position -1 is left alone: that
    cell is empty by the only test and yet counted as used, so a plan would not add up.
    """
    leader = cache.together[0]
    strategy = leader.defrag
    if strategy is None:
        return []
    n_layer = max(len(each.spec.layers) for each in cache.together)
    plans = []
    for stream, table in enumerate(leader.cells):
        n_kv = table.used_max_p1
        alike = all(np.array_equal(each.cells[stream].pos, table.pos) for each in cache.together)
        if not alike or table.used != table.n_live:
            continue
        if strategy.wanted(n_kv, table.used, leader.spec.n_pad, optimize):
            moves = strategy.plan(table.pos[:n_kv] == -1, n_layer)
            if moves:
                plans.append(StreamMoves(stream, tuple(moves)))
    return plans


def defragment(cache: KVCache, plans: Sequence[StreamMoves]) -> tuple[DefragReport, ...]:
    """Move cells and rows as planned, and start the next search at cell 0 (D6, D7). Tells each move."""
    bytes_per_cell = sum(layer.row_k + layer.row_v for layer in cache.spec.layers)
    reports = []
    for plan in plans:
        table = cache.cells[plan.stream]
        before = fragmentation(table.pos == -1)
        src, dst = plan.cells()
        table.move(src, dst)
        if cache.store is not None:
            cache.store.move_cells(plan.stream, src, dst)
        cache.heads[plan.stream] = 0
        after = fragmentation(table.pos == -1)
        reports.append(DefragReport(plan.stream, plan.moves, len(src) * bytes_per_cell, before, after))
        _tell(cache, plan)
    return tuple(reports)


def _tell(cache: KVCache, plan: StreamMoves) -> None:
    if cache.observer is None:
        return
    for m in plan.moves:
        cells = np.arange(m.dst, m.dst + m.length, dtype=np.int32)
        cache.observer(Event("move", cache.name, plan.stream, cells, {"src": m.src, "length": m.length}))
