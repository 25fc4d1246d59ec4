"""Paged blocks found by the hash of their contents, in the manner of vLLM: the policy to compare with.

Memory is blocks of ``block_size`` tokens. A full block is known by a hash of its tokens and of the block
before it, so equal prefixes share blocks, whoever computed them; a block that nobody uses any more stays
known until it is taken again, the one that was released longest ago first::

    blocks   [a a a a] [b b b b] [c c . .]        a request that begins with a and b shares two of them

Each round has a budget of ``n_batch`` tokens, given out in order of admission: one to a request that
generates, more to one whose prompt is not through. Requests are admitted while there are blocks. When one
that generates needs a block and there is none, the request that came last gives all of its blocks up and
starts over (preemption by recomputation).

It knows nothing of windows and recurrent states: a block holds the rows of all layers. There is no llama.cpp
memory behind it; what it shares with the other policy are the requests, the clock and the account.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from kvsim.errors import CacheUsageError
from kvsim.memory import PrepareFailure
from kvsim.models.context_params import resolve
from kvsim.workload.account import Account, CacheSample, Sample
from kvsim.workload.config import ServerConfig
from kvsim.workload.cost import CostModel
from kvsim.workload.request import Request

BLOCK_SIZE = 16


class BlockPool:
    """``n_blocks`` blocks: in use (counted), free but known by their hash, or free."""

    def __init__(self, n_blocks: int, block_size: int = BLOCK_SIZE) -> None:
        if n_blocks < 1 or block_size < 1:
            raise CacheUsageError(f"{n_blocks} blocks of {block_size} tokens: give at least one of each")
        self.n_blocks = n_blocks
        self.block_size = block_size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(n_blocks))
        self._users = [0] * n_blocks
        self._known: dict[int, int] = {}
        self._hash_of: dict[int, int] = {}

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_used(self) -> int:
        return self.n_blocks - len(self._free)

    @property
    def n_known(self) -> int:
        """Free blocks whose contents could still be shared."""
        return sum(block in self._hash_of for block in self._free)

    def find(self, hashes: Sequence[int]) -> list[int]:
        """The blocks of the longest known beginning."""
        found = []
        for each in hashes:
            if each not in self._known:
                break
            found.append(self._known[each])
        return found

    def n_idle(self, blocks: Sequence[int]) -> int:
        """How many of the blocks are in use by nobody."""
        return sum(self._users[block] == 0 for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """One more user for each of the blocks."""
        for block in blocks:
            self._users[block] += 1
            self._free.pop(block, None)

    def take(self, n: int) -> list[int]:
        """``n`` blocks with nothing in them; the caller has looked that so many are free."""
        taken = []
        for _ in range(n):
            block, _none = self._free.popitem(last=False)
            known = self._hash_of.pop(block, None)
            if known is not None:
                del self._known[known]
            self._users[block] = 1
            taken.append(block)
        return taken

    def name(self, block: int, content: int) -> None:
        """A block is full of ``content``; if another one already is, this one stays nameless."""
        if content not in self._known and block not in self._hash_of:
            self._known[content] = block
            self._hash_of[block] = content

    def release(self, blocks: Sequence[int]) -> None:
        """One user less, the last block first, so that beginnings stay longest."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free[block] = None


def block_hashes(tokens: Sequence[int], block_size: int, before: Sequence[int] = ()) -> list[int]:
    """The hash of every full block; ``before`` are those of the first blocks, already known."""
    hashes = list(before)
    for at in range(len(hashes) * block_size, len(tokens) - block_size + 1, block_size):
        parent = hashes[-1] if hashes else 0
        hashes.append(hash((parent, *tokens[at : at + block_size])))
    return hashes


@dataclass
class _Task:
    """A request: its tokens so far (prompt, then answer), how many of them are computed, its blocks."""

    request: Request
    tokens: list[int]
    hashes: list[int]
    n_done: int = 0
    n_sampled: int = 0
    n_ever: int = 0
    blocks: list[int] = field(default_factory=list)
    waited: bool = False

    @property
    def prefilled(self) -> bool:
        """Whether only the token sampled last is left to compute."""
        return self.n_sampled > 0 and self.n_done == len(self.tokens) - 1


