"""Random operations on the live library and on kvsim at once: every answer and everything seen must agree.

    python -m kvsim.lanes.campaign --model llama --ops 2000 --seed 1

Compared after each operation: the return value, the position ranges; before each decode: the cells, heads and
used counts the slot search prints; every few operations: every cell, and the whole saved state but for its
rows; where kvsim has the model's network: the logits. A call that ends llama.cpp must be refused here.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kvsim.lanes.library import LaneError
from kvsim.lanes.pair import Pair, Report
from kvsim.models.context_params import ContextParams
from kvsim.models.tiny import TINY, write_tiny
from kvsim.ops import Op
from kvsim.testing import generate
from kvsim.testing.match import DifferenceError
from kvsim.testing.shrink import shrink

SESSION = 300
"""Operations before both sides are cleared."""
LOOK_EVERY = 12
"""Operations between two looks at every cell and at the saved state."""
KEPT_STATES = 4
LONG_RUN = 60
"""Most tokens of a long run, which fills the cache."""


def operations(pair: Pair, pick: generate.Picker) -> Iterator[Op]:
    """An endless choice of operations; each is made from what the memory holds when it is asked for."""
    names = [name for name, (_, weight) in generate.EDITS.items() for _ in range(weight)]
    slot = 0
    while True:
        kind = pick.integer(0, 99)
        if kind < 50:
            decode = for_library(generate.decode(pick, pair), pair.live.n_vocab)
            if can_compare(decode, pair):
                yield decode
        elif kind < 56:
            seq = pick.integer(0, pair.n_seq_max - 1)
            tokens = [pick.integer(0, 127) for _ in range(pick.integer(1, min(pair.n_batch, LONG_RUN)))]
            yield Op.decode_run(seq, pair.span(seq)[1] + 1, tokens)
        elif kind < 59:
            yield from generate.context_shift(pick, pair)
        elif kind < 63:
            slot = (slot + 1) % KEPT_STATES
            yield generate.save(pick, pair, slot)
        elif kind < 68:
            restored = generate.restore(pick, pair)
            if restored is not None and (pair.same_layout or is_sound(restored, pair)):
                yield restored
        else:
            yield generate.EDITS[pick.choice(names)][0](pick, pair)
        if pair.refused and pick.chance(30):
            yield Op.clear(True)  # a pending shift that cannot run would end every decode
        elif pair.blind:
            yield Op.clear(True)  # or logits could not be compared any more


def can_compare(decode: Op, pair: Pair) -> bool:
    """Networks take tokens only; and of a shared token the first sequence that is seen must be the same."""
    if decode.args["tokens"] is None and pair.ours.network is not None:
        return False
    return pair.live.ids_reversed or all(len(ids) == 1 for ids in decode.args["seq"])


def is_sound(restored: Op, pair: Pair) -> bool:
    """Whether a state is fed back whole and as what it is. In another layout, damage hits other fields."""
    saved = pair.states[restored.args["slot"]]
    return "truncate" not in restored.args and restored.args.get("flags") == saved.args.get("flags")


def for_library(op: Op, n_vocab: int) -> Op:
    """A decode as the library can do it: tokens of its vocabulary, and of the faults only an abort."""
    args = {name: value for name, value in op.args.items() if name != "fault"}
    if args["tokens"] is not None:
        args["tokens"] = [token % n_vocab for token in args["tokens"]]
    return replace(op, args=args)


def run(pair: Pair, seed: int, n_ops: int) -> Report:
    """Run ``n_ops`` operations on a pair. Raises DifferenceError at the first difference."""
    begun = time.perf_counter()
    pick = generate.SeededPicker(seed)
    chosen = operations(pair, pick)
    while pair.report.ops < n_ops:
        op = next(chosen)
        pair.perform(op, look=pair.report.ops % LOOK_EVERY == 0)
        if len(pair.ops) >= SESSION:
            pair.ops = []
            pair.states = {}
            pair.perform(Op.clear(True))
    pair.report.seconds += time.perf_counter() - begun
    return pair.report


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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvsim.lanes.campaign", description=__doc__)
    parser.add_argument("--model", default="all", choices=["all", *TINY])
    parser.add_argument("--config", default="all", choices=["all", *CONFIGURATIONS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ops", type=int, default=500, help="per configuration")
    parser.add_argument("--lib", type=Path, help="a shared library instead of the installed wheel")
    args = parser.parse_args(argv)
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in TINY if args.model == "all" else [args.model]:
            path = Path(folder) / f"{name}.gguf"
            write_tiny(name, path)
            for config in CONFIGURATIONS if args.config == "all" else [args.config]:
                different += _run_one(f"{name}/{config}", path, CONFIGURATIONS[config], args)
    return int(different > 0)


def differs(path: Path, params: ContextParams, lib: Path | None, ops: Sequence[Op]) -> bool:
    """Whether these operations end in a difference, with a look after each of them."""
    pair = Pair(path, params, lib)
    try:
        for op in ops:
            if op.op in ("state_set", "state_seq_set") and op.args["slot"] not in pair.states:
                return False
            pair.perform(op, look=True)
    except DifferenceError:
        return True
    finally:
        pair.close()
    return False


def _run_one(title: str, path: Path, params: ContextParams, args: argparse.Namespace) -> int:
    try:
        pair = Pair(path, params, args.lib)
    except LaneError as error:
        print(f"{title}: {error}")
        return 0
    try:
        report = run(pair, args.seed, args.ops)
    except DifferenceError as difference:
        print(f"{title}: {difference}", flush=True)
        ops = shrink(difference.ops, lambda ops: differs(path, params, args.lib, ops))
        print("the shortest way there:", *(json.dumps(op.to_json()) for op in ops), sep="\n", flush=True)
        return 1
    finally:
        pair.close()
    counts = ", ".join(f"{code}: {n}" for code, n in sorted(report.codes.items()))
    print(
        f"{title}: {report.ops} operations at {report.rate:.0f}/s, no difference; decodes {counts}; "
        f"{report.logits} tokens' logits within {report.worst_logit:.1e}",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
