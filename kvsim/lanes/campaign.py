"""Random operations on the live library and on kvsim at once: every answer and everything seen must agree.

    python -m kvsim.lanes.campaign --memory iswa --ops 2000 --seed 1 --report iswa.jsonl

Compared after each operation: the return value, the position ranges; before each decode: the cells, heads and
used counts the slot search prints; every few operations: every cell, and the whole saved state but for its
rows; where kvsim has the model's network: the logits. A call that ends llama.cpp must be refused here.

A campaign is a row of parts: some operations on one model in one context. The memory with the fewest
operations is next; one that differs is over. With a report, one line a part, the campaign goes on where the
report ends, with a part that differed done again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvsim.lanes.choose import operations
from kvsim.lanes.library import LaneError, open_library
from kvsim.lanes.pair import Pair, Report
from kvsim.models.context_params import ContextParams, resolve
from kvsim.models.memory_spec import memory_spec
from kvsim.models.tiny import TINY, write_tiny
from kvsim.narrate.words import count
from kvsim.ops import Op
from kvsim.testing import generate
from kvsim.testing.match import DifferenceError
from kvsim.testing.shrink import shrink

PART = 2500
"""Most operations of a part."""
SESSION = 300
"""Operations before both sides are cleared."""
LOOK_EVERY = 24
"""Operations between two looks at every cell and at the saved state."""

_BASE = ContextParams(
    n_ctx=256, n_batch=64, n_ubatch=8, n_seq_max=3, kv_unified=True, swa_full=False, flash_attn=False,
    type_k="f32", type_v="f32",
)  # fmt: skip

CONFIGURATIONS: dict[str, ContextParams] = {
    "unified": _BASE,
    "streams": replace(_BASE, n_ctx=768, kv_unified=False),
    "one-sequence": replace(_BASE, n_seq_max=1, n_ubatch=5),
    "large-ubatch": replace(_BASE, n_ctx=768, kv_unified=False, n_ubatch=32),
    "many": replace(_BASE, n_ctx=512, n_seq_max=8, n_ubatch=16),
    "quantised": replace(_BASE, type_k="q8_0", type_v="q8_0", flash_attn=True),
    "full-window": replace(_BASE, swa_full=True, type_k="f16", type_v="f16"),
    "rollback": replace(_BASE, n_rs_seq=2, n_ctx=768, kv_unified=False),
}
"""The contexts that every tiny model is tried with, by name."""


def memory_of(model: str) -> str:
    """The kind of memory that a tiny model has."""
    params = TINY[model].params()
    spec = memory_spec(params, resolve(params, _BASE))
    assert spec is not None
    return spec.kind


# -- one part --------------------------------------------------------------------------------------


def run(pair: Pair, seed: int, n_ops: int) -> Report:
    """Run ``n_ops`` operations on a pair. Raises DifferenceError at the first difference."""
    begun = time.perf_counter()
    pick = generate.SeededPicker(seed)
    chosen = operations(pair, pick)
    try:
        while pair.report.ops < n_ops:
            op = next(chosen)
            pair.begin(op)
            if pair.report.ops % LOOK_EVERY == 0:
                pair.settle()
                pair.look()
            if len(pair.ops) >= SESSION:
                pair.settle()
                pair.ops = []
                pair.states = {}
                pair.perform(Op.clear(True))
        pair.settle()
    finally:
        pair.report.seconds += time.perf_counter() - begun
    return pair.report


def differs(pair: Pair, ops: Sequence[Op]) -> bool:
    """Whether these operations end in a difference, both sides begun anew, with a look after each of them."""
    pair.start()
    try:
        for op in ops:
            if op.op in ("state_set", "state_seq_set") and op.args["slot"] not in pair.states:
                return False
            pair.perform(op, look=True)
    except DifferenceError:
        return True
    return False


# -- the campaign ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A model in a context."""

    memory: str
    model: str
    config: str


