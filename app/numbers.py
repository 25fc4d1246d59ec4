"""Numbers that somebody typed, or that stand in an address."""

from __future__ import annotations


def whole(text: str, digits: int = 8) -> int | None:
    """The number that ``text`` is, in at most so many digits of ASCII; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None
