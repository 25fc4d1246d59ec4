"""What the recurrent half says: states that roll back, are let go, or cannot forget."""

from __future__ import annotations

from typing import Any

from kvsim.narrate.edit import Edit
from kvsim.narrate.words import count, number, sentence, seqs
from kvsim.trace import Step


def refused_removal(step: Step, edit: Edit) -> str:
    """Why ``seq_rm`` answered false."""
    seq, p0 = step.args["seq"], step.args["p0"]
    record = edit.before.recurrent
    last = edit.before.pos.get(str(seq), [-1, -1])[1]
    tail = "Attention was not touched." if edit.before.lanes and record else "Nothing changed."
    if not record:
        whose = "a sequence" if seq < 0 else f"seq {seq}"
        return f"Refused: this memory cannot remove a part of {whose} there. {tail}"
    if seq < 0 or last < 0 or p0 <= 0:
        return f"Refused: a recurrent state holds all its tokens at once and cannot forget a part. {tail}"
    stands = f"Refused: the recurrent state of seq {seq} stands at {number(last)}"
    depth = max(last + 1 - p0, 1)
    if not record["n_rs_seq"]:
        return f"{stands} and keeps no snapshots, so it cannot forget {count(depth, 'token')}. {tail}"
    most = count(record["n_rs_seq"], "token")
    return f"{stands} and can go back {most} at most, once; {number(depth)} would be needed. {tail}"


def told_recurrent(edit: Edit) -> str:
    """What happened to the recurrent half, with a space in front, or nothing."""
    old, new = edit.before.recurrent, edit.after.recurrent
    if not new or not old or old == new:
        return ""
    depths = zip(old["rs_idx"], new["rs_idx"], strict=False)
    rolled = [s for s, (a, b) in enumerate(depths) if b > a]
    if rolled:
        depth = new["rs_idx"][rolled[0]]
        return (
            f" The recurrent state cannot forget a token, so it goes back {count(depth, 'snapshot')}: "
            f"the next decode starts from plane {depth}."
        )
    before, after = _tails(old), _tails(new)
    lost = [s for s in before if s not in after]
    joined = [s for s in after if before.get(s) != after[s]]
    if lost:
        own = "lets go of its recurrent state" if len(lost) == 1 else "let go of their recurrent states"
        return f" {sentence(seqs(lost))} {own}."
    if joined:
        verb = "reads" if len(joined) == 1 else "read"
        return f" {sentence(seqs(joined))} now {verb} recurrent cell {after[joined[0]]}."
    return ""


def _tails(record: dict[str, Any]) -> dict[int, int]:
    """Sequence -> its recurrent cell."""
    return {cell[0]: cell[4] for cell in record["cells"] if cell[4] >= 0}
