"""Why a decode was refused: no room (code 1), or a batch that contradicts itself or the memory (code −1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from kvsim.changes import Lane, OwnerTable, Picture, largest_hole, reusable_cells, runs
from kvsim.narrate.words import count, number, seqs
from kvsim.trace import Step


@dataclass(frozen=True)
class Shortage:
    """Why no slot was found, as counts on one scale.

    ``asked`` tokens by ubatch; ``free`` empty cells in ``holes`` holes; ``reclaimable`` cells that the window
    has passed; ``largest`` the longest hole and where it starts. ``holders`` says who holds the cells,
    ``remedies`` what would have worked. ``certain`` is False when the counts alone don't explain it.
    """

    cache: str
    stream: int
    size: int
    asked: list[int]
    free: int
    holes: int
    reclaimable: int
    largest: tuple[int, int]
    certain: bool
    holders: list[tuple[list[int], int]] = field(default_factory=list)
    remedies: list[tuple[str, str]] = field(default_factory=list)

    @property
    def short(self) -> int:
        return sum(self.asked) - self.free - self.reclaimable

    def to_json(self) -> dict[str, Any]:
        return {
            "cache": self.cache,
            "stream": self.stream,
            "size": self.size,
            "asked": self.asked,
            "free": self.free,
            "holes": self.holes,
            "reclaimable": self.reclaimable,
            "largest": list(self.largest),
            "certain": self.certain,
            "short": self.short,
            "holders": [[list(ids), n] for ids, n in self.holders],
            "remedies": [list(pair) for pair in self.remedies],
        }


def shortage(step: Step, before: Picture, owners: OwnerTable, n_ubatch: int) -> Shortage | None:
    """The part of the memory that had too few cells for this batch; None if there are no cell caches."""
    rows = step.args.get("seq") or []
    if not before.lanes or not rows:
        return None
    counted = [_count(lane, _rows_of(rows, lane), owners, n_ubatch) for lane in before.lanes]
    # Parts are asked in order, and a part without a window can be counted exactly: it is the one to blame.
    exact = [c for c, lane in zip(counted, before.lanes, strict=True) if c.certain and not lane.spec.swa_type]
    worst = exact[0] if exact else max(counted, key=lambda c: c.short)
    lane = next(x for x in before.lanes if (x.spec.cache, x.spec.stream) == (worst.cache, worst.stream))
    return _explained(worst, lane, owners)


def no_slot(why: Shortage | None) -> str:
    """The sentence for code 1."""
    if why is None:
        return "No slot was found. Nothing was written."
    part = why.cache if why.cache == "kv" else f"The {why.cache} cache"
    part = "The cache" if why.cache == "kv" else part
    asked, room = sum(why.asked), why.free + why.reclaimable
    if not why.certain:
        return (
            f"No slot was found: {count(asked, 'cell')} asked for, {number(why.free)} free in {why.cache}. "
            "The batch cannot be split as this memory needs. Nothing was written."
        )
    lack = "one cell" if why.short == 1 else count(why.short, "cell")
    stream = f" for seq {why.stream}" if why.stream > 0 else ""
    reuse = f" and {number(why.reclaimable)} reusable" if why.reclaimable else ""
    text = (
        f"{part} is {lack} short{stream}: {count(asked, 'cell')} asked for, {number(why.free)} free{reuse}. "
        "Nothing was written."
    )
    fits = _ubatches_that_fit(why.asked, room)
    if 0 < fits < len(why.asked):
        left = room - sum(why.asked[:fits])
        text += (
            f" {number(fits)} of the {number(len(why.asked))} ubatches found room; the next, of "
            f"{count(why.asked[fits], 'token')}, found {number(left) if left else 'none'}."
        )
    return text


def invalid_batch(step: Step, before: Picture, n_seq_max: int) -> str:
    """The sentence for code −1: the first rule the batch breaks, in the order they are checked."""
    return f"Refused before anything changed: {_broken_rule(step.args, before, n_seq_max)}."


def _broken_rule(args: dict[str, Any], before: Picture, n_seq_max: int) -> str:
    rows, pos, tokens = args.get("seq") or [], args.get("pos") or [], args.get("tokens")
    if not rows:
        return "the batch is empty"
    for i, token in enumerate(tokens or []):
        if token == -1:
            return f"token {i} has neither a token id nor an embedding"
        if token < 0:
            return f"token {i} has id {number(token)}, which is negative"
    for i, row in enumerate(rows):
        bad = [s for s in row if not 0 <= s < n_seq_max]
        if bad:
            return f"token {i} names seq {number(bad[0])}, but ids go from 0 to {n_seq_max - 1}"
    if "tok_hi" in (args.get("note") or ""):
        worst = int(np.argmax(tokens or [0]))
        return f"token {worst} has id {number((tokens or [0])[worst])}, which the vocabulary does not hold"
    return _broken_positions(rows, pos, before) or "the batch contradicts itself or the memory"


def _broken_positions(rows: list[list[int]], pos: list[int], before: Picture) -> str:
    for seq in sorted({s for row in rows for s in row}):
        mine = [(i, pos[i]) for i, row in enumerate(rows) if seq in row]
        last = before.pos.get(str(seq), [-1, -1])[1]
        low_i, low = min(mine, key=lambda pair: pair[1])
        if last >= 0 and low != last + 1:
            return (
                f"token {low_i} of seq {seq} has position {number(low)}, but seq {seq} ends at "
                f"{number(last)}, so {number(last + 1)} is expected"
            )
        distinct = sorted({p for _, p in mine})
        if distinct[-1] - distinct[0] + 1 > len(distinct):
            a, b = next((a, b) for a, b in pairwise(distinct) if b != a + 1)
            return f"the positions of seq {seq} jump from {number(a)} to {number(b)} within the batch"
        for (_, a), (i, b) in pairwise(mine):
            if b < a:
                return f"token {i} of seq {seq} goes back from position {number(a)} to {number(b)}"
    coupled = next(
        (row for row in rows if len({tuple(before.pos.get(str(s), [-1, -1])) for s in row}) > 1), None
    )
    if coupled:
        return f"{seqs(coupled)} share tokens here, but they no longer hold the same positions"
    if any(p < 0 for p in pos):
        return f"token {next(i for i, p in enumerate(pos) if p < 0)} has a negative position"
    return ""


def _rows_of(rows: list[list[int]], lane: Lane) -> int:
    """How many rows of the batch go to this lane: all, or those of the stream's own sequence."""
    if lane.spec.n_stream == 1:
        return len(rows)
    return sum(lane.spec.stream in row for row in rows)


