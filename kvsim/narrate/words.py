"""Numbers, ranges and lists of sequences as the sentences write them.

Ranges are written with an en dash and include both ends ("37–51"); a minus is "−"; thousands have commas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.changes import runs


def number(n: int) -> str:
    """1234 as "1,234", −5 with a true minus."""
    return f"{n:,}".replace("-", "−")


def count(n: int, noun: str) -> str:
    """ "1 cell", "8 cells", "2 batches"."""
    if n == 1:
        return f"1 {noun}"
    return f"{number(n)} {noun}es" if noun.endswith("ch") else f"{number(n)} {noun}s"


def span(first: int, last: int) -> str:
    """One run, both ends included."""
    return number(first) if first == last else f"{number(first)}–{number(last)}"


def join(parts: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def ranges(values: Iterable[int] | NDArray[Any], most: int = 4) -> str:
    """The values as runs; if there are more than ``most``, how many lie between which ends."""
    array = np.asarray(list(values) if not isinstance(values, np.ndarray) else values)
    found = runs(array)
    if len(found) <= most:
        return join([span(a, b) for a, b in found])
    return f"{number(array.size)} between {number(int(array.min()))} and {number(int(array.max()))}"


def cells(values: Iterable[int] | NDArray[Any], most: int = 4) -> str:
    """ "cell 8", "cells 9–12 and 35–37", "24 cells between 3 and 200"."""
    array = np.asarray(list(values) if not isinstance(values, np.ndarray) else values)
    if len(runs(array)) > most:
        low, high = number(int(array.min())), number(int(array.max()))
        return f"{number(array.size)} cells between {low} and {high}"
    return f"{'cell' if array.size == 1 else 'cells'} {ranges(array, most)}"


def positions(values: Iterable[int] | NDArray[Any], capital: bool = False, most: int = 3) -> str:
    """ "position 35", "positions 37–51", "24 positions between 3 and 200"."""
    array = np.unique(np.asarray(list(values) if not isinstance(values, np.ndarray) else values))
    word = "position" if array.size == 1 else "positions"
    if len(runs(array)) > most:
        low, high = number(int(array[0])), number(int(array[-1]))
        return f"{number(array.size)} {word} between {low} and {high}"
    text = f"{word} {ranges(array, most)}"
    return text[0].upper() + text[1:] if capital else text


def seqs(ids: Iterable[int]) -> str:
    """ "seq 3", "seq 0 and 3", "seq 0, 1 and 2"."""
    return f"seq {join([str(s) for s in sorted(ids)])}"


def sentence(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]
