"""Placing many ubatches of one stream of a cache at once, each in the very cells that it would take alone.

::

    one by one     3 ubatches of sequences a, b     cells  . . a b a b a b .    head at 8
    together       one search for 6 cells from the head, the same cells, one placement

What makes them the same:

- a search goes on from where the last one ended, unless the head is so far behind the used cells that it
  starts over (``find_slot``); the ubatches placed together end before that could happen;
- a cell that no ubatch may take is passed over by all; a window cell that a later one may take, though the
  first may not, ends those that are placed together where the search comes to it;
- placing reads nothing of earlier ubatches but what they took.

The cells are found by the caches' own search and written by their ``apply_ubatch``; only the trial that
llama.cpp makes before it places is left out. The caller has made sure that everything fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvsim import window
from kvsim.batch import Ubatch
from kvsim.caches.kv import KVCache
from kvsim.caches.slot_search import FIRST_WINDOW, SlotSearch
from kvsim.cells import CellTable
from kvsim.errors import IntegrityError
from kvsim.memory import IntArray, SlotInfo
from kvsim.models.params import SwaType
from kvsim.owner_words import bit_of

LONG_RUN = 32
"""Tokens of one sequence from which they are placed on their own, which is faster."""


@dataclass
class Chunks:
    """What one stream is to take: tokens in order with their positions and sequences, and how many of them
    each ubatch brings."""

    pos: IntArray
    tokens: IntArray
    seqs: IntArray
    sizes: IntArray

    @cached_property
    def only(self) -> int:
        """The sequence if it is one alone, else -1."""
        first = int(self.seqs[0])
        return first if bool((self.seqs == first).all()) else -1

    @cached_property
    def _cuts(self) -> list[int]:
        """Rows at which a long run of one sequence begins or ends."""
        if self.only >= 0:
            return []
        ends = np.flatnonzero(np.diff(self.seqs)) + 1
        bounds = np.concatenate(([0], ends, [len(self.seqs)]))
        long = np.diff(bounds) >= LONG_RUN
        return sorted({*bounds[:-1][long].tolist(), *bounds[1:][long].tolist()})

    def pieces(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """Rows [lo, hi) cut where a long run begins or ends."""
        at = lo
        for cut in (*self._cuts, hi):
            if at < cut <= hi:
                yield at, cut
                at = cut

    def last_positions(self, lo: int, hi: int) -> dict[int, int]:
        """The last position of each sequence in rows [lo, hi)."""
        if self.only >= 0:
            return {self.only: int(self.pos[hi - 1])}
        return dict(zip(self.seqs[lo:hi].tolist(), self.pos[lo:hi].tolist(), strict=True))

    def rows(self, lo: int, hi: int) -> Ubatch:
        """Rows [lo, hi) as one ubatch."""
        n = hi - lo
        if self.only >= 0:
            unique = [self.only]
            seq_ids: tuple[tuple[int, ...], ...] = ((self.only,),) * n
        else:
            each = self.seqs[lo:hi].tolist()
            unique = sorted(set(each))
            ids = {s: (s,) for s in unique}
            seq_ids = tuple([ids[s] for s in each])
        return Ubatch(
            pos=self.pos[None, lo:hi],
            seq_ids=seq_ids,
            output=np.zeros(n, np.bool_),
            idx=np.arange(n, dtype=np.int32),
            tokens=self.tokens[lo:hi],
            has_embd=False,
            n_seq_tokens=1,
            n_seqs=n,
            equal_seqs=False,
            seq_id_unq=tuple(unique),
        )


def place(cache: KVCache, stream: int, chunks: Chunks) -> int:
    """Place all chunks, as many together as the search allows. Returns how many cells it went over.

    Raises IntegrityError if one finds no room after all.
    """
    done = row = searched = 0
    while done < len(chunks.sizes):
        cells, n, seen = _find(cache, stream, chunks, done, row)
        for lo, hi in chunks.pieces(row, row + len(cells)):
            slot = SlotInfo((stream,), (cells[lo - row : hi - row],))
            cache.apply_ubatch(slot, chunks.rows(lo, hi))
        done, row, searched = done + n, row + len(cells), searched + seen
    return searched


def _find(cache: KVCache, stream: int, chunks: Chunks, done: int, row: int) -> tuple[IntArray, int, int]:
    """The cells of the next chunks, how many chunks these are, and how many cells are gone over for them."""
    sizes = chunks.sizes[done:]
    empty = _empty_from_head(cache, stream, sizes, len(chunks.pos) - row)
    if empty is not None:
        return empty, len(sizes), len(empty)
    search = cache.search(stream)
    ends = np.cumsum(sizes)
    later = _later_starts(cache, search.cells, chunks, row) if len(sizes) > 1 else {}
    start = 0 if search.head > search.cells.used + 2 * int(sizes[0]) else search.head % search.cells.size
    taken, limit = _sweep(search, start, ends, later)
    n = min(limit, int(np.searchsorted(ends, len(taken), side="right")))
    if n == 0:
        raise IntegrityError(f"cache {cache.name!r} has no room for a ubatch that was sure to fit")
    n = _before_restart(search, taken, sizes, ends, n)
    found = taken[: int(ends[n - 1])]
    return found, n, (int(found[-1]) - start) % search.cells.size + 1


def _empty_from_head(cache: KVCache, stream: int, sizes: IntArray, n: int) -> IntArray | None:
    """The ``n`` cells from the head on, if all are empty and no search would start over; else None. Each chunk
    moves the head as far as it adds used cells, so what holds of the first holds of all."""
    cells, head = cache.cells[stream], cache.heads[stream]
    if head + n > cells.size or head > cells.used + 2 * int(sizes.min()):
        return None
    if (cells.pos[head : head + n] != -1).any():
        return None
    return np.arange(head, head + n, dtype=np.int32)


def _later_starts(cache: KVCache, cells: CellTable, chunks: Chunks, row: int) -> dict[int, int]:
    """Where the windows of all sequences begin once every chunk from ``row`` on but the last is placed."""
    spec = cache.spec
    if spec.swa_type is SwaType.NONE:
        return {}
    ends = {s: cells.seq_pos_max(s) for s in cells.sequences()}
    ends |= chunks.last_positions(row, len(chunks.pos) - int(chunks.sizes[-1]))
    starts = {s: window.window_start(spec.swa_type, spec.n_swa, end + 1) for s, end in ends.items()}
    return {s: start for s, start in starts.items() if 0 <= cells.seq_pos_min(s) < start}


def _sweep(search: SlotSearch, start: int, ends: IntArray, later: dict[int, int]) -> tuple[IntArray, int]:
    """Go over the cells once, from where the first chunk begins to look, until there are enough.

    Returns the usable ones, and how many chunks end before the first cell that is usable only later.
    """
    cells = search.cells
    found: list[IntArray] = []
    n, total, limit = 0, int(ends[-1]), len(ends)
    for lo, stop in _windows(start, cells.size):
        usable = search.usable(lo, stop)
        here = np.flatnonzero(usable)
        if later:
            limit = min(limit, _chunks_before(cells, lo, stop, usable, later, n, ends))
        found.append((here + lo).astype(np.int32))
        n += len(here)
        if n >= total:
            break
    return np.concatenate(found)[:total], limit


def _windows(start: int, size: int) -> Iterator[tuple[int, int]]:
    """Stretches of cells from ``start`` round to ``start``, each longer than the last."""
    for lo, stop in ((start, size), (0, start)):
        step = FIRST_WINDOW
        while lo < stop:
            yield lo, min(stop, lo + step)
            lo, step = lo + step, step * 4


def _chunks_before(
    cells: CellTable, lo: int, hi: int, usable: np.ndarray, later: dict[int, int], n: int, ends: IntArray
) -> int:
    """How many chunks end before the search comes to a cell of [lo, hi) that is usable only by then. A cell
    that the first chunk passes over is passed over for good."""
    only_later = np.flatnonzero(cells.passed(lo, hi, later) & ~usable)
    if not len(only_later):
        return len(ends)
    rank = n + np.cumsum(usable)[only_later]  # cells taken before it
    chunk = np.searchsorted(ends, rank, side="right")  # the chunk that is looking then
    chunk = chunk[chunk > 0]
    return int(chunk[0]) if len(chunk) else len(ends)


def _before_restart(search: SlotSearch, taken: IntArray, sizes: IntArray, ends: IntArray, n: int) -> int:
    """How many of the first ``n`` chunks come before one that might start over at cell 0, because the head is
    far beyond the used cells. Used cells are counted at their fewest: less all that owners may lose."""
    if n < 2:
        return n
    heads = taken[ends[: n - 1] - 1].astype(np.int32) + 1
    used = search.cells.used + ends[: n - 1]
    lost = _lost(search, taken[: int(ends[n - 1])]) if search.starts else None
    if lost is not None:
        used = used - lost[ends[: n - 1] - 1]
    beyond = np.flatnonzero(heads > used + 2 * sizes[1:n])
    return int(beyond[0]) + 1 if len(beyond) else n


def _lost(search: SlotSearch, taken: IntArray) -> IntArray | None:
    """How many cells become empty, or change hands, as ``taken`` are taken one after the other; None: none.

    A sequence that loses a position to others loses all before it (the purge), so at most all from its first
    position to the highest one taken.
    """
    cells = search.cells
    live = np.flatnonzero(cells.pos[taken] != -1)
    if not len(live):
        return None
    lost = np.zeros(len(taken), np.int32)
    at = taken[live]
    pos = cells.pos[at]
    for s in search.starts:
        word, bit = bit_of(s)
        mine = (cells.seq[word, at] & bit) != 0
        if not mine.any():
            continue
        rows = live[mine]
        reach = np.maximum.accumulate(pos[mine].astype(np.int32)) - cells.seq_pos_min(s) + 1
        lost[rows] += np.diff(reach, prepend=0)
    return np.cumsum(lost)
