"""The ledger of recurrent states: what each state has seen (see :mod:`kvsim.ledger`)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kvsim.memory import position_range


class Histories:
    """Sequences of token instances as small numbers, so that two recurrent states compare at once.

    Number 0 is the empty history: a state that has seen nothing.
    """

    def __init__(self) -> None:
        self._ids: dict[tuple[int, int], int] = {}
        self._last: list[tuple[int, int]] = [(0, 0)]

    def after(self, history: int, instance: int) -> int:
        """``history`` and then one more token."""
        key = (history, instance)
        if key not in self._ids:
            self._ids[key] = len(self._last)
            self._last.append(key)
        return self._ids[key]

    def before(self, history: int, n: int) -> int:
        """``history`` without its last ``n`` tokens."""
        for _ in range(n):
            history = self._last[history][0]
        return history

    def tokens(self, history: int) -> list[int]:
        """The instances, oldest first."""
        out = []
        while history:
            history, instance = self._last[history]
            out.append(instance)
        return out[::-1]


class State(NamedTuple):
    """Where a recurrent state stands (-1: the sequence has none) and what it has seen."""

    pos: int
    history: int


NO_STATE = State(-1, 0)


class StatePart:
    """What the recurrent state of each sequence must have seen: all its tokens, in order.

    The positions are the ledger's account of them, one per token, so that a removal is exact; a state that
    still contains a removed token differs, and a hazard must say so.
    """

    def __init__(self, histories: Histories) -> None:
        self.histories = histories
        self.held: dict[int, list[tuple[int, int]]] = {}  # seq -> (pos, instance), in order of decoding
        self._known: dict[int, tuple[list[tuple[int, int]], int, int]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> StatePart:
        """Of what was held; the numbers of histories stay those of the original."""
        twin = copy.copy(self)
        twin.held = {s: list(tokens) for s, tokens in self.held.items()}
        twin._known = {}
        return twin

    def state(self, seq: int) -> State:
        tokens = self.held.get(seq)
        if not tokens:
            return NO_STATE
        before, n, history = self._known.get(seq, (tokens, 0, 0))
        if before is not tokens:  # lists are replaced, or grow
            n, history = 0, 0
        for _, instance in tokens[n:]:
            history = self.histories.after(history, instance)
        self._known[seq] = tokens, len(tokens), history
        return State(tokens[-1][0], history)

    def write(self, seqs: Iterable[int], pos: int, instance: int, place: tuple[int, int] = (0, 0)) -> None:
        for s in seqs if pos >= 0 else ():
            self.held.setdefault(s, []).append((pos, instance))

    def clear(self) -> None:
        self.held.clear()

    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        lo, hi = position_range(p0, p1)
        for s in list(self.held) if seq == -1 else [seq]:
            self.held[s] = [t for t in self.held.get(s, []) if not lo <= t[0] < hi]

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """The copy replaces its target: two states cannot be added up."""
        lo, hi = position_range(p0, p1)
        if src != dst:
            self.held[dst] = [t for t in self.held.get(src, []) if lo <= t[0] < hi]

    def seq_keep(self, seq: int) -> None:
        self.held = {seq: self.held.get(seq, [])}

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        lo, hi = position_range(p0, p1)
        moved = [(p + delta, i) if lo <= p < hi else (p, i) for p, i in self.held.get(seq, [])]
        self.held[seq] = [t for t in moved if t[0] >= 0]

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        lo, hi = position_range(p0, p1)
        if d == 0:
            return  # nothing the memory knows of is in the range, or it would have refused
        self.held[seq] = [(int(p / d), i) if lo <= p < hi else (p, i) for p, i in self.held.get(seq, [])]

    def update(self) -> None:
        """Nothing is ever pending: a state has no rotation."""

    def save(self, seqs: Iterable[int]) -> dict[int, list[tuple[int, int]]]:
        return {s: list(self.held.get(s, [])) for s in seqs}

    def restore(self, saved: Mapping[int, list[tuple[int, int]]], into: Mapping[int, int]) -> None:
        for s, target in into.items():
            self.held[target] = list(saved.get(s, []))

    def adopt(self, seq: int, found: State) -> None:
        """Believe the state, whose difference a hazard has explained: what it has seen, one position each."""
        tokens = self.histories.tokens(found.history)
        n = len(tokens)
        self.held[seq] = [(max(found.pos - n + 1 + k, 0), t) for k, t in enumerate(tokens)]
