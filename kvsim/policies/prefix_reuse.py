"""Reuse what a new prompt has in common with what a slot holds (``server-context.cpp``, a slot that starts).

First the longest common prefix. Then, with ``n_cache_reuse`` > 0, later chunks of at least that many equal
tokens move down to where the prompt wants them::

    cached   a b c d e f g h j        prefix  a b
    prompt   a b e f h j              chunks  e f from 4 to 2, h j from 7 to 4

Last the question whether the memory can go back that far. A window may have passed, a recurrent state stands
at the end of the old text; then a checkpoint before that point is needed, or all is decoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from kvsim.policies.checkpoints import Checkpoint, Checkpoints
from kvsim.policies.slot import Slot


@dataclass(frozen=True)
class Chunk:
    """``length`` equal tokens, cached from ``src`` on, wanted from ``dst`` on (``dst < src``)."""

    src: int
    dst: int
    length: int


@dataclass(frozen=True)
class Obstacle:
    """Why something could not be reused; ``code`` is a key of :data:`OBSTACLES`."""

    code: str
    why: str


OBSTACLES = {
    "cannot shift": "chunks were wanted, but positions of this memory cannot move",
    "cells lost": "the memory holds less than the slot believes",
    "window passed": "the window has dropped cells that the next token would see",
    "window test": "the window is whole, but the server's test is >= and takes a start at 0 for a loss",
    "state ahead": "a recurrent state, or a compressor, stands further on and cannot go back",
    "removal refused": "the memory refused to take back what follows the common part",
    "checkpoint refused": "the memory refused the checkpoint",
}


@dataclass(frozen=True)
class ReuseReport:
    """What was reused of a prompt of ``n_prompt`` tokens: decode it from ``n_past`` on.

    ``n_prefix`` tokens are common from the start and ``chunks`` were moved to follow them; ``n_lost`` of all
    these must be decoded again, for the reasons in ``obstacles``, or because one token must be decoded in
    any case. ``checkpoint`` was restored.
    """

    n_prompt: int
    n_past: int
    n_prefix: int
    chunks: tuple[Chunk, ...]
    checkpoint: Checkpoint | None
    obstacles: tuple[Obstacle, ...]

    @property
    def n_matched(self) -> int:
        return self.n_prefix + sum(chunk.length for chunk in self.chunks)

    @property
    def n_lost(self) -> int:
        return self.n_matched - self.n_past

    @property
    def n_decode(self) -> int:
        """Tokens still to be decoded."""
        return self.n_prompt - self.n_past


def common_prefix(cached: Sequence[int], prompt: Sequence[int]) -> int:
    """How many first tokens are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(cached, prompt, strict=False)))


def match_chunks(cached: Sequence[int], prompt: Sequence[int], n_cache_reuse: int) -> list[Chunk]:
    """Chunks after the common prefix, of ``n_cache_reuse`` tokens or more (not positive: none), found
    from the left: where the next prompt tokens don't match long enough, the cached side goes on by one."""
    chunks: list[Chunk] = []
    src = dst = common_prefix(cached, prompt)
    while n_cache_reuse > 0 and src < len(cached) and dst < len(prompt):
        length = common_prefix(cached[src:], prompt[dst:])
        if length >= n_cache_reuse:
            chunks.append(Chunk(src, dst, length))
            src, dst = src + length, dst + length
        else:
            src += 1
    return chunks


