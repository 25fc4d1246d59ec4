"""What a server builds on a cache (``tools/server/server-context.cpp``).

Each policy is small, works on a :class:`Slot` (one conversation: a context, a sequence, the tokens the caller
believes to be in it), tells an observer what it did (events of kind ``policy``), and adds to the slot's
:class:`Cost` what that spared or took::

    slot.py            Slot, Cost           one conversation
    context_shift.py   plan_shift, ...      forget the oldest tokens, move the rest down
    sessions.py        save_session, ...    a conversation in a file
    checkpoints.py     Checkpoints          the part of a memory that cannot go back, kept aside
    prefix_reuse.py    reuse                keep what a new prompt has in common with the old one

Left out: which slot serves which request, and a host-side store of whole prompts.
"""

from kvsim.policies.checkpoints import Checkpoint, Checkpoints
from kvsim.policies.context_shift import ContextShift, ShiftPlan, plan_shift
from kvsim.policies.prefix_reuse import Chunk, Obstacle, ReuseReport, common_prefix, match_chunks, reuse
from kvsim.policies.sessions import SessionReport, restore_session, save_session
from kvsim.policies.slot import Cost, Slot

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Chunk",
    "ContextShift",
    "Cost",
    "Obstacle",
    "ReuseReport",
    "SessionReport",
    "ShiftPlan",
    "Slot",
    "common_prefix",
    "match_chunks",
    "plan_shift",
    "restore_session",
    "reuse",
    "save_session",
]
