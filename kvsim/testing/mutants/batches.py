"""Faults in checking a batch before anything is placed."""

from __future__ import annotations

from kvsim import batch
from kvsim.testing.mutants.mutant import Patches, mutant

MEMORIES = ("kv", "iswa")


@mutant(
    "B070", "B071", memories=MEMORIES, symptom="a gap in a sequence, and tokens that see less than they think"
)
def gaps_accepted(patch: Patches) -> None:
    """A batch need not go on where the memory ends the sequence."""
    patch(batch, "check_continuation", lambda right, s, end: None)


@mutant("B073", memories=MEMORIES, symptom="a batch with falling positions is taken")
def falling_positions_accepted(patch: Patches) -> None:
    """Positions of a sequence may decrease within a batch."""
    patch(batch, "check_order", lambda right, sequences: None)


@mutant(
    "B077", memories=MEMORIES, symptom="a sequence beyond the configured ones is written, or an assertion"
)
def ids_not_checked(patch: Patches) -> None:
    """Sequence ids of a batch are not compared with the number of sequences."""
    patch(batch, "check_seq_ids", lambda right, i, ids, n_seq_max: None)
