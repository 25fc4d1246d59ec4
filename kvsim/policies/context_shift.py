"""Rolling context: when a conversation is full, forget some tokens after the first ``n_keep`` and move the
rest down (``server-context.cpp: pre_decode``)::

    n_keep 2, n_discard 3      0 1 2 3 4 5 6 7
                               k k x x x . . .
                               0 1 2 3 4          what was at 5, 6, 7 is now at 2, 3, 4

Nothing is decoded again, but the text now reads as if the forgotten part had never been; the values of later
tokens were computed while it was there.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import CacheUsageError
from kvsim.policies.slot import Slot


@dataclass(frozen=True)
class ShiftPlan:
    """Positions [n_keep, n_keep + n_discard) go; the ``n_moved`` after them move down by ``n_discard``."""

    n_keep: int
    n_discard: int
    n_moved: int

    @property
    def dropped(self) -> range:
        return range(self.n_keep, self.n_keep + self.n_discard)


def plan_shift(
    n_tokens: int, n_ctx: int, n_keep: int = 0, n_discard: int = 0, n_prompt: int = 0, add_bos: bool = False
) -> ShiftPlan:
    """What a server would forget of ``n_tokens``, by its rules.

    ``n_keep`` below 0 keeps the prompt, of ``n_prompt`` tokens; ``add_bos`` keeps one more; at most
    ``n_ctx - 4`` are kept. ``n_discard`` 0 means half of what is left. Whatever was asked for, it is
    clamped to between nothing and all but one of what is left: a negative one discards nothing, and then
    the conversation stays full. Raises CacheUsageError for an ``n_ctx`` of less than 5.
    """
    if n_ctx < 5:
        raise CacheUsageError(
            f"a context of {n_ctx} cells cannot be shifted: 4 are held back for new tokens. Use 5 or more"
        )
    n_keep = min(n_ctx - 4, (n_prompt if n_keep < 0 else n_keep) + add_bos)
    n_left = n_tokens - n_keep
    asked = n_discard or n_left // 2
    n_discard = max(0, min(asked, n_left - 1))
    return ShiftPlan(n_keep, n_discard, max(0, n_left - n_discard))


@dataclass(frozen=True)
class ContextShift:
    """The policy with its two parameters; see :func:`plan_shift`."""

    n_keep: int = 0
    n_discard: int = 0
    add_bos: bool = False

    def due(self, slot: Slot) -> bool:
        """Whether the next token would fill the last cell."""
        return len(slot.tokens) + 1 >= slot.n_ctx

    def plan(self, slot: Slot) -> ShiftPlan:
        """What :meth:`apply` would do now."""
        return plan_shift(
            len(slot.tokens), slot.n_ctx, self.n_keep, self.n_discard, slot.n_prompt, self.add_bos
        )

    def apply(self, slot: Slot) -> ShiftPlan:
        """Shift now; the keys turn at the next decode. The event tells if a recurrent state goes on
        remembering what was dropped: only the attention caches forget it.

        Raises CacheUsageError, before anything has changed, if positions of this memory cannot move.
        """
        memory = slot.context.memory
        if not memory.can_shift:
            raise CacheUsageError(
                f"a {memory.kind} memory of {slot.context.model.arch} cannot shift positions, so the server "
                "turns context shift off. Stop at the end of the context, or decode the kept part anew"
            )
        plan = self.plan(slot)
        if plan.n_discard:
            end = len(slot.tokens)
            memory.seq_rm(slot.seq, plan.n_keep, plan.n_keep + plan.n_discard)
            memory.seq_add(slot.seq, plan.n_keep + plan.n_discard, end, -plan.n_discard)
            del slot.tokens[plan.n_keep : plan.n_keep + plan.n_discard]
        slot.cost.dropped += plan.n_discard
        slot.cost.shifted += plan.n_moved if plan.n_discard else 0
        slot.cost.reused += len(slot.tokens)
        slot.tell(
            "context shift", n_keep=plan.n_keep, n_discard=plan.n_discard, n_moved=plan.n_moved,
            state_remembers=slot.keeps_state and plan.n_discard > 0,
        )  # fmt: skip
        return plan
