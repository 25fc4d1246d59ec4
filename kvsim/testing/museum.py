"""Does the tester notice the faults that real caches had? Each mutant is put in, and looked for.

The subject of a run is the reference with the fault, held to the ledger; it plays against the reference
without. What is counted are operations until the first difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.ops import Op
from kvsim.testing import generate
from kvsim.testing.behaviour import behaviour
from kvsim.testing.cache_info import CACHES, CacheInfo, Config
from kvsim.testing.difftest import attempt
from kvsim.testing.match import DifferenceError, Match, attention_caches
from kvsim.testing.mutants import MUTANTS, Mutant
from kvsim.testing.profiles import PROFILES, operations
from kvsim.testing.shrink import shrink
from kvsim.testing.subject import ContextSubject, LedgerSubject, Observes, Picture, Subject

ROUND = 100
"""Operations on one configuration before it is the next one's turn."""

LIMIT = 50_000
"""Operations within which every mutant must be found."""


class MutatedSubject(LedgerSubject):
    """The reference with a fault in it, beside the ledger, which has none."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.name = mutant.id
        self.observes = Observes.CELLS if mutant.exact else Observes.BEHAVIOUR

    def create(self, config: Config) -> None:
        with self.mutant.applied():
            super().create(config)

    def apply(self, op: Op) -> int | None:
        with self.mutant.applied():
            return super().apply(op)

    def snapshot(self) -> Picture:
        with self.mutant.applied():
            picture = super().snapshot()
        if self.observes is Observes.CELLS:
            return picture
        return dict(behaviour(picture, attention_caches(self.checked.config)))


@dataclass(frozen=True)
class Find:
    """How a mutant was found: after ``n_ops`` operations in all, on this configuration."""

    mutant: Mutant
    info: CacheInfo
    config: Config
    n_ops: int
    error: DifferenceError


def contestants(mutant: Mutant) -> list[Subject]:
    """The reference and the mutant; where cells cannot be compared, the leader must tell hazards."""
    return [ContextSubject() if mutant.exact else LedgerSubject(), MutatedSubject(mutant)]


def hunt(
    mutant: Mutant,
    seed: int = 1,
    limit: int = LIMIT,
    progress: Callable[[int, str], object] = lambda n_ops, where: None,
) -> Find | None:
    """Play sessions on every configuration of its memories in turn until the mutant differs; None if it has
    not within ``limit`` operations. ``progress`` is told the operations done and the last configuration."""
    profile = PROFILES["usual"]
    configs = [(CACHES[kind], config) for kind in mutant.memories for config in CACHES[kind].configs]
    n_ops = k = 0
    while n_ops < limit:
        info, config = configs[k % len(configs)]
        pick = generate.SeededPicker(seed << 32 | k)
        match: Match | None = None
        try:
            match = Match(info, config, contestants(mutant))
            for op in operations(match, pick, profile):
                match.perform(op)
                if len(match.ops) == ROUND or (match.parted and not mutant.exact):
                    break
        except DifferenceError as error:
            return Find(mutant, info, config, n_ops + len(error.ops), error)
        n_ops += len(match.ops)
        k += 1
        progress(n_ops, f"{info.kind}/{config.name}")
    return None


def shortest(find: Find) -> tuple[list[Op], DifferenceError]:
    """The shortest way to a difference that delta debugging finds, and what it ends in."""

    def fails(ops: Sequence[Op]) -> bool:
        return attempt(find.info, find.config, contestants(find.mutant), ops) is not None

    ops = shrink(find.error.ops, fails)
    error = attempt(find.info, find.config, contestants(find.mutant), ops)
    assert error is not None
    return ops, error


# -- the bugs behind the mutants, and the page about them ---------------------------------------


def read_cases(path: Path) -> dict[str, dict[str, Any]]:
    """The public faults by id (fixtures/bugs/README.md)."""
    with path.open(encoding="utf-8") as lines:
        return {case["id"]: case for case in map(json.loads, lines)}


INTRODUCTION = """\
# The museum

Faults that real caches had in public, each put into the reference on purpose: a mutant in
`kvsim/testing/mutants/` replaces one rule. `make museum` runs the tester against each of them and says
whether it was found, after how many operations, and how short the way there is. The shortest traces are
`fixtures/museum/<id>.jsonl`; `kvsim replay --explain` and `kvsim app` open them, and their last step shows
what the faulty cache did. With seed 1 all are found: half of them within a hundred operations, the last after
two thousand. This page is made from the table by `kvsim museum --page > docs/museum.md`.

Titles and sources are those of the public reports ([fixtures/bugs](../fixtures/bugs/README.md)); the
mutants are our own, and small: they have the fault, not the code that had it."""


def page(cases: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The blocks of docs/museum.md, to be separated by blank lines."""
    yield INTRODUCTION
    for mutant in MUTANTS.values():
        yield f"## {mutant.id}"
        yield f"{mutant.what} A caller sees: {mutant.symptom}. Memories: {', '.join(mutant.memories)}."
        reported = []
        for case in (cases[name] for name in mutant.cases):
            sources = ", ".join(f"[{source}]({link(source)})" for source in case["source"])
            reported.append(f"- {case['id']}, {case['title']} ({case['date']}; {case['status']}): {sources}")
        yield "\n".join(reported)


def link(source: str) -> str:
    """``owner/name#12`` -> its address."""
    repository, _, number = source.partition("#")
    return (
        f"https://github.com/{repository}/issues/{number}" if number else f"https://github.com/{repository}"
    )
