"""Pictures of a memory as arrays, and what changed from one picture to the next.

A recording tells the whole picture after every operation. Whoever shows or narrates it (the packer of
the app, ``kvsim.narrate``, ``kvsim show``) wants the cells as columns and the difference as cells.
A *lane* is one stream of one cache: its cells stand in one array with the columns of :data:`COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.trace import Header
from kvsim.trace.reuse import common_ends

Cells = NDArray[np.int32]

COLUMNS = ("owners", "pos", "shift", "tok", "x", "y")
"""Columns of a lane's cells. ``owners`` is an id of :class:`OwnerTable`; 0 means the cell is empty."""

OWNERS, POS, SHIFT, TOK, X, Y = range(len(COLUMNS))


class OwnerTable:
    """Sets of sequence ids as small numbers. Number 0 is "no owner"; sets are sorted tuples."""

    def __init__(self) -> None:
        self.sets: list[tuple[int, ...]] = [()]
        self._ids: dict[tuple[int, ...], int] = {(): 0}

    def id_of(self, seqs: Iterable[int]) -> int:
        """The number of this set, a new one if it was not seen before."""
        given = tuple(seqs)
        if given not in self._ids:
            key = tuple(sorted(given))
            if key not in self._ids:
                self._ids[key] = len(self.sets)
                self.sets.append(key)
            self._ids[given] = self._ids[key]
        return self._ids[given]

    def holding(self, seq: int) -> NDArray[np.bool_]:
        """For every number: does its set hold ``seq``?"""
        return np.fromiter((seq in owners for owners in self.sets), bool, len(self.sets))

    def counts(self) -> NDArray[np.int32]:
        """For every number: how many sequences its set has."""
        return np.fromiter((len(owners) for owners in self.sets), np.int32, len(self.sets))


@dataclass(frozen=True)
class LaneSpec:
    """Where a lane comes from: ``cache`` and ``stream``, and the window of the cache it belongs to."""

    cache: str
    stream: int
    n_stream: int
    size: int
    n_swa: int = 0
    swa_type: int = 0


@dataclass(frozen=True)
class Lane:
    """One stream of one cache at one moment."""

    spec: LaneSpec
    head: int
    used: int
    has_shift: bool
    cells: Cells

    @property
    def owners(self) -> Cells:
        return self.cells[:, OWNERS]

    @property
    def pos(self) -> Cells:
        return self.cells[:, POS]


@dataclass(frozen=True)
class Picture:
    """A whole memory at one moment: its lanes, the recurrent record, position ranges, the rest."""

    lanes: list[Lane]
    recurrent: dict[str, Any] | None
    pos: dict[str, list[int]]
    extra: dict[str, Any] = field(default_factory=dict)


class PictureReader:
    """Turns the ``after`` records of one recording into :class:`Picture`, sharing what did not change."""

    def __init__(self, header: Header) -> None:
        self.owners = OwnerTable()
        self.specs = lane_specs(header)
        self._last: list[tuple[list[Any], Lane] | None] = [None] * len(self.specs)

    def read(self, after: dict[str, Any]) -> Picture:
        """The picture of one ``after`` record.

        Raises KeyError, IndexError or ValueError where the record contradicts the header.
        """
        lanes = [self._lane(k, after["caches"][s.cache][s.stream]) for k, s in enumerate(self.specs)]
        extra = {k: v for k, v in after.items() if k not in ("caches", "recurrent", "pos")}
        return Picture(lanes, after.get("recurrent"), after["pos"], extra)

    def _lane(self, k: int, record: dict[str, Any]) -> Lane:
        spec, listed, last = self.specs[k], record["cells"], self._last[k]
        if last is not None and (last[0] is listed or last[0] == listed):
            cells = last[1].cells
        else:
            cells = self._cells(spec, listed, last)
        lane = Lane(spec, record["head"], record["used"], record["has_shift"], cells)
        self._last[k] = (listed, lane)
        return lane

    def _cells(self, spec: LaneSpec, listed: list[Any], last: tuple[list[Any], Lane] | None) -> Cells:
        """The listed cells as an array. What is equal at both ends of the list is not read again."""
        if last is None:
            cells = empty_cells(spec.size)
            changed = listed
        else:
            old, lane = last
            cells = lane.cells.copy()
            start, stop = common_ends(old, listed)
            for cell in old[start : len(old) - stop]:
                cells[cell[0]] = EMPTY_CELL
            changed = listed[start : len(listed) - stop]
        if changed:
            index = np.fromiter((cell[0] for cell in changed), np.int64, len(changed))
            if index.min() < 0 or index.max() >= spec.size:
                raise ValueError(
                    f"cell {int(index.max())} of {spec.cache} lies outside its {spec.size} cells"
                )
            id_of = self.owners.id_of
            cells[index] = [(id_of(c[2]) or id_of((-1,)), c[1], c[3], c[4], c[5], c[6]) for c in changed]
        return cells


