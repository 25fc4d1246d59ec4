"""What the cells of a memory hold, compared with what the ledger says.

A difference that a hazard has explained is believed: the ledger takes over what the cells hold. Only where
something has changed, in the ledger or in the cells, are the two compared again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from kvsim.caches.recurrent import RecurrentMemory
from kvsim.ledger import CONTENT, POSITION, AttentionPart, Entry, Ledger
from kvsim.ledger_states import NO_STATE, StatePart
from kvsim.memory import Memory
from kvsim.testing.excuses import Excuses
from kvsim.testing.ink import states_of
from kvsim.testing.ink_cache import InkCache
from kvsim.testing.look import Held
from kvsim.testing.parts import window_pair

NOTHING_HELD: list[Entry] = []

Agreed = tuple[list[Entry], list[Entry]]
"""What a ledger holds of a sequence, and what the cells hold."""


class Refinement:
    """``caches`` are those whose cells are looked at, ``pair`` the names of the cache that sees everything and of
    the window cache beside it, if there are such."""

    def __init__(self, memory: Memory, ledger: Ledger, excuses: Excuses) -> None:
        leaves = memory.leaves()
        self.caches = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, InkCache)}
        self.pair = window_pair(memory)
        self._states = next((leaf for leaf in leaves.values() if isinstance(leaf, RecurrentMemory)), None)
        self._rowless = {name for name, cache in self.caches.items() if cache.store is None}
        self._n_seq_max = memory.n_seq_max
        self._compared = [name for name in self.caches if name in ledger.parts]
        self._ledger = ledger
        self._excuses = excuses
        self._agreed: dict[str, dict[int, Agreed]] = {name: {} for name in self.caches}
        self._settled: dict[str, tuple[Held, Held, AbstractSet[int]]] = {
            name: ({}, {}, frozenset()) for name in self.caches
        }
        self.look()

    def look(self) -> None:
        """See what the cells are now: pictures, proofs and comparisons go by that."""
        looks = {name: cache.look() for name, cache in self.caches.items()}
        self._found: dict[str, Held] = {name: looks[name].held for name in self._compared}

    def compare(self) -> None:
        """Compare every part and sequence. Raises CheckError at a difference that nothing explains."""
        excuses, found = self._excuses, self._found
        excuses.go_astray()
        standing = self._compare_states()
        adopted = excuses.astray | {
            seq for name in found if not self._is_settled(name) for seq in self._differing(name, found[name])
        }
        for name in found:
            if adopted and not (adopted == excuses.astray and self._is_settled(name)):
                self._part(name).adopt(found[name], adopted, rows=name not in self._rowless)
            self._settled[name] = found[name], dict(self._part(name).held), adopted
        if self.pair is not None:
            full, swa = (found[name] for name in self.pair)
            new = adopted - excuses.astray
            excuses.astray |= {seq for seq in new if _positions(swa, seq) - _positions(full, seq)}
        if excuses.astray:
            excuses.astray &= standing.union(*found.values())

    def _part(self, name: str) -> AttentionPart:
        part = self._ledger.parts[name]
        assert isinstance(part, AttentionPart)
        return part

    def _is_settled(self, name: str) -> bool:
        """Whether there is nothing to compare or to adopt, because nothing has changed since that was done last: not
        in the cells, not in the ledger, nor in what is explained."""
        found, held, adopted = self._settled[name]
        return (
            found is self._found[name]
            and held == self._part(name).held
            and self._excuses.astray <= adopted
            and not self._excuses.events
        )

    def _compare_states(self) -> set[int]:
        """Compare what the recurrent states have seen. Returns the sequences that have one."""
        part, excuses = self._ledger.parts.get("recurrent"), self._excuses
        if not isinstance(part, StatePart) or self._states is None:
            return set()
        found = states_of(self._states)
        for seq in [s for s in part.held if s >= self._n_seq_max]:
            del part.held[seq]  # a hazard has said that such a sequence is ignored
        for seq in range(self._n_seq_max):
            state, wanted = found.get(seq, NO_STATE), part.state(seq)
            if state == wanted or state.history == wanted.history == 0:  # nothing seen: it stands nowhere
                if excuses.explained("recurrent", seq, "state-skips-positions"):
                    part.adopt(seq, state)
                continue
            if not excuses.explained("recurrent", seq):
                tokens = part.histories.tokens
                raise excuses.failure(
                    f"recurrent: the state of sequence {seq} stands at {state.pos} and has seen "
                    f"{tokens(state.history)}; it should stand at {wanted.pos} and have seen "
                    f"{tokens(wanted.history)}"
                )
            part.adopt(seq, state)
        return set(found)

    def _differing(self, name: str, found: Held) -> Iterator[int]:
        """The sequences, but for those astray, for which one attention cache must be believed, since a hazard
        has explained it."""
        part, excuses = self._part(name), self._excuses
        agreed, rows = self._agreed[name], name not in self._rowless
        for seq in (found.keys() | part.held.keys()) - excuses.astray:
            entries, cells = part.held.get(seq, NOTHING_HELD), found.get(seq, NOTHING_HELD)
            if not agree_as_before(agreed.get(seq), entries, cells, rows):
                missing, extra = part.difference(seq, cells, rows)
                if missing or extra:
                    if not excuses.explained(name, seq):
                        raise excuses.failure(
                            f"{name}: sequence {seq} should hold {_text(missing)} and does not; "
                            f"it holds {_text(extra)} and should not"
                        )
                    yield seq
                    continue
            agreed[seq] = entries, cells
            if excuses.events and len(entries) != len(cells) and excuses.explained(name, seq):
                yield seq  # its positions may start anew: what the window has forgotten is out of reach


def agree_as_before(before: Agreed | None, entries: list[Entry], cells: list[Entry], rows: bool) -> bool:
    """Whether ledger and cells, which agreed before, have since but got the same at their ends: the window, which
    may have forgotten what was before, only moves on."""
    if before is None:
        return False
    held, known = before
    n = len(held)
    if entries is not held and entries[:n] != held:
        return False
    if cells is known:
        return n == len(entries)
    key = CONTENT if rows else POSITION
    new = cells[len(known) :]
    return cells[: len(known)] == known and list(map(key, new)) == list(map(key, entries[n:]))


def _positions(held: Mapping[int, Sequence[Entry]], seq: int) -> Counter[int]:
    return Counter(e.pos for e in held.get(seq, ()))


def _text(entries: Sequence[Entry]) -> str:
    if not entries:
        return "nothing"
    return ", ".join(
        f"position {e.pos} (instance {e.instance}, key turned for {e.turned}, {e.pending:+d} pending)"
        for e in entries[:4]
    ) + (f" and {len(entries) - 4} more" if len(entries) > 4 else "")
