"""What a memory does, told to an observer as it happens.

Without an observer the cost is one ``None`` check per operation. Cells are given as index arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvsim.memory import IntArray

NO_CELLS: IntArray = np.empty(0, dtype=np.int32)


@dataclass(slots=True)
class Event:
    """One thing that happened. Take it as read-only: it is told to several, and made too often to be frozen.

    ``kind`` is one of :data:`KINDS`; ``cache`` and ``stream`` say where ("" and -1 for the context);
    ``cells`` are the cells concerned; ``detail`` holds the rest by name (``seq``, ``delta``, ``reason``, ...).
    """

    kind: str
    cache: str = ""
    stream: int = -1
    cells: IntArray = field(default_factory=lambda: NO_CELLS)
    detail: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "slot": "a slot was looked for: found, or not",
    "write": "cells were written, by a ubatch or a restore",
    "free": "cells were freed",
    "share": "cells got one more owner",
    "shift": "positions moved, the keys still carry the old rotation",
    "k_shift": "the pending shifts were applied to the keys",
    "purge": "older window cells were removed so that the sequence stays gapless",
    "head": "the start of the next slot search moved",
    "split": "a batch was split into ubatches",
    "graph": "the graph was reused, or rebuilt and why",
    "stream_copy": "a whole stream was copied to another",
    "move": "a run of cells moved into a hole (defragmentation)",
    "copy_queued": "a copy between streams was queued for the next update",
    "rollback": "a failed ubatch's positions were removed, or the removal was refused",
    "hazard": "llama.cpp quietly does something that no caller wants",
    "swap": "two recurrent cells were swapped",
    "state": "a state was saved, restored or refused",
    "policy": "what a server does with a cache: shifted a context, kept a checkpoint, reused a prefix",
    "speculate": "a draft was verified: tokens accepted, the rest taken back",
}

Observer = Callable[[Event], None]


class Recorder:
    """An observer that keeps what it is told: ``memory.observe(recorder)``, then ``recorder.events``."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def take(self) -> list[Event]:
        """The events since the last call, and forget them."""
        events, self.events = self.events, []
        return events

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]
