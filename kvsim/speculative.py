"""Speculative decoding: a draft guesses a few tokens, the target checks them in one batch, and the rejected
tail is taken back in both (``tools/server/server-context.cpp``, ``common/speculative.cpp``)::

    target   a b c                 draft   a b c          sampled, not yet decoded: d
    draft    decodes d e f one by one and so guesses e f g, then takes all of it back
    both     decode d e f g        the target accepts e and f, and samples x in place of g
    both     take g back           a b c d e f            sampled: x

Taking back is where memories differ. Attention cells are removed. A recurrent state or a compressor goes back
by a snapshot, if there are enough of them; otherwise a checkpoint made before the batch is restored, and what
had been accepted is decoded once more. A draft that shares its target's cells writes nothing, so nothing is
taken back; it guesses all tokens of a round at one position.

Left out: how tokens are chosen; which guesses are right is drawn at random (:func:`simulate`). After a
checkpoint llama.cpp replays in both contexts, here only in the one that needed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvsim.batch import Batch
from kvsim.caches.factory import LeafFactory
from kvsim.caches.kv import KVCache
from kvsim.caches.shared_kv import SharedKVCache
from kvsim.context import OK, Context
from kvsim.errors import CacheUsageError
from kvsim.events import Event
from kvsim.models.cache_spec import CacheSpec
from kvsim.models.context_params import ResolvedContext
from kvsim.policies.checkpoints import Checkpoint, Checkpoints
from kvsim.policies.prefix_reuse import reuse
from kvsim.policies.slot import Slot


@dataclass(frozen=True, kw_only=True)
class SharedLeaves(LeafFactory):
    """Makes the caches of a draft that looks at the cells of ``target``, cache by cache of the same name."""

    target: Context

    def kv(self, name: str, spec: CacheSpec, ctx: ResolvedContext) -> KVCache:
        source = self.target.memory.leaves().get(name)
        if not isinstance(source, KVCache):
            has = ", ".join(self.target.memory.leaves())
            raise CacheUsageError(
                f"the draft's cache {name!r} cannot share the target's cells: it has only {has}. Give the "
                f"draft caches of its own"
            )
        return SharedKVCache(spec, source, name)


def shares_cells(context: Context) -> bool:
    """Whether the memory of a context looks at another one's cells. It is the memory that knows: a draft may
    have a target and yet caches of its own."""
    return any(isinstance(leaf, SharedKVCache) for leaf in context.memory.leaves().values())


def reach(slot: Slot) -> int | None:
    """How many last tokens of a batch can be taken back without a checkpoint: any (None), or as many as there
    are snapshots (``common_context_can_seq_rm``)."""
    return slot.context.resolved.n_rs_seq if slot.keeps_state else None


@dataclass
class SideReport:
    """What a run cost the target or the draft.

    ``tokens`` went through the network, ``replayed`` of them a second time after a checkpoint. Tails were
    taken back by plain ``removals``, by ``snapshots`` or by restored ``checkpoints``; ``refusals`` is how
    often the memory would not go back. Bytes of checkpoints ``written`` and ``read``, and of the ``cache`` (0
    if shared).
    """

    tokens: int = 0
    replayed: int = 0
    removals: int = 0
    snapshots: int = 0
    checkpoints: int = 0
    refusals: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    bytes_cache: int = 0


@dataclass
class SpeculativeReport:
    """A run: ``drafted`` guesses were verified, ``accepted`` of them right, ``emitted`` tokens came out.

    ``no_room``: rounds whose batch did not fit, so that only the sampled token was decoded. ``stopped`` says
    why the run ended early, ``draft_off`` why the draft was given up.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    no_room: int = 0
    target: SideReport = field(default_factory=SideReport)
    draft: SideReport = field(default_factory=SideReport)
    stopped: str = ""
    draft_off: str = ""

    @property
    def acceptance(self) -> float:
        """Share of the guesses that were right."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        return self.emitted / self.rounds if self.rounds else 0.0


@dataclass
class _Side:
    """One of the two, and what it has cost."""

    slot: Slot
    report: SideReport

    def feed(self, tokens: Sequence[int], all_outputs: bool = False) -> bool:
        """Decode all of ``tokens`` or, where there is no room for all, leave none of them."""
        before = len(self.slot.tokens)
        done = self.slot.feed(tokens, all_outputs) == OK
        if not done and len(self.slot.tokens) > before:
            self.take_back(before, [], None)
        self.report.tokens += len(self.slot.tokens) - before
        return done

    def keep(self) -> Checkpoint | None:
        """A checkpoint of now."""
        made = Checkpoints(self.slot).create()
        self.report.bytes_written += made.n_bytes if made else 0
        return made

    def take_back(self, n_keep: int, again: Sequence[int], kept: Checkpoint | None) -> None:
        """Go back to the first ``n_keep`` tokens and ``again``, which are the next ones in the memory.
        Where it refuses, ``kept``, made after ``n_keep`` tokens, is restored and ``again`` decoded once
        more."""
        slot = self.slot
        if slot.context.memory.seq_rm(slot.seq, n_keep + len(again), -1):
            self.report.snapshots += slot.keeps_state
            self.report.removals += not slot.keeps_state
            del slot.tokens[n_keep + len(again) :]
            return
        self.report.refusals += 1
        self.restore(n_keep, kept)
        self.report.replayed += len(again)
        self.feed(again)

    def restore(self, n_keep: int, kept: Checkpoint | None) -> None:
        """Go back to ``n_keep`` tokens by the checkpoint made there."""
        slot = self.slot
        back = kept is not None and Checkpoints(slot).restore(kept)
        if not back or not slot.context.memory.seq_rm(slot.seq, n_keep, -1):
            raise CacheUsageError(
                f"sequence {slot.seq} cannot go back to {n_keep} tokens, and no checkpoint of then helps; "
                "llama.cpp aborts. Draft fewer tokens than there are snapshots (n_rs_seq)"
            )
        assert kept is not None
        self.report.checkpoints += 1
        self.report.bytes_read += kept.n_bytes
        del slot.tokens[n_keep:]


class Speculation:
    """A target and its draft, in step: between rounds both hold the same tokens, unless they share cells."""

    def __init__(self, target: Slot, draft: Slot) -> None:
        self.report = SpeculativeReport()
        self.target = _Side(target, self.report.target)
        self.draft = _Side(draft, self.report.draft)
        self.shares = shares_cells(draft.context)
        for side in (self.target, self.draft):
            side.report.bytes_cache = sum(side.slot.context.memory.memory_breakdown().values())

    def catch_up(self) -> None:
        """Bring the draft to the target's tokens, if it fell behind or holds others."""
        text = self.target.slot.tokens
        if self.shares or self.draft.slot.tokens == text:
            return
        n_past = reuse(
            self.draft.slot, [*text, -1]
        ).n_past  # one more, as the next one is to be decoded anyway
        if not self.draft.feed(text[n_past:]):
            self._give_up_draft()

    def round(self, sampled: int, guesses: Sequence[int], n_accept: int, correction: int) -> list[int]:
        """The draft guesses, the target accepts the first ``n_accept`` guesses and samples ``correction``.
        Returns the tokens that follow ``sampled``, the last of which is not decoded yet; nothing if there
        was no room for ``sampled`` either: ``report.stopped`` says why."""
        self.report.rounds += 1
        at = len(self.target.slot.tokens)
        if self.report.draft_off or not self._guess(sampled, guesses):
            guesses = ()
        sides = [self.target] if self.shares or self.report.draft_off else [self.target, self.draft]
        kept = [self._safe(side, len(guesses)) for side in sides]
        if not self.target.feed([sampled, *guesses], all_outputs=True):
            self.report.no_room += 1
            guesses = ()
            if not self.target.feed([sampled]):
                self.report.stopped = str(self.target.slot.context.last_failure)
                return []
        if len(sides) > 1 and not self.draft.feed([sampled, *guesses], all_outputs=True):
            self._give_up_draft()
            sides = sides[:1]
        n_accept = min(n_accept, len(guesses))
        if n_accept < len(guesses):
            for side, checkpoint in zip(sides, kept, strict=False):
                side.take_back(at, [sampled, *guesses[:n_accept]], checkpoint)
        return self._account(guesses, n_accept, correction)

    def _guess(self, sampled: int, guesses: Sequence[int]) -> bool:
        """Decode what leads to each guess, one by one, then take it back: the draft sees it again when it
        is verified. A state is put back from a checkpoint, since its snapshots reach over single tokens
        only as far as the last one. False, and the draft given up, if it has no room."""
        slot, at = self.draft.slot, len(self.target.slot.tokens)
        if self.shares:
            batches = [Batch.tokens_of(slot.seq, [token], start=at) for token in [sampled, *guesses][:-1]]
            codes = [slot.context.decode(batch) for batch in batches]
            self.draft.report.tokens += codes.count(OK)
            return codes.count(OK) == len(codes)
        if not guesses:
            return True
        kept = self.draft.keep() if slot.keeps_state else None
        done = all(self.draft.feed([token]) for token in [sampled, *guesses][:-1])
        if kept is not None:
            self.draft.restore(at, kept)
        else:
            self.draft.take_back(at, [], None)
        if not done:
            self._give_up_draft()
        return done

    def _safe(self, side: _Side, n_guesses: int) -> Checkpoint | None:
        """A checkpoint, if a rejection of all guesses would be further than ``side`` can go back."""
        limit = reach(side.slot)
        return side.keep() if limit is not None and n_guesses > limit else None

    def _give_up_draft(self) -> None:
        self.report.draft_off = str(self.draft.slot.context.last_failure)

    def _account(self, guesses: Sequence[int], n_accept: int, correction: int) -> list[int]:
        following = [*guesses[:n_accept], correction]
        self.report.drafted += len(guesses)
        self.report.accepted += n_accept
        self.report.emitted += len(following)
        context = self.target.slot.context
        if context.observer is not None:
            detail = {"seq": self.target.slot.seq, "n_draft": len(guesses), "n_accepted": n_accept}
            context.observer(Event("speculate", detail=detail))
        return following


