"""Which operation comes next on both sides: generated from what kvsim holds, as llama.cpp can perform it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvsim.lanes.pair import Pair
from kvsim.ops import Op
from kvsim.testing import generate

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
