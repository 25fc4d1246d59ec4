"""Timing two things in turns, and holding the ratio against a goal."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Step = Callable[[], object]

NOTHING = "-"
COPIED = 64 << 20


@dataclass(frozen=True)
class Goal:
    """``faster``: at least ``amount`` times faster than the reference; ``within``: at most ``amount`` times
    its time. Whatever the reference: ``seconds``: at most so long; ``rate``: at least so many a second."""

    kind: Literal["faster", "within", "seconds", "rate"]
    amount: float

    def held(self, seconds: float, reference: float | None) -> bool | None:
        """Whether the goal is held; None if there is no reference to tell by."""
        if self.kind == "seconds":
            return seconds <= self.amount
        if self.kind == "rate":
            return seconds * self.amount <= 1
        if reference is None:
            return None
        return (
            reference >= self.amount * seconds
            if self.kind == "faster"
            else seconds <= self.amount * reference
        )

    def __str__(self) -> str:
        if self.kind == "seconds":
            return f"under {in_words(self.amount)}"
        if self.kind == "rate":
            return f"{self.amount:,.0f}/s"
        return f"{self.amount:g} times faster" if self.kind == "faster" else f"within {self.amount:g} times"


@dataclass(frozen=True)
class Row:
    """One line of a table: median seconds of an operation, and of what it is measured against."""

    name: str
    seconds: float
    against: str = NOTHING
    reference: float | None = None
    goal: Goal | None = None

    @property
    def ratio(self) -> float | None:
        """Our time in times of the reference's."""
        return None if self.reference is None else self.seconds / self.reference

    @property
    def held(self) -> bool | None:
        return None if self.goal is None else self.goal.held(self.seconds, self.reference)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "seconds": self.seconds,
            "against": self.against,
            "reference": self.reference,
            "ratio": self.ratio,
            "goal": None if self.goal is None else str(self.goal),
            "held": self.held,
        }


def seconds_of(step: Step) -> float:
    """The seconds that a step takes."""
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def median_of(step: Step, times: int, undo: Step | None = None) -> float:
    """Median seconds of ``step``; ``undo`` runs after each, unmeasured."""
    took = []
    for _ in range(times):
        took.append(seconds_of(step))
        if undo is not None:
            undo()
    return statistics.median(took)


def side_by_side(ours: Step, reference: Step, times: int) -> tuple[float, float]:
    """Median seconds of both, measured in turns, so that a busy machine slows both."""
    pairs = [(seconds_of(ours), seconds_of(reference)) for _ in range(times)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def plain_copy() -> Step:
    """A copy of :data:`COPIED` bytes, to be scaled: it comes from memory like the rows of a large cache, not
    from the processor's cache."""
    source, target = np.zeros(COPIED, np.uint8), np.ones(COPIED, np.uint8)
    source.fill(1)  # zeros that were never written are no memory yet
    return lambda: np.copyto(target, source)


def beside_copy(ours: Step, n_bytes: int, times: int) -> tuple[float, float]:
    """Median seconds of ``ours``, and of a plain copy of ``n_bytes``."""
    seconds, copying = side_by_side(ours, plain_copy(), times)
    return seconds, copying * n_bytes / COPIED


def in_words(seconds: float) -> str:
    """0.0123 -> "12.3 ms"."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