def simulate(
    target: Slot, draft: Slot, n_tokens: int, *, n_draft: int = 4, acceptance: float = 0.7, seed: int = 0
) -> SpeculativeReport:
    """Generate ``n_tokens`` after what ``target`` holds, ``n_draft`` guesses a round, each right with
    probability ``acceptance`` as long as those before it are.

    A guess is left out where it could not be used: with ``n_tokens`` nearly reached, or within two cells of
    the end of the context. The run depends on ``seed`` alone. Raises CacheUsageError for an empty target.
    """
    if not target.tokens or n_draft < 0 or not 0 <= acceptance <= 1:
        raise CacheUsageError(
            f"cannot simulate with {len(target.tokens)} tokens, n_draft = {n_draft}, acceptance = "
            f"{acceptance}: decode a prompt first, guess 0 or more tokens a round, and accept with a "
            f"probability from 0 to 1"
        )
    rng = np.random.default_rng(seed)
    n_vocab = target.context.n_vocab or 32000
    run = Speculation(target, draft)
    run.catch_up()
    sampled = int(rng.integers(n_vocab))
    while run.report.emitted < n_tokens and not run.report.stopped:
        room = target.n_ctx - len(target.tokens) - 2
        n = max(0, min(n_draft, room, n_tokens - run.report.emitted - 1))
        guesses, correction = rng.integers(n_vocab, size=n).tolist(), int(rng.integers(n_vocab))
        wrong = np.flatnonzero(rng.random(n) >= acceptance)
        following = run.round(sampled, guesses, int(wrong[0]) if len(wrong) else n, correction)
        sampled = following[-1] if following else sampled
    return run.report
