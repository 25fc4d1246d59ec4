"""A conversation in a file: the state of its sequence, and its tokens (a server's slot save and restore)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvsim import state
from kvsim.errors import StateError
from kvsim.policies.slot import Slot


@dataclass(frozen=True)
class SessionReport:
    """``n_tokens`` saved or restored in a file of ``n_bytes``. ``refused`` says why a restore was; the slot
    is empty then."""

    n_tokens: int
    n_bytes: int
    refused: str = ""


def save_session(slot: Slot, path: Path) -> SessionReport:
    """Write the slot's sequence and tokens to ``path``. Pending shifts are not run first: the file then holds
    new positions and keys of the old ones, as llama.cpp's does."""
    n_bytes = state.save_sequence_file(slot.context.memory, slot.seq, path, slot.tokens)
    slot.cost.bytes_written += n_bytes
    slot.tell("save session", n_tokens=len(slot.tokens), n_bytes=n_bytes)
    return SessionReport(len(slot.tokens), n_bytes)


def restore_session(slot: Slot, path: Path) -> SessionReport:
    """Read ``path`` into the slot in place of what it holds. Checkpoints are not in the file: how much of a
    prompt can then be reused, :func:`~kvsim.policies.prefix_reuse.reuse` tells.

    A file of another kind of context, or a damaged one, is refused and leaves the slot empty. OSError if the
    file cannot be read.
    """
    n_bytes = path.stat().st_size
    slot.forget()
    try:
        slot.tokens = state.load_sequence_file(slot.context.memory, slot.seq, path)
    except StateError as err:
        slot.forget()
        slot.tell("restore session", n_tokens=0, n_bytes=n_bytes, refused=str(err))
        return SessionReport(0, n_bytes, str(err))
    slot.cost.bytes_read += n_bytes
    slot.cost.reused += len(slot.tokens)
    slot.tell("restore session", n_tokens=len(slot.tokens), n_bytes=n_bytes)
    return SessionReport(len(slot.tokens), n_bytes)
