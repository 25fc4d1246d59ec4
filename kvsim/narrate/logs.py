"""Sentences for the steps of an imported log: what a slot search printed, and messages with their meaning."""

from __future__ import annotations

import numpy as np

from kvsim.explain import EXPLANATIONS, explanation_by_id
from kvsim.narrate.edit import Edit
from kvsim.narrate.words import count, join, number, span
from kvsim.trace import Header, Step

_KNOWN = frozenset(entry.id for entry in EXPLANATIONS)


def opening(header: Header) -> str:
    """What an imported log is of."""
    has = header.config["log"].get("memory", "")
    part = (
        f", of whose {has} memory it shows the part that searches for slots" if has != header.memory else ""
    )
    if not has:
        part = "; the log begins after it was made, so the kind of its memory is a guess"
    caches = join([f"{name} with {count(cache['size'], 'cell')}" for name, cache in header.caches.items()])
    return f"A log of llama.cpp: a context{part}. Caches: {caches}."


def seen(step: Step, edit: Edit) -> str:
    """Counts, ranges, and what became of the cells since the last look."""
    cache, stream = step.args["cache"], step.args["stream"]
    lane, before = next((a, b) for b, a, _ in edit.pairs if (a.spec.cache, a.spec.stream) == (cache, stream))
    where = cache if lane.spec.n_stream == 1 else f"{cache}, stream {stream},"
    used = f"{number(lane.used)} of {count(lane.spec.size, 'cell')} used"
    text = f"Before a slot is looked for, {where} has {used}, head {number(lane.head)}."
    held = [f"seq {seq} {span(*ends)}" for seq, ends in edit.after.pos.items() if ends[0] >= 0]
    text += f" Positions: {join(held)}." if held else ""
    if stream in edit.after.extra.get("unseen", {}).get(cache, ()):
        return f"{text} The log does not show its cells."
    was, now = before.owners != 0, lane.owners != 0
    changed = {
        "filled": int((now & ~was).sum()),
        "freed": int((was & ~now).sum()),
        "with something else in them": int((was & now & (before.cells != lane.cells).any(axis=1)).sum()),
    }
    parts = [f"{count(n, 'cell')} {what}" for what, n in changed.items() if n]
    unknown = int(np.isin(lane.owners, [edit.owners.id_of((-1,))]).sum())
    text += f" Since the last look: {join(parts)}." if parts else ""
    return text + (f" Of {count(unknown, 'cell')} the log does not tell the sequences." if unknown else "")


def said(step: Step, edit: Edit) -> str:
    """The message, and what the table says of it."""
    told = meaning(step)
    return f"{quoted(step)} {told['cause']} What to do: {told['remedy']}" if told else quoted(step)


def quoted(step: Step) -> str:
    """The message alone."""
    return f"The log says: “{step.args['text']}”."


def meaning(step: Step) -> dict[str, str]:
    """What the table says of a message: ``cause``, ``see`` and ``remedy``; empty for other steps."""
    if step.op != "said" or step.args["explanation"] not in _KNOWN:
        return {}
    entry = explanation_by_id(step.args["explanation"])
    return {"cause": entry.cause, "see": entry.see, "remedy": entry.remedy}


def is_failure(step: Step) -> bool:
    """Whether the message of this step tells of something refused or lost."""
    name = step.args["explanation"]
    return name in _KNOWN and explanation_by_id(name).failed
