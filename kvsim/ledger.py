"""The ledger: what every sequence holds, written down without any cells.

A memory is right if what attention can read through its cells is what the ledger says the sequence
holds, less what a window may forget. The ledger states the behaviour that a caller would expect: an
operation on a sequence concerns that sequence alone, and one that fails changes nothing. Where llama.cpp
does otherwise, a hazard (:mod:`kvsim.hazards`) must have said so.

A token that was decoded is an *instance* with a number of its own. A sequence holds entries::

    seq 0    pos 4: instance 17, key turned for position 4, nothing pending
             pos 5: instance 18, key turned for position 9, turn of -4 pending

One :class:`AttentionPart` per attention cache, one :class:`StatePart` for recurrent states; they get the
same operations, so the parts of a composite are held to the same content.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from kvsim import window
from kvsim.memory import position_range
from kvsim.models.params import SwaType


class Entry(NamedTuple):
    """A token instance as one sequence sees it.

    ``turned`` is the position its key has been rotated for, ``pending`` the turn that waits for the next
    update. ``place`` is (y, x) where positions are two-dimensional. ``row`` tells copies apart: entries of
    sequences that share one row have it in common.
    """

    pos: int
    instance: int
    turned: int
    pending: int
    place: tuple[int, int]
    row: object


CONTENT = itemgetter(0, 1, 2, 3, 4)
"""Everything about an entry but which row it is."""

POSITION, PENDING = itemgetter(0), itemgetter(3)

Held = dict[int, list[Entry]]


class Part(Protocol):
    """One part of a memory, as the ledger keeps it."""

    def write(self, seqs: Iterable[int], pos: int, instance: int, place: tuple[int, int] = (0, 0)) -> None:
        """A token was decoded for ``seqs``."""

    def clear(self) -> None: ...
    def seq_rm(self, seq: int, p0: int, p1: int) -> None: ...
    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None: ...
    def seq_keep(self, seq: int) -> None: ...
    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None: ...
    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None: ...

    def update(self) -> None:
        """Pending turns are applied."""

    def save(self, seqs: Iterable[int]) -> Any:
        """What a saved state of these sequences holds."""

    def restore(self, saved: Any, into: Mapping[int, int]) -> None:
        """Replace each sequence ``into[s]`` by the saved ``s``."""


class AttentionPart:
    """What one attention cache must let each sequence see: ``held``, whose lists are replaced, never changed.

    ``swa_type``, ``n_swa``: its window. ``streams``: sequences do not share rows, so a copy replaces its
    target; else it adds to it. ``rotates``: keys follow a change of position at the next update. ``two_d``:
    cells keep the place of a token in an image.
    """

    def __init__(
        self, swa_type: SwaType, n_swa: int, streams: bool, rotates: bool, two_d: bool = False
    ) -> None:
        self.swa_type = swa_type
        self.n_swa = n_swa
        self.streams = streams
        self.rotates = rotates
        self.two_d = two_d
        self.held: Held = {}
        self._n_rows = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> AttentionPart:
        """Lists of entries never change, so that copies share them."""
        twin = copy.copy(self)
        twin.held = dict(self.held)
        return twin

    def entries(self, seq: int) -> list[Entry]:
        return self.held.get(seq, [])

    def pos_max(self, seq: int) -> int:
        return max(map(POSITION, self.entries(seq)), default=-1)

    # -- operations, in the words of a dictionary ----------------------------------------------

    def write(self, seqs: Iterable[int], pos: int, instance: int, place: tuple[int, int] = (0, 0)) -> None:
        """A token was decoded for ``seqs``. At a negative position nobody can ever read it."""
        if pos < 0:
            return
        entry = Entry(pos, instance, pos, 0, place if self.two_d else (0, 0), self.new_row())
        for s in seqs:
            self.held[s] = [*self.held.get(s, ()), entry]

    def new_row(self) -> int:
        self._n_rows += 1
        return self._n_rows

    def clear(self) -> None:
        self.held.clear()

    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        lo, hi = position_range(p0, p1)
        for s in list(self.held) if seq == -1 else [seq]:
            self.held[s] = [e for e in self.entries(s) if not lo <= e.pos < hi]

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        lo, hi = position_range(p0, p1)
        if src == dst:
            return
        taken = [e for e in self.entries(src) if lo <= e.pos < hi]
        have = [] if self.streams else self.entries(dst)
        rows = {e.row for e in have}
        self.held[dst] = have + [e for e in taken if e.row not in rows]

    def seq_keep(self, seq: int) -> None:
        self.held = {seq: self.entries(seq)}

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Positions move; what falls below 0 is gone."""
        lo, hi = position_range(p0, p1)
        moved = (self._at(e, e.pos + delta) if lo <= e.pos < hi else e for e in self.entries(seq))
        self.held[seq] = [e for e in moved if e.pos >= 0]

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        lo, hi = position_range(p0, p1)
        if d == 0:
            return  # nothing the memory knows of is in the range, or it would have refused
        self.held[seq] = [self._at(e, int(e.pos / d)) if lo <= e.pos < hi else e for e in self.entries(seq)]

    def _at(self, e: Entry, pos: int) -> Entry:
        """The entry at another position. A row that others share moves for them too, which a hazard tells; if none
        does, the sequence had been allowed to forget it, and what it holds is that row no more."""
        if pos == e.pos:
            return e
        return e._replace(pos=pos, pending=e.pending + pos - e.pos, row=self.new_row())

    def update(self) -> None:
        """Pending turns are applied to the keys."""
        for s, entries in self.held.items():
            if any(map(PENDING, entries)):
                self.held[s] = [self._turn(e) for e in entries]

    def _turn(self, e: Entry) -> Entry:
        return e._replace(turned=e.turned + e.pending if self.rotates else e.turned, pending=0)

    def save(self, seqs: Iterable[int]) -> Held:
        """What a saved state holds: pending turns count as applied."""
        return {s: [self._turn(e) for e in self.entries(s)] for s in seqs}

    def restore(self, saved: Held, into: Mapping[int, int]) -> None:
        """Replace each sequence ``into[s]`` by the saved ``s``; rows shared when saved are shared again."""
        rows: dict[object, int] = {}
        for s, target in into.items():
            fresh = []
            for e in saved.get(s, []):
                if e.row not in rows:
                    rows[e.row] = self.new_row()
                fresh.append(e._replace(row=rows[e.row]))
            self.held[target] = fresh

    # -- reading -------------------------------------------------------------------------------

    def visible(self, seq: int, pos: int, place: tuple[int, int] = (0, 0)) -> list[tuple[int, int]]:
        """(instance, turned) of all that a token of ``seq`` at ``pos`` attends to, sorted."""
        start = self.window_start(pos)
        seen = [
            (instance, turned)
            for p, instance, turned, _, at, _ in self.entries(seq)
            if start <= p < pos or (p == pos and at <= place)
        ]
        seen.sort()
        return seen

    def window_start(self, query: int) -> int:
        """Smallest position that a token at ``query`` sees."""
        return window.window_start(self.swa_type, self.n_swa, query)

    def difference(
        self, seq: int, found: Sequence[Entry], rows: bool = True
    ) -> tuple[list[Entry], list[Entry]]:
        """(missing, extra): what the ledger holds and the cells do not, and the reverse.

        What the next token of the sequence can no longer see may be missing. ``rows`` False: the cache
        stores no rows, so only positions count.
        """
        key = CONTENT if rows else POSITION
        entries = self.entries(seq)
        if len(entries) == len(found) and sorted(map(key, entries)) == sorted(map(key, found)):
            return [], []  # as nearly always, told at a fraction of the cost
        have = Counter(map(key, found))
        missing = []
        start = None
        for e, content in zip(entries, map(key, entries), strict=True):
            if have.get(content, 0):
                have[content] -= 1
                continue
            start = self.window_start(self.pos_max(seq) + 1) if start is None else start
            if e.pos >= start:
                missing.append(e)
        extra = []
        for e in found if any(have.values()) else ():
            content = key(e)
            if have[content]:
                have[content] -= 1
                extra.append(e)
        return missing, extra

    def adopt(self, found: Mapping[int, list[Entry]], seqs: Container[int], rows: bool = True) -> None:
        """Believe the cells for ``seqs``, whose difference a hazard has explained.

        All that is present becomes the entry that the cells have, so that the ledger knows what is shared;
        what the others have been allowed to forget stays on record behind it. A list that stays the same is
        not replaced.
        """
        renamed: dict[object, object] = {}
        forgotten: Held = {}
        for s, entries in self.held.items():
            cells = found.get(s, [])
            if entries[: len(cells)] == cells:
                forgotten[s] = entries[len(cells) :]
                continue
            have: dict[object, list[Entry]] = {}
            key = CONTENT if rows else POSITION
            for e in reversed(cells):
                have.setdefault(key(e), []).append(e)
            forgotten[s] = []
            for e in entries:
                same = have.get(key(e))
                if same:
                    renamed[e.row] = same.pop().row
                else:
                    forgotten[s].append(e)
        before, self.held = self.held, {}
        for s in found.keys() | forgotten.keys():
            now = list(found.get(s, ()))
            if s not in seqs:
                now += [e._replace(row=renamed.get(e.row, e.row)) for e in forgotten.get(s, ())]
            self.held[s] = before[s] if before.get(s) == now else now


