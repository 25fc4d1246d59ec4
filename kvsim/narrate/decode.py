"""Sentences for ``decode``: where the tokens went, what was put right first, what was purged with it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.changes import SHIFT, Lane, OwnerTable, Picture
from kvsim.narrate.placement import Placement
from kvsim.narrate.words import cells, count, join, number, positions, ranges, sentence, seqs
from kvsim.trace import Step


def decoded(step: Step, before: Picture, after: Picture, placed: list[Placement], owners: OwnerTable) -> str:
    """The sentence of a decode that returned 0."""
    first = _pending(before)
    if len(placed) == 1:
        main = f"{_who(placed[0], owners)} {_goes(placed[0])} to {_where(placed[0], before)}"
        reason = _reason(placed[0], before)
    else:
        n = sum(p.n_tokens for p in placed)
        sizes = [p.n_tokens for p in placed]
        split = f"({' + '.join(map(str, sizes))})" if len(sizes) <= 4 else f"of at most {max(sizes)}"
        main = f"{count(n, 'token')} in {len(placed)} ubatches {split} go to {_all_cells(placed)}"
        reason = ""
    purge = purged(before, after, placed, owners)
    if purge and len(placed) == 1 and not first:
        return purge
    text = f"{first}Then {main[0].lower() + main[1:]}" if first else main
    return " ".join(filter(None, [f"{text}{reason}.", purge]))


def ubatch_sentence(u: int, placed: list[Placement], before: Picture, owners: OwnerTable) -> str:
    """The sentence of one ubatch, for stepping through a decode."""
    p = placed[u]
    who = _who(p, owners)
    lead = f"Ubatch {u + 1} of {len(placed)}: " if len(placed) > 1 else ""
    who = who if not lead else who[0].lower() + who[1:]
    text = f"{lead}{who} {_goes(p)} to {_where(p, before)}."
    return text if p.ok else f"{text} The computation is aborted here."


def aborted(step: Step, after: Picture, placed: list[Placement], owners: OwnerTable, what: str) -> str:
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
        text += f"{its} {verb} rolled back"
    if kept:
        of = "ubatch 1" if failed == 1 else f"ubatches 1 to {failed}"
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
        f"In the window cache, {count(taken.size, 'cell')} of {seqs(losers)} are taken, "
        f"{ranges(np.sort(taken))}: their positions were already out of reach."
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
    """The tokens by owner: "Positions 37–51 of seq 3", "one token each of seq 0, 2 and 3"."""
    groups = list(dict.fromkeys(p.owners.tolist()))
    if len(groups) > 2 and p.n_tokens == len(groups):
        ids = {s for o in groups for s in owners.sets[o]}
        return f"One token each of {seqs(ids)}"
    if len(groups) > 3:
        ids = {s for o in groups for s in owners.sets[o]}
        return f"{count(p.n_tokens, 'token')} of {seqs(ids)}"
    parts = [f"{positions(p.pos[p.owners == o])} of {seqs(owners.sets[o])}" for o in groups]
    return sentence(join(parts))


def _goes(p: Placement) -> str:
    one_each = len(set(p.owners.tolist())) == p.n_tokens > 2
    return "goes" if p.n_tokens == 1 or one_each else "go"


def _where(p: Placement, before: Picture) -> str:
    """The cells, once if all caches took the same ones, by cache if not."""
    by_cache: dict[str, list[str]] = {}
    streams = len({stream for _, stream in p.cells})
    for (cache, stream), (_, taken) in p.cells.items():
        text = cells(taken) + (f" of stream {stream}" if streams > 1 else "")
        by_cache.setdefault(cache, []).append(text)
    texts = {cache: join(parts) for cache, parts in by_cache.items()}
    distinct = list(dict.fromkeys(texts.values()))
    if not distinct:
        return "the recurrent states of their sequences" if before.recurrent else "no cell"
    if len(distinct) == 1:
        return distinct[0] + (f" of {join(list(texts))}" if len(texts) > 1 else "")
    return join([f"{text} of {cache}" for cache, text in texts.items()])


def _all_cells(placed: list[Placement]) -> str:
    lanes = list(dict.fromkeys(key for p in placed for key in p.cells))
    if not lanes:
        return "the recurrent states of their sequences"
    texts: dict[str, str] = {}
    streams = len({stream for _, stream in lanes})
    for cache, stream in lanes:
        taken = np.concatenate([p.cells[cache, stream][1] for p in placed if (cache, stream) in p.cells])
        of = f" of stream {stream}" if streams > 1 else ""
        texts[cache] = (
            f"{texts[cache]} and {cells(taken, 3)}{of}" if cache in texts else f"{cells(taken, 3)}{of}"
        )
    if len(set(texts.values())) == 1:
        return next(iter(texts.values())) + (f" of {join(list(texts))}" if len(texts) > 1 else "")
    return join([f"{text} of {cache}" for cache, text in texts.items()])


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
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


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
