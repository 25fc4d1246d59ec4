"""Saved states as records: bytes -> a tree of named records -> the same bytes.

Nothing is restored here and no memory is needed, only the specification of the one that was saved
(:func:`kvsim.models.memory_spec.memory_spec`)::

    SavedState
      sections   "base"       KVSection   streams -> cells (position, owners, x, y, token), rows per layer
                 "recurrent"  RecurrentSection   cells, rows per layer
                 "csa"        CompressedSection, "csa.ring" RingSection   (DeepSeek-V4)

Rows are opaque bytes. Counts are checked against the bytes that are left before anything is made of
them; an error says at which byte, what was read, and how much is missing. Layouts: docs/states.md.
"""

from kvsim.state_format.container import Container, SavedState, older_layouts, parse_state
from kvsim.state_format.dsv4_section import CompressedSection, DSV4Header, RingSection
from kvsim.state_format.kv_section import Cell, KVSection, KVStream, Rows
from kvsim.state_format.recurrent_section import RecurrentSection, StateCell

__all__ = [
    "Cell",
    "CompressedSection",
    "Container",
    "DSV4Header",
    "KVSection",
    "KVStream",
    "RecurrentSection",
    "RingSection",
    "Rows",
    "SavedState",
    "StateCell",
    "older_layouts",
    "parse_state",
]
