"""Every operation of a trace in plain words, with numbers.

The one place where sentences about operations are made: the app, the command line and exports all use
:func:`narrate`. A sentence is in the present tense, names sequence and position before cell, and gives the
reason last. It only reads the step and the pictures before and after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvsim.changes import OwnerTable, Picture
from kvsim.narrate import calls, decode, edits, logs, states
from kvsim.narrate.edit import Edit
from kvsim.narrate.failures import Shortage, invalid_batch, no_slot, shortage
from kvsim.narrate.placement import Placement, placements
from kvsim.narrate.words import count
from kvsim.trace import Header, Step

__all__ = ["Narration", "Placement", "Shortage", "narrate", "placements"]


@dataclass(frozen=True)
class Narration:
    """One operation in words.

    ``call`` and ``short`` name it in full and for a list; ``verdict`` is what it answered ("" if nothing) and
    ``failed`` whether that is a refusal or a failure. ``kind`` and ``mark`` choose the sign on a timeline.
    ``sentence`` says what happened; ``ubatches`` the same for each ubatch of a decode; ``shortage`` is the
    arithmetic behind a decode that found no slot; ``meaning`` the cause of a message, how to see it and what
    to do.
    """

    call: str
    short: str
    verdict: str
    failed: bool
    kind: str
    mark: str
    sentence: str
    ubatches: list[str] = field(default_factory=list)
    shortage: Shortage | None = None
    meaning: dict[str, str] = field(default_factory=dict)


def narrate(
    step: Step,
    before: Picture | None,
    after: Picture,
    owners: OwnerTable,
    header: Header,
    placed: list[Placement] | None = None,
) -> Narration:
    """Say one operation. ``before`` is None for the first; ``placed`` may pass ``placements(step)``."""
    kind, mark = calls.KINDS.get(step.op, ("state", "read"))
    verdict, failed = calls.verdict(step)
    why = None
    ubatches: list[str] = []
    if before is None:
        text = _opening(after)
        if header.config.get("log") is not None:
            text = logs.opening(header)
    elif step.op == "decode":
        placed = placements(step, owners) if placed is None else placed
        cparams = header.config["cparams"]
        if step.ret == 1:
            why = shortage(step, before, owners, cparams["n_ubatch"])
        text = _decode(step, before, after, placed, owners, cparams["n_seq_max"], why)
        ubatches = [decode.ubatch_sentence(u, placed, owners) for u in range(len(placed))]
    else:
        text = _edit(step, Edit(before, after, owners))
    names = calls.call(step), calls.short_call(step)
    return Narration(*names, verdict, failed, kind, mark, text, ubatches, why, logs.meaning(step))


def _decode(
    step: Step,
    before: Picture,
    after: Picture,
    placed: list[Placement],
    owners: OwnerTable,
    n_seq_max: int,
    why: Shortage | None,
) -> str:
    code = step.ret or 0
    if code == 0:
        return decode.decoded(step, before, after, placed, owners)
    if code == 1:
        return no_slot(why)
    if code == -1:
        return invalid_batch(step, before, n_seq_max)
    what = {2: "Aborted", -2: "The allocation failed", -3: "The computation failed"}.get(code, "Stopped")
    return decode.aborted(step, before, after, placed, owners, what)


_EDITS = {
    "seq_rm": edits.remove,
    "seq_cp": edits.share,
    "seq_keep": edits.keep,
    "seq_add": edits.shift,
    "seq_div": edits.divide,
    "clear": edits.clear,
    "defrag": edits.defragment,
    "state_seq_get": states.save,
    "state_get": states.save,
    "state_seq_set": states.restore,
    "state_set": states.restore,
    "rows": states.rows,
    "seen": logs.seen,
    "said": logs.said,
}


def _edit(step: Step, edit: Edit) -> str:
    say = _EDITS.get(step.op)
    return (
        say(step, edit)
        if say
        else "This operation has no description yet; the picture shows what it changed."
    )


def _opening(after: Picture) -> str:
    sizes: dict[str, int] = {}
    for lane in after.lanes:
        sizes[lane.spec.cache] = sizes.get(lane.spec.cache, 0) + lane.spec.size
    parts = [f"{n:,} cells in {cache}" for cache, n in sizes.items()]
    if after.recurrent:
        parts.append(count(after.recurrent["size"], "recurrent state"))
    if any(lane.used for lane in after.lanes) or (after.recurrent and after.recurrent["used"]):
        return f"The recording begins in the middle: {', '.join(_used(after, sizes))}."
    return f"A fresh memory: {', '.join(parts)}, all empty."


def _used(picture: Picture, sizes: dict[str, int]) -> Iterator[str]:
    for cache, n in sizes.items():
        used = sum(lane.used for lane in picture.lanes if lane.spec.cache == cache)
        yield f"{used:,} of {n:,} cells of {cache} are used"
    if picture.recurrent:
        yield f"{picture.recurrent['used']} of {count(picture.recurrent['size'], 'recurrent state')} are used"
