"""One conversation: a sequence of a context, and the tokens its owner believes to be in it.

The token at index i is at position i. The list grows only when a decode has succeeded, so that after a
failure it still says what the cache holds; :attr:`Slot.agrees` tells whether the two say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvsim.batch import Batch
from kvsim.caches.dsv4 import DSV4Cache
from kvsim.caches.recurrent import RecurrentMemory
from kvsim.context import OK, Context
from kvsim.events import Event


@dataclass
class Cost:
    """What policies took and spared.

    ``decoded`` tokens went through the network; ``recomputed`` of them, or still to be, had been computed
    before and were lost. ``reused`` tokens did not need to. ``dropped`` tokens were given up on purpose;
    ``shifted`` cells changed position, so their keys must turn. Bytes are those of saved states.
    """

    decoded: int = 0
    reused: int = 0
    recomputed: int = 0
    dropped: int = 0
    shifted: int = 0
    bytes_written: int = 0
    bytes_read: int = 0


@dataclass
class Slot:
    """``n_ctx`` is how long the conversation may get (0: as many cells as its stream has); ``n_prompt`` how
    many of its tokens were given rather than generated; ``task`` numbers the requests it has served."""

    context: Context
    seq: int = 0
    n_ctx: int = 0
    tokens: list[int] = field(default_factory=list)
    n_prompt: int = 0
    task: int = 0
    cost: Cost = field(default_factory=Cost)

    def __post_init__(self) -> None:
        self.n_ctx = self.n_ctx or self.context.resolved.n_ctx_seq

    def feed(self, tokens: Sequence[int], all_outputs: bool = False) -> int:
        """Decode ``tokens`` after those there are, at most ``n_batch`` at a time, with an output for the
        last of each part, or for all. Returns the code of the first decode that failed, else 0; earlier
        parts stay."""
        at = 0
        while at < len(tokens):
            part = list(tokens[at : at + self.context.resolved.n_batch])
            batch = Batch.tokens_of(self.seq, part, start=len(self.tokens))
            code = self.context.decode(replace(batch, output=[True] * len(part)) if all_outputs else batch)
            if code != OK:
                return code
            self.tokens += part
            self.cost.decoded += len(part)
            at += len(part)
        return OK

    @property
    def agrees(self) -> bool:
        """Whether the memory ends where the list of tokens does."""
        return self.context.memory.seq_pos_max(self.seq) == len(self.tokens) - 1

    @property
    def n_swa(self) -> int:
        """Width of the window that can be lost: 0 without one, or if the cache is full size anyway, or for
        DeepSeek-V4, whose compressors go back less far than its window (``llama_model_n_swa``)."""
        compressed = isinstance(self.context.memory, DSV4Cache)
        return 0 if compressed or self.context.resolved.swa_full else self.context.model.n_swa

    @property
    def keeps_state(self) -> bool:
        """Whether some part is a state that has forgotten how it came about, so that it cannot go back."""
        memory = self.context.memory
        states = [leaf for leaf in memory.leaves().values() if isinstance(leaf, RecurrentMemory)]
        return isinstance(memory, DSV4Cache) or any(leaf.has_layers for leaf in states)

    def forget(self) -> None:
        """Drop the whole sequence, in memory and list."""
        self.context.memory.seq_rm(self.seq, -1, -1)
        self.tokens = []

    def tell(self, policy: str, **detail: Any) -> None:
        """Tell the context's observer what a policy did."""
        if self.context.observer is not None:
            self.context.observer(Event("policy", detail={"policy": policy, "seq": self.seq, **detail}))
