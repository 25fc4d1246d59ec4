"""Which operation comes next on both sides: generated from what they hold, as llama.cpp can perform it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from kvsim.ops import Op
from kvsim.testing import generate

KEPT_STATES = 4
LONG_RUN = 60
"""Most tokens of a long run, which fills the cache."""


class Sides(generate.World, Protocol):
    """Two sides that get the same operations.

    ``n_vocab``: tokens that both know. ``tokens_only``: one of them takes no embeddings. ``same_order``: both
    see the sequences of a shared token in the same order. ``same_layout``: their states are of one form.
    ``refused``: the last operation would have ended llama.cpp. ``blind``: results cannot be compared any more.
    """

    n_vocab: int
    tokens_only: bool
    same_order: bool
    same_layout: bool
    refused: bool
    blind: bool
    states: dict[int, Op]


def operations(sides: Sides, pick: generate.Picker) -> Iterator[Op]:
    """An endless choice of operations; each is made from what the memory holds when it is asked for."""
    names = [name for name, (_, weight) in generate.EDITS.items() for _ in range(weight)]
    slot = 0
    while True:
        kind = pick.integer(0, 99)
        if kind < 50:
            decode = for_library(generate.decode(pick, sides), sides.n_vocab)
            if can_compare(decode, sides):
                yield decode
        elif kind < 56:
            seq = pick.integer(0, sides.n_seq_max - 1)
            tokens = [pick.integer(0, 127) for _ in range(pick.integer(1, min(sides.n_batch, LONG_RUN)))]
            yield Op.decode_run(seq, sides.span(seq)[1] + 1, tokens)
        elif kind < 59:
            yield from generate.context_shift(pick, sides)
        elif kind < 63:
            slot = (slot + 1) % KEPT_STATES
            yield generate.save(pick, sides, slot)
        elif kind < 68:
            restored = generate.restore(pick, sides)
            if restored is not None and (sides.same_layout or is_sound(restored, sides)):
                yield restored
        else:
            yield generate.EDITS[pick.choice(names)][0](pick, sides)
        if sides.refused and pick.chance(30):
            yield Op.clear(True)  # a pending shift that cannot run would end every decode
        elif sides.blind:
            yield Op.clear(True)  # or logits could not be compared any more


def can_compare(decode: Op, sides: Sides) -> bool:
    """Networks take tokens only; and of a shared token the first sequence that is seen must be the same."""
    if decode.args["tokens"] is None and sides.tokens_only:
        return False
    return sides.same_order or all(len(ids) == 1 for ids in decode.args["seq"])


def is_sound(restored: Op, sides: Sides) -> bool:
    """Whether a state is fed back whole and as what it is. In another layout, damage hits other fields."""
    saved = sides.states[restored.args["slot"]]
    return "truncate" not in restored.args and restored.args.get("flags") == saved.args.get("flags")


def for_library(op: Op, n_vocab: int) -> Op:
    """A decode as the library can do it: tokens of its vocabulary, and of the faults only an abort."""
    args = {name: value for name, value in op.args.items() if name != "fault"}
    if args["tokens"] is not None:
        args["tokens"] = [token % n_vocab if token >= 0 else token for token in args["tokens"]]
    return replace(op, args=args)
