"""From a long failing list of operations to a short one (delta debugging)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kvsim.ops import Op

Fails = Callable[[Sequence[Op]], bool]


def shrink(ops: Sequence[Op], fails: Fails) -> list[Op]:
    """A shorter list that still fails: none of its operations can be left out or replaced by a simpler one.

    ``fails`` performs a list on fresh subjects and says whether it fails in the same way. What cannot be
    performed at all must count as not failing. Large pieces are tried first, so that a long list costs few
    attempts.
    """
    kept = _drop_pieces(list(ops), fails)
    while True:
        simpler = _simplify(kept, fails)
        if simpler == kept:
            return kept
        kept = _drop_pieces(simpler, fails)


def _drop_pieces(kept: list[Op], fails: Fails) -> list[Op]:
    size = max(len(kept) // 2, 1)
    while True:
        before, at = len(kept), 0
        while at < len(kept):
            shorter = kept[:at] + kept[at + size :]
            if shorter != kept and fails(shorter):
                kept = shorter
            else:
                at += size
        if size == 1 and len(kept) == before:
            return kept
        size = max(size // 2, 1)


def _simplify(kept: list[Op], fails: Fails) -> list[Op]:
    for at, op in enumerate(kept):
        for simpler in simpler_ops(op):
            tried = [*kept[:at], simpler, *kept[at + 1 :]]
            if fails(tried):
                return tried
    return kept


def simpler_ops(op: Op) -> Iterator[Op]:
    """Operations that ask for less: fewer tokens, no fault, no damage, open ranges.

    Each is strictly simpler, so that simplifying ends.
    """
    args = op.args
    if op.op == "decode":
        yield from (replace(op, args=less) for less in _fewer_tokens(args))
        for fault in ("fault", "abort_at_ubatch"):
            if fault in args:
                yield replace(op, args={k: v for k, v in args.items() if k != fault})
    for damage in ("truncate", "xor0"):
        if damage in args:
            yield replace(op, args={k: v for k, v in args.items() if k != damage})
    for end in ("p0", "p1"):
        if args.get(end, -1) != -1:
            yield replace(op, args={**args, end: -1})


def _fewer_tokens(args: dict[str, object]) -> Iterator[dict[str, object]]:
    """The batch without a half of it, then without one token each; batches of images are left alone."""
    seq = args["seq"]
    assert isinstance(seq, list)
    n = len(seq)
    lists = {key: args[key] for key in ("tokens", "pos", "seq", "out") if isinstance(args[key], list)}
    if n < 2 or any(len(values) != n for values in lists.values()):  # type: ignore[arg-type]
        return
    pieces = [range(n // 2, n), range(n // 2), *(range(i, i + 1) for i in reversed(range(n)))]
    for piece in pieces:
        yield {
            **args,
            **{key: [v for i, v in enumerate(values) if i not in piece] for key, values in lists.items()},  # type: ignore[arg-type, var-annotated]
        }
