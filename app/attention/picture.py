"""One block's attention in one ubatch, packed for the browser: rows, cells, masks, weights."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.attention.walk import Moment, Seen
from kvsim.caches.kv_view import ranges
from kvsim.changes import OwnerTable
from kvsim.models.params import ModelParams
from kvsim.narrate import placements
from kvsim.trace import Header

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Place:
    """What can be looked at in a decode: ubatch, block and stream."""

    ubatch: int
    il: int
    stream: int


def places(moment: Moment) -> list[Place]:
    """All of them, in order."""
    found = {Place(s.ubatch, s.read.il, s.read.stream): None for s in moment.seen}
    return sorted(found, key=lambda p: (p.ubatch, p.il, p.stream))


def selective(moment: Moment) -> set[int]:
    """Blocks that choose among blocks of positions, or read compressed rows: the ones worth a look first."""
    return {s.read.il for s in moment.seen if s.read.mask.ndim == 3 or s.read.compressed}


def pack(
    header: Header, model: ModelParams, moment: Moment, place: Place, head: int | None
) -> dict[str, Any]:
    """What the page draws for one place; ``head`` None: the mean of all heads' weights."""
    seen = next(s for s in moment.seen if Place(s.ubatch, s.read.il, s.read.stream) == place)
    read, owners = seen.read, OwnerTable()
    placed = placements(moment.step, owners)[place.ubatch]
    picked = np.arange(placed.n_tokens)[read.rows]
    written = np.full(placed.n_tokens, -1)
    rows, cells = placed.cells.get((read.cache, place.stream), ([], []))
    written[rows] = cells
    final = read.mask if read.mask.ndim == 3 else read.mask[None]
    mask = _mask(moment, seen, picked, final)
    weights = read.weights()
    shown = weights.mean(axis=0) if head is None else weights[head]
    columns = (placed.pos, placed.owners, placed.tok, written)
    return {
        "cache": read.cache,
        "stream": place.stream,
        "n_cells": read.n_cells,
        "window": seen.n_swa,
        "rows": np.stack(columns, axis=1)[picked].tolist(),
        "pos": seen.pos.tolist(),
        "owner": [owners.id_of(seqs) for seqs in seen.owners],
        "owners": [list(ids) for ids in owners.sets],
        "mask": [ranges(row) for row in mask],
        "weights": base64.b64encode(shown.astype("<f4").tobytes()).decode(),
        "chosen": _chosen(final, mask, head),
        "block": model.indexer_block_size if final.shape[0] > 1 else 0,
        "compressed": _compressed(header, read.compressed, final[0], read.n_cells),
    }


def _mask(moment: Moment, seen: Seen, picked: NDArray[Any], final: Bools) -> Bools:
    """What each row may see by position, before an indexer has its say."""
    record = (moment.step.ubatches or [])[seen.ubatch].get("mask") or {}
    listed = record.get(seen.read.cache)
    if listed is None:
        return final[0][:, : seen.read.n_cells]
    mask = np.zeros((len(picked), seen.read.n_cells), np.bool_)
    for row, r in enumerate(picked):
        edges = listed[r]
        for a, b in zip(edges[::2], edges[1::2], strict=True):
            mask[row, a:b] = True
    return mask


def _chosen(final: Bools, mask: Bools, head: int | None) -> list[list[int]] | None:
    """The cells an indexer left of the mask; None if it left all. Of several heads, what any one reads."""
    left = final.any(axis=0) if head is None or len(final) == 1 else final[head]
    left = left[:, : mask.shape[1]]
    return None if (left == mask).all() else [ranges(row) for row in left]


def _compressed(header: Header, kind: str | None, final: Bools, n_cells: int) -> dict[str, Any] | None:
    """The compressed rows behind the cells: how many tokens each stands for, and which each row reads."""
    if kind is None:
        return None
    shape = header.config["dsv4"][kind]
    ratio = shape["ratio"]
    reads = [ranges(row) for row in final[:, n_cells:]]
    return {"kind": kind, "ratio": ratio, "overlap": shape["state_size"] > ratio, "reads": reads}
