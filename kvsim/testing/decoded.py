"""What a decode is checked for: what every single token of a ubatch read, against the ledger.

Each check raises CheckError at the first difference that nothing explains.
"""

from __future__ import annotations

from operator import add

from kvsim.ledger import AttentionPart, Ledger
from kvsim.ledger_states import StatePart
from kvsim.models.memory_spec import CSA_RATIO
from kvsim.testing.excuses import Excuses
from kvsim.testing.ink import Ran


def check_starts(ran: Ran, ledger: Ledger, excuses: Excuses) -> None:
    """The state that each sequence went on from has seen what the ledger says."""
    part = ledger.parts.get("recurrent")
    for start in ran.starts:
        assert isinstance(part, StatePart)
        tokens = part.histories.tokens
        wanted = part.state(start.seq).history
        if start.history != wanted and not excuses.explained("recurrent", start.seq):
            raise excuses.failure(
                f"recurrent: sequence {start.seq} went on from a state that has seen "
                f"{tokens(start.history)}, not {tokens(wanted)}"
            )


def check_reads(ran: Ran, ledger: Ledger, excuses: Excuses) -> None:
    """Every token attends to what the ledger says, to the last one."""
    for read in ran.reads:
        if read.seq in excuses.astray:
            continue
        part = ledger.parts[read.part]
        assert isinstance(part, AttentionPart)
        wanted = part.visible(read.seq, read.pos, read.place)
        if read.seen != wanted and not excuses.explained(read.part, read.seq):
            raise excuses.failure(
                f"{read.part}: the token of sequence {read.seq} at position {read.pos} attends to "
                f"{read.seen}, the ledger says {wanted} (instance, key turned for)"
            )


def check_compressed(ran: Ran, ledger: Ledger, excuses: Excuses) -> None:
    """Every compressed row that a token attends to is made of the tokens of its block and of the one
    before. What a hazard has spoiled stays so until the sequence is gone."""
    part = ledger.parts.get("raw.base")
    for rows in ran.compressed:
        if rows.seq in excuses.astray:
            continue
        assert isinstance(part, AttentionPart)
        held = {e.pos: e.instance for e in part.entries(rows.seq)}
        if len(held) < len(part.entries(rows.seq)) or 0 in held.values():
            continue  # repeated positions, or tokens that only the cells have accounted for
        tokens = [held.get(p, -1) for p in range(CSA_RATIO * len(rows.blocks))]
        blocks = [(0,) * CSA_RATIO, *zip(*[iter(tokens)] * CSA_RATIO, strict=True)]
        for j, (found, wanted) in enumerate(zip(rows.blocks, map(add, blocks, blocks[1:]), strict=True)):
            if found != wanted:
                if not excuses.explained("csa", rows.seq):
                    raise excuses.failure(
                        f"csa: row {j} of sequence {rows.seq} is made of {list(found)}, not of {list(wanted)}"
                    )
                excuses.astray.add(rows.seq)
                break
