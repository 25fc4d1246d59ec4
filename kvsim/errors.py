"""The errors kvsim raises. Everything a caller can get wrong ends in one of these."""

from __future__ import annotations

from typing import Any


class KvsimError(Exception):
    """Base of all errors of this package."""


class CacheUsageError(KvsimError):
    """A call on which llama.cpp asserts, faults or throws, and so ends the process.

    Raised before anything has changed. The message says what was asked, why it cannot be done,
    what llama.cpp does then, and what to do instead.
    """


class BatchError(KvsimError):
    """A batch that llama.cpp refuses with -1. Raised before anything has changed.

    ``rule`` is the violated validation rule (V1 ... V12, ``kvsim/batch_rules.py``), ``token`` the batch index
    of the first entry concerned and ``seq`` its sequence (-1: none), ``found`` what was there and
    ``expected`` what would have been accepted (None where no single value would).
    """

    def __init__(
        self,
        rule: str,
        reason: str,
        token: int = -1,
        seq: int = -1,
        found: int | None = None,
        expected: int | None = None,
    ) -> None:
        self.rule = rule
        self.reason = reason
        self.token = token
        self.seq = seq
        self.found = found
        self.expected = expected
        super().__init__(f"{reason} (rule {rule})")

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies are made from these arguments, not from the message alone."""
        return type(self), (self.rule, self.reason, self.token, self.seq, self.found, self.expected)


class IntegrityError(KvsimError):
    """An invariant of a memory does not hold: a fault of the implementation, never of the caller."""


class StateError(KvsimError):
    """A saved state cannot be read: damaged, truncated, or made by another memory."""


class TraceError(KvsimError):
    """A trace cannot be read or replayed. Carries where: ``path`` and ``line`` (1-based, 0 = none)."""

    def __init__(self, reason: str, path: str = "", line: int = 0) -> None:
        self.reason = reason
        self.path = path
        self.line = line
        place = f"{path}:{line}: " if line else f"{path}: "
        super().__init__(f"{place if path else ''}{reason}")


class ModelError(KvsimError):
    """A model's parameters contradict each other, or a model file cannot be read or is not supported."""
