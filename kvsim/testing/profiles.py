"""Which operations a campaign performs, how often, and on what configurations.

>>> PROFILES["nasty"].with_weights({"seq_cp": 30}).weights["seq_cp"]
30
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from kvsim.context import FAULTS, Fault
from kvsim.errors import KvsimError
from kvsim.models.params import SwaType
from kvsim.ops import Op, fault_args
from kvsim.replay import N_VOCAB
from kvsim.testing import generate
from kvsim.testing.cache_info import CacheInfo, Config

SPOILED = 3
"""Of so many per cent of the batches something is wrong."""

MOST_WEIGHT = 10_000

KEPT_STATES = 4
"""Saved states that can be restored at a time."""

WEIGHTS = {
    "decode": 55,
    "context_shift": 3,
    "speculate": 3,
    "save": 4,
    "restore": 5,
    **{name: weight for name, (_, weight) in generate.EDITS.items()},
}

NEEDS = {
    "context_shift": ("seq_rm", "seq_add"),
    "speculate": ("decode", "seq_rm"),
    "save": ("state_seq_get", "state_get"),
    "restore": ("state_seq_set", "state_set"),
}
"""The operations behind a kind of choice that is not one operation of the same name."""


class Arena(generate.World, Protocol):
    """What is played on: what generators ask, and what came of the last operation."""

    @property
    def states(self) -> Mapping[int, Any]:
        """The saved states that can be restored, by slot."""

    @property
    def full(self) -> bool:
        """Whether the last decode found no room."""

    @property
    def raised(self) -> bool:
        """Whether the last operation would have ended llama.cpp."""

    def forget_state(self, slot: int) -> None: ...


@dataclass(frozen=True)
class Profile:
    """A way to play.

    ``weights``: how often each kind of operation is chosen. ``faults``: in so many per cent of the decodes a
    ubatch is made to fail, each in turn. ``cramped``: the smallest caches that still work, and windows of 1.
    """

    weights: Mapping[str, int] = field(default_factory=lambda: dict(WEIGHTS))
    faults: int = 0
    cramped: bool = False

    def with_weights(self, changed: Mapping[str, int]) -> Profile:
        """The same with other weights. Raises KvsimError for an operation that is not known."""
        for name, weight in changed.items():
            if name not in self.weights or not 0 <= weight <= MOST_WEIGHT:
                raise KvsimError(
                    f"no weight {name}={weight}: known are {', '.join(self.weights)}, from 0 to {MOST_WEIGHT:,}"
                )
        return replace(self, weights={**self.weights, **changed})

    def limited_to(self, ops: Collection[str]) -> Profile:
        """The same without what would need other operations than these."""
        none = {name: 0 for name in self.weights if not set(NEEDS.get(name, (name,))) <= set(ops)}
        return self.with_weights(none)

    def configs(self, info: CacheInfo) -> list[Config]:
        """The configurations of a member of the family that this profile plays on."""
        return [cramped(config) for config in info.configs] if self.cramped else list(info.configs)


PROFILES = {"usual": Profile(), "nasty": Profile(faults=40, cramped=True)}


def cramped(config: Config) -> Config:
    """The same configuration with hardly more cells than a ubatch takes, and windows of 1."""
    model = config.model
    if model.swa_type is not SwaType.NONE:
        model = replace(model, n_swa=1)
    room = config.params.n_ubatch + 2
    return replace(config, model=model, sizes={name: min(size, room) for name, size in config.sizes.items()})


def operations(arena: Arena, pick: generate.Picker, profile: Profile) -> Iterator[Op]:
    """An endless choice of operations; each is made from what the memory holds when it is asked for."""
    names = [name for name, weight in profile.weights.items() for _ in range(weight)]
    kinds = itertools.cycle(itertools.product(range(3), FAULTS))
    for slot in itertools.count():
        name = pick.choice(names)
        if name == "decode":
            op = generate.decode(pick, arena)
            if pick.chance(SPOILED):
                op = spoiled(op, pick, arena.n_seq_max)
            yield _with_fault(op, Fault(*next(kinds))) if pick.chance(profile.faults) else op
        elif name == "speculate":
            yield from speculation(pick, arena)
        elif name == "context_shift":
            yield from generate.context_shift(pick, arena)
        elif name == "save":
            if len(arena.states) >= KEPT_STATES:
                arena.forget_state(next(iter(arena.states)))
            yield generate.save(pick, arena, slot)
        elif name == "restore":
            restore = generate.restore(pick, arena)
            if restore is not None:
                yield restore
        else:
            yield generate.EDITS[name][0](pick, arena)
        if arena.full and pick.chance(70):
            yield Op.seq_rm(pick.integer(0, arena.n_seq_max - 1), pick.choice([-1, -1, 1, 3]), -1)
        if arena.raised and pick.chance(30):
            yield Op.clear(True)  # a pending shift that cannot run would make every decode fail


def speculation(pick: generate.Picker, arena: Arena) -> Iterator[Op]:
    """What a server with a draft model does: decode a few tokens of one or two sequences, then take back some
    of the last ones."""
    seqs = sorted({pick.integer(0, arena.n_seq_max - 1) for _ in range(2)})
    n, start = pick.integer(2, 3), arena.next_token
    entries = [(s, arena.span(s)[1] + 1 + i) for s in seqs for i in range(n)]
    tokens = [(start + i) % N_VOCAB for i in range(len(entries))]
    yield Op.decode(tokens, [pos for _, pos in entries], [[s] for s, _ in entries])
    for s in seqs:
        yield Op.seq_rm(s, arena.span(s)[1] + 1 - pick.integer(1, n - 1), -1)


def spoiled(op: Op, pick: generate.Picker, n_seq_max: int) -> Op:
    """The batch with something wrong in it: positions that fall, a sequence or a token that cannot be."""
    args, at = op.args, pick.integer(0, len(op.args["seq"]) - 1)
    kind = pick.integer(0, 2)
    if kind == 0:
        return replace(op, args={**args, "pos": args["pos"][::-1]})
    if kind == 1 or args["tokens"] is None:
        return replace(op, args={**args, "seq": _with(args["seq"], at, [n_seq_max])})
    return replace(op, args={**args, "tokens": _with(args["tokens"], at, -1)})


def _with(values: list[Any], at: int, value: Any) -> list[Any]:
    return [*values[:at], value, *values[at + 1 :]]


def _with_fault(op: Op, fault: Fault) -> Op:
    args = {name: value for name, value in op.args.items() if name not in ("fault", "abort_at_ubatch")}
    return replace(op, args={**args, **fault_args(fault)})
