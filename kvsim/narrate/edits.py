"""Sentences for the operations that edit, save and restore: everything but ``decode``."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.changes import Lane, OwnerTable, Picture, changed_cells, runs
from kvsim.narrate.words import cells, count, join, number, positions, ranges, sentence, seqs
from kvsim.trace import Step


class Edit:
    """What one editing operation did to the lanes, in the numbers its sentence needs."""

    def __init__(self, before: Picture, after: Picture, owners: OwnerTable) -> None:
        self.before, self.after, self.owners = before, after, owners
        self.pairs = [
            (b, a, changed_cells(b, a)) for b, a in zip(before.lanes, after.lanes, strict=True)
        ]
        self.touched = [(b, a, c) for b, a, c in self.pairs if c.size]

    def nothing_changed(self) -> bool:
        heads = all(b.head == a.head for b, a, _ in self.pairs)
        return not self.touched and heads and self.before.recurrent == self.after.recurrent

    def first(self) -> tuple[Lane, Lane, np.ndarray[Any, Any]]:
        """The lane that tells the story: the first one that changed."""
        return self.touched[0]

    def elsewhere(self) -> str:
        """A half sentence for the other caches that changed in the same call."""
        first = self.touched[0][1].spec.cache
        others = list(dict.fromkeys(a.spec.cache for _, a, _ in self.touched if a.spec.cache != first))
        return f" in {first}; {join(others)} changes with it" if others else ""


def remove(step: Step, edit: Edit) -> str:
    seq = step.args["seq"]
    if not step.ret:
        return _refused_removal(step, edit)
    if not edit.touched:
        return _without_cells(edit, f"{'No sequence holds a' if seq < 0 else f'Seq {seq} holds no'} position there")
    before, after, changed = edit.first()
    freed = changed[after.owners[changed] == 0]
    kept = changed[after.owners[changed] != 0]
    gone = np.unique(before.pos[changed])
    owner = "every sequence" if seq < 0 else f"seq {seq}"
    if not kept.size:
        text = (
            f"{positions(gone, capital=True)} of {owner} {_are(gone)} removed{edit.elsewhere()}: "
            f"{freed_cells(freed)}."
        )
    else:
        others = sorted({s for o in np.unique(after.owners[kept]) for s in edit.owners.sets[o]})
        own = f", {number(freed.size)} of its own {'is' if freed.size == 1 else 'are'} freed" if freed.size else ""
        text = (
            f"{sentence(owner)} lets go of {positions(gone)}{edit.elsewhere()}: "
            f"{count(kept.size, 'shared cell')} {'stays' if kept.size == 1 else 'stay'} with {seqs(others)}{own}."
        )
    return text + _head(before, after) + _recurrent(edit)


def share(step: Step, edit: Edit) -> str:
    src, dst = step.args["src"], step.args["dst"]
    queued = edit.after.extra.get("pending_copies")
    if queued and queued != edit.before.extra.get("pending_copies"):
        n = sum(int((a.owners != 0).sum()) for a in edit.after.lanes if a.spec.stream == dst)
        return (
            f"Seq {dst} takes over all {count(n, 'position')} of seq {src}, into the same cell numbers of its own "
            "stream. The keys and values follow at the next decode."
        )
    if src == dst:
        return f"Seq {src} is copied onto itself: nothing changes."
    if not edit.touched:
        return _without_cells(edit, f"Seq {src} holds no position there that seq {dst} does not already share")
    _, after, changed = edit.first()
    return (
        f"Seq {dst} joins the {count(changed.size, 'cell')} of seq {src}, "
        f"{positions(after.pos[changed])}{edit.elsewhere()}. Nothing is copied.{_recurrent(edit)}"
    )


def keep(step: Step, edit: Edit) -> str:
    seq = step.args["seq"]
    if not edit.touched:
        return _without_cells(edit, f"Only seq {seq} was held")
    before, after, changed = edit.first()
    freed = int((after.owners[changed] == 0).sum())
    loose = changed.size - freed
    parts = [f"{count(freed, 'cell')} {'is' if freed == 1 else 'are'} freed"] if freed else []
    if loose:
        verb = "loses its" if loose == 1 else "lose their"
        parts.append(f"{count(loose, 'cell')} {verb} other owners")
    return f"Only seq {seq} stays{edit.elsewhere()}. {'; '.join(parts)}.{_head(before, after)}{_recurrent(edit)}"


def shift(step: Step, edit: Edit) -> str:
    seq, delta = step.args["seq"], step.args["delta"]
    if delta == 0:
        return "A shift by 0 changes nothing."
    if not edit.touched:
        return _without_cells(edit, f"Seq {seq} holds no position there")
    before, after, changed = edit.first()
    moved = changed[after.owners[changed] != 0]
    fell = changed[after.owners[changed] == 0]
    where = edit.elsewhere()
    if not moved.size:
        return (
            f"{positions(before.pos[fell], capital=True)} of seq {seq} would become negative, so "
            f"{count(fell.size, 'cell')} {_are(fell)} freed{where}.{_head(before, after)}"
        )
    old, new = before.pos[moved], after.pos[moved]
    verb = "roll back" if delta < 0 else "move on"
    text = (
        f"{positions(old, capital=True)} of seq {seq} {verb if moved.size > 1 else verb.replace('roll', 'rolls')} "
        f"by {number(abs(delta))}, to {ranges(np.unique(new))}{where}. No cell moves. "
    )
    if moved.size == 1:
        text = text.replace("move on", "moves on")
    if fell.size:
        text += f"{count(fell.size, 'cell')} whose position would be negative {_are(fell)} freed. "
    shared = sorted({s for o in np.unique(after.owners[moved]) for s in edit.owners.sets[o]} - {seq})
    if shared:
        text += f"The cells are shared, so the positions of {seqs(shared)} change with them. "
    it, keys = ("it is", "key still carries") if moved.size == 1 else ("it is", "keys still carry")
    return text + f"{sentence(_their(moved.size))} {keys} the old rotation: {it} put right before the next decode."


def divide(step: Step, edit: Edit) -> str:
    seq, d = step.args["seq"], step.args["d"]
    if d == 1:
        return "A division by 1 changes nothing."
    if not edit.touched:
        return _without_cells(edit, f"Seq {seq} holds no position there that a division by {d} would change")
    before, after, changed = edit.first()
    return (
        f"{positions(before.pos[changed], capital=True)} of seq {seq} {_are(changed)} divided by {number(d)}, to "
        f"{ranges(np.unique(after.pos[changed]))}{edit.elsewhere()}. No cell moves; the keys are turned before "
        "the next decode."
    )


def clear(step: Step, edit: Edit) -> str:
    used = sum(lane.used for lane in edit.before.lanes)
    data = " The stored rows are zeroed too." if step.args.get("data") else " The stored rows stay as they are."
    if not used and not edit.before.recurrent:
        return "The memory was empty already." + data
    return f"Everything is forgotten: {count(used, 'cell')} freed, every head back at 0." + data


def save(step: Step, edit: Edit) -> str:
    args = step.args
    part = "the window and recurrent part of " if args.get("flags") else ""
    what = part + ("everything" if "seq" not in args else f"seq {args['seq']}")
    held = [lane for lane in edit.after.lanes if "seq" in args] or edit.after.lanes
    n = 0
    for lane in held[:1]:
        mask = edit.owners.holding(args["seq"])[lane.owners] if "seq" in args else lane.owners != 0
        n = int(mask.sum())
    size = f", {count(n, 'cell')}" if n and held is not edit.after.lanes else ""
    return f"{sentence(what)} is written to save {args['slot']}: {count(step.ret or 0, 'byte')}{size}. Nothing changes."


def restore(step: Step, edit: Edit) -> str:
    args = step.args
    whole = "seq" not in args
    name = "The whole memory" if whole else f"Seq {args['seq']}"
    if not step.ret:
        left = "Nothing changed." if edit.nothing_changed() else _left_behind(edit, args)
        why = "the save is damaged" if args.get("truncate") is not None or args.get("xor0") else "it does not fit"
        return f"Save {args['slot']} is refused, because {why}. {left}"
    if not edit.touched:
        return f"{name} is restored from save {args['slot']} and looks as before.{_recurrent(edit)}"
    before, after, changed = edit.first()
    if whole:
        return (
            f"The whole memory is restored from save {args['slot']}: {count(after.used, 'cell')} used in "
            f"{after.spec.cache}, {number(before.used)} before."
        )
    holding = edit.owners.holding(args["seq"])
    had, has = holding[before.owners], holding[after.owners]
    stay = had & ~has & (after.owners != 0)
    text = f"Seq {args['seq']} is restored from save {args['slot']}"
    if had.any():
        kept = sorted({s for o in np.unique(after.owners[stay]) for s in edit.owners.sets[o]})
        still = f", of which {number(int(stay.sum()))} stay with {seqs(kept)}" if stay.any() else ""
        text += f". It lets go of {count(int(had.sum()), 'cell')}{still}; then its"
    else:
        text += ": its"
    where = np.flatnonzero(has)
    n = where.size
    return text + f" {count(n, 'position')} {_are(where)} written to {cells(where)}{edit.elsewhere()}."


def rows(step: Step, edit: Edit) -> str:
    args = step.args
    return f"The stored rows of {cells(args['cells'])} in {args['cache']} are read for checking. Nothing changes."


def _refused_removal(step: Step, edit: Edit) -> str:
    seq, p0 = step.args["seq"], step.args["p0"]
    record = edit.before.recurrent
    last = edit.before.pos.get(str(seq), [-1, -1])[1]
    tail = " Attention was not touched." if edit.before.lanes and record else " Nothing changed."
    if record and seq >= 0 and last >= 0 and p0 > 0:
        depth = last + 1 - p0
        snapshots = record["n_rs_seq"]
        if not snapshots:
            return (
                f"Refused: the recurrent state of seq {seq} stands at {number(last)} and keeps no snapshots, so "
                f"it cannot forget {count(max(depth, 1), 'token')}.{tail}"
            )
        return (
            f"Refused: the recurrent state of seq {seq} stands at {number(last)} and can go back "
            f"{count(snapshots, 'token')} at most, once; {number(max(depth, 1))} would be needed.{tail}"
        )
    if record:
        return f"Refused: a recurrent state holds all its tokens at once and cannot forget a part.{tail}"
    return f"Refused: this memory cannot remove a part of {'a sequence' if seq < 0 else f'seq {seq}'} there.{tail}"


def _left_behind(edit: Edit, args: dict[str, Any]) -> str:
    used = [(b.used, a.used) for b, a, _ in edit.pairs]
    if all(a == 0 for _, a in used):
        return "What was there before is gone: the memory is empty."
    lost = sum(max(b - a, 0) for b, a in used)
    who = f"Seq {args['seq']}" if "seq" in args else "The memory"
    return f"{who} had already been cleared for it: {count(lost, 'cell')} freed."


def _without_cells(edit: Edit, reason: str) -> str:
    """No cell changed. Heads or the recurrent half may still have."""
    moved = [a for b, a, _ in edit.pairs if b.head != a.head]
    recurrent = _recurrent(edit)
    if recurrent:
        return recurrent.strip()
    if moved:
        return f"{reason}: no cell changes. The head of {moved[0].spec.cache} is now {number(moved[0].head)}."
    return f"{reason}: nothing changes."


def _head(before: Lane, after: Lane) -> str:
    if after.head == before.head:
        return ""
    verb = "drops" if after.head < before.head else "moves"
    return f" The head {verb} from {number(before.head)} to {number(after.head)}."


def _recurrent(edit: Edit) -> str:
    """What happened to the recurrent half: a rollback to an older plane, tails let go, tails shared."""
    old, new = edit.before.recurrent, edit.after.recurrent
    if not new or old == new or not old:
        return ""
    rolled = [
        s for s, (a, b) in enumerate(zip(old["rs_idx"], new["rs_idx"], strict=False)) if b > a
    ]
    if rolled:
        s = rolled[0]
        return (
            f" The recurrent state cannot forget a token, so it goes back {count(new['rs_idx'][s], 'snapshot')}: "
            f"the next decode starts from plane {new['rs_idx'][s]}."
        )
    before, after = _tails(old), _tails(new)
    lost = [s for s in before if s not in after]
    joined = [s for s in after if before.get(s) != after[s]]
    if lost:
        verb = "lets" if len(lost) == 1 else "let"
        return f" {sentence(seqs(lost))} {verb} go of its recurrent state."
    if joined:
        s = joined[0]
        return f" {sentence(seqs(joined))} now {'reads' if len(joined) == 1 else 'read'} recurrent cell {after[s]}."
    return ""


def _tails(record: dict[str, Any]) -> dict[int, int]:
    """Sequence -> its recurrent cell."""
    return {cell[0]: cell[4] for cell in record["cells"] if cell[4] >= 0}


def freed_cells(freed: np.ndarray[Any, Any]) -> str:
    """ "8 cells freed, 8–12 and 35–37", or only between which ends if they are scattered."""
    if len(runs(freed)) > 4:
        return f"{count(freed.size, 'cell')} freed, between {number(int(freed[0]))} and {number(int(freed[-1]))}"
    return f"{count(freed.size, 'cell')} freed, {ranges(freed)}"


def _are(values: np.ndarray[Any, Any]) -> str:
    return "is" if np.unique(values).size == 1 else "are"


def _their(n: int) -> str:
    return "its" if n == 1 else f"their {number(n)}"


