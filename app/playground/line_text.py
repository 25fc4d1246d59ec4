"""Acts as lines of text, and operations of a trace as the lines that do the same."""

from __future__ import annotations

import json
from typing import Any

from app.playground.acts import Act, Decode, Part, Plain, Restore, Save, Speculate
from kvsim.ops import Op, fault_of


def text_of(act: Act) -> str:
    """The line of an act: ``parse(text_of(act)) == act``."""
    if isinstance(act, Decode):
        return _decode_text(act)
    if isinstance(act, Save):
        return f"save {'all' if act.seq is None else act.seq}{' partial' * act.partial}"
    if isinstance(act, Restore):
        whole = f"restore {'all' if act.seq is None else act.seq} from {act.save}{' partial' * act.partial}"
        cut = "" if act.cut is None else f" cut {act.cut}"
        return whole + cut + ("" if act.flip is None else f" flip {act.flip}")
    if isinstance(act, Speculate):
        return f"speculate {act.seq} {act.guesses} {act.accepted}"
    assert isinstance(act, Plain)
    return _plain_text(act)


def line_of(op: Op, ends: dict[int, int], saves: dict[int, int]) -> str:
    """A line for an operation of a trace: words where they say the same, else JSON. ``ends`` are the last
    positions before it, ``saves`` numbers the slots saved before it; a save adds its own."""
    a = op.args
    if op.op in ("state_seq_get", "state_get"):
        saves[a["slot"]] = len(saves)
        return text_of(Save(a.get("seq"), bool(a.get("flags"))))
    if op.op in ("state_seq_set", "state_set"):
        damage = a.get("truncate"), a.get("xor0")
        return text_of(Restore(a.get("seq"), saves[a["slot"]], bool(a.get("flags")), *damage))
    if op.op == "decode":
        act = _as_words(op, ends)
        if act is not None:
            return text_of(act)
    return text_of(Plain(op))


def _decode_text(act: Decode) -> str:
    fault = f" {act.fault.kind} {act.fault.ubatch + 1}" if act.fault else ""
    if act.verb == "prompt" and act.times == 1 and not act.every:
        part = act.parts[0]
        at = "" if part.at is None else f" at {part.at}"
        return f"prompt {_joined(part.seqs)} {part.n}{at}{fault}"
    parts = (
        _joined(p.seqs) + (f"*{p.n}" if p.n != 1 else "") + ("" if p.at is None else f"@{p.at}")
        for p in act.parts
    )
    every = " every" if act.every else ""
    times = f" x{act.times}" if act.times != 1 else ""
    return f"decode {' '.join(parts)}{every}{times}{fault}"


def _joined(seqs: tuple[int, ...]) -> str:
    return "+".join(map(str, seqs))


def _plain_text(act: Plain) -> str:
    a, op = act.op.args, act.op.op
    if op == "clear":
        return "clear" if a["data"] else "clear keep-rows"
    if op == "defrag":
        return f"defragment {a['strategy']}"
    if op == "seq_keep":
        return f"keep {a['seq']}"
    if op == "decode" or a.get("seq", 0) < -1:
        return json.dumps(act.op.to_json(), separators=(",", ":"))
    span = "" if a["p0"] == a["p1"] == -1 else f" {_edge_text(a['p0'], 'start')} {_edge_text(a['p1'], 'end')}"
    if op == "seq_rm":
        return f"remove {'all' if a['seq'] < 0 else a['seq']}{span}"
    if op == "seq_cp":
        return f"share {a['src']} {a['dst']}{span}"
    both = f"{_edge_text(a['p0'], 'start')} {_edge_text(a['p1'], 'end')}"
    verb, by = ("shift", a["delta"]) if op == "seq_add" else ("divide", a["d"])
    return f"{verb} {a['seq']} {both} {by}"


def _edge_text(p: int, open_end: str) -> str:
    return open_end if p == -1 else str(p)


def _as_words(op: Op, ends: dict[int, int]) -> Decode | None:
    """The decode as parts, if a playground would decode just that."""
    a: dict[str, Any] = op.args
    if a["tokens"] is None or not a["seq"] or min(map(len, a["seq"])) == 0:
        return None
    known, parts = dict(ends), []
    start = 0
    for i in range(1, len(a["seq"]) + 1):
        if i < len(a["seq"]) and a["seq"][i] == a["seq"][start] and a["pos"][i] == a["pos"][i - 1] + 1:
            continue
        seqs, at = tuple(a["seq"][start]), a["pos"][start]
        goes_on = known.get(seqs[0], -1) + 1 == at
        if at < 0:
            return None
        parts.append(Part(seqs, i - start, None if goes_on else at))
        known |= dict.fromkeys(seqs, a["pos"][i - 1])
        start = i
    act = Decode(tuple(parts), fault=fault_of(a), every=len(a["out"]) > len(parts) and all(a["out"]))
    return act if act.op_after(ends).args == a else None
