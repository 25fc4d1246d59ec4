"""Decoding many tokens at once, with the very outcome of decoding them one step after the other.

A service spends most of its decodes on one token for each of a few sequences, and nobody looks at the cells
between them. So tokens that are sure to find room *wait*, and are placed together (placing.py) before the
memory is looked at, or changed in another way::

    decode a, b, c     three batches, counted and timed           nothing is placed yet
    settle             one placement in each stream               the cells of three decodes

Where a token goes depends only on the stream it goes to: streams can wait for each other. A recurrent state
has one cell whatever the length, so states move at once; when a further round of the same sequences only
moves their positions on, all that are left are one.

Everything else goes through :meth:`Context.decode`: other kinds of memory, a cache that might refuse, a
context with an observer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvsim.caches.kv import KVCache
from kvsim.caches.recurrent import RecurrentMemory
from kvsim.caches.recurrent_cells import Placement
from kvsim.context import OK, Context
from kvsim.models.params import SwaType
from kvsim.workload.placing import Chunks, place
from kvsim.workload.runs import Run, batch_of, columns_of, equal_ubatch, first_of, goes_on
from kvsim.workload.ubatches import Parts, equal_split, simple_split

SIMPLE_IF_UNIFIED = ("kv", "iswa", "dsa", "dsa_iswa", "msa")
"""Memories whose leaves know nothing of each other when a ubatch is placed, and which take a batch as it comes
if they are unified. The two tables of an indexer get the same operations, so that they are always equal."""

ALWAYS_EQUAL = ("hybrid", "hybrid_iswa", "recurrent")
"""The same of memories that take equally many tokens of several sequences."""


@dataclass
class _Waiting:
    """Tokens that one stream is to take: groups of equally long runs, one token of each in turn, and how many
    tokens each ubatch brings."""

    n: int = 0
    groups: list[Sequence[Run]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def add_sizes(self, sizes: Sequence[int]) -> None:
        self.n += sum(sizes)
        self.sizes += sizes

    def add(self, group: Sequence[Run], sizes: Sequence[int]) -> None:
        self.add_sizes(sizes)
        if len(group) == 1 and self.groups and goes_on(self.groups[-1], group[0]):
            (seq, start, tokens), last = self.groups[-1][0], group[0].tokens
            self.groups[-1] = [Run(seq, start, range(tokens[0], last[-1] + 1))]
        else:
            self.groups.append(group)

    def chunks(self) -> Chunks:
        columns = list(map(columns_of, self.groups))
        pos, tokens, seqs = (
            map(np.concatenate, zip(*columns, strict=True)) if len(columns) > 1 else columns[0]
        )
        return Chunks(pos, tokens, seqs, np.array(self.sizes, np.int32))


class BulkDecoder:
    """Decodes through ``context``, together where that is provably the same. ``bulk`` False: every decode
    is the context's own. The memory must be fresh.

    Call :meth:`settle` before the memory is looked at, or changed in any way but through this.
    """

    def __init__(self, context: Context, bulk: bool = True) -> None:
        self.context = context
        leaves = context.memory.leaves().values()
        self.caches = [leaf for leaf in leaves if type(leaf) is KVCache]
        self._endless = [cache for cache in self.caches if cache.spec.swa_type is SwaType.NONE]
        self._windows = [cache for cache in self.caches if not self._always_fits(cache)]
        self._states = [leaf for leaf in leaves if type(leaf) is RecurrentMemory]
        self._simple = context.resolved.kv_unified and context.memory.kind in SIMPLE_IF_UNIFIED
        self._streams = max((cache.n_stream for cache in self.caches), default=1)
        self._sequential = self._streams > 1 or not self.caches
        self._waiting = [_Waiting() for _ in range(self._streams)]
        self._able = (
            bulk
            and context.memory.kind in SIMPLE_IF_UNIFIED + ALWAYS_EQUAL
            and len(self.caches) + len(self._states) == len(leaves)
            and context.model.n_pos_per_embd == 1
            and not context.resolved.embeddings
            and not any(cache.store or cache.contiguous or cache.defrag for cache in self.caches)
            and not any(states.store or states.n_rs_seq for states in self._states)
        )
        self.n_ubatches = 0
        """In how many ubatches the last batch went through the graph."""
        self.n_searched = 0
        """Cells that searches went over, taken or not."""
        self.n_reclaimed = 0
        """Cells that placing took from windows: overwritten, or purged."""

    @property
    def together(self) -> bool:
        """Whether decodes may be placed together now."""
        return self._able and self.context.observer is None and not self.context.recording

    def split(self, seqs: Sequence[int], lengths: Sequence[int]) -> list[Parts]:
        """The ubatches of a batch with so many tokens of each of the sequences."""
        n_ubatch = self.context.resolved.n_ubatch
        if self._simple:
            return simple_split(lengths, n_ubatch)
        return equal_split(seqs, lengths, n_ubatch, self._sequential)

    # -- decoding ------------------------------------------------------------------------------

    def decode(self, runs: Sequence[Run]) -> int:
        """Decode the runs as one batch; the code and all else as of :meth:`Context.decode`."""
        lengths = [len(run.tokens) for run in runs]
        ubatches = self.split([run.seq for run in runs], lengths)
        self.n_ubatches = len(ubatches)
        if self.together and sum(lengths) <= self.context.resolved.n_batch:
            self.context.update()
            if self._must_fit(runs, max([sum([n for _, n in parts]) for parts in ubatches])):
                self._take(runs, ubatches)
                self.context.last_failure = None
                return OK
        return self._one_by_one(runs)

    def steps(self, runs: Sequence[Run]) -> int:
        """As many steps as surely succeed, one token of every run in each: runs of equal length. Returns how
        many were made; 0: the next step must go through :meth:`decode`."""
        if not self.together or len(runs) > self.context.resolved.n_ubatch:
            return 0
        self.context.update()
        n_steps = min(len(runs[0].tokens), self._room(runs))
        runs = [first_of(run, n_steps) for run in runs]
        if not n_steps or not self._must_fit(runs, len(runs)):
            return 0
        if self._streams == 1:
            self._waiting[0].add(runs, [len(runs)] * n_steps)
        else:
            for run in runs:
                self._waiting[run.seq].add([run], [1] * n_steps)
        for states in self._states:
            _move_on(states, runs, self.split([run.seq for run in runs], [1] * len(runs)), n_steps)
        self.context.last_failure = None
        return n_steps

    def settle(self, seq: int | None = None) -> None:
        """Place all that waits, or what waits in the stream of ``seq``."""
        for stream in range(self._streams) if seq is None else [self._stream_of(seq)]:
            waiting = self._waiting[stream]
            if not waiting.n:
                continue
            self._waiting[stream] = _Waiting()
            chunks = waiting.chunks()
            for cache in self.caches:
                used = cache.cells[stream].used
                self.n_searched += place(cache, stream, chunks)
                self.n_reclaimed += used + waiting.n - cache.cells[stream].used

    def _one_by_one(self, runs: Sequence[Run]) -> int:
        self.settle()
        heads, used = [list(cache.heads) for cache in self.caches], self._used()
        code = self.context.decode(batch_of(runs))
        for cache, before in zip(self.caches, heads, strict=True):
            self.n_searched += sum((b - a) % cache.size for a, b in zip(before, cache.heads, strict=True))
        if code == OK:
            n_tokens = sum(len(run.tokens) for run in runs)
            self.n_reclaimed += used + n_tokens * len(self.caches) - self._used()
        return code

    def _used(self) -> int:
        return sum(table.used for cache in self.caches for table in cache.cells)

    def _stream_of(self, seq: int) -> int:
        return seq if self._streams > 1 else 0

    def _take(self, runs: Sequence[Run], ubatches: Sequence[Parts]) -> None:
        """Let the tokens of a batch wait, ubatch by ubatch, and move the states on."""
        if self._states or (self._streams == 1 and not self._simple):
            self._take_pieces(runs, ubatches)
        elif self._streams == 1:
            for run in runs:
                self._waiting[0].add([run], [])
            self._waiting[0].add_sizes([sum([n for _, n in parts]) for parts in ubatches])
        if self._streams > 1:
            sizes: list[list[int]] = [[] for _ in runs]
            for parts in ubatches:
                for i, n in parts:
                    sizes[i].append(n)
            for run, each in zip(runs, sizes, strict=True):
                self._waiting[run.seq].add([run], each)

    def _take_pieces(self, runs: Sequence[Run], ubatches: Sequence[Parts]) -> None:
        """The same where a ubatch may hold pieces of several runs in an order of its own."""
        done = [0] * len(runs)
        for parts in ubatches:
            pieces = []
            for i, n in parts:
                seq, start, tokens = runs[i]
                at, done[i] = done[i], done[i] + n
                pieces.append(Run(seq, start + at, tokens[at : at + n]))
            for states in self._states:
                states.apply_ubatch(_UNKNOWN, equal_ubatch(pieces))
            if self._streams == 1:
                for piece in pieces:
                    self._waiting[0].add([piece], [])
                self._waiting[0].add_sizes([sum([n for _, n in parts])])

    # -- whether there is room -----------------------------------------------------------------

    def _room(self, runs: Sequence[Run]) -> int:
        """How many steps find empty cells in the caches without window."""
        each = 1 if self._streams > 1 else len(runs)
        room = len(runs[0].tokens)
        for cache in self._endless:
            for run in runs[: len(runs) // each]:
                stream = self._stream_of(run.seq)
                free = cache.size - cache.cells[stream].used - self._waiting[stream].n
                room = min(room, free // each)
        return room

    def _must_fit(self, runs: Sequence[Run], largest: int) -> bool:
        """Whether no ubatch of the runs, of at most ``largest`` tokens, can be refused, whatever the order in
        which cells become free."""
        for stream, mine in self._by_stream(runs).items():
            n = self._waiting[stream].n + sum([len(run.tokens) for run in mine])
            for cache in self._endless:
                if cache.cells[stream].used + n > cache.size:
                    return False
            for cache in self._windows:
                enough = cache.cells[stream].used + n <= cache.size  # empty cells, windows or not
                if not enough and not self._window_fits(cache, stream, mine, largest):
                    return False
        return True

    def _always_fits(self, cache: KVCache) -> bool:
        """Whether a ubatch finds room beside the windows of all sequences, however much they hold."""
        if cache.spec.swa_type is SwaType.NONE:
            return True
        most_seqs = cache.n_seq_max if cache.n_stream == 1 else 1
        return most_seqs * cache.spec.n_swa + self.context.resolved.n_ubatch <= cache.size

    def _by_stream(self, runs: Sequence[Run]) -> dict[int, Sequence[Run]]:
        return {0: runs} if self._streams == 1 else {run.seq: [run] for run in runs}

    def _window_fits(self, cache: KVCache, stream: int, runs: Sequence[Run], largest: int) -> bool:
        """The windows of all sequences and one ubatch find room beside each other."""
        self.settle(runs[0].seq)
        table = cache.cells[stream]
        gained = {run.seq: len(run.tokens) for run in runs}
        needed = 0
        for s in gained.keys() | set(table.sequences()):
            held = table.seq_pos_max(s) - table.seq_pos_min(s) + 1 if table.seq_pos_max(s) >= 0 else 0
            needed += min(held + gained.get(s, 0), cache.spec.n_swa)
        return needed + largest <= table.size


_UNKNOWN = Placement(0, 0, -1)
"""Recurrent cells are searched again when a ubatch is placed; what was found before is not needed."""


def _move_on(states: RecurrentMemory, runs: Sequence[Run], step: Sequence[Parts], n_steps: int) -> None:
    """``n_steps`` rounds of the ubatches of ``step``. Placing does not ask for positions, so once a round has
    left everything else as it was, so do all rounds after it."""
    done, same = 0, False
    while done < n_steps:
        n = n_steps - done if same else 1
        before = _all_but_positions(states)
        for parts in step:
            pieces = [
                Run(runs[i].seq, runs[i].start + done, runs[i].tokens[done : done + n]) for i, _ in parts
            ]
            states.apply_ubatch(_UNKNOWN, equal_ubatch(pieces))
        same = _all_but_positions(states) == before
        done += n


def _all_but_positions(states: RecurrentMemory) -> tuple[object, ...]:
    cells = states.cells
    lists = (cells.tail, cells.owners, cells.src, cells.src0)
    return (*map(tuple, lists), cells.head, cells.used, states.n, states.rs_z)