def reuse(
    slot: Slot, prompt: Sequence[int], n_cache_reuse: int = 0, checkpoints: Checkpoints | None = None
) -> ReuseReport:
    """Bring the slot to hold the longest usable beginning of ``prompt``; the rest is the caller's to feed.

    At least one token is left to decode, so that there are logits. Where the server would abort (the memory
    holds less than the slot believes, or refuses a removal), all is decoded again here.
    """
    found: list[Obstacle] = []
    if slot.tokens and not slot.agrees:
        end = slot.context.memory.seq_pos_max(slot.seq)
        found.append(_obstacle("cells lost", f"{len(slot.tokens)} tokens, last position {end}"))
        slot.forget()
    n_prefix = common_prefix(slot.tokens, prompt)
    chunks = _move_chunks(slot, prompt, n_cache_reuse, found)
    n_matched = n_prefix + sum(chunk.length for chunk in chunks)
    n_past, checkpoint = _how_far_back(slot, n_matched, n_matched < len(prompt), checkpoints, found)
    if n_past == len(prompt) and n_past > 0:
        n_past -= 1
    if n_past == 0:
        slot.forget()
    elif not slot.context.memory.seq_rm(slot.seq, n_past, -1):
        found.append(_obstacle("removal refused", f"positions from {n_past} on"))
        slot.forget()
        n_past = 0
    slot.tokens = list(prompt[:n_past])
    slot.n_prompt = len(prompt)
    slot.task += 1
    report = ReuseReport(len(prompt), n_past, n_prefix, chunks, checkpoint, tuple(found))
    _account(slot, report)
    return report


def _obstacle(code: str, where: str) -> Obstacle:
    return Obstacle(code, f"{OBSTACLES[code]} ({where})")


def _move_chunks(
    slot: Slot, prompt: Sequence[int], n_cache_reuse: int, found: list[Obstacle]
) -> tuple[Chunk, ...]:
    """Move the chunks in the memory: what lies between is removed, then the chunk's positions go down."""
    memory = slot.context.memory
    chunks = match_chunks(slot.tokens, prompt, n_cache_reuse)
    if chunks and not memory.can_shift:
        found.append(_obstacle("cannot shift", f"a {memory.kind} memory of {slot.context.model.arch}"))
        return ()
    for chunk in chunks:
        memory.seq_rm(slot.seq, chunk.dst, chunk.src)
        memory.seq_add(slot.seq, chunk.src, chunk.src + chunk.length, chunk.dst - chunk.src)
        slot.cost.shifted += chunk.length
    return tuple(chunks)


def _how_far_back(
    slot: Slot, n_matched: int, has_new: bool, checkpoints: Checkpoints | None, found: list[Obstacle]
) -> tuple[int, Checkpoint | None]:
    """How many of the matched tokens the memory lets stay, and the checkpoint that was restored for it.

    The memory must still hold a position before ``threshold``: the window's start for the next token, or that
    token itself for a state, one less if the last matched token has to be decoded again.
    """
    if n_matched == 0:
        if checkpoints is not None:
            checkpoints.drop_after(0)
        return 0, None
    pos_next, chosen = n_matched, None
    threshold = max(0, n_matched - slot.n_swa - (not has_new))
    pos_min = slot.context.memory.seq_pos_min(slot.seq)
    if pos_min >= threshold:
        _explain(slot, pos_min, threshold, found)
        chosen = None if checkpoints is None else checkpoints.best(pos_next, threshold)
        if chosen is not None and checkpoints is not None and not checkpoints.restore(chosen):
            found.append(_obstacle("checkpoint refused", str(slot.context.last_failure)))
            chosen = None
        if chosen is None:
            pos_next = n_matched = 0
        else:
            pos_next = min(pos_next, max(chosen.pos_min + 1, chosen.pos_max))
            n_matched = min(pos_next, chosen.n_tokens)
    if checkpoints is not None:
        checkpoints.drop_after(pos_next)
    return n_matched, chosen


def _explain(slot: Slot, pos_min: int, threshold: int, found: list[Obstacle]) -> None:
    where = f"first position {pos_min}, needed before {threshold}"
    if slot.keeps_state:
        found.append(_obstacle("state ahead", where))
    elif slot.n_swa:
        found.append(_obstacle("window passed" if pos_min > 0 else "window test", where))


def _account(slot: Slot, report: ReuseReport) -> None:
    slot.cost.reused += report.n_past
    slot.cost.recomputed += report.n_lost
    slot.tell(
        "reuse", n_past=report.n_past, n_prefix=report.n_prefix, n_decode=report.n_decode,
        n_lost=report.n_lost, chunks=[(c.src, c.dst, c.length) for c in report.chunks],
        why=[each.code for each in report.obstacles],
    )  # fmt: skip
