"""The state rows of a recurrent memory on a device, and what a graph does with them (``build_rs``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.sync import read_back, upload

PARTS = ("r", "s", "p")


class RecurrentStore:
    """``rows[part][il]`` is ``float32[(1 + n_rs_seq) * size, width]`` of every layer that keeps a state: row
    ``d * size + c`` is the state of cell c, d tokens ago."""

    def __init__(
        self, size: int, n_rs_seq: int, layers: Sequence[tuple[int, int, int]], device: torch.device
    ) -> None:
        self.size, self.device = size, device
        self.rows: dict[str, dict[int, Tensor]] = {part: {} for part in PARTS}
        for il, widths in enumerate(layers):
            for part, width in zip(PARTS, widths, strict=True):
                if any(widths) and (part != "p" or width):
                    self.rows[part][il] = torch.zeros(
                        (1 + n_rs_seq) * size, width, dtype=torch.float32, device=device
                    )

    def zero(self) -> None:
        self.zero_cells(0, None)

    def zero_cells(self, first: int, count: int | None) -> None:
        """Zero the current states of ``count`` cells (None: every row)."""
        end = None if count is None else first + count
        for layers in self.rows.values():
            for rows in layers.values():
                rows[first:end] = 0

    def read(self, part: str, il: int, rows: Sequence[int]) -> bytes:
        """Bytes of some rows, in that order."""
        return read_back(self.rows[part][il].index_select(0, upload(rows, self.device))).tobytes()

    def write(self, part: str, il: int, first: int, data: bytes) -> None:
        """Set consecutive rows from bytes."""
        rows = self.rows[part][il]
        values = np.frombuffer(data, "<f4").reshape(-1, rows.shape[1])
        rows[first : first + len(values)] = upload(values, self.device, torch.float32)

    def initial_states(self, part: str, il: int, head: int, rs_z: int, s_copy: Tensor, n_seqs: int) -> Tensor:
        """Bring the rows of a ubatch together; returns the states it starts from, ``float32[n_seqs, width]``.

        Row ``rs_z`` is multiplied by 0 (a NaN stays). Rows ``s_copy`` are read before any is written: the
        first ``n_seqs`` are returned, the others go behind the ubatch's.
        """
        rows = self.rows[part][il]
        if rs_z >= 0:
            rows[rs_z] *= 0
        gathered = rows.index_select(0, s_copy)
        rows[head + n_seqs : head + len(s_copy)] = gathered[n_seqs:]
        return gathered[:n_seqs]

    def write_states(self, part: str, il: int, head: int, planes: Tensor) -> None:
        """Store new states ``float32[n_planes, n_seqs, width]``, plane d after all but the last d tokens."""
        n_planes, n_seqs = planes.shape[:2]
        rows = self.rows[part][il].unflatten(0, (-1, self.size))
        rows[:n_planes, head : head + n_seqs] = planes