class PagedServer:
    """The policy, with as many tokens of memory as the context of ``config`` has cells and at most
    ``n_seq_max`` requests at a time."""

    name = "paged"

    def __init__(
        self, config: ServerConfig, cost: CostModel, account: Account, block_size: int = BLOCK_SIZE
    ) -> None:
        resolved = resolve(config.model, config.params)
        self.cost = cost
        self.account = account
        self.n_batch = resolved.n_batch
        self.n_seq_max = resolved.n_seq_max
        self.n_ctx = resolved.n_ctx_seq
        self.pool = BlockPool(resolved.n_ctx // block_size, block_size)
        self.waiting: deque[_Task] = deque()
        self.running: list[_Task] = []

    def offer(self, request: Request) -> None:
        self.account.asked(request)
        self.waiting.append(_Task(request, [], []))

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def advance(self, clock: float, until: float) -> float:
        """One round, or as many as only generate within the blocks there are."""
        self._admit(clock)
        n_steps = self._plain_steps()
        if n_steps:
            return self._generate(clock, until, n_steps)
        return self._round(clock)

    def sample(self, clock: float) -> Sample:
        live = [len(task.blocks) * self.pool.block_size for task in self.running]
        cache = CacheSample(
            used=self.pool.n_used * self.pool.block_size,
            reclaimable=self.pool.n_known * self.pool.block_size,
            largest_hole=self.pool.n_free * self.pool.block_size,
            holes=self.pool.n_free,
            live_by_slot=tuple(live),
            reclaimable_by_slot=(0,) * len(live),
        )
        return self.account.now(clock, len(self.waiting), len(self.running), {"blocks": cache})

    # -- admitting -----------------------------------------------------------------------------

    def _admit(self, clock: float) -> None:
        while self.waiting and len(self.running) < self.n_seq_max:
            task = self.waiting[0]
            if not task.tokens:
                task.tokens = task.request.tokens()
                task.hashes = block_hashes(task.tokens, self.pool.block_size)
            if not task.tokens or len(task.tokens) >= self.n_ctx:
                self.waiting.popleft()
                self._note_wait(task, clock)
                self._end(task, clock, rejected=bool(task.tokens))
                continue
            # the last token is computed in any case, for its logits
            usable = (len(task.tokens) - 1) // self.pool.block_size
            found = self.pool.find(task.hashes[:usable])
            missing = self._blocks_for(len(task.tokens)) - len(found)
            if missing + self.pool.n_idle(found) > self.pool.n_free:
                return
            self.waiting.popleft()
            self._note_wait(task, clock)
            self.pool.share(found)
            task.blocks = found + self.pool.take(missing)
            task.n_done = len(found) * self.pool.block_size
            self._note_reuse(task)
            self.running.append(task)

    def _blocks_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.pool.block_size)

    def _note_wait(self, task: _Task, clock: float) -> None:
        if not task.waited:
            self.account.wait.add(clock - task.request.arrival)
            task.waited = True

    def _note_reuse(self, task: _Task) -> None:
        """The first time, what was found spares computing the prompt; later, only computing it again."""
        totals = self.account.totals
        if task.n_ever == 0:
            totals.reused += task.n_done
            task.n_ever = task.n_done
            self.account.hits += task.n_done > 0
            if task.n_done == 0:
                self.account.reasons["no block known"] += 1

    # -- generating ----------------------------------------------------------------------------

    def _plain_steps(self) -> int:
        """Rounds in which every request generates and there are blocks for all; 0 if the next is not one."""
        if not self.running or not all(task.prefilled for task in self.running):
            return 0
        most = min(
            min(task.request.n_answer - task.n_sampled, self.n_ctx - len(task.tokens))
            for task in self.running
        )
        while most > 0 and self._new_blocks(most) > self.pool.n_free:
            most //= 2
        return max(0, most)

    def _new_blocks(self, n_steps: int) -> int:
        return sum(self._blocks_for(task.n_done + n_steps) - len(task.blocks) for task in self.running)

    def _generate(self, clock: float, until: float, n_steps: int) -> float:
        free = len(self.running) < self.n_seq_max
        ends = self.cost.step_ends(
            [task.n_done for task in self.running], n_steps, clock, until if free else inf
        )
        n_steps, clock = len(ends), float(ends[-1])
        self.account.totals.decodes += n_steps
        for task in list(self.running):
            task.blocks += self.pool.take(self._blocks_for(task.n_done + n_steps) - len(task.blocks))
            task.tokens += task.request.answer[task.n_sampled : task.n_sampled + n_steps]
            self._computed(task, n_steps)
            task.n_sampled += n_steps
            self._after_token(task, clock)
        return clock

    def _round(self, clock: float) -> float:
        """One token of every request that generates, and parts of prompts up to the budget."""
        left, parts = self.n_batch, []
        for task in list(self.running):
            if task not in self.running:  # preempted by one before it
                continue
            n = min(left, len(task.tokens) - task.n_done)
            if n > 0 and self._has_room(task, n, clock):
                parts.append((task, n))
                left -= n
        parts = [(task, n) for task, n in parts if task in self.running]
        if not parts:
            return clock
        clock += self.cost.seconds([(task.n_done, n) for task, n in parts])
        self.account.totals.decodes += 1
        for task, n in parts:
            self._computed(task, n)
            if task.n_done == len(task.tokens):
                if task.n_sampled == 0:
                    self.account.first_token.add(clock - task.request.arrival)
                task.tokens += task.request.answer[task.n_sampled : task.n_sampled + 1]
                task.n_sampled += 1
                self._after_token(task, clock)
        return clock

    def _has_room(self, task: _Task, n: int, clock: float) -> bool:
        """Blocks for the next ``n`` tokens of ``task``; those who came last give theirs up if they must."""
        missing = self._blocks_for(task.n_done + n) - len(task.blocks)
        while missing > self.pool.n_free:
            self.account.failed(
                clock, PrepareFailure("blocks", 0, 0, n, self.pool.n_free * self.pool.block_size, 0, 0)
            )
            last = self.running[-1]
            self._preempt(last)
            if last is task:
                return False
        task.blocks += self.pool.take(max(0, missing))
        return True

    def _computed(self, task: _Task, n: int) -> None:
        """``n`` more tokens are in the cache; blocks that are full now are known from now on."""
        totals = self.account.totals
        before, task.n_done = task.n_done, task.n_done + n
        totals.decoded += n
        new = max(0, task.n_done - max(before, task.n_ever))
        totals.again += n - new
        of_prompt = max(0, min(task.n_done, task.request.n_prompt) - max(before, task.n_ever))
        totals.computed += of_prompt
        totals.fed_back += new - of_prompt
        task.n_ever = max(task.n_ever, task.n_done)
        size = self.pool.block_size
        task.hashes = block_hashes(task.tokens, size, task.hashes)
        for i in range(before // size, min(task.n_done // size, len(task.hashes))):
            self.pool.name(task.blocks[i], task.hashes[i])

    # -- ends ----------------------------------------------------------------------------------

    def _preempt(self, task: _Task) -> None:
        """Give up all blocks and wait again, before everyone else."""
        self.running.remove(task)
        self.pool.release(task.blocks)
        task.blocks, task.n_done = [], 0
        self.waiting.appendleft(task)
        self.account.totals.preempted += 1

    def _after_token(self, task: _Task, clock: float) -> None:
        if task.n_sampled >= task.request.n_answer or len(task.tokens) >= self.n_ctx:
            self.running.remove(task)
            self.pool.release(task.blocks)
            self._end(task, clock)

    def _end(self, task: _Task, clock: float, rejected: bool = False) -> None:
        totals = self.account.totals
        complete = self.account.answered(task.request, task.n_sampled)
        if rejected:
            totals.rejected += 1
            totals.refused += task.request.n_prompt
            return
        if complete or not task.tokens:
            totals.finished += 1
        else:
            totals.truncated += 1
        self.account.latency.add(clock - task.request.arrival)
