"""What the tester found, as the beginning of a sentence."""

from __future__ import annotations

_VERBS = {"ledger": "differs from the ledger", "garbage": "answers garbage", "raised": "raises an exception"}
"""Verdicts of :class:`~kvsim.testing.match.DifferenceError` that are no verbs."""


def failed(subject: str, verdict: str) -> str:
    """
    >>> failed("ring_cache", "hung"), failed("ring_cache", "garbage")
    ('ring_cache hung', 'ring_cache answers garbage')
    """
    return f"{subject} {_VERBS.get(verdict, verdict)}"
