"""What can be done to the memory, one act a line, and the operations of the trace each stands for.

An act is turned into operations where it happens: ``prompt 0 18`` begins where seq 0 ends by then. Acts are
generators that give one operation at a time and are told what it returned, so that one that is refused can
be answered as a server would (:class:`Speculate`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvsim.context import Context, Fault
from kvsim.errors import KvsimError
from kvsim.narrate.words import count
from kvsim.ops import Op
from kvsim.policies.slot import Slot
from kvsim.speculative import reach
from kvsim.state import PARTIAL_ONLY

MOST_TOKENS = 2048
"""Most tokens of one act's batch."""
MOST_TIMES = 256

Ops = Generator[Op, int | None, None]


class ActError(KvsimError):
    """An act that cannot be understood, or that asks for something that is not there."""


class World(Protocol):
    """What an act must know of the memory it happens to."""

    @property
    def context(self) -> Context: ...

    @property
    def n_saved(self) -> int:
        """States saved so far; they are numbered from 0."""


class Act(Protocol):
    """One line of the operation list."""

    def ops(self, world: World) -> Ops:
        """The operations, one by one. Raises ActError for a sequence or a save that is not there."""

    @property
    def verb(self) -> str: ...

    def words(self) -> str:
        """The rest in words, for the list."""


def token(seq: int, pos: int) -> int:
    """The token id a playground decodes at a place: always the same, so that a line says all there is."""
    return (31 * pos + 17 * seq + 7) % 128


@dataclass(frozen=True)
class Part:
    """``n`` tokens of a sequence, or shared by several, from position ``at`` on (None: where it ends)."""

    seqs: tuple[int, ...]
    n: int
    at: int | None = None


@dataclass(frozen=True)
class Decode:
    """Tokens of one or more sequences in one batch, ``times`` times over. Results are wanted of the last
    token of each part, or of ``every`` token."""

    parts: tuple[Part, ...]
    times: int = 1
    fault: Fault | None = None
    every: bool = False

    def ops(self, world: World) -> Ops:
        seqs = {seq for part in self.parts for seq in part.seqs}
        for seq in sorted(seqs):
            _check_seq(seq, world)
        for _ in range(self.times):
            yield self.op_after({seq: world.context.memory.seq_pos_max(seq) for seq in seqs})

    def op_after(self, ends: Mapping[int, int]) -> Op:
        """The batch once; ``ends`` are the last positions of the sequences before it (-1: none)."""
        tokens: list[int] = []
        pos: list[int] = []
        ids: list[Sequence[int]] = []
        out: list[int] = []
        known = dict(ends)
        for part in self.parts:
            first = part.seqs[0]
            start = known.get(first, -1) + 1 if part.at is None else part.at
            known |= dict.fromkeys(part.seqs, start + part.n - 1)
            pos += range(start, start + part.n)
            tokens += (token(first, p) for p in range(start, start + part.n))
            ids += [part.seqs] * part.n
            out += [int(self.every)] * (part.n - 1) + [1]
        return Op.decode(tokens, pos, ids, out, self.fault)

    @property
    def verb(self) -> str:
        return "prompt" if len(self.parts) == 1 and self.parts[0].n > 1 else "decode"

    def words(self) -> str:
        told = []
        if all(part.n == 1 and part.at is None for part in self.parts):
            told.append(f"seq {', '.join(_together(part.seqs) for part in self.parts)}")
        else:
            for part in self.parts:
                at = "" if part.at is None else f" from {part.at}"
                told.append(f"seq {_together(part.seqs)}, {count(part.n, 'token')}{at}")
        text = "; ".join(told)
        text += f", {self.times} times" if self.times > 1 else ""
        text += ", every result" if self.every else ""
        return text + (f", {self.fault.kind} in ubatch {self.fault.ubatch + 1}" if self.fault else "")


def _together(seqs: tuple[int, ...]) -> str:
    return "+".join(map(str, seqs))


def _check_seq(seq: int, world: World) -> None:
    n = world.context.resolved.n_seq_max
    if not 0 <= seq < n:
        raise ActError(f"there is no seq {seq}: this context has {n}, 0 to {n - 1}")


_VERBS = {
    "seq_rm": "remove",
    "seq_cp": "share",
    "seq_keep": "keep",
    "seq_add": "shift",
    "seq_div": "divide",
    "clear": "clear",
    "defrag": "defragment",
    "decode": "decode",
}


