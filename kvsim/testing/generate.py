"""Operations, chosen by whoever picks: a seed or Hypothesis.

Most are sensible for the state of the memory, some are at its edges, a few are refused. Each function takes
a :class:`Picker` and what is known of the memory (:class:`World`), and returns one operation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from kvsim.context import Fault
from kvsim.ops import Op
from kvsim.replay import N_VOCAB
from kvsim.state import PARTIAL_ONLY
from kvsim.testing.cache_info import CacheInfo

T = TypeVar("T")


class Picker(Protocol):
    """Chooses. Small numbers and early elements are the simple ones."""

    def integer(self, lo: int, hi: int) -> int:
        """An integer in [lo, hi]."""

    def choice(self, options: Sequence[T]) -> T: ...

    def chance(self, percent: int) -> bool: ...


class SeededPicker:
    """Chooses by a seed, fast."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def integer(self, lo: int, hi: int) -> int:
        return lo + int(self._random() * (hi - lo + 1))

    def choice(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def chance(self, percent: int) -> bool:
        return self._random() * 100 < percent


class World(Protocol):
    """What a generator may know of the memory."""

    info: CacheInfo
    n_seq_max: int
    n_pos: int
    n_batch: int
    unified: bool

    @property
    def next_token(self) -> int:
        """A number that has not been used yet, so that no two tokens in a tiny cache are alike."""

    def span(self, seq: int) -> tuple[int, int]:
        """Smallest and largest position of a sequence, (-1, -1) if it holds none."""

    @property
    def saved(self) -> Sequence[Op]:
        """The operations that saved a state which can be restored."""


MAX_RUN = 9
"""Most tokens that one sequence gets in a batch."""


def decode(pick: Picker, world: World) -> Op:
    """A batch for one or several sequences, now and then wrong or made to fail."""
    entries: list[tuple[list[int], int]] = []
    free = list(range(world.n_seq_max))
    for _ in range(1 if pick.chance(60) else pick.integer(1, 3)):
        if not free:
            break
        seq = pick.choice(free)
        ids = [seq] + (_companions(pick, world, seq, free) if pick.chance(15) else [])
        free = [s for s in free if s not in ids]
        entries += [(ids, p) for p in _positions(pick, world, seq)]
    if pick.chance(20):
        entries.sort(key=lambda e: e[1])
    entries = entries[: world.n_batch]
    seqs, pos = [ids for ids, _ in entries], [p for _, p in entries]
    out = [1] * len(pos) if pick.chance(20) else None
    fault = Fault(pick.integer(0, 2), pick.choice(["abort", "alloc", "compute"])) if pick.chance(12) else None
    if pick.chance(8):
        return Op.decode(None, _sections(pick, pos, world.n_pos), seqs, out, fault)
    tokens = [(world.next_token + i) % N_VOCAB for i in range(len(pos))]
    return Op.decode(tokens, pos, seqs, out, fault)


def _companions(pick: Picker, world: World, seq: int, free: Sequence[int]) -> list[int]:
    """Other sequences for the same tokens: mostly such that hold the same positions."""
    others = [s for s in free if s != seq and (world.span(s) == world.span(seq) or pick.chance(5))]
    return others[: pick.integer(0, 2)]


def _positions(pick: Picker, world: World, seq: int) -> list[int]:
    end = world.span(seq)[1]
    start, n = end + 1, pick.integer(1, MAX_RUN) if pick.chance(50) else 1
    if pick.chance(5):
        start = max(-1, start + pick.integer(-2, 2))
    elif end < 0 and pick.chance(10):
        start = pick.integer(-1, 5)
    pos = list(range(start, start + n))
    if pick.chance(4):
        at = pick.integer(0, n - 1)
        pos = pos[: at + 1] + pos[at:]
    return pos


def _sections(pick: Picker, pos: list[int], n_pos: int) -> list[int]:
    """Positions of embeddings; with several sections (time, y, x) an image of two rows."""
    if n_pos == 1:
        return pos
    n = len(pos)
    y, x = [i // 2 for i in range(n)], [i % 2 for i in range(n)]
    time = [pos[0]] * n if n and len(set(pos)) == n and pick.chance(50) else pos
    return [*time, *y, *x, *([0] * n)]


def _seq(pick: Picker, world: World) -> int:
    """A sequence, in a unified cache now and then one beyond those that a batch may name."""
    beyond = world.unified and pick.chance(2)
    return world.n_seq_max if beyond else pick.integer(0, world.n_seq_max - 1)


def _range(pick: Picker, world: World, seq: int) -> tuple[int, int]:
    hi = max(world.span(seq)[1], 0) + 1
    kind = pick.integer(0, 3)
    p0 = pick.integer(0, hi) if kind & 1 else pick.choice([-1, 0])
    p1 = pick.integer(0, hi + 1) if kind & 2 else -1
    return p0, p1


def seq_rm(pick: Picker, world: World) -> Op:
    seq = -1 if pick.chance(4) else _seq(pick, world)
    return Op.seq_rm(seq, *_range(pick, world, max(seq, 0)))


def seq_cp(pick: Picker, world: World) -> Op:
    src, dst = _seq(pick, world), _seq(pick, world)
    whole = not world.unified and not pick.chance(10)
    return Op.seq_cp(src, dst, *((-1, -1) if whole else _range(pick, world, src)))


def seq_keep(pick: Picker, world: World) -> Op:
    return Op.seq_keep(_seq(pick, world))


def seq_add(pick: Picker, world: World) -> Op:
    if not world.info.edits and not pick.chance(10):
        return seq_rm(pick, world)  # once positions have moved, every decode would be refused
    seq = _seq(pick, world)
    return Op.seq_add(seq, *_range(pick, world, seq), pick.integer(-5, 4))


def seq_div(pick: Picker, world: World) -> Op:
    if not world.info.edits and not pick.chance(10):
        return seq_rm(pick, world)
    seq = _seq(pick, world)
    return Op.seq_div(seq, *_range(pick, world, seq), pick.integer(0 if pick.chance(3) else 1, 3))


def clear(pick: Picker, world: World) -> Op:
    return Op.clear(pick.chance(50))


def context_shift(pick: Picker, world: World) -> list[Op]:
    """What servers do when the context is full: drop a stretch and move the rest down."""
    seq = _seq(pick, world)
    end = world.span(seq)[1]
    keep, n = pick.integer(0, 2), pick.integer(1, 4)
    if end < keep + n:
        return []
    return [Op.seq_rm(seq, keep, keep + n), Op.seq_add(seq, keep + n, -1, -n)]


def save(pick: Picker, world: World, slot: int) -> Op:
    if pick.chance(20):
        return Op.state_get(slot)
    partial = world.info.partial and pick.chance(30)
    return Op.state_seq_get(_seq(pick, world), slot, PARTIAL_ONLY if partial else 0)


def restore(pick: Picker, world: World) -> Op | None:
    """Feed back a saved state, now and then damaged or with the wrong flag."""
    if not world.saved:
        return None
    source = pick.choice(world.saved)
    slot = source.args["slot"]
    if source.op == "state_get":
        return Op.state_set(slot)
    flags = source.args["flags"]
    if world.info.partial and pick.chance(3):
        flags ^= PARTIAL_ONLY
    damage: dict[str, int] = {}
    if pick.chance(10):
        damage = {"truncate": pick.integer(0, 200)} if pick.chance(80) else {"xor0": pick.integer(1, 255)}
    return Op.state_seq_set(_seq(pick, world), slot, flags, **damage)


EDITS: dict[str, tuple[Callable[[Picker, World], Op], int]] = {
    "seq_rm": (seq_rm, 12),
    "seq_cp": (seq_cp, 8),
    "seq_keep": (seq_keep, 2),
    "seq_add": (seq_add, 5),
    "seq_div": (seq_div, 2),
    "clear": (clear, 1),
}
"""Generators of single edits, and how often each is chosen against 50 decodes."""
