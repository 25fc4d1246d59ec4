"""Bringing an empty memory to what a picture shows, so that a recording can begin in the middle.

A picture has all that decides where the next tokens go: cells with their owners, heads, states. It has no rows,
and no extra content of cells that are empty, which nobody can see either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from kvsim.caches.kv import KVCache
from kvsim.caches.recurrent import RecurrentMemory
from kvsim.caches.recurrent_cells import StateCells
from kvsim.cells import CellTable
from kvsim.errors import TraceError
from kvsim.memory import Memory


def take_up(memory: Memory, picture: Mapping[str, Any]) -> None:
    """Make ``memory``, which is empty, hold what ``picture`` (the trace format's ``after``) shows.

    Raises TraceError if that cannot be: other kinds of memory than attention caches and recurrent states, or a
    picture that no such memory gives.
    """
    for name, leaf in memory.leaves().items():
        if type(leaf) is KVCache:
            for stream, record in enumerate(picture["caches"][name]):
                _fill(leaf.cells[stream], record["cells"])
                leaf.heads[stream] = record["head"]
        elif type(leaf) is RecurrentMemory:
            _fill_states(leaf, picture["recurrent"])
        else:
            raise TraceError(
                f"a {memory.kind} memory cannot begin in the middle: {name} keeps more than a picture"
            )
    if json.loads(json.dumps(memory.snapshot().to_json())) != picture:
        raise TraceError(f"operation 0 shows what no {memory.kind} memory of these sizes can hold")


def _fill(table: CellTable, rows: list[list[Any]]) -> None:
    if not rows:
        return
    cells, pos, owners, shift, tok, x, y = zip(*rows, strict=True)
    at = np.array(cells, np.int32)
    table.place(at, np.array(pos, np.int32), owners)
    table.set_ext(at, np.array(tok, np.int32), np.array(x, np.int32), np.array(y, np.int32))
    table.shift[at] = shift
    table.has_shift = any(shift)


def _fill_states(memory: RecurrentMemory, record: Mapping[str, Any]) -> None:
    cells = StateCells(memory.size)
    for i, pos, src, src0, tail, owners in record["cells"]:
        cells.pos[i], cells.src[i], cells.src0[i], cells.tail[i] = pos, src, src0, tail
        cells.owners[i] = sum(1 << s for s in owners)
    cells.head, cells.used = record["head"], record["used"]
    memory.cells = cells
    memory.n, memory.rs_z, memory.rs_idx = record["n"], record["rs_z"], list(record["rs_idx"])
