"""The cells of a cache on the host: for pictures, observers and proofs, never for a decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.cells import POS
from engine.sync import read_back
from kvsim.cells import CellTable
from kvsim.errors import IntegrityError

if TYPE_CHECKING:
    from engine.kv import KVCache


def owners_of(words: np.ndarray) -> list[list[int]]:
    """The owners of cells ``int32[W, n]``, ascending."""
    raw = np.ascontiguousarray(words.T).view(np.uint8).reshape(words.shape[1], words.itemsize * len(words))
    bits = np.unpackbits(raw, axis=1, bitorder="little")
    known: dict[bytes, list[int]] = {}
    out = []
    for row, key in zip(bits, map(bytes, raw), strict=True):
        if key not in known:
            known[key] = np.flatnonzero(row).tolist()
        out.append(known[key])
    return out


def host_tables(cache: KVCache) -> list[CellTable]:
    """One table per stream with the cells of ``cache``; later changes of it do not show."""
    planes, seq = read_back(cache.table.planes), read_back(cache.table.seq)
    tables = []
    for stream in range(cache.n_stream):
        table = CellTable(cache.size)
        pos, tok, x, y, kept, shift = planes[:, stream]
        at = np.flatnonzero((pos != -1) | (seq[:, stream] != 0).any(0)).astype(np.int32)
        if len(at):
            table.place(at, pos[at], owners_of(seq[:, stream, at]))
        every = np.arange(cache.size, dtype=np.int32)
        readable = (pos != -1) | (kept != 0)
        table.set_ext(every, np.where(readable, tok, -1), np.where(readable, x, 0), np.where(readable, y, 0))
        table.shift[at] = shift[at]
        table.has_shift = bool(table.shift.any())
        tables.append(table)
    return tables


def check_integrity(cache: KVCache) -> None:
    """Raise IntegrityError if the tensors contradict each other or what the host keeps beside them."""
    table = cache.table
    planes, seq, heads = read_back(table.planes), read_back(table.seq), read_back(table.heads)
    known = {s: ends for s, ends in cache._ranges.items() if ends != (-1, -1)}
    for stream in range(cache.n_stream):
        where = f"cache {cache.name!r}, stream {stream}"
        pos = planes[POS, stream]
        live = pos != -1
        last = int(np.flatnonzero(live)[-1]) + 1 if live.any() else 0
        if not 0 <= int(heads[stream]) <= cache.size:
            raise IntegrityError(f"{where}: head {int(heads[stream])} is outside")
        if last > table.top[stream]:
            raise IntegrityError(
                f"{where}: cell {last - 1} is used, the host believes none from {table.top[stream]} on is"
            )
        if cache.exact_top[stream] and table.minus_one is None and last != table.top[stream]:
            raise IntegrityError(
                f"{where}: the last used cell is {last - 1}, the host believes {table.top[stream] - 1}"
            )
        if table.minus_one is not None:
            continue
        owned = (seq[:, stream] != 0).any(0)
        if (owned & ~live).any():
            raise IntegrityError(f"{where}: empty cells {np.flatnonzero(owned & ~live).tolist()} have owners")
        owners = owners_of(seq[:, stream, live])
        strange = {s for ids in owners for s in ids} - table.ids[stream]
        if strange:
            raise IntegrityError(f"{where}: the host knows nothing of sequences {sorted(strange)}")
        for s, ends in known.items():
            if cache.stream_of(s) != stream:
                continue
            held = [p for p, ids in zip(pos[live].tolist(), owners, strict=True) if s in ids]
            if ends != ((min(held), max(held)) if held else (-1, -1)):
                raise IntegrityError(
                    f"{where}: sequence {s} is believed to be at {ends}, its cells say otherwise"
                )
