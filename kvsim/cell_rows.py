"""The cells of a table as a picture lists them, made anew only where they changed.

Whoever takes a picture after every operation of a large cache would else build thousands of lists each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

WORTH = 1024
"""From so many cells on it pays to remember them."""

Row = list[Any]
Column = NDArray[Any]


class CellRows:
    """The rows of one table. Those that stay the same are the same objects from picture to picture.

    ``ids_of`` gives the owners that the words of a cell stand for.
    """

    def __init__(self, ids_of: Callable[[Iterable[int]], list[int]]) -> None:
        self._ids_of = ids_of
        self._before: list[Column] = []
        self._rows: list[Row | None] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(self._ids_of)

    def of(self, cells: NDArray[np.signedinteger[Any]], columns: Sequence[Column]) -> list[Row]:
        """The rows of ``cells``, each ``[index, pos, [ids], shift, tok, x, y]``.

        ``columns`` are those of the whole table: position, shift, token, x, y, and the words of the owners.
        """
        size = len(columns[0])
        if size < WORTH:
            return self._new(cells, columns)
        listed = np.zeros(size, np.bool_)
        listed[cells] = True
        now = [listed, *columns]
        if len(now) == len(self._before):
            differs = np.zeros(size, np.bool_)
            for column, before in zip(now, self._before, strict=True):
                differs |= column != before
            changed = np.flatnonzero(differs)
        else:
            changed, self._rows = cells, [None] * size
        for i in changed[~listed[changed]].tolist():
            self._rows[i] = None
        for row in self._new(changed[listed[changed]], columns):
            self._rows[row[0]] = row
        self._before = [column.copy() for column in now]
        return [row for row in self._rows if row is not None]

    def _new(self, cells: NDArray[np.signedinteger[Any]], columns: Sequence[Column]) -> list[Row]:
        pos, shift, tok, x, y = (column[cells].tolist() for column in columns[:5])
        known: dict[tuple[int, ...], list[int]] = {}
        owners = []
        for words in zip(*(word[cells].tolist() for word in columns[5:]), strict=True):
            if words not in known:
                known[words] = self._ids_of(words)
            owners.append(known[words])
        return [list(row) for row in zip(cells.tolist(), pos, owners, shift, tok, x, y, strict=True)]