EMPTY_CELL = np.array([0, -1, 0, -1, 0, 0], np.int32)
"""An empty cell in :data:`COLUMNS`."""


def empty_cells(n: int) -> Cells:
    """``n`` empty cells."""
    return np.tile(EMPTY_CELL, (n, 1))


def lane_specs(header: Header) -> list[LaneSpec]:
    """The lanes of a recording, in the order of its header: caches, and within them streams."""
    return [
        LaneSpec(name, stream, c["n_stream"], c["size"], c.get("n_swa", 0), c.get("swa_type", 0))
        for name, c in header.caches.items()
        for stream in range(c["n_stream"])
    ]


def changed_cells(before: Lane, after: Lane) -> NDArray[np.int64]:
    """Indices of the cells that differ, ascending."""
    if before.cells is after.cells:
        return np.empty(0, np.int64)
    values = np.flatnonzero(before.cells != after.cells)  # any(axis=1) would look at every cell by itself
    return np.unique(values // len(COLUMNS))


def masked_swa(swa_type: int, n_swa: int, key: Cells, query: Cells) -> NDArray[np.bool_]:
    """Whether a query no longer sees a key, both as positions (``src/llama-hparams.h: is_masked_swa``)."""
    if swa_type == 1:
        return query - key >= n_swa
    if swa_type == 2:
        return key < query // n_swa * n_swa
    if swa_type == 3:
        return abs(query - key) > n_swa // 2
    return np.zeros(key.shape, bool)


def reusable_cells(lane: Lane, owners: OwnerTable) -> NDArray[np.bool_]:
    """Which cells a slot search may take although they are held: one owner, out of its window."""
    spec = lane.spec
    result = np.zeros(spec.size, bool)
    if spec.swa_type == 0:
        return result
    for owner in np.unique(lane.owners):
        seqs = owners.sets[owner]
        if len(seqs) != 1:
            continue
        held = lane.pos[owners.holding(seqs[0])[lane.owners]]
        mine = lane.owners == owner
        result[mine] = masked_swa(spec.swa_type, spec.n_swa, lane.pos[mine], held.max() + 1)
    return result


def runs(values: Sequence[int] | NDArray[Any]) -> list[tuple[int, int]]:
    """Ascending or not, the maximal runs ``(first, last)`` of consecutive values, in the order given."""
    array = np.asarray(values)
    if array.size == 0:
        return []
    cuts = np.flatnonzero(np.diff(array) != 1) + 1
    edges = [0, *cuts.tolist(), array.size]
    return [(int(array[a]), int(array[b - 1])) for a, b in pairwise(edges)]


def largest_hole(free: NDArray[np.bool_]) -> tuple[int, int]:
    """Length and start of the longest run of True; (0, 0) if there is none."""
    best = max(runs(np.flatnonzero(free)), key=lambda run: (run[1] - run[0], -run[0]), default=None)
    return (0, 0) if best is None else (best[1] - best[0] + 1, best[0])
