"""The rows of a decode as the recording places them: which token of which sequence went to which cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.changes import OwnerTable
from kvsim.trace import Step

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Placement:
    """One ubatch: for each row its owners (an id of the table), position and token; per lane the cells.

    ``cells`` maps (cache, stream) to ``(rows, cells)``, both in row order.
    """

    owners: Ints
    pos: Ints
    tok: Ints
    cells: dict[tuple[str, int], tuple[Ints, Ints]]
    n_kv: dict[str, int]
    ok: bool

    @property
    def n_tokens(self) -> int:
        return int(self.owners.size)


def placements(step: Step, owners: OwnerTable) -> list[Placement]:
    """The ubatches of a decode line, in order."""
    args = step.args
    seqs, pos, tokens = args.get("seq") or [], args.get("pos") or [], args.get("tokens")
    return [_placement(ubatch, seqs, pos, tokens, owners) for ubatch in step.ubatches or []]


def _placement(
    ubatch: dict[str, Any],
    seqs: list[list[int]],
    pos: list[int],
    tokens: list[int] | None,
    owners: OwnerTable,
) -> Placement:
    idx = ubatch["idx"]
    cells: dict[tuple[str, int], tuple[Ints, Ints]] = {}
    n_kv: dict[str, int] = {}
    for cache, slot in (ubatch.get("slots") or {}).items():
        if not isinstance(slot, dict) or "idxs" not in slot or cache.endswith(".read"):
            continue
        if "n_kv" in slot:
            n_kv[cache] = slot["n_kv"]
        # Shared tokens of a memory with a stream per sequence are placed once in each stream.
        repeated = sum(map(len, slot["idxs"])) > len(idx)
        row = 0
        for stream, part in zip(slot["strm"], slot["idxs"], strict=True):
            rows = np.arange(row, row + len(part))
            row += 0 if repeated else len(part)
            if (cache, stream) in cells:
                old_rows, old_cells = cells[cache, stream]
                rows, part = np.concatenate([old_rows, rows]), np.concatenate([old_cells, part])
            cells[cache, stream] = (rows, np.asarray(part, np.int64))
    return Placement(
        owners=np.fromiter((owners.id_of(seqs[i]) for i in idx), np.int64, len(idx)),
        pos=np.fromiter((pos[i] for i in idx), np.int64, len(idx)),
        tok=np.fromiter((tokens[i] if tokens else -1 for i in idx), np.int64, len(idx)),
        cells=cells,
        n_kv=n_kv,
        ok=ubatch.get("ok", True),
    )
