"""Sentences for ``decode``: where the tokens went, what was put right first, what was purged with it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.changes import SHIFT, Lane, OwnerTable, Picture
from kvsim.narrate.placement import Placement
from kvsim.narrate.words import cells, count, join, number, positions, sentence, seqs
from kvsim.trace import Step


def decoded(step: Step, before: Picture, after: Picture, placed: list[Placement], owners: OwnerTable) -> str:
    """The sentence of a decode that returned 0."""
    first = _pending(before)
    if not placed:  # a memory under test may answer with its cells alone
        took = f"{count(len(step.args['seq']), 'token')} taken, the trace has no ubatch that says how"
        return f"{first}Then {took}." if first else f"{took}."
    if len(placed) == 1:
        main = f"{_who(placed[0], owners)} {_goes(placed[0])} {_where(placed, owners)}"
        reason = _reason(placed[0], before)
    else:
        n = sum(p.n_tokens for p in placed)
        sizes = [p.n_tokens for p in placed]
        split = f"({' + '.join(map(str, sizes))})" if len(sizes) <= 4 else f"of at most {max(sizes)}"
        verb = "go to" if placed[0].cells else "enter"
        main = f"{count(n, 'token')} in {len(placed)} ubatches {split} {verb} {_where(placed, owners)}"
        reason = ""
    purge = purged(before, after, placed, owners)
    if purge and len(placed) == 1 and not first:
        return purge
    text = f"{first}Then {main[0].lower() + main[1:]}" if first else main
    return " ".join(filter(None, [f"{text}{reason}.", purge]))


def ubatch_sentence(u: int, placed: list[Placement], owners: OwnerTable) -> str:
    """The sentence of one ubatch, for stepping through a decode."""
    p = placed[u]
    who = _who(p, owners)
    lead = f"Ubatch {u + 1} of {len(placed)}: " if len(placed) > 1 else ""
    who = who if not lead else who[0].lower() + who[1:]
    text = f"{lead}{who} {_goes(p)} {_where([p], owners)}."
    return text if p.ok else f"{text} The computation is aborted here."


def aborted(
    step: Step, before: Picture, after: Picture, placed: list[Placement], owners: OwnerTable, what: str
) -> str:
    """The sentence of a decode that stopped while computing: codes 2, −2, −3."""
    failed = next((u for u, p in enumerate(placed) if not p.ok), len(placed) - 1)
    if failed < 0:
        return f"{what} before a ubatch was placed. Nothing changed."
    p = placed[failed]
    stays = _still_held(p, after)
    kept = sum(q.n_tokens for q in placed[:failed])
    text = f"{what} in ubatch {failed + 1} of {len(placed)}. " if len(placed) > 1 else f"{what}. "
    its = "Its token" if p.n_tokens == 1 else f"Its {number(p.n_tokens)} tokens"
    verb = "is" if p.n_tokens == 1 else "are"
    if stays:
        text += f"{its} cannot be rolled back here and {'stays' if verb == 'is' else 'stay'}, never computed"
    else:
        text += f"{its} {verb} rolled back{_rolled_back_too(p, before, after, owners)}"
    if kept:
        of = "ubatch 1" if failed == 1 else f"ubatches 1 {'and' if failed == 2 else 'to'} {failed}"
        text += f"; the {number(kept)} of {of} {'stays' if kept == 1 else 'stay'}"
    return text + "."


def purged(before: Picture, after: Picture, placed: list[Placement], owners: OwnerTable) -> str:
    """What the window cache let go of because a used cell was taken, or nothing."""
    for old, new in zip(before.lanes, after.lanes, strict=True):
        written = _written(placed, old)
        gone = np.setdiff1d(np.flatnonzero((old.owners != 0) & (new.owners == 0)), written)
        taken = written[old.owners[written] != 0]
        if not taken.size:
            continue
        text = _taken(old, new, taken, owners)
        if gone.size:
            text += _swept(old, gone, owners, before)
        return text
    return ""


def _taken(old: Lane, new: Lane, taken: NDArray[Any], owners: OwnerTable) -> str:
    losers = sorted({s for o in np.unique(old.owners[taken]) for s in owners.sets[o]})
    if taken.size == 1:
        winner = owners.sets[new.owners[taken[0]]]
        return (
            f"In the window cache, {seqs(winner)} took {cells(taken)}: {positions(old.pos[taken])} of "
            f"{seqs(losers)} there was already out of reach."
        )
    return (
        f"In the window cache, {cells(taken)} of {seqs(losers)} are taken: "
        "their positions were already out of reach."
    )


def _swept(old: Lane, gone: NDArray[Any], owners: OwnerTable, before: Picture) -> str:
    losers = sorted({s for o in np.unique(old.owners[gone]) for s in owners.sets[o]})
    if len(losers) == 1:
        older = positions(old.pos[gone])
        text = f" Seq {losers[0]} must stay gapless, so its older {older} {_are(gone)} purged too."
    else:
        text = (
            f" {sentence(seqs(losers))} must stay gapless, so {count(gone.size, 'older cell')} of theirs "
            f"{_are(gone)} purged too."
        )
    others = [lane.spec.cache for lane in before.lanes if lane.spec.swa_type == 0]
    return text + (f" The {others[0]} cache keeps them all." if others else "")


def _pending(before: Picture) -> str:
    """What had to be put right before the first ubatch: stream copies, then keys still to be turned."""
    parts = []
    copies = before.extra.get("pending_copies") or {}
    pairs = sorted({tuple(pair) for queued in copies.values() for pair in queued})
    if pairs:
        parts.append(f"the rows of {join([f'stream {a} are copied to stream {b}' for a, b in pairs])}")
    for lane in before.lanes:
        shifts = lane.cells[:, SHIFT][lane.owners != 0]
        waiting = shifts[shifts != 0]
        if waiting.size:
            by = np.unique(waiting)
            turn = f"by {number(int(by[0]))}" if by.size == 1 else "each by what its cell notes"
            keys = (
                "the pending key turns"
                if waiting.size == 1
                else f"the {number(waiting.size)} pending keys turn"
            )
            parts.append(f"{keys} {turn}")
            break
    return f"First {' and '.join(parts)}. " if parts else ""


def _who(p: Placement, owners: OwnerTable) -> str:
    """The tokens by owner: "Positions 37–51 of seq 3", "One token each of seq 0, 2 and 3"."""
    groups = list(dict.fromkeys(p.owners.tolist()))
    ids = {s for o in groups for s in owners.sets[o]}
    if len(groups) > 2 and p.n_tokens == len(groups):
        return f"One token each of {seqs(ids)}"
    if len(groups) > 3:
        return f"{count(p.n_tokens, 'token')} of {seqs(ids)}"
    return sentence(join([_positions_of(p, o, owners) for o in groups]))


def _positions_of(p: Placement, owner: int, owners: OwnerTable) -> str:
    mine = p.pos[p.owners == owner]
    told = f"{positions(mine)} of {seqs(owners.sets[owner])}"
    # An image has many rows at one position.
    return told if np.unique(mine).size == mine.size else f"{count(mine.size, 'row')} at {told}"


def _goes(p: Placement) -> str:
    one_each = len(set(p.owners.tolist())) == p.n_tokens > 2
    one = p.n_tokens == 1 or one_each
    if not p.cells:
        return "enters" if one else "enter"
    return "goes to" if one else "go to"


def _where(placed: list[Placement], owners: OwnerTable) -> str:
    """The cells, once if all caches took the same ones, by cache and stream if not."""
    taken: dict[tuple[str, int], list[NDArray[Any]]] = {}
    for p in placed:
        for key, (_, where) in p.cells.items():
            taken.setdefault(key, []).append(where)
    if not taken:
        ids = {s for p in placed for o in p.owners.tolist() for s in owners.sets[o]}
        return f"the recurrent {'state' if len(ids) == 1 else 'states'} of {seqs(ids)}"
    streams = len({stream for _, stream in taken}) > 1
    by_cache: dict[str, list[str]] = {}
    for (cache, stream), parts in taken.items():
        told = cells(np.concatenate(parts), 3)
        by_cache.setdefault(cache, []).append(f"{told} of stream {stream}" if streams else told)
    alike: dict[str, list[str]] = {}
    for cache, texts in by_cache.items():
        alike.setdefault(join(texts), []).append(cache)
    if len(by_cache) == 1:
        return next(iter(alike))
    return ", ".join(f"{text} of {join(caches)}" for text, caches in alike.items())


def _reason(p: Placement, before: Picture) -> str:
    """Why these cells: the search begins at the head, takes what is empty, and may start over at 0."""
    lanes = {(lane.spec.cache, lane.spec.stream): lane for lane in before.lanes}
    if len({cache for cache, _ in p.cells}) != 1 or len(p.cells) != 1:
        return ""
    ((key, (_, taken)),) = p.cells.items()
    lane = lanes[key]
    first, last = int(taken[0]), int(taken[-1])
    if not before.lanes[0].used or first == lane.head == int((lane.owners != 0).sum()):
        return ""
    if first < lane.head:
        return ", because the search starts over at cell 0"
    skipped = bool((lane.owners[lane.head : first] != 0).any()) or last - first + 1 > taken.size
    ones = "one" if p.n_tokens == 1 else "ones"
    return f", the first empty {ones} from the head" if skipped or first == lane.head else ""


def _written(placed: list[Placement], lane: Lane) -> NDArray[Any]:
    key = (lane.spec.cache, lane.spec.stream)
    parts = [p.cells[key][1] for p in placed if key in p.cells]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)


def _rolled_back_too(p: Placement, before: Picture, after: Picture, owners: OwnerTable) -> str:
    """What a rollback removed although the batch did not bring it: it goes by positions, not by cells."""
    for old, new in zip(before.lanes, after.lanes, strict=True):
        key = (old.spec.cache, old.spec.stream)
        gone = (old.owners != 0) & (new.owners == 0)
        if key not in p.cells or not gone.any():
            continue
        gone[p.cells[key][1]] = False
        for seq in sorted({s for o in np.unique(p.owners) for s in owners.sets[o]}):
            holding = owners.holding(seq)
            first = p.pos[holding[p.owners]].min()
            more = np.flatnonzero(gone & holding[old.owners] & (old.pos >= first))
            if more.size:
                return f", and with {'it' if p.n_tokens == 1 else 'them'} {positions(old.pos[more])} of seq {seq}"
    return ""


def _still_held(p: Placement, after: Picture) -> bool:
    """Whether the rows of a failed ubatch are in the picture after it."""
    for lane in after.lanes:
        key = (lane.spec.cache, lane.spec.stream)
        if key in p.cells:
            rows, taken = p.cells[key]
            here = (lane.owners[taken] == p.owners[rows]) & (lane.pos[taken] == p.pos[rows])
            return bool(here.all())
    return False


def _are(values: NDArray[Any]) -> str:
    return "is" if values.size == 1 else "are"