class Ledger:
    """All parts of a memory, and the operations of the trace format on them.

    ``outcome`` of an operation is the memory's to say (whether it found room, or refused); what it then holds
    is the ledger's.
    """

    def __init__(self, parts: Mapping[str, Part], n_pos: int = 1) -> None:
        self.parts = dict(parts)
        self.n_pos = n_pos

    def place(self, args: Mapping[str, Any], idx: Iterable[int], first: int) -> None:
        """The batch entries ``idx`` of a decode were computed; entry i is instance ``first + i``."""
        n, pos = len(args["seq"]), args["pos"]
        for i in idx:
            where = self.place_of(args, i, n)
            for part in self.parts.values():
                part.write(args["seq"][i], pos[i], first + i, where)

    def place_of(self, args: Mapping[str, Any], i: int, n: int) -> tuple[int, int]:
        """(y, x) of entry ``i`` where positions are two-dimensional."""
        pos = args["pos"]
        if self.n_pos == 1:
            return (0, 0)
        return (pos[n + i], pos[2 * n + i]) if len(pos) > n else (pos[i], pos[i])

    def update(self) -> None:
        for part in self.parts.values():
            part.update()

    def edit(self, op: str, args: Mapping[str, Any]) -> None:
        """A sequence operation or a clear that was not refused."""
        for part in self.parts.values():
            if op == "clear":
                part.clear()
            else:
                getattr(part, op)(**args)
