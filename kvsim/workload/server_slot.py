"""A slot of llama-server: its conversation, and the request it serves."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.context import Context
from kvsim.policies.checkpoints import Checkpoints
from kvsim.policies.prefix_reuse import ReuseReport
from kvsim.policies.slot import Slot
from kvsim.workload.config import ServerConfig
from kvsim.workload.request import Request
from kvsim.workload.runs import Run


@dataclass
class Task:
    """A request that a slot serves: ``n_sampled`` tokens of its answer are there, the last not yet
    decoded."""

    request: Request
    prompt: list[int]
    report: ReuseReport | None = None
    n_sampled: int = 0

    @property
    def generating(self) -> bool:
        return self.n_sampled > 0

    @property
    def n_left(self) -> int:
        """Tokens still to be sampled."""
        return self.request.n_answer - self.n_sampled


class ServerSlot:
    """A slot: its conversation, its checkpoints, what it serves (None: idle), when it was last used."""

    def __init__(self, context: Context, index: int, config: ServerConfig) -> None:
        self.held = Slot(context, seq=index)
        kept = Checkpoints(self.held, max(1, config.ctx_checkpoints), config.checkpoint_min_step)
        self.checkpoints = kept if config.ctx_checkpoints and kept.useful else None
        self.task: Task | None = None
        self.last_used = -1

    def forget(self) -> None:
        self.held.forget()
        if self.checkpoints is not None:
            self.checkpoints.kept.clear()

    @property
    def room(self) -> int:
        """Tokens that the conversation can take before it is full."""
        return max(0, self.held.n_ctx - 1 - len(self.held.tokens))

    def next_tokens(self, n: int) -> Run:
        """The token that was sampled last, and those that will be, ``n`` in all."""
        assert self.task is not None
        at = self.task.n_sampled - 1
        return Run(self.held.seq, len(self.held.tokens), self.task.request.answer[at : at + n])