@dataclass(frozen=True)
class Plain:
    """One operation as it stands."""

    op: Op

    def ops(self, world: World) -> Ops:
        for name in ("seq", "src", "dst"):
            seq = self.op.args.get(name)
            if isinstance(seq, int) and seq != -1:
                _check_seq(seq, world)
        yield self.op

    @property
    def verb(self) -> str:
        return _VERBS[self.op.op]

    def words(self) -> str:
        a, op = self.op.args, self.op.op
        if op == "decode":
            ids = sorted({seq for row in a["seq"] for seq in row})
            return f"seq {', '.join(map(str, ids))}, {count(len(a['seq']), 'token')} as written"
        if op == "defrag":
            return str(a["strategy"])
        if op == "clear":
            return "everything"
        if op == "seq_cp":
            return f"seq {a['src']} → {a['dst']}, {_span(a)}"
        whose = "every seq" if a["seq"] < 0 else f"seq {a['seq']}"
        if op == "seq_keep":
            return whose
        by = {"seq_add": f" by {a.get('delta', 0)}", "seq_div": f" by {a.get('d', 1)}"}.get(op, "")
        return f"{whose}, {_span(a)}{by}".replace("-", "−")


def _span(args: dict[str, int]) -> str:
    p0, p1 = args["p0"], args["p1"]
    if p0 < 0 and p1 < 0:
        return "all"
    return f"{max(p0, 0)} to {'end' if p1 < 0 else p1 - 1}"


@dataclass(frozen=True)
class Save:
    """Save a sequence (None: everything); the save gets the next number. ``partial``: only what cannot go
    back, as a server's checkpoints."""

    seq: int | None
    partial: bool = False

    verb = "save"

    def ops(self, world: World) -> Ops:
        if self.seq is None:
            yield Op.state_get(world.n_saved)
        else:
            _check_seq(self.seq, world)
            yield Op.state_seq_get(self.seq, world.n_saved, PARTIAL_ONLY if self.partial else 0)

    def words(self) -> str:
        if self.seq is None:
            return "everything"
        return f"seq {self.seq}{', window and states only' if self.partial else ''}"


@dataclass(frozen=True)
class Restore:
    """Restore save number ``save`` into a sequence (None: everything), perhaps cut to ``cut`` bytes or with
    its first byte xored with ``flip``."""

    seq: int | None
    save: int
    partial: bool = False
    cut: int | None = None
    flip: int | None = None

    verb = "restore"

    def ops(self, world: World) -> Ops:
        if self.save >= world.n_saved:
            raise ActError(f"there is no save {self.save}: {_so_far(world.n_saved)}")
        damage = {"truncate": self.cut, "xor0": self.flip}
        given = {name: value for name, value in damage.items() if value is not None}
        if self.seq is None:
            yield Op.state_set(self.save)
            return
        if self.seq != -1:
            _check_seq(self.seq, world)
        yield Op.state_seq_set(self.seq, self.save, PARTIAL_ONLY if self.partial else 0, **given)

    def words(self) -> str:
        what = "everything" if self.seq is None else f"seq {self.seq}"
        damage = "" if self.cut is None else f", cut to {self.cut:,} bytes"
        damage += "" if self.flip is None else ", first byte changed"
        return f"{what} from save {self.save}{', window and states only' if self.partial else ''}{damage}"


def _so_far(n: int) -> str:
    return "nothing was saved before" if n == 0 else f"saves 0 to {n - 1} were made before"


@dataclass(frozen=True)
class Speculate:
    """A round of speculative decoding as the target sees it: the sampled token and ``guesses`` more in one
    batch, of which the first ``accepted`` are right and the rest is taken back
    (:class:`kvsim.speculative.Speculation`)."""

    seq: int
    guesses: int
    accepted: int

    verb = "speculate"

    def ops(self, world: World) -> Ops:
        _check_seq(self.seq, world)
        memory, slot = world.context.memory, Slot(world.context, self.seq)
        at, stays = memory.seq_pos_max(self.seq) + 1, 1 + self.accepted
        limit, save = reach(slot), world.n_saved
        careful = limit is not None and self.guesses > limit
        if careful:
            yield Op.state_seq_get(self.seq, save, PARTIAL_ONLY)
        if (yield self._batch(at, 1 + self.guesses)) or self.accepted == self.guesses:
            return
        if (yield Op.seq_rm(self.seq, at + stays, -1)) or not careful:
            return
        yield Op.state_seq_set(self.seq, save, PARTIAL_ONLY)
        yield Op.seq_rm(self.seq, at, -1)
        yield self._batch(at, stays)

    def _batch(self, at: int, n: int) -> Op:
        """Tokens of which the target wants every result."""
        tokens = [token(self.seq, at + i) for i in range(n)]
        return Op.decode(tokens, range(at, at + n), [[self.seq]] * n, out=[1] * n)

    def words(self) -> str:
        return f"seq {self.seq}, {self.guesses} guesses, {self.accepted} accepted"
