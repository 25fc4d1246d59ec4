"""Batches: filling in what a caller left out, validating, and splitting into ubatches."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.batch_rules import (
    NO_TOKEN,
    Positions,
    SequencePositions,
    check_contents,
    check_continuation,
    check_coupling,
    check_jump,
    check_n_seq_max,
    check_order,
    check_seq_ids,
)
from kvsim.errors import CacheUsageError
from kvsim.memory import BoolArray, IntArray
from kvsim.seq_order import seen_order
from kvsim.splitter import Splitter


@dataclass(slots=True)
class Ubatch:
    """A part of a batch that goes through the graph at once. Rows are in execution order. Take it as read-only:
    every part of a memory gets the same one.

    ``pos`` is ``int32[n_pos, n_tokens]`` (4 sections t, y, x, 0 for M-RoPE, else 1).
    ``seq_ids[i]`` are the ids of row i **in the order llama.cpp sees them** (element 0 is the one that
    masks, rollback and coupling use). ``tokens`` is None for embeddings only; ``idx`` is the batch
    index of each row. With ``equal_seqs`` the rows are set-major: ``n_seqs`` sets of ``n_seq_tokens``.
    ``is_embd`` is set only where tokens and embeddings are mixed: True for the rows that are embeddings
    (their token is 0).
    """

    pos: IntArray
    seq_ids: tuple[tuple[int, ...], ...]
    output: BoolArray
    idx: IntArray
    tokens: IntArray | None
    has_embd: bool
    n_seq_tokens: int
    n_seqs: int
    equal_seqs: bool
    seq_id_unq: tuple[int, ...]
    is_embd: BoolArray | None = None

    @classmethod
    def restored(cls, seq: int, pos: IntArray) -> Ubatch:
        """The ubatch through which a saved sequence is placed: one set, token ids 0, no outputs.

        ``pos`` is ``int32[n_pos, n_tokens]`` (``src/llama-batch.cpp: ubatch_reserve``).
        """
        n = pos.shape[1]
        return cls(
            pos=pos,
            seq_ids=((seq,),) * n,
            output=np.zeros(n, np.bool_),
            idx=np.arange(n, dtype=np.int32),
            tokens=np.zeros(n, np.int32),
            has_embd=False,
            n_seq_tokens=n,
            n_seqs=1,
            equal_seqs=True,
            seq_id_unq=(seq,),
        )

    @property
    def n_tokens(self) -> int:
        return len(self.seq_ids)

    @property
    def n_pos(self) -> int:
        return len(self.pos)

    @property
    def n_seqs_unq(self) -> int:
        return len(self.seq_id_unq)

    @property
    def pos0(self) -> IntArray:
        """The time section of the positions, ``int32[n_tokens]``."""
        section: IntArray = self.pos[0]
        return section


@dataclass(frozen=True)
class Batch:
    """What a caller hands to ``decode``. Whatever is None is filled in.

    ``tokens`` are token ids, one per entry; ``embd`` the embeddings, ``float32[n_tokens, n_embd]``
    (width 0 will do where only metadata matters). Both given: every entry holds both. ``has_embd`` is for
    batches that mix the two: True for the entries with an embedding, whose token id is -1.

    ``pos`` are the positions; None: each token goes on where the first of its sequences ends. A batch with
    tokens gives one per entry; one of embeddings only, or one with ``has_embd``, gives ``n_pos_per_embd``
    sections of n_tokens positions, one after the other. ``seq_ids`` are the sequence ids of each entry;
    None: sequence 0. ``output`` flags the entries whose result is wanted; None: the last one.
    """

    tokens: Sequence[int] | None = None
    embd: NDArray[np.float32] | None = None
    pos: Sequence[int] | None = None
    seq_ids: Sequence[Sequence[int]] | None = None
    output: Sequence[bool] | Sequence[int] | None = None
    has_embd: Sequence[bool] | None = None

    @property
    def n_tokens(self) -> int:
        entries = self.tokens if self.tokens is not None else self.embd
        return 0 if entries is None else len(entries)

    def __post_init__(self) -> None:
        n = self.n_tokens
        for name in ("embd", "seq_ids", "output", "has_embd"):
            part = getattr(self, name)
            if part is not None and len(part) != n:
                raise CacheUsageError(
                    f"a batch of {n} entries has {len(part)} {name}; llama.cpp reads past the end: give one per "
                    "entry, or None"
                )
        for name in ("tokens", "pos"):
            part = getattr(self, name)
            if part is not None and not _holds_integers(part):
                raise CacheUsageError(
                    f"{name} of a batch must be a flat list of integers, not {reprlib.repr(part)}"
                )
        lists = () if self.seq_ids is None else self.seq_ids
        if _LISTS.issuperset(map(type, lists)) and _INTEGERS.issuperset(
            map(type, chain.from_iterable(lists))
        ):
            return
        for ids in {id(ids): ids for ids in lists}.values():  # many entries share one list
            if not isinstance(ids, Sequence | np.ndarray) or not _holds_integers(ids):
                raise CacheUsageError(
                    f"seq_ids of a batch has a list of sequence ids for every entry, such as [[0], [0, 1]]; "
                    f"found {reprlib.repr(ids)}"
                )

    @classmethod
    def tokens_of(cls, seq: int | Sequence[int], tokens: Sequence[int], start: int | None = None) -> Batch:
        """Tokens of one sequence (or shared by several), at positions from ``start`` on (None: go on)."""
        ids = (seq,) if isinstance(seq, int) else tuple(seq)
        pos = None if start is None else range(start, start + len(tokens))
        return cls(tokens=tokens, pos=pos, seq_ids=[ids] * len(tokens))

    @classmethod
    def joined(cls, *parts: Batch) -> Batch:
        """One batch with the token entries of several, in order; each part keeps its own outputs."""
        tokens: list[int] = []
        pos: list[int] = []
        seq_ids: list[Sequence[int]] = []
        output: list[bool] = []
        for part in parts:
            n = part.n_tokens
            if part.tokens is None or part.embd is not None:
                raise CacheUsageError(
                    "only batches of tokens can be joined; build the batch of embeddings itself"
                )
            tokens += part.tokens
            pos += [] if part.pos is None else part.pos
            seq_ids += [(0,)] * n if part.seq_ids is None else part.seq_ids
            output += [i == n - 1 for i in range(n)] if part.output is None else map(bool, part.output)
        if 0 < len(pos) < len(tokens):
            raise CacheUsageError(
                "join batches that all give positions, or none: they are filled in for a batch"
            )
        return cls(tokens=tokens, pos=pos or None, seq_ids=seq_ids, output=output)


NOTHING_TO_SPLIT = Splitter([], {})


class BatchAllocator:
    """Fills in a batch, validates it and splits it into ubatches (``src/llama-batch.cpp``).

    ``init`` takes a batch; one of the splitters, called until it returns None, then takes it apart. If
    ``all_used`` is False after that, the batch cannot be split this way. ``out_ids`` are the batch
    indices of the outputs in execution order; between two ``split_reset`` use one splitter only.

    ``n_vocab`` None leaves token ids without an upper bound. ``allow_mixed`` admits batches in which
    some entries are tokens and some embeddings (most models in a default context).
    """

    def __init__(
        self, n_pos_per_embd: int, n_seq_max: int, n_vocab: int | None = None, allow_mixed: bool = False
    ) -> None:
        self.n_pos_per_embd = n_pos_per_embd
        self.n_seq_max = n_seq_max
        self.n_vocab = n_vocab
        self.allow_mixed = allow_mixed
        self._forget()

    def _forget(self) -> None:
        self.n_tokens = 0
        self.n_outputs = 0
        self.tokens: IntArray | None = None
        self.has_embd = False
        self.is_embd: BoolArray | None = None  # mixed batches only
        self.pos: IntArray = np.empty((self.n_pos_per_embd, 0), np.int32)
        self.seq_ids: list[tuple[int, ...]] = []
        self.seq_id_unq: tuple[int, ...] = ()
        self.coupled: dict[tuple[int, int], int] = {}
        self._output: list[bool] = []
        self._rows_of: dict[int, list[int]] = {}
        self._splitter = NOTHING_TO_SPLIT
        self.out_ids: list[int] = []

    # -- filling in and validating -------------------------------------------------------------

    def init(self, batch: Batch, memory: Positions | None = None, output_all: bool = False) -> None:
        """Take a batch: fill in what it leaves out, then check it.

        ``memory`` tells where sequences end (None: nowhere). ``output_all`` makes every entry an output.
        Raises BatchError where llama.cpp returns -1 (the allocator is empty then), CacheUsageError
        for a batch that ends its process.
        """
        self._forget()
        n = batch.n_tokens
        if n == 0:
            raise CacheUsageError("the batch is empty; llama.cpp aborts: check n_tokens before (rule V0)")
        tokens = None if batch.tokens is None else _plain(batch.tokens)
        submitted = [(0,)] * n if batch.seq_ids is None else _plain(batch.seq_ids)
        pos0 = self._first_section(batch, submitted, memory)

        check_n_seq_max(self.n_seq_max)
        has_embd = batch.embd is not None if batch.has_embd is None else [bool(x) for x in batch.has_embd]
        check_contents(tokens, has_embd, self.allow_mixed, self.n_vocab)
        masks = self._set_sequences(submitted)
        self._set_contents(tokens, has_embd, n)
        self._set_positions(batch, pos0)
        self._check_positions(pos0, memory)

        if output_all:
            self._output = [True] * n
        elif batch.output is None:
            self._output = [False] * (n - 1) + [True]
        else:
            self._output = [bool(flag) for flag in batch.output]
        self.n_outputs = sum(self._output)
        self.n_tokens = n
        self._splitter = Splitter(masks, self._rows_of)

    def _first_section(
        self, batch: Batch, submitted: Sequence[Sequence[int]], memory: Positions | None
    ) -> list[int]:
        """The given time positions, or counters that go on where the memory ends (rules A2, A3)."""
        n = batch.n_tokens
        if batch.pos is None:
            return self._counted(submitted, memory)
        sections = 1 if batch.tokens is not None and batch.has_embd is None else self.n_pos_per_embd
        if len(batch.pos) != sections * n:
            raise CacheUsageError(
                f"a batch of {n} entries has {len(batch.pos)} positions, but {sections * n} are read "
                f"({sections} per entry); llama.cpp reads past the end"
            )
        pos0: list[int] = _plain(batch.pos)
        _check_32_bits(pos0)
        return pos0[:n]

    def _counted(self, submitted: Sequence[Sequence[int]], memory: Positions | None) -> list[int]:
        """One counter per sequence; a token takes the counter of the first id as submitted (rule A2)."""
        following: dict[int, int] = {}
        pos0 = []
        for ids in submitted:
            seq = ids[0] if len(ids) else 0
            if seq not in following:
                known = memory is not None and 0 <= seq < self.n_seq_max  # others are refused by V6
                following[seq] = memory.seq_pos_max(seq) + 1 if known and memory is not None else 0
            pos0.append(following[seq])
            following[seq] += 1
        _check_32_bits(pos0)
        return pos0

    def _set_sequences(self, submitted: Sequence[Sequence[int]]) -> list[int]:
        """The ids as llama.cpp sees them, the rows of each set, what is coupled (V6). Returns the sets."""
        masks = []
        seen: dict[tuple[int, ...], tuple[tuple[int, ...], int, list[int]]] = {}
        for i, ids in enumerate(submitted):
            key = tuple(ids)
            entry = seen.get(key)
            if entry is None:
                entry = seen[key] = self._new_set(i, key)
            ordered, mask, rows = entry
            self.seq_ids.append(ordered)
            masks.append(mask)
            rows.append(i)
        self.seq_id_unq = tuple(sorted({seq for key in seen for seq in key}))
        return masks

    def _new_set(self, i: int, ids: tuple[int, ...]) -> tuple[tuple[int, ...], int, list[int]]:
        """Check the ids of token ``i``, the first with these, and note what they couple."""
        if not ids:
            raise CacheUsageError(
                f"token {i} belongs to no sequence; llama.cpp then reads its neighbour's: give it a sequence"
            )
        check_seq_ids(i, ids, self.n_seq_max)
        ordered = seen_order(ids)
        for seq in ordered[1:]:
            self.coupled.setdefault((seq, ordered[0]), i)
        mask = sum(1 << seq for seq in ordered)
        return ordered, mask, self._rows_of.setdefault(mask, [])

    @property
    def has_coupled(self) -> bool:
        """Whether some entry belongs to several sequences."""
        return bool(self.coupled)

    def _set_contents(self, tokens: list[int] | None, has_embd: bool | list[bool], n: int) -> None:
        """The token array, and per entry token or embedding if the batch mixes them (rule A5)."""
        self.has_embd = has_embd if isinstance(has_embd, bool) else any(has_embd)
        n_missing = n if tokens is None else tokens.count(NO_TOKEN)
        if n_missing == n:
            return
        ids = np.array(tokens, np.int32)
        if n_missing:
            self.is_embd = ids == NO_TOKEN
            ids[self.is_embd] = 0
        self.tokens = ids

    def _set_positions(self, batch: Batch, pos0: list[int]) -> None:
        """All sections: a token at p is at (p, p, p, 0), an embedding where it says (rule A3)."""
        n = len(pos0)
        if self.n_pos_per_embd == 1:
            self.pos = np.array(pos0, np.int32).reshape(1, -1)
            return
        pos = np.zeros((self.n_pos_per_embd, n), np.int32)
        if batch.pos is not None and len(batch.pos) > n:
            pos[:] = np.asarray(batch.pos, np.int32).reshape(-1, n)
        pos[0] = pos0
        if self.tokens is not None:
            text = slice(None) if self.is_embd is None else ~self.is_embd
            pos[:3, text] = pos[0, text]
            pos[3:, text] = 0
        self.pos = pos

    def _check_positions(self, pos0: list[int], memory: Positions | None) -> None:
        """Rules V7 to V12, sequence by sequence."""
        sequences = [SequencePositions(s, self._rows_with(s), pos0) for s in self.seq_id_unq]
        for s in sequences:
            end = -1 if memory is None else memory.seq_pos_max(s.seq)
            if self.n_pos_per_embd == 1:
                check_continuation(s, end)
            else:
                check_jump(s, end, self._is_embd_row(s.rows[0]))
        if memory is not None and self.coupled:
            check_coupling(self.coupled, memory)
        check_order(sequences)

    def _rows_with(self, seq: int) -> Sequence[int]:
        """Batch indices of the entries of one sequence, ascending."""
        found = [rows for mask, rows in self._rows_of.items() if mask >> seq & 1]
        return found[0] if len(found) == 1 else sorted(i for rows in found for i in rows)

    def _is_embd_row(self, i: int) -> bool:
        return self.tokens is None if self.is_embd is None else bool(self.is_embd[i])

    # -- splitting -----------------------------------------------------------------------------

    def split_reset(self) -> None:
        """Start splitting anew."""
        self.out_ids = []
        self._splitter.reset()

    @property
    def n_used(self) -> int:
        """How many entries are in the ubatches made since the last reset."""
        return self._splitter.n_used

    @property
    def all_used(self) -> bool:
        """Whether that is the whole batch. If not, a splitter that returns None cannot split it."""
        return self._splitter.all_used

    def split_all(self, split: Callable[[], Ubatch | None]) -> list[Ubatch] | None:
        """All ubatches of a splitter, or None if it leaves entries over: the batch has no such split."""
        self.split_reset()
        ubatches = []
        while not self.all_used:
            ubatch = split()
            if ubatch is None:
                return None
            ubatches.append(ubatch)
        return ubatches

    def split_simple(self, n: int) -> Ubatch | None:
        """The next up to ``n`` entries as they come (S1). ``n_seqs = n_tokens``, not equal."""
        rows = self._splitter.simple(n)
        return self._ubatch(rows, len(rows), equal_seqs=False) if rows else None

    def split_seq(self, n: int) -> Ubatch | None:
        """Up to ``n`` entries of one sequence set, each next set a subset of the last (S2)."""
        rows = self._splitter.seq(n)
        return self._ubatch(rows, 1, equal_seqs=True) if rows else None

    def split_equal(self, n: int, sequential: bool, n_keep_tail: int = 0) -> Ubatch | None:
        """Equally many entries of each of several disjoint sequence sets, about ``n`` in all (S3).

        ``sequential`` admits only sets whose ids follow each other, and no coupled entries (None then).
        ``n_keep_tail``: the last so many entries of a sequence never straddle two ubatches (S4);
        llama.cpp aborts if that is not below ``n``. With more than ``n`` sets the ubatch has n + 1 entries.
        """
        if (sequential and self.coupled) or self.all_used:
            return None
        if n <= n_keep_tail:
            raise CacheUsageError(
                f"n_ubatch is {n}, but the last {n_keep_tail} tokens of a sequence have to fit into one with "
                f"room to spare; llama.cpp aborts: use an n_ubatch above {n_keep_tail}, or a smaller n_rs_seq"
            )
        rows, n_seqs = self._splitter.equal(n, sequential, n_keep_tail)
        return self._ubatch(rows, n_seqs, equal_seqs=True)

    def _ubatch(self, rows: Sequence[int], n_seqs: int, equal_seqs: bool) -> Ubatch:
        """The ubatch of these entries, in this order; their outputs go to ``out_ids``."""
        if isinstance(rows, range):
            idx: IntArray = np.arange(rows.start, rows.stop, dtype=np.int32)
        else:
            idx = np.array(rows, np.int32)
        output = [self._output[i] for i in rows]
        self.out_ids += compress(rows, output)
        seq_ids = tuple([self.seq_ids[i] for i in rows])
        tokens, has_embd, is_embd = self._contents(idx)
        return Ubatch(
            pos=self.pos.take(idx, 1),
            seq_ids=seq_ids,
            output=np.array(output, np.bool_),
            idx=idx,
            tokens=tokens,
            has_embd=has_embd,
            n_seq_tokens=len(rows) // n_seqs,
            n_seqs=n_seqs,
            equal_seqs=equal_seqs,
            seq_id_unq=tuple(sorted({seq for ids in set(seq_ids) for seq in ids})),
            is_embd=is_embd,
        )

    def _contents(self, idx: IntArray) -> tuple[IntArray | None, bool, BoolArray | None]:
        """Tokens, embeddings and which is which; rows of one kind out of a mixed batch are not mixed."""
        tokens = None if self.tokens is None else self.tokens.take(idx)
        if self.is_embd is None:
            return tokens, self.has_embd, None
        is_embd = self.is_embd[idx]
        if is_embd.all():
            return None, True, None
        return tokens, bool(is_embd.any()), is_embd if is_embd.any() else None


_LISTS, _INTEGERS = frozenset((list, tuple)), frozenset((int,))
"""What sequence ids mostly come as, which needs no closer look."""


def _holds_integers(values: Sequence[Any] | NDArray[Any]) -> bool:
    """Whether a sequence is flat and each entry an integer (Python's, numpy's, ...)."""
    if isinstance(values, np.ndarray):
        return values.ndim == 1 and values.dtype.kind in "iub"
    kinds = set(map(type, values))
    return kinds <= _INTEGERS or all(hasattr(kind, "__index__") for kind in kinds)


def _check_32_bits(pos: list[int]) -> None:
    if min(pos) < -(2**31) or max(pos) >= 2**31:
        raise CacheUsageError("a position does not fit into 32 bits, which is what llama.cpp holds it in")


def _plain(values: Sequence[Any] | NDArray[Any]) -> list[Any]:
    """A list of Python values, so that rows compare and hash as fast as they can."""
    return values.tolist() if isinstance(values, np.ndarray) else list(values)
