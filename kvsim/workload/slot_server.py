"""llama-server's slots (``tools/server/server-context.cpp: update_slots``).

Each round: conversations that are full are shifted; every slot that generates adds the token it sampled last;
then, slot by slot, prompts fill the batch up to ``n_batch``. The batch is decoded; if no cell is free, an
idle slot is emptied (unified caches only) or half the batch is tried, down to one token, and then everyone is
sent away. Requests wait in order for a free slot: the one that holds most of the prompt already, else the one
that was used longest ago.

Left out: the host-side store of whole prompts (the server as with ``--cache-ram 0``), drafts, several answers
to one prompt, embeddings, images, message boundaries as places for checkpoints.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

from kvsim.caches.narrow import NarrowLeaves
from kvsim.context import OK, Context
from kvsim.policies.checkpoints import Checkpoints
from kvsim.policies.context_shift import ContextShift
from kvsim.policies.prefix_reuse import ReuseReport, common_prefix, reuse
from kvsim.workload.account import Account, Sample
from kvsim.workload.bulk import BulkDecoder
from kvsim.workload.config import ServerConfig
from kvsim.workload.cost import CostModel
from kvsim.workload.occupancy import sample_cache
from kvsim.workload.request import Request
from kvsim.workload.runs import Run
from kvsim.workload.server_slot import ServerSlot, Task

CHECKPOINT_BEFORE_END = 4
"""A prompt's last tokens are decoded apart, so that a checkpoint can be made just before them."""