class Campaign:
    """So many operations on every memory: what has been done, and the places that are left.

    ``report``: a file with a line a part. Parts of the same library without a difference that are there
    already count.
    """

    def __init__(self, places: Sequence[Place], lib: Path | None, seed: int, report: Path | None) -> None:
        self.lib, self.seed, self.report = lib, seed, report
        self.version = open_library(lib)[2].name
        self.places: dict[str, list[Place]] = {}
        for place in places:
            self.places.setdefault(place.memory, []).append(place)
        self.done: Counter[str] = Counter()
        self.parts: Counter[str] = Counter()
        self.differences = 0
        if report is not None and report.exists():
            for line in report.read_text().splitlines():
                self._count(json.loads(line))

    def _count(self, line: dict[str, Any]) -> None:
        if line["version"] == self.version and "difference" not in line:
            self.done[line["memory"]] += line["ops"]
            self.parts[line["memory"]] += line["ops"] > 0

    def run(self, n_ops: int, folder: Path) -> Iterator[dict[str, Any]]:
        """Perform parts until each memory has had ``n_ops`` operations; the line of each part."""
        while left := [memory for memory in self.places if self.done[memory] < n_ops]:
            memory = min(left, key=lambda memory: self.done[memory])
            place = self.places[memory][self.parts[memory] % len(self.places[memory])]
            line = self._part(place, min(PART, n_ops - self.done[memory]), folder)
            self._count(line)
            self.differences += "difference" in line
            if "refused" in line:
                self.places[memory].remove(place)
            if "difference" in line or not self.places[memory]:
                del self.places[memory]
            if self.report is not None:
                with self.report.open("a") as file:
                    file.write(json.dumps(line) + "\n")
            yield line

    def _part(self, place: Place, n_ops: int, folder: Path) -> dict[str, Any]:
        model, params = folder / f"{place.model}.gguf", CONFIGURATIONS[place.config]
        if not model.exists():
            write_tiny(place.model, model)
        seed = self.seed * 100_000 + self.parts[place.memory]
        line = {**vars(place), "version": self.version, "seed": seed, "ops": 0}
        try:
            pair = Pair(model, params, self.lib)
        except LaneError as error:
            return {**line, "refused": str(error)}
        try:
            run(pair, seed, n_ops)
        except DifferenceError as difference:
            report, pair.report = pair.report, Report()  # what shrinking does is no part of it
            ops = shrink(difference.ops, lambda ops: differs(pair, ops))
            pair.report = report
            line |= {"difference": str(difference), "shortest": [op.to_json() for op in ops]}
        finally:
            pair.close()
        return line | pair.report.to_json()


def told(line: dict[str, Any]) -> str:
    """A part in words."""
    title = f"{line['memory']} {line['model']}/{line['config']}"
    if "refused" in line:
        return f"{title}: {line['refused']}"
    if "difference" in line:
        ops = "\n".join(json.dumps(op) for op in line["shortest"])
        return f"{title}: {line['difference']}\nthe shortest way there:\n{ops}"
    codes = ", ".join(f"{code}: {n}" for code, n in line["codes"].items())
    return (
        f"{title}: {line['ops']} operations at {line['ops'] / line['seconds']:.0f}/s, no difference; "
        f"decodes {codes}; {line['logits']} tokens' logits within {line['worst_logit']:.1e}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 if there was a difference."""
    memories = sorted({memory_of(model) for model in TINY})
    parser = argparse.ArgumentParser(prog="python -m kvsim.lanes.campaign", description=__doc__)
    parser.add_argument("--memory", default="all", choices=["all", *memories])
    parser.add_argument("--model", default="all", choices=["all", *TINY])
    parser.add_argument("--config", default="all", choices=["all", *CONFIGURATIONS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ops", type=int, default=500, help="per memory")
    parser.add_argument("--report", type=Path, help="goes on where this file ends")
    parser.add_argument("--lib", type=Path, help="a shared library instead of the installed wheel")
    args = parser.parse_args(argv)
    places = [
        Place(memory_of(model), model, config)
        for model in TINY
        for config in CONFIGURATIONS
        if args.memory in ("all", memory_of(model))
        and args.model in ("all", model)
        and args.config in ("all", config)
    ]
    if args.report is not None:
        args.report.parent.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(places, args.lib, args.seed, args.report)
    with tempfile.TemporaryDirectory() as folder:
        for line in campaign.run(args.ops, Path(folder)):
            print(told(line), flush=True)
    for memory, n in sorted(campaign.done.items()):
        print(f"{memory}: {count(n, 'operation')}")
    print(f"llama.cpp {campaign.version}: {count(campaign.differences, 'difference')}")
    return int(campaign.differences > 0)


if __name__ == "__main__":
    sys.exit(main())
