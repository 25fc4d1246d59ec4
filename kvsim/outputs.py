"""The rows of results, from the order of execution to the caller's (``src/llama-context.cpp: decode``).

A batch is executed ubatch by ubatch, so its outputs come in the order of ``BatchAllocator.out_ids``.
The caller finds them in the order of the batch, and asks for them by batch index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from kvsim.errors import CacheUsageError


class OutputOrder:
    """Where the result of each output of one decode is.

    ``ids`` are the batch indices of the rows in the caller's order; ``swaps`` the exchanges of rows, in
    order, that lead there from the order of execution. They are those of a selection sort, so there
    are as few as possible.
    """

    def __init__(self, out_ids: Sequence[int]) -> None:
        ids = list(out_ids)
        at = {i: row for row, i in enumerate(ids)}
        swaps = []
        for row, wanted in enumerate(sorted(ids)):
            other = at[wanted]
            if other != row:
                swaps.append((row, other))
                at[ids[row]], at[wanted] = other, row
                ids[row], ids[other] = ids[other], ids[row]
        self.ids = tuple(ids)
        self.swaps = tuple(swaps)
        self._row_of = at

    @property
    def n_outputs(self) -> int:
        return len(self.ids)

    def reorder(self, rows: NDArray[Any]) -> None:
        """Bring result rows ``[n_outputs, ...]`` from the order of execution into the caller's, in place."""
        for a, b in self.swaps:
            rows[[a, b]] = rows[[b, a]]

    def row(self, i: int) -> int:
        """Row of the result of batch entry ``i``; negative ``i`` counts rows from the end.

        Raises CacheUsageError where there is no such row (llama.cpp gives null; a debug build aborts).
        """
        row = self.n_outputs + i if i < 0 else self._row_of.get(i, -1)
        if row < 0:
            wanted = f"row {i} from the end" if i < 0 else f"the result of token {i}"
            raise CacheUsageError(
                f"{wanted} was asked for, but the last decode has {self.n_outputs} outputs"
                + (f", of tokens {', '.join(map(str, self.ids[:8]))}" if self.ids else "")
                + (" ..." if self.n_outputs > 8 else "")
                + "; llama.cpp returns null: flag the token as an output"
            )
        return row
