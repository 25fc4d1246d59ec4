"""Sentences for the operations that edit: remove, share, keep, shift, divide, clear."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.changes import Lane, runs
from kvsim.narrate.edit import Edit
from kvsim.narrate.recurrent import refused_removal, told_recurrent
from kvsim.narrate.words import count, number, positions, ranges, sentence, seqs
from kvsim.trace import Step


def remove(step: Step, edit: Edit) -> str:
    seq = step.args["seq"]
    if not step.ret:
        return refused_removal(step, edit)
    if not edit.touched:
        return _without_cells(
            edit, f"{'No sequence holds a' if seq < 0 else f'Seq {seq} holds no'} position there"
        )
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
        own = f", {number(freed.size)} of its own {_are(freed)} freed" if freed.size else ""
        stay = "stays" if kept.size == 1 else "stay"
        text = (
            f"{sentence(owner)} lets go of {positions(gone)}{edit.elsewhere()}: "
            f"{count(kept.size, 'shared cell')} {stay} with {seqs(others)}{own}."
        )
    return text + _head(before, after) + told_recurrent(edit)


def share(step: Step, edit: Edit) -> str:
    src, dst = step.args["src"], step.args["dst"]
    queued = edit.after.extra.get("pending_copies")
    if queued and queued != edit.before.extra.get("pending_copies"):
        return _copied(edit, src, dst)
    if src == dst:
        return f"Seq {src} is copied onto itself: nothing changes."
    if not edit.touched:
        return _without_cells(
            edit, f"Seq {src} holds no position there that seq {dst} does not already share"
        )
    _, after, changed = edit.first()
    return (
        f"Seq {dst} joins the {count(changed.size, 'cell')} of seq {src}, "
        f"{positions(after.pos[changed])}{edit.elsewhere()}. Nothing is copied.{told_recurrent(edit)}"
    )


def _copied(edit: Edit, src: int, dst: int) -> str:
    """A copy between streams: whatever the other stream held is replaced, cell by cell."""
    own = [(b, a) for b, a, _ in edit.pairs if a.spec.stream == dst]
    before, after = next(((b, a) for b, a in own if a.used or b.used), own[0])
    given_up = f"gives up its {count(before.used, 'cell')}" if before.used else ""
    if not after.used:
        return f"Seq {src} holds nothing, so seq {dst} {given_up or 'stays empty'}."
    return (
        f"Seq {dst} {f'{given_up} and ' if given_up else ''}takes over all {count(after.used, 'position')} of "
        f"seq {src}, into the same cell numbers of its own stream. The keys and values follow at the next decode."
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
    told = f"Only seq {seq} stays{edit.elsewhere()}. {'; '.join(parts)}."
    return told + _head(before, after) + told_recurrent(edit)


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
    one = moved.size == 1
    verb = ("rolls back" if one else "roll back") if delta < 0 else ("moves on" if one else "move on")
    text = (
        f"{positions(old, capital=True)} of seq {seq} {verb} by {number(abs(delta))}, to "
        f"{ranges(np.unique(new))}{where}. No cell moves. "
    )
    if fell.size:
        text += f"{count(fell.size, 'cell')} whose position would be negative {_are(fell)} freed. "
    shared = sorted({s for o in np.unique(after.owners[moved]) for s in edit.owners.sets[o]} - {seq})
    if shared:
        text += f"The cells are shared, so the positions of {seqs(shared)} change with them. "
    keys = "Its key still carries" if one else f"Their {number(moved.size)} keys still carry"
    return text + f"{keys} the old rotation: it is put right before the next decode."


def divide(step: Step, edit: Edit) -> str:
    seq, d = step.args["seq"], step.args["d"]
    if d == 1:
        return "A division by 1 changes nothing."
    if not edit.touched:
        return _without_cells(edit, f"Seq {seq} holds no position there that a division by {d} would change")
    before, after, changed = edit.first()
    old = positions(before.pos[changed], capital=True)
    return (
        f"{old} of seq {seq} {_are(changed)} divided by {number(d)}, to "
        f"{ranges(np.unique(after.pos[changed]))}{edit.elsewhere()}. No cell moves; the keys are turned "
        "before the next decode."
    )


def clear(step: Step, edit: Edit) -> str:
    used = sum(lane.used for lane in edit.before.lanes)
    zeroed = step.args.get("data")
    data = " The stored rows are zeroed too." if zeroed else " The stored rows stay as they are."
    if not used and not edit.before.recurrent:
        return "The memory was empty already." + data
    return f"Everything is forgotten: {count(used, 'cell')} freed, every head back at 0." + data


def defragment(step: Step, edit: Edit) -> str:
    moves = [move for listed in step.extra.get("moves", {}).values() for move in listed]
    if not moves:
        return _without_cells(edit, "There is no hole before the last used cell")
    moved = next(listed for listed in step.extra["moves"].values() if listed)
    n, runs_moved = sum(length for *_, length in moved), len(moved)
    before, after, _ = edit.first()
    old, new = (int(np.flatnonzero(lane.owners)[-1]) + 1 for lane in (before, after))
    verb = "moves" if n == 1 else "move"
    return (
        f"{count(n, 'cell')} {verb} from the end into the holes{edit.elsewhere()}, in "
        f"{number(runs_moved)} block {'copy' if runs_moved == 1 else 'copies'}. Cells keep position and "
        f"owner; only their index changes. The last used cell was {number(old - 1)}, now it is "
        f"{number(new - 1)}."
    )


def _without_cells(edit: Edit, reason: str) -> str:
    """No cell changed. Heads or the recurrent half may still have."""
    moved = [a for b, a, _ in edit.pairs if b.head != a.head]
    recurrent = told_recurrent(edit)
    if recurrent:
        return recurrent.strip() + (" No attention cell changes." if edit.before.lanes else "")
    if moved:
        return f"{reason}: no cell changes. The head of {moved[0].spec.cache} is now {number(moved[0].head)}."
    return f"{reason}: nothing changes."


def _head(before: Lane, after: Lane) -> str:
    if after.head == before.head:
        return ""
    verb = "drops" if after.head < before.head else "moves"
    return f" The head {verb} from {number(before.head)} to {number(after.head)}."


def freed_cells(freed: np.ndarray[Any, Any]) -> str:
    """ "8 cells freed, 8–12 and 35–37", or only between which ends if they are scattered."""
    n = count(freed.size, "cell")
    if len(runs(freed)) > 4:
        return f"{n} freed, between {number(int(freed[0]))} and {number(int(freed[-1]))}"
    return f"{n} freed, {ranges(freed)}"


def _are(values: np.ndarray[Any, Any]) -> str:
    return "is" if np.unique(values).size == 1 else "are"
