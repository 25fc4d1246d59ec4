"""Which batches are accepted: the rules V1 to V12, in llama.cpp's order (``src/llama-batch.cpp: init``).

Each function looks at one aspect and raises :class:`~kvsim.errors.BatchError` for the first violation.
V0 (an empty batch) ends llama.cpp's process and is checked by the allocator. V11 (sequence sets that do
not fit together) has no function: as llama.cpp computes it, it can never fire, so batches with
overlapping sets are accepted if the other rules hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn, Protocol

from kvsim.errors import BatchError
from kvsim.memory import MAX_SEQ

NO_TOKEN = -1
"""The token id that means "no token" (``LLAMA_TOKEN_NULL``)."""

MAX_TOKENS = 2**31
"""Token ids are 32-bit integers; the bound where no vocabulary is known."""


class Positions(Protocol):
    """What the rules ask of a memory."""

    def seq_pos_min(self, seq: int) -> int: ...

    def seq_pos_max(self, seq: int) -> int: ...


def check_n_seq_max(n_seq_max: int) -> None:
    """V1: a context knows at most 256 sequences."""
    if n_seq_max > MAX_SEQ:
        raise BatchError(
            "V1",
            f"n_seq_max is {n_seq_max}, but at most {MAX_SEQ} sequences are possible",
            found=n_seq_max,
            expected=MAX_SEQ,
        )


def check_contents(
    tokens: Sequence[int] | None, has_embd: Sequence[bool] | bool, allow_mixed: bool, n_vocab: int | None
) -> None:
    """V2 to V5: every entry holds a token, an embedding or both, and they go together.

    ``has_embd`` is one flag for the whole batch, or one per entry. ``n_vocab`` None: ids are 32 bits.
    """
    if tokens is None:
        if not isinstance(has_embd, bool) and not all(has_embd):
            _refuse_nothing(list(has_embd).index(False))
        return
    if isinstance(has_embd, bool) and (not has_embd or min(tokens) >= 0):
        _check_token_ids(tokens, n_vocab)
        return
    flags = [has_embd] * len(tokens) if isinstance(has_embd, bool) else has_embd
    is_token = [token != NO_TOKEN for token in tokens]
    for i, (token, embd) in enumerate(zip(is_token, flags, strict=True)):
        if not token and not embd:
            _refuse_nothing(i)
    both = [token and embd for token, embd in zip(is_token, flags, strict=True)]
    if any(both) and not all(both):
        i = both.index(not both[0])
        raise BatchError(
            "V3",
            f"token {i} does not, like token 0, "
            f"{'hold both a token and an embedding' if both[0] else 'hold only one of the two'}; "
            "either all entries of a batch hold both or none does",
            token=i,
        )
    if not all(is_token) and any(is_token) and not allow_mixed:
        i = is_token.index(not is_token[0])
        raise BatchError(
            "V4",
            f"token {i} is {'an embedding' if is_token[0] else 'a token id'} and token 0 is not: "
            "this model or context takes no batches that mix the two",
            token=i,
        )
    _check_token_ids([0 if token == NO_TOKEN else token for token in tokens], n_vocab)


def _check_token_ids(tokens: Sequence[int], n_vocab: int | None) -> None:
    """V2 and V5 for a batch of tokens. V2 goes first over the whole batch, as in llama.cpp."""
    if NO_TOKEN in tokens:
        _refuse_nothing(tokens.index(NO_TOKEN))
    n_ids = MAX_TOKENS if n_vocab is None else n_vocab
    if min(tokens) < 0 or max(tokens) >= n_ids:
        i = next(i for i, token in enumerate(tokens) if not 0 <= token < n_ids)
        raise BatchError(
            "V5", f"token {i} is {tokens[i]}, but token ids are 0 to {n_ids - 1}", token=i, found=tokens[i]
        )


def _refuse_nothing(i: int) -> NoReturn:
    raise BatchError(
        "V2",
        f"token {i} is {NO_TOKEN}, which means 'no token', and it has no embedding either",
        token=i,
        found=NO_TOKEN,
    )


def check_seq_ids(i: int, ids: tuple[int, ...], n_seq_max: int) -> None:
    """V6: the sequence ids of token ``i`` are below n_seq_max (in a unified cache too)."""
    for seq in ids:
        if not 0 <= seq < n_seq_max:
            raise BatchError(
                "V6",
                f"token {i} belongs to seq {seq}, but this context has sequences 0 to {n_seq_max - 1}",
                token=i,
                seq=seq,
                found=seq,
            )


class SequencePositions:
    """The rows of one sequence in a batch and their positions, both in batch order."""

    __slots__ = ("distinct", "hi", "lo", "pos", "rows", "seq")

    def __init__(self, seq: int, rows: Sequence[int], pos0: Sequence[int]) -> None:
        self.seq = seq
        self.rows = rows
        self.pos = [pos0[i] for i in rows]
        self.distinct = set(self.pos)
        self.lo = min(self.distinct)
        self.hi = max(self.distinct)

    def row_at(self, position: int) -> int:
        """Batch index of the first entry at ``position``."""
        return self.rows[self.pos.index(position)]


def check_continuation(s: SequencePositions, end: int) -> None:
    """V7 and V8 (one position per token): the sequence goes on where the memory ends it, without gaps."""
    if end >= 0 and s.lo != end + 1:
        raise BatchError(
            "V7",
            f"token {s.row_at(s.lo)} of seq {s.seq} has position {s.lo}, but seq {s.seq} "
            f"ends at {end}, so {end + 1} is expected",
            token=s.row_at(s.lo),
            seq=s.seq,
            found=s.lo,
            expected=end + 1,
        )
    if s.hi - s.lo + 1 > len(s.distinct):
        known = sorted(s.distinct)
        k = next(k for k, p in enumerate(known) if p != s.lo + k)
        raise BatchError(
            "V8",
            f"token {s.row_at(known[k])} of seq {s.seq} has position {known[k]}, but the batch "
            f"holds no position {s.lo + k} of that sequence: positions have no gaps",
            token=s.row_at(known[k]),
            seq=s.seq,
            found=known[k],
            expected=s.lo + k,
        )


def check_jump(s: SequencePositions, end: int, starts_with_embd: bool) -> None:
    """V9 (M-RoPE): positions may jump ahead; an embedding may also start at the last stored position."""
    first = end if starts_with_embd else end + 1
    if end >= 0 and s.lo < first:
        raise BatchError(
            "V9",
            f"token {s.row_at(s.lo)} of seq {s.seq} has position {s.lo}, but seq {s.seq} "
            f"ends at {end}, so {first} or more is expected",
            token=s.row_at(s.lo),
            seq=s.seq,
            found=s.lo,
            expected=first,
        )


def check_coupling(pairs: Mapping[tuple[int, int], int], memory: Positions) -> None:
    """V10: sequences that share a token of the batch cover the same positions in the memory.

    ``pairs`` maps (sequence, the first sequence of the token) to the token's batch index.
    """
    for s1, s0 in sorted(pairs):
        a = memory.seq_pos_min(s1), memory.seq_pos_max(s1)
        b = memory.seq_pos_min(s0), memory.seq_pos_max(s0)
        if a != b:
            i = pairs[s1, s0]
            raise BatchError(
                "V10",
                f"token {i} is shared by seq {s1} and seq {s0}, but the memory holds positions "
                f"{a[0]} to {a[1]} of seq {s1} and {b[0]} to {b[1]} of seq {s0}: "
                "copy one to the other first",
                token=i,
                seq=s1,
                found=a[1],
                expected=b[1],
            )


def check_order(sequences: Iterable[SequencePositions]) -> None:
    """V12: the positions of a sequence never decrease in batch order, and none is below -1."""
    first: BatchError | None = None
    for s in sequences:
        if s.lo >= -1 and s.pos == sorted(s.pos):
            continue
        last = -1
        for row, position in zip(s.rows, s.pos, strict=True):
            if position < last:
                if first is None or row < first.token:
                    why = (
                        "no position is below -1"
                        if position < -1
                        else f"the batch is at {last} already: positions never decrease within a batch"
                    )
                    first = BatchError(
                        "V12",
                        f"token {row} of seq {s.seq} has position {position}, but {why}",
                        token=row,
                        seq=s.seq,
                        found=position,
                        expected=last,
                    )
                break
            last = position
    if first is not None:
        raise first
