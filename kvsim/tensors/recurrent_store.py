"""The state rows of a recurrent memory, and what the graph does with them
(``src/llama-graph.cpp: build_rs``).

Per layer up to three tensors of float32 rows: ``r`` (convolution or token-shift history), ``s`` (the state)
and ``p`` (n-gram convolution history). Rows come in planes of ``size``: plane 0 holds the current states,
plane d those of d tokens ago. Row ``d * size + c`` belongs to cell c.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]
PARTS = ("r", "s", "p")
LayerWidths = tuple[int, int, int]
"""Row widths of ``r``, ``s``, ``p``; all 0 for a layer without a state."""


class RecurrentStore:
    """``rows[part][il]`` is ``float32[(1 + n_rs_seq) * size, width]`` for every layer that keeps a state.

    Such a layer has ``r`` and ``s`` even where one width is 0, and ``p`` only where its width is not.
    """

    def __init__(self, size: int, n_rs_seq: int, layers: Sequence[LayerWidths]) -> None:
        self.size = size
        n_rows = (1 + n_rs_seq) * size
        kept = [
            (il, dict(zip(PARTS, widths, strict=True))) for il, widths in enumerate(layers) if any(widths)
        ]
        self.rows: dict[str, dict[int, Rows]] = {
            part: {
                il: np.zeros((n_rows, widths[part]), np.float32)
                for il, widths in kept
                if part != "p" or widths["p"]
            }
            for part in PARTS
        }

    def zero(self) -> None:
        """Zero all rows of all planes."""
        for layers in self.rows.values():
            for rows in layers.values():
                rows[:] = 0

    def zero_cells(self, first: int, count: int) -> None:
        """Zero the current states of ``count`` cells."""
        for layers in self.rows.values():
            for rows in layers.values():
                rows[first : first + count] = 0

    def read(self, part: str, il: int, rows: Sequence[int]) -> bytes:
        """Bytes of some rows, in that order."""
        return self.rows[part][il][list(rows)].astype("<f4").tobytes()

    def write(self, part: str, il: int, first: int, data: bytes) -> None:
        """Set consecutive rows from bytes."""
        rows = self.rows[part][il]
        values = np.frombuffer(data, "<f4").reshape(-1, rows.shape[1])
        rows[first : first + len(values)] = values

    def initial_states(
        self, part: str, il: int, head: int, rs_z: int, s_copy: Sequence[int], n_seqs: int
    ) -> Rows:
        """Bring the rows of a ubatch together; returns the states it starts from, ``float32[n_seqs, width]``.

        Row ``rs_z`` is multiplied by 0, so a NaN in it stays. Rows ``s_copy`` are then read, all before
        any is written: the first ``n_seqs`` are returned, the others go to the rows behind the ubatch's.
        """
        rows = self.rows[part][il]
        if rs_z >= 0:
            with np.errstate(invalid="ignore"):
                rows[rs_z] *= 0
        gathered: Rows = rows[list(s_copy)]
        rows[head + n_seqs : head + len(s_copy)] = gathered[n_seqs:]
        return gathered[:n_seqs]

    def write_states(self, part: str, il: int, head: int, planes: Rows) -> None:
        """Store the new states: ``planes`` is ``float32[n_planes, n_seqs, width]``, plane d after all but the
        last d tokens. Planes that are not given keep what they held."""
        rows = self.rows[part][il]
        for d, states in enumerate(planes):
            first = d * self.size + head
            rows[first : first + len(states)] = states
