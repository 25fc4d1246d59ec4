"""An operation as a call: ``decode(31 tokens of seq 3)``, and what it answered: ``0 ok``."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvsim.memory import POS_INF
from kvsim.narrate.logs import is_failure
from kvsim.narrate.words import count, join, number
from kvsim.trace import Step

KINDS = {
    "init": ("state", "init"),
    "decode": ("decode", "decode"),
    "seq_rm": ("edit", "remove"),
    "seq_cp": ("copy", "share"),
    "seq_keep": ("edit", "keep"),
    "seq_add": ("edit", "shift"),
    "seq_div": ("edit", "divide"),
    "clear": ("edit", "clear"),
    "state_seq_get": ("state", "save"),
    "state_get": ("state", "save"),
    "state_seq_set": ("state", "restore"),
    "state_set": ("state", "restore"),
    "rows": ("state", "read"),
    "defrag": ("copy", "defragment"),
    "seen": ("state", "read"),
    "said": ("state", "read"),
}
"""Operation -> (kind, mark): the colour and the sign of its mark on the timeline."""

DECODE_CODES = {
    0: "ok",
    1: "no slot",
    2: "aborted",
    -1: "invalid batch",
    -2: "allocation failed",
    -3: "compute failed",
}


def call(step: Step) -> str:
    """The operation with its arguments, in full."""
    op, args = step.op, step.args
    if op == "decode":
        return f"decode({tokens_of(args)})"
    if op in ("seq_rm", "seq_add", "seq_div"):
        extra = {"seq_add": ["delta"], "seq_div": ["d"]}.get(op, [])
        rest = "".join(f", {number(args[name])}" for name in extra)
        seq = "all" if args["seq"] < 0 else f"seq {args['seq']}"
        return f"{op}({seq}, {_edge(args['p0'], 'start')}, {_edge(args['p1'], 'end')}{rest})"
    if op == "seq_cp":
        p0, p1 = _edge(args["p0"], "start"), _edge(args["p1"], "end")
        return f"seq_cp(seq {args['src']} → {args['dst']}, {p0}, {p1})"
    if op == "seq_keep":
        return f"seq_keep(seq {args['seq']})"
    if op == "clear":
        return "clear(data)" if args.get("data") else "clear()"
    if op in ("state_seq_get", "state_seq_set"):
        partial = ", window and recurrent part only" if args.get("flags") else ""
        return f"{op}(seq {args['seq']}, save {args['slot']}{partial}{_damage(args)})"
    if op in ("state_get", "state_set"):
        return f"{op}(save {args['slot']}{_damage(args)})"
    if op == "rows":
        return f"rows({args['cache']}, layer {args['layer']}, {count(len(args['cells']), 'cell')})"
    if op == "defrag":
        return f"defrag({args['strategy']})"
    if op == "init":
        return "init()"
    if op == "seen":
        return f"seen({args['cache']}, stream {args['stream']}, line {args['line']})"
    if op == "said":
        return f"said({args['explanation']}, line {args['line']})"
    return f"{op}({', '.join(f'{k} {v}' for k, v in args.items())})"


def short_call(step: Step) -> str:
    """The operation as the list of operations shows it, in about 25 characters."""
    op, args = step.op, step.args
    if op == "decode":
        n = len(args.get("seq") or [])
        ids = " ".join(str(s) for s in sorted({s for row in args.get("seq") or [] for s in row}))
        return f"decode({count(n, 'token')}, seq {ids})" if n else "decode(nothing)"
    if op == "state_seq_get":
        return f"save seq {args['seq']}"
    if op == "state_seq_set":
        return f"restore into seq {args['seq']}"
    if op == "state_get":
        return "save everything"
    if op == "state_set":
        return "restore everything"
    if op == "seen":
        return f"{args['cache']} before a search"
    if op == "said":
        return f"log: {args['explanation']}"
    return call(step).replace("(seq ", "(")


def tokens_of(args: dict[str, Any]) -> str:
    """ "31 tokens of seq 3", "7 tokens, one for each of seq 0, 2, 3"."""
    rows = args.get("seq") or []
    if not rows:
        return "nothing"
    noun = "embedding" if args.get("tokens") is None else "token"
    per_seq = Counter(s for row in rows for s in row)
    ids = ", ".join(str(s) for s in sorted(per_seq))
    if len(per_seq) > 1 and all(n == 1 for n in per_seq.values()) and len(rows) == len(per_seq):
        return f"{count(len(rows), noun)}, one for each of seq {ids}"
    return f"{count(len(rows), noun)} of seq {ids}"


def verdict(step: Step) -> tuple[str, bool]:
    """What the operation answered, and whether that is a failure. Empty where nothing is answered."""
    op, ret = step.op, step.ret
    if op == "said" and is_failure(step):
        return "message", True
    if ret is None:
        return "", False
    if op == "decode":
        return f"{number(ret)} {DECODE_CODES.get(ret, 'unknown code')}{_where(step)}", ret != 0
    if op == "seq_rm":
        return ("true", False) if ret else ("false, refused", True)
    if op in ("state_seq_get", "state_get"):
        return f"{count(ret, 'byte')} written", False
    if op in ("state_seq_set", "state_set"):
        return (f"{count(ret, 'byte')} read", False) if ret else ("0, refused", True)
    return "", False


def _where(step: Step) -> str:
    failed = [u for u, ubatch in enumerate(step.ubatches or []) if not ubatch.get("ok", True)]
    return f", in ubatch {failed[0] + 1}" if failed else ""


def _edge(p: int, open_end: str) -> str:
    return open_end if p < 0 or p == POS_INF else number(p)


def _damage(args: dict[str, Any]) -> str:
    damage = []
    if args.get("truncate") is not None:
        damage.append(f"cut to {count(args['truncate'], 'byte')}")
    if args.get("xor0"):
        damage.append("first byte changed")
    return f", {join(damage)}" if damage else ""
