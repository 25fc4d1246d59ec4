"""Operations at volume, chosen by a seed: every check after each one, stopping at the first difference.

python -m kvsim.testing.campaign --memory kv --ops 100000 --seed 7
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvsim.errors import KvsimError
from kvsim.ops import Op
from kvsim.testing import generate
from kvsim.testing.cache_info import CACHES, CacheInfo, Config
from kvsim.testing.checked import PREPARE, Checked

SESSION = 400
"""Operations on one memory before it starts anew."""

KEPT_STATES = 4


@dataclass
class Report:
    """What a campaign has done. ``hazards`` and ``codes`` count ids and answers of decodes."""

    ops: int = 0
    seconds: float = 0.0
    hazards: dict[str, int] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.ops / self.seconds if self.seconds else 0.0


@dataclass
class FoundError(Exception):
    """A difference: where, after which operations, and what it was."""

    config: Config
    seed: int
    ops: list[Op]
    cause: Exception

    def __str__(self) -> str:
        return f"{self.config} (seed {self.seed}): {self.cause}"


def operations(world: Checked, pick: generate.Picker) -> Iterator[Op]:
    """An endless choice of operations; each is made from what the memory holds when it is asked for."""
    names = [name for name, (_, weight) in generate.EDITS.items() for _ in range(weight)]
    slot = 0
    while True:
        kind = pick.integer(0, 99)
        if kind < 55:
            yield generate.decode(pick, world)
        elif kind < 58:
            yield from generate.context_shift(pick, world)
        elif kind < 62:
            if len(world.states) >= KEPT_STATES:
                world.forget_state(next(iter(world.states)))
            yield generate.save(pick, world, slot)
            slot += 1
        elif kind < 67:
            op = generate.restore(pick, world)
            if op is not None:
                yield op
        else:
            yield generate.EDITS[pick.choice(names)][0](pick, world)
        if world.full and pick.chance(70):
            yield Op.seq_rm(pick.integer(0, world.n_seq_max - 1), pick.choice([-1, -1, 1, 3]), -1)
        if world.raised and pick.chance(30):
            yield Op.clear(True)  # a pending shift that cannot run would make every decode fail


def run(info: CacheInfo, config: Config, seed: int, n_ops: int, report: Report) -> None:
    """Run ``n_ops`` operations. Raises FoundError at the first difference."""
    begun = time.perf_counter()
    done = 0
    while done < n_ops:
        session_seed = seed * 1_000_003 + done
        pick = generate.SeededPicker(session_seed)
        world = Checked(info, config)
        for op in operations(world, pick):
            try:
                if op.op == "decode" and pick.chance(5):
                    world.perform(Op(PREPARE, op.args))
                ret = world.perform(op)
            except DIFFERENCES as err:
                raise FoundError(config, session_seed, world.ops, err) from err
            if op.op == "decode":
                code = "ends" if world.raised else str(ret)
                report.codes[code] = report.codes.get(code, 0) + 1
            done += 1
            if len(world.ops) >= SESSION or done >= n_ops:
                break
        for name, n in world.hazards.items():
            report.hazards[name] = report.hazards.get(name, 0) + n
    report.ops += done
    report.seconds += time.perf_counter() - begun


def shrink(info: CacheInfo, config: Config, ops: Sequence[Op]) -> list[Op]:
    """A shorter list that still ends in a difference: pieces are dropped, large ones first, until not one
    single operation can be spared."""
    kept = list(ops)
    size = max(len(kept) // 2, 1)
    while True:
        before, at = len(kept), 0
        while at < len(kept):
            shorter = kept[:at] + kept[at + size :]
            if fails(info, config, shorter):
                kept = shorter
            else:
                at += size
        if size == 1 and len(kept) == before:
            return kept
        size = max(size // 2, 1)


def fails(info: CacheInfo, config: Config, ops: Sequence[Op]) -> Exception | None:
    """The difference these operations end in; None if all is well or one cannot be performed at all."""
    world = Checked(info, config)
    for op in ops:
        if op.op.endswith("_set") and op.args["slot"] not in world.states:
            return None
        try:
            world.perform(op)
        except DIFFERENCES as err:
            return err
    return None


DIFFERENCES = (KvsimError, AssertionError, LookupError, ValueError, TypeError)
"""What a faulty memory may raise while it is checked."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvsim.testing.campaign", description=__doc__)
    parser.add_argument("--memory", default="all", choices=["all", *CACHES])
    parser.add_argument("--config", help="one configuration, by name")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ops", type=int, default=2000, help="per configuration")
    args = parser.parse_args(argv)
    report = Report()
    for info in CACHES.values():
        for config in info.configs:
            if args.memory not in ("all", info.kind) or args.config not in (None, config.name):
                continue
            try:
                run(info, config, args.seed, args.ops, report)
            except FoundError as failed:
                print(f"{info.kind}/{failed}\nthe shortest way there:")
                ops = shrink(info, config, failed.ops)
                print(*(f"  {op}" for op in ops), sep="\n")
                print(f"ends in: {fails(info, config, ops)}")
                return 1
    print(f"{report.ops} operations, {report.rate:.0f} per second, no difference that no hazard explains")
    for title, counts in (("hazards", report.hazards), ("decode answered", report.codes)):
        print(f"{title}: " + ", ".join(f"{name} {n}" for name, n in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