def _count(lane: Lane, asked: int, owners: OwnerTable, n_ubatch: int) -> Shortage:
    free = lane.owners == 0
    usable = free | reusable_cells(lane, owners)
    sizes = [min(n_ubatch, asked - i) for i in range(0, asked, n_ubatch)]
    n_free = int(free.sum())
    reclaimable = int(usable.sum()) - n_free
    return Shortage(
        cache=lane.spec.cache,
        stream=lane.spec.stream,
        size=lane.spec.size,
        asked=sizes,
        free=n_free,
        holes=len(runs(np.flatnonzero(usable))),
        reclaimable=reclaimable,
        largest=largest_hole(usable),
        certain=asked > n_free + reclaimable,
    )


def _explained(why: Shortage, lane: Lane, owners: OwnerTable) -> Shortage:
    """Add who holds the cells, and what would have worked."""
    ids, counts = np.unique(lane.owners[lane.owners != 0], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    holders = [(list(owners.sets[ids[k]]), int(counts[k])) for k in order]
    room = why.free + why.reclaimable
    remedies: list[tuple[str, str]] = []
    if room:
        remedies.append((f"{number(room)} tokens or fewer", "fits"))
    alone = [(set_ids, n) for set_ids, n in holders if len(set_ids) == 1]
    for set_ids, n in alone[:2]:
        remedies.append((f"remove {seqs(set_ids)} first", f"+{number(n)}"))
    bigger = why.size + max(256, -(-max(why.short, 0) // 256) * 256)
    remedies.append(
        (f"{number(bigger)} cells instead of {number(why.size)}", f"+{number(bigger - why.size)}")
    )
    remedies.append(("defragment", "no gain"))
    return Shortage(**{**why.__dict__, "holders": holders, "remedies": remedies})


def _ubatches_that_fit(sizes: list[int], room: int) -> int:
    return int(np.searchsorted(np.cumsum(sizes), room, side="right"))
