"""Holding a cache against the reference, and the reference against its specification.

Operations (``kvsim.ops``) are generated (``generate``, ``profiles``) for a table of configurations
(``cache_info``) and performed by subjects side by side (``subject``, ``match``). The reference carries
fingerprints in its rows (``ink``) and is checked against the ledger after each operation (``checked``).
``machine`` lets Hypothesis choose the operations, ``difftest`` a seed; ``shrink`` makes failures short,
``recorded`` writes them as traces. ``pipe`` talks to programs in any language, ``mutants`` and ``museum``
test the tester.

    from kvsim.testing import CacheMachine, Observes, Subject
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.testing.subject import Observes, Subject

if TYPE_CHECKING:
    from kvsim.testing.machine import CacheMachine

__all__ = ["CacheMachine", "Observes", "Subject"]


def __getattr__(name: str) -> Any:
    """The machine is imported when it is asked for: it needs Hypothesis, the rest does not."""
    if name != "CacheMachine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvsim.testing.machine import CacheMachine

    return CacheMachine
