"""Sentences for saved states: saving, restoring, refusing, and rows that are read for checking."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.changes import Lane
from kvsim.narrate.edit import Edit
from kvsim.narrate.recurrent import told_recurrent
from kvsim.narrate.words import cells, count, join, number, sentence, seqs
from kvsim.trace import Step


def save(step: Step, edit: Edit) -> str:
    """A state was written; nothing changes."""
    args = step.args
    part = "the window and recurrent part of " if args.get("flags") else ""
    size = count(step.ret or 0, "byte")
    if "seq" not in args:
        return f"{sentence(part + 'everything')} is written to save {args['slot']}: {size}. Nothing changes."
    held = 0
    if edit.after.lanes:
        lane = edit.after.lanes[0]
        held = int(edit.owners.holding(args["seq"])[lane.owners].sum())
    size += f", {count(held, 'cell')}" if held else ""
    what = sentence(f"{part}seq {args['seq']}")
    return f"{what} is written to save {args['slot']}: {size}. Nothing changes."


def restore(step: Step, edit: Edit) -> str:
    """A state was read back, or refused."""
    args = step.args
    if not step.ret:
        left = "Nothing changed." if edit.nothing_changed() else _left_behind(edit, args)
        damaged = args.get("truncate") is not None or args.get("xor0")
        why = "the save is damaged" if damaged else "it does not fit"
        return f"Save {args['slot']} is refused, because {why}. {left}"
    whole = "seq" not in args
    name = "The whole memory" if whole else "Every sequence" if args["seq"] < 0 else f"Seq {args['seq']}"
    told = f"{name} is restored from save {args['slot']}"
    if not edit.touched:
        return f"{told} and looks as before.{told_recurrent(edit)}"
    before, after, _ = edit.first()
    if whole or args["seq"] < 0:
        cache = after.spec.cache
        return f"{told}: {count(after.used, 'cell')} used in {cache}, {number(before.used)} before."
    return told + _replaced(edit, before, after, args["seq"])


def rows(step: Step, edit: Edit) -> str:
    """Stored rows were read; nothing changes."""
    where = f"{cells(step.args['cells'])} in {step.args['cache']}"
    return f"The stored rows of {where} are read for checking. Nothing changes."


def _replaced(edit: Edit, before: Lane, after: Lane, seq: int) -> str:
    """What a sequence let go of before its positions were written again, and where they went."""
    holding = edit.owners.holding(seq)
    had, has = holding[before.owners], holding[after.owners]
    where = np.flatnonzero(has)
    written = f"{count(where.size, 'position')} {_are(where)} written to {cells(where)}{edit.elsewhere()}."
    if not had.any():
        return f": its {written}"
    stay = had & ~has & (after.owners != 0)
    kept = sorted({s for o in np.unique(after.owners[stay]) for s in edit.owners.sets[o]})
    still = f", of which {number(int(stay.sum()))} stay with {seqs(kept)}" if stay.any() else ""
    return f". It lets go of {count(int(had.sum()), 'cell')}{still}; then its {written}"


def _are(values: np.ndarray[Any, Any]) -> str:
    return "is" if values.size == 1 else "are"


def _left_behind(edit: Edit, args: dict[str, Any]) -> str:
    """What a refused restore has changed all the same."""
    seq = args.get("seq", -1)
    if all(a.used == 0 for _, a, _ in edit.pairs):
        return "What was there before is gone: the memory is empty."
    who = "The memory" if seq < 0 else f"Seq {seq}"
    taken = {a.spec.cache: c[a.owners[c] != 0] for b, a, c in edit.touched if a.used > b.used}
    if taken:  # one cache was through before another failed
        where = next(iter(taken.values()))
        return f"Half of it is done: {cells(where)} of {join(list(taken))} {_are(where)} written and stay."
    holding = edit.owners.holding(seq) if seq >= 0 else edit.owners.counts() > 0
    lost = sum(int((holding[b.owners] & ~holding[a.owners]).sum()) for b, a, _ in edit.pairs)
    return f"{who} had already been cleared for it: it let go of {count(lost, 'cell')}."
