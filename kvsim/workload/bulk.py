"""Decoding many tokens at once, with the very outcome of decoding them one step after the other.

A service spends most of its decodes on one token for each of a few sequences. Where every such step is known
to find room, and where it would look is known too, the steps are placed together::

    step by step   3 steps of sequences a, b        cells  . . a b a b a b .    head at 8
    together       one search for 6 cells from the head, the same cells, one placement

What makes them the same, leaf by leaf and stream by stream:

- a step searches on from where the last one ended, unless the head is so far behind the used cells that it
  starts over (``find_slot``); the run of steps ends before that could happen;
- a cell that no step may take is passed over by all; a window cell that a later step may take, though the
  first may not, ends the run of steps where the search comes to it;
- placing reads nothing of earlier steps but what they took.

Everything else goes through :meth:`Context.decode`: other kinds of memory, a cache that might refuse, a
context with an observer. The cells are those of the caches themselves, found by their search and written by
their ``apply_ubatch``; only the trial that llama.cpp makes before it places is left out, since it cannot
fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kvsim import window
from kvsim.batch import Batch, Ubatch
from kvsim.caches.kv import KVCache
from kvsim.caches.slot_search import FIRST_WINDOW, SlotSearch
from kvsim.cells import CellTable
from kvsim.context import OK, Context
from kvsim.errors import IntegrityError
from kvsim.memory import IntArray, SlotInfo
from kvsim.models.params import SwaType
from kvsim.splitter import Splitter

PLAIN_KINDS = ("kv", "iswa")
"""Memories whose leaves are attention caches that know nothing of each other when a ubatch is placed."""

LONG_RUN = 32
"""Tokens of one sequence from which they are placed on their own."""


@dataclass(frozen=True)
class Run:
    """``tokens`` of one sequence, at positions from ``start`` on."""

    seq: int
    start: int
    tokens: Sequence[int]


@dataclass
class _Chunks:
    """What one stream is to take: tokens in order, how many of them each ubatch brings, how many tokens each
    sequence gains, and the rows at which long runs of one sequence begin and end."""

    pos: IntArray
    tokens: IntArray
    seq_ids: tuple[tuple[int, ...], ...]
    sizes: IntArray
    gained: dict[int, int]
    cuts: tuple[int, ...] = ()

    def pieces(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """Rows [lo, hi) cut where a long run begins or ends: cells of one sequence are placed faster."""
        at = lo
        for cut in (*self.cuts, hi):
            if at < cut <= hi:
                yield at, cut
                at = cut


def batch_of(runs: Sequence[Run]) -> Batch:
    """The runs as one batch, with an output for the last token of each."""
    tokens: list[int] = []
    pos: list[int] = []
    seq_ids: list[tuple[int, ...]] = []
    output: list[bool] = []
    for run in runs:
        n = len(run.tokens)
        tokens += run.tokens
        pos += range(run.start, run.start + n)
        seq_ids += [(run.seq,)] * n
        output += [False] * (n - 1) + [True]
    return Batch(tokens, None, pos, seq_ids, output)


class BulkDecoder:
    """Decodes through ``context``, together where that is provably the same. ``bulk`` False: every decode
    is the context's own."""

    def __init__(self, context: Context, bulk: bool = True) -> None:
        self.context = context
        leaves = context.memory.leaves().values()
        self.caches = [leaf for leaf in leaves if type(leaf) is KVCache]
        self._able = (
            bulk
            and context.memory.kind in PLAIN_KINDS
            and len(self.caches) == len(leaves)
            and context.model.n_pos_per_embd == 1
            and not any(cache.store or cache.contiguous or cache.defrag for cache in self.caches)
        )
        self.n_searched = 0
        """Cells that searches went over, taken or not."""

    @property
    def together(self) -> bool:
        """Whether decodes may be placed together now."""
        return self._able and self.context.observer is None and not self.context.recording

    # -- one batch -----------------------------------------------------------------------------

    def decode(self, runs: Sequence[Run]) -> int:
        """Decode the runs as one batch; the code and all else as of :meth:`Context.decode`."""
        if self.together and sum(len(run.tokens) for run in runs) <= self.context.resolved.n_batch:
            self.context.update()
            parts = self._parts(runs)
            if all(self._must_fit(cache, parts) for cache in self.caches):
                for cache in self.caches:
                    self._place(cache, parts)
                self.context.last_failure = None
                return OK
        return self._one_by_one(runs)

    def _one_by_one(self, runs: Sequence[Run]) -> int:
        heads = [list(cache.heads) for cache in self.caches]
        code = self.context.decode(batch_of(runs))
        for cache, before in zip(self.caches, heads, strict=True):
            self.n_searched += sum((b - a) % cache.size for a, b in zip(before, cache.heads, strict=True))
        return code

    def _parts(self, runs: Sequence[Run]) -> dict[int, _Chunks]:
        """Per stream, its tokens in the order in which the split brings them."""
        n_ubatch, unified = self.context.resolved.n_ubatch, self.context.resolved.kv_unified
        if unified:
            n = sum(len(run.tokens) for run in runs)
            full, rest = divmod(n, n_ubatch)
            sizes = np.array([n_ubatch] * full + [rest] * (rest > 0), np.int32)
            return {0: _chunks(runs, sizes)}
        split = _equal_sizes([(run.seq, len(run.tokens)) for run in runs], n_ubatch)
        return {run.seq: _chunks([run], np.array(split[run.seq], np.int32)) for run in runs}

    def _must_fit(self, cache: KVCache, parts: dict[int, _Chunks]) -> bool:
        """Whether no ubatch can be refused, whatever the order in which cells become free."""
        for stream, chunks in parts.items():
            table = cache.cells[stream]
            if cache.spec.swa_type is SwaType.NONE:
                if table.size - table.used < len(chunks.pos):
                    return False
                continue
            largest, most_seqs = int(chunks.sizes.max()), cache.n_seq_max if cache.n_stream == 1 else 1
            if most_seqs * cache.spec.n_swa + largest <= table.size:
                continue  # however much every sequence holds
            needed = 0
            for s in chunks.gained.keys() | set(table.sequences()):
                held = table.seq_pos_max(s) - table.seq_pos_min(s) + 1 if table.seq_pos_max(s) >= 0 else 0
                needed += min(held + chunks.gained.get(s, 0), cache.spec.n_swa)
            if needed + largest > table.size:
                return False
        return True

    # -- many steps of one token each ----------------------------------------------------------

    def steps(self, runs: Sequence[Run]) -> int:
        """As many steps as surely succeed, one token of every run in each: runs of equal length. Returns how
        many were made; 0: the next step must go through :meth:`decode`."""
        if not self.together:
            return 0
        self.context.update()
        n_steps, n_seqs = len(runs[0].tokens), len(runs)
        unified = self.context.resolved.kv_unified
        each = n_seqs if unified else 1
        for cache in self.caches:
            if cache.spec.swa_type is SwaType.NONE:
                streams = [0] if unified else [run.seq for run in runs]
                free = min(cache.size - cache.cells[stream].used for stream in streams)
                n_steps = min(n_steps, free // each)
        if n_steps == 0 or n_seqs > self.context.resolved.n_ubatch:
            return 0
        runs = [Run(run.seq, run.start, run.tokens[:n_steps]) for run in runs]
        parts = self._steps(runs, n_steps) if unified else self._step_parts(runs)
        if not all(self._must_fit(cache, parts) for cache in self.caches):
            return 0
        for cache in self.caches:
            self._place(cache, parts)
        self.context.last_failure = None
        return n_steps

    def _steps(self, runs: Sequence[Run], n_steps: int) -> dict[int, _Chunks]:
        """All in one stream: the first token of every run, then the second, ..."""
        starts = np.array([run.start for run in runs], np.int32)
        pos = (np.arange(n_steps, dtype=np.int32)[:, None] + starts).ravel()
        tokens = np.array([run.tokens for run in runs], np.int32).T.ravel()
        seq_ids = tuple([(run.seq,) for run in runs]) * n_steps
        gained = {run.seq: n_steps for run in runs}
        return {0: _Chunks(pos, tokens, seq_ids, np.full(n_steps, len(runs), np.int32), gained)}

    def _step_parts(self, runs: Sequence[Run]) -> dict[int, _Chunks]:
        return {run.seq: _chunks([run], np.ones(len(run.tokens), np.int32)) for run in runs}

    # -- placing -------------------------------------------------------------------------------

    def _place(self, cache: KVCache, parts: dict[int, _Chunks]) -> None:
        """Place the chunks of every stream, as many together as the search allows."""
        for stream, chunks in parts.items():
            done = row = 0
            while done < len(chunks.sizes):
                cells, n = self._find(cache, stream, chunks, done, row)
                for lo, hi in chunks.pieces(row, row + len(cells)):
                    part = cells[lo - row : hi - row]
                    cache.apply_ubatch(SlotInfo((stream,), (part,)), _rows(chunks, lo, hi - lo))
                done, row = done + n, row + len(cells)

    def _find(
        self, cache: KVCache, stream: int, chunks: _Chunks, done: int, row: int
    ) -> tuple[IntArray, int]:
        """The cells of the next chunks, and how many chunks these are."""
        search = cache.search(stream)
        sizes = chunks.sizes[done:]
        ends = np.cumsum(sizes)
        later = _later_starts(cache, search.cells, chunks, row) if search.cells and len(sizes) > 1 else {}
        taken, limit, searched = _sweep(search, int(sizes[0]), ends, later)
        n = min(limit, int(np.searchsorted(ends, len(taken), side="right")))
        if n == 0:
            raise IntegrityError(f"cache {cache.name!r} has no room for a ubatch that was sure to fit")
        n = _before_restart(search.cells, taken, sizes, ends, n)
        self.n_searched += searched
        return taken[: int(ends[n - 1])], n


def _chunks(runs: Sequence[Run], sizes: IntArray) -> _Chunks:
    pos = np.concatenate([np.arange(r.start, r.start + len(r.tokens), dtype=np.int32) for r in runs])
    tokens = np.concatenate([np.asarray(r.tokens, np.int32) for r in runs])
    seq_ids: list[tuple[int, ...]] = []
    cuts = []
    for run in runs:
        n = len(run.tokens)
        if n > LONG_RUN:
            cuts += [len(seq_ids), len(seq_ids) + n]
        seq_ids += [(run.seq,)] * n
    return _Chunks(pos, tokens, tuple(seq_ids), sizes, {r.seq: len(r.tokens) for r in runs}, tuple(cuts))


def _rows(chunks: _Chunks, at: int, n: int) -> Ubatch:
    """Some rows of a stream as one ubatch."""
    seq_ids = chunks.seq_ids[at : at + n]
    return Ubatch(
        pos=chunks.pos[None, at : at + n],
        seq_ids=seq_ids,
        output=np.zeros(n, np.bool_),
        idx=np.arange(n, dtype=np.int32),
        tokens=chunks.tokens[at : at + n],
        has_embd=False,
        n_seq_tokens=1,
        n_seqs=n,
        equal_seqs=False,
        seq_id_unq=tuple(sorted({ids[0] for ids in set(seq_ids)})),
    )


def _equal_sizes(lengths: Sequence[tuple[int, int]], n_ubatch: int) -> dict[int, list[int]]:
    """Per sequence, how many of its tokens each ubatch of the equal split brings."""
    rows_of: dict[int, list[int]] = {}
    masks: list[int] = []
    seq_of: list[int] = []
    for seq, n in lengths:
        rows_of[1 << seq] = list(range(len(masks), len(masks) + n))
        masks += [1 << seq] * n
        seq_of += [seq] * n
    splitter = Splitter(masks, rows_of)
    sizes: dict[int, list[int]] = {seq: [] for seq, _ in lengths}
    while not splitter.all_used:
        rows, n_seqs = splitter.equal(n_ubatch, sequential=True, n_keep_tail=0)
        each = len(rows) // n_seqs
        for k in range(n_seqs):
            sizes[seq_of[rows[k * each]]].append(each)
    return sizes


def _later_starts(cache: KVCache, cells: CellTable, chunks: _Chunks, row: int) -> dict[int, int]:
    """Where the windows of all sequences begin once every chunk from ``row`` on but the last is placed."""
    spec = cache.spec
    if spec.swa_type is SwaType.NONE:
        return {}
    ends = {s: cells.seq_pos_max(s) for s in cells.sequences()}
    last = int(chunks.sizes[-1])
    rows = slice(row, len(chunks.pos) - last)
    ids = chunks.seq_ids[rows]
    pos = chunks.pos[rows]
    for (s,) in set(ids):
        at = len(ids) - 1 - ids[::-1].index((s,))
        ends[s] = int(pos[at])
    starts = {s: window.window_start(spec.swa_type, spec.n_swa, end + 1) for s, end in ends.items()}
    return {s: start for s, start in starts.items() if 0 <= cells.seq_pos_min(s) < start}


def _sweep(
    search: SlotSearch, first: int, ends: IntArray, later: dict[int, int]
) -> tuple[IntArray, int, int]:
    """Go over the cells once, from where the first chunk begins to look, until there are enough.

    Returns the usable ones, how many chunks end before the first cell that is usable only later, and how many
    cells were gone over.
    """
    cells, head = search.cells, search.head
    start = 0 if head > cells.used + 2 * first or head >= cells.size else head
    found: list[IntArray] = []
    n, total, limit, searched = 0, int(ends[-1]), len(ends), 0
    for lo, stop in _windows(start, cells.size):
        usable = search.usable(lo, stop)
        here = np.flatnonzero(usable)
        if later:
            limit = min(limit, _chunks_before(cells, lo, stop, usable, later, n, ends))
        found.append((here + lo).astype(np.int32))
        n += len(here)
        searched += stop - lo
        if n >= total:
            searched -= stop - lo - 1 - int(here[len(here) - 1 - (n - total)])
            break
    return np.concatenate(found)[:total], limit, searched


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


def _before_restart(cells: CellTable, taken: IntArray, sizes: IntArray, ends: IntArray, n: int) -> int:
    """How many of the first ``n`` chunks come before one that might start over at cell 0, because the head is
    far beyond the used cells. Used cells are counted at their fewest: less all that owners may lose."""
    if n < 2:
        return n
    heads = taken[ends[: n - 1] - 1].astype(np.int32) + 1
    used = cells.used + ends[: n - 1]
    lost = _lost(cells, taken[: int(ends[n - 1])])
    if lost is not None:
        used = used - lost[ends[: n - 1] - 1]
    beyond = np.flatnonzero(heads > used + 2 * sizes[1:n])
    return int(beyond[0]) + 1 if len(beyond) else n


def _lost(cells: CellTable, taken: IntArray) -> IntArray | None:
    """How many cells become empty, or change hands, as ``taken`` are taken one after the other; None: none.

    A sequence that loses a position to others loses all before it (the purge), so at most all from its first
    position to the highest one taken.
    """
    live = np.flatnonzero(cells.pos[taken] != -1)
    if not len(live):
        return None
    lost = np.zeros(len(taken), np.int32)
    words = cells.seq[:, taken[live]]
    for owner in {tuple(word) for word in np.unique(words, axis=1).T.tolist()}:
        rows = live[(np.array(owner, np.uint64) == words.T).all(axis=1)]
        (s,) = cells.owners(int(taken[rows[0]]))
        reach = np.maximum.accumulate(cells.pos[taken[rows]].astype(np.int32)) - cells.seq_pos_min(s) + 1
        lost[rows] += np.diff(reach, prepend=0)
    return np.cumsum(lost)