class SlotServer:
    """The policy. ``bulk`` False makes every step a decode of its own (for tests; the outcome is the
    same)."""

    name = "llama-server"

    def __init__(self, config: ServerConfig, cost: CostModel, account: Account, bulk: bool = True) -> None:
        self.config = config
        self.cost = cost
        self.account = account
        self.context = Context(config.model, config.params, leaves=NarrowLeaves())
        self.decoder = BulkDecoder(self.context, bulk)
        self.slots = [ServerSlot(self.context, i, config) for i in range(self.context.resolved.n_seq_max)]
        self.queue: deque[Request] = deque()
        self.shift = (
            ContextShift(config.n_keep) if config.ctx_shift and self.context.memory.can_shift else None
        )
        self._releases = 0

    # -- what a simulation asks ----------------------------------------------------------------

    def offer(self, request: Request) -> None:
        """Let a request wait."""
        self.account.asked(request)
        self.queue.append(request)

    @property
    def busy(self) -> bool:
        return bool(self.queue) or any(slot.task for slot in self.slots)

    def advance(self, clock: float, until: float) -> float:
        """Do a round, or many rounds of nothing but generation, and return the time then. A free slot lets no
        round begin at ``until`` or later, since a request comes then."""
        self._launch(clock)
        steps = self._plain_steps()
        return self._generate(clock, until, steps) if steps else self._round(clock)

    def sample(self, clock: float) -> Sample:
        """The caches as they are now."""
        self.decoder.settle()
        self.account.totals.searched = self.decoder.n_searched
        self.account.totals.reclaimed = self.decoder.n_reclaimed
        caches = {cache.name: sample_cache(cache, len(self.slots)) for cache in self.decoder.caches}
        serving = sum(slot.task is not None for slot in self.slots)
        return self.account.now(clock, len(self.queue), serving, caches)

    # -- admitting -----------------------------------------------------------------------------

    def _launch(self, clock: float) -> None:
        while self.queue and any(slot.task is None for slot in self.slots):
            request = self.queue.popleft()
            task = Task(request, request.tokens())
            self._choose(task.prompt).task = task
            self.account.wait.add(clock - request.arrival)

    def _choose(self, prompt: Sequence[int]) -> ServerSlot:
        """The free slot that holds the largest part of the prompt, if that is enough; else the one whose last
        use is longest ago, and of equal ones the last."""
        free = [slot for slot in self.slots if slot.task is None]
        best, best_part = None, 0.0
        for slot in free:
            part = common_prefix(slot.held.tokens, prompt) / max(1, len(prompt))
            if part > best_part and part > self.config.slot_prompt_similarity:
                best, best_part = slot, part
        return best or min(reversed(free), key=lambda slot: slot.last_used)

    # -- rounds of nothing but generation ------------------------------------------------------

    def _plain_steps(self) -> int:
        """How many rounds only generate: until the first answer ends or conversation is full; 0: not this."""
        serving = [slot for slot in self.slots if slot.task is not None]
        if not serving or not all(slot.task and slot.task.generating for slot in serving):
            return 0
        return min(min(slot.task.n_left, slot.room) for slot in serving if slot.task)

    def _generate(self, clock: float, until: float, n_steps: int) -> float:
        serving = [slot for slot in self.slots if slot.task is not None]
        step = self.decoder.split([slot.held.seq for slot in serving], [1] * len(serving))
        starts = [len(slot.held.tokens) for slot in serving]
        free = len(serving) < len(self.slots)
        ends = self.cost.step_ends(starts, n_steps, clock, until if free else inf, len(step))
        runs = [slot.next_tokens(len(ends)) for slot in serving]
        made = self.decoder.steps(runs)
        if not made:
            return self._round(clock)
        totals = self.account.totals
        totals.decodes += made
        totals.decoded += made * len(runs)
        totals.fed_back += made * len(runs)
        for slot, run in zip(serving, runs, strict=True):
            assert slot.task is not None
            slot.held.tokens += run.tokens[:made]
            slot.task.n_sampled += made
        clock = float(ends[made - 1])
        for slot in serving:
            self._after_token(slot, clock)
        return clock

    # -- one round -----------------------------------------------------------------------------

    def _round(self, clock: float) -> float:
        self._shift_full()
        runs = [slot.next_tokens(1) for slot in self.slots if slot.task and slot.task.generating]
        left = self.context.resolved.n_batch - len(runs)
        for slot in self.slots:
            if slot.task is not None and not slot.task.generating and left > 0:
                run = self._prompt_part(slot, left, clock)
                if run is not None:
                    runs.append(run)
                    left -= len(run.tokens)
        return self._decode(runs, clock)

    def _shift_full(self) -> None:
        if self.shift is None:
            return
        for slot in self.slots:
            if slot.task and slot.task.generating and self.shift.due(slot.held):
                self.decoder.settle(slot.held.seq)
                plan = self.shift.apply(slot.held)
                if slot.checkpoints is not None:
                    slot.checkpoints.kept.clear()
                self.account.totals.shifts += 1
                self.account.totals.shifted_cells += plan.n_moved
                self.account.totals.forgotten += plan.n_discard

    def _prompt_part(self, slot: ServerSlot, left: int, clock: float) -> Run | None:
        """The next part of a prompt, at most ``left`` tokens; None if the request was sent away."""
        task, held = slot.task, slot.held
        assert task is not None
        n_prompt = len(task.prompt)
        if task.report is None:
            if n_prompt == 0:
                self._finish(slot, clock)
                return None
            if n_prompt >= held.n_ctx:
                self._refuse(slot, clock, "rejected")
                return None
            self._start(slot, task)
        start = len(held.tokens)
        end = min(n_prompt, start + left)
        if slot.checkpoints is not None:
            end = min(end, self._next_stop(n_prompt, start))
            self._checkpoint(slot, slot.checkpoints, start, end, n_prompt)
        return Run(held.seq, start, task.prompt[start:end])

    def _start(self, slot: ServerSlot, task: Task) -> None:
        """Keep what the slot holds of the prompt, and note why not more."""
        self.decoder.settle(slot.held.seq)
        n_held = len(slot.held.tokens)
        bytes_read = slot.held.cost.bytes_read
        report = task.report = reuse(slot.held, task.prompt, self.config.cache_reuse, slot.checkpoints)
        self.account.totals.restored += slot.held.cost.bytes_read > bytes_read
        self.account.totals.reused += report.n_past
        self.account.hits += report.n_past > 0
        if 0 < report.n_past < n_held:
            self.account.totals.rollbacks += 1
            self.account.totals.taken_back += n_held - report.n_past
        if report.obstacles or report.n_lost:
            self.account.reasons[_why_lost(report)] += 1
        elif report.n_matched == 0:
            self.account.reasons["nothing in common" if n_held else "the slot was empty"] += 1

    def _next_stop(self, n_prompt: int, start: int) -> int:
        """Where the part of a prompt that begins at ``start`` must end, so that a checkpoint can be made."""
        resolved = self.context.resolved
        offsets = (CHECKPOINT_BEFORE_END + resolved.n_ubatch, CHECKPOINT_BEFORE_END)
        stops = [n_prompt - min(resolved.n_batch, offset) for offset in offsets]
        return min((stop for stop in stops if stop > start), default=n_prompt)

    def _checkpoint(self, slot: ServerSlot, kept: Checkpoints, start: int, end: int, n_prompt: int) -> None:
        """Keep a checkpoint of what is there before this part, where the server thinks it worth it."""
        near_end = n_prompt < end + self.context.resolved.n_ubatch
        if start == 0 or (end < n_prompt and not near_end):
            return
        if kept.kept and not near_end and start <= kept.kept[-1].n_tokens + self.config.checkpoint_min_step:
            return
        self.decoder.settle(slot.held.seq)
        self.account.totals.checkpoints += kept.create() is not None

    # -- decoding ------------------------------------------------------------------------------

    def _decode(self, runs: Sequence[Run], clock: float) -> float:
        """Decode a batch, in parts if there is no room for all of it; what was sampled then follows."""
        n_tokens = sum(len(run.tokens) for run in runs)
        n_batch, at = self.context.resolved.n_batch, 0
        while at < n_tokens:
            view = _cut(runs, at, at + min(n_batch, n_tokens - at))
            if self.decoder.decode(view) == OK:
                parts = [(run.start, len(run.tokens)) for run in view]
                clock += self.cost.seconds(parts, self.decoder.n_ubatches)
                n_decoded = sum(len(run.tokens) for run in view)
                self.account.totals.decodes += 1
                self.account.totals.decoded += n_decoded
                self._decoded(view, clock)
                at += n_decoded
                n_batch = self.context.resolved.n_batch
                continue
            failure = self.context.last_failure
            if failure is not None and failure.slot is not None:
                self.account.failed(clock, failure.slot)
            if n_batch == 1:
                self._abort(clock)
                break
            if not self._empty_an_idle_slot():
                n_batch //= 2
        return clock

    def _decoded(self, view: Sequence[Run], clock: float) -> None:
        """Bookkeeping of a decode: tokens are there, prompts may be through, the next token is sampled."""
        totals = self.account.totals
        for run in view:
            slot = self.slots[run.seq]
            task = slot.task
            assert task is not None
            slot.held.tokens += run.tokens
            if task.generating:
                totals.fed_back += 1
            else:
                assert task.report is not None
                again = max(0, min(run.start + len(run.tokens), task.report.n_matched) - run.start)
                totals.reprocessed += again
                if again:
                    self.account.reprocessed[_why_lost(task.report)] += again
                totals.computed += len(run.tokens) - again
                if len(slot.held.tokens) < len(task.prompt):
                    continue
                self.account.first_token.add(clock - task.request.arrival)
            task.n_sampled += 1
            self._after_token(slot, clock)

    def _after_token(self, slot: ServerSlot, clock: float) -> None:
        """A token was sampled: is the answer complete, or the conversation full?"""
        assert slot.task is not None
        if slot.task.n_left <= 0 or (self.shift is None and slot.room == 0):
            self._finish(slot, clock)

    def _empty_an_idle_slot(self) -> bool:
        if not self.context.resolved.kv_unified:
            return False
        for slot in self.slots:
            if slot.task is None and slot.held.tokens:
                self._forget(slot)
                self.account.totals.purged_slots += 1
                return True
        return False

    # -- ends ----------------------------------------------------------------------------------

    def _finish(self, slot: ServerSlot, clock: float) -> None:
        task = slot.task
        assert task is not None
        totals = self.account.totals
        complete = self.account.answered(task.request, task.n_sampled)
        if complete or not task.prompt:
            totals.finished += 1
        else:
            totals.truncated += 1
        self.account.latency.add(clock - task.request.arrival)
        self._release(slot)

    def _refuse(self, slot: ServerSlot, clock: float, how: str) -> None:
        """Send a request away; what of its prompt was not decoded or reused is refused."""
        task = slot.task
        assert task is not None
        totals = self.account.totals
        if not task.generating:
            totals.refused += len(task.prompt) - (0 if task.report is None else len(slot.held.tokens))
        self.account.answered(task.request, task.n_sampled)
        setattr(totals, how, getattr(totals, how) + 1)
        self._release(slot)

    def _release(self, slot: ServerSlot) -> None:
        slot.task = None
        self._releases += 1
        slot.last_used = self._releases

    def _forget(self, slot: ServerSlot) -> None:
        self.decoder.settle(slot.held.seq)
        slot.forget()

    def _abort(self, clock: float) -> None:
        """Not even one token found room: everyone who is served is sent away and their cells are freed."""
        for slot in self.slots:
            if slot.task is not None:
                self._refuse(slot, clock, "aborted")
                self._forget(slot)


def _why_lost(report: ReuseReport) -> str:
    """Why what a slot holds of a prompt could not be kept whole."""
    return ", ".join(each.code for each in report.obstacles) or "one token must be decoded"


def _cut(runs: Sequence[Run], lo: int, hi: int) -> list[Run]:
    """Tokens [lo, hi) of a batch of runs."""
    if lo == 0 and hi >= sum([len(run.tokens) for run in runs]):
        return list(runs)
    out, at = [], 0
    for run in runs:
        a, b = max(lo - at, 0), min(hi - at, len(run.tokens))
        if a < b:
            out.append(Run(run.seq, run.start + a, run.tokens[a:b]))
        at += len(run.tokens)
    return out
