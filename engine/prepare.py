"""Looking for slots on the device: all ubatches of all caches of a batch, then one read-back.

A later ubatch is searched on top of the earlier ones, so each is placed on trial and all are undone at the
end. Where one finds no room, the device goes on without knowing; ``ok`` keeps the rest from changing
anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from engine.cells import POS
from engine.sync import read_back
from kvsim.batch import Ubatch
from kvsim.memory import Leaf, PrepareFailure
from kvsim.models.params import SwaType

if TYPE_CHECKING:
    from engine.kv import DeviceSlot, KVCache


def prepare_all(
    leaves: Sequence[Leaf], ubatches: Sequence[Ubatch]
) -> list[list[Any]] | PrepareFailure | None:
    """Slots of every leaf, or why the first one refused. A leaf after that one has changed nothing."""
    searches: list[Any] = []
    ok = None
    for leaf in leaves:
        search = leaf.begin_prepare(ubatches, ok)  # type: ignore[attr-defined]
        searches.append(search)
        ok = search.ok
    asked = [search.asked() for search in searches]
    answer = read_back(torch.cat(asked))
    ends = np.cumsum([len(part) for part in asked])[:-1]
    found = []
    for leaf, search, values in zip(leaves, searches, np.split(answer, ends), strict=True):
        slots = search.finish(values)
        if slots is None:
            return leaf.last_failure
        found.append(slots)
    return found


Undo = tuple[Tensor, Any, Tensor, Tensor, Any]
"""Of a trial: its cells, what they held, the heads, whether it found room, the traces of position -1."""


class SlotSearch:
    """The search of one cache for one batch. ``ok`` is false on the device if an earlier cache has
    refused."""

    def __init__(
        self, cache: KVCache, ubatches: Sequence[Ubatch], ok: Tensor | None, place: bool = True
    ) -> None:
        self.cache, self.table = cache, cache.table
        for ubatch in ubatches:
            cache.know(ubatch)
        self.rows = [cache.rows_of(ubatch) for ubatch in ubatches]
        self.strm = [
            tuple(map(cache.stream_of, ub.seq_id_unq[: row.n_parts]))
            for ub, row in zip(ubatches, self.rows, strict=True)
        ]
        # alone and into empty cells, a ubatch changes nothing that a trial would have to undo
        self.trial = place and (cache.windowed or len(ubatches) > 1 or self.table.minus_one is not None)
        self.ok = self.table.true if ok is None else ok
        self.flat: list[Tensor] = []
        self._asked: list[dict[str, Tensor]] = []
        self._ids: list[int] = []
        undo: list[Undo] = []
        high = cache.high
        for row, strm in zip(self.rows, self.strm, strict=True):
            n = row.ubatch.n_tokens // row.n_parts
            high = min(cache.size, high + n)
            flat, asked = self._search(strm, n, high)
            self.flat.append(flat)
            if self.trial:
                saved, heads = self.table.take(flat), self.table.heads.clone()
                traces = self.table.minus_one and self.table.minus_one.save()
                undo.append((flat, saved, heads, self.ok, traces))
                cache.write_cells(flat, row, strm, cache.windowed, self.ok, high)
            elif place:
                undo.append(
                    (
                        flat,
                        None,
                        self.table.heads.clone() if cache.n_stream > 1 else self.table.heads,
                        self.ok,
                        None,
                    )
                )
            if self.trial or not self._knows_top(strm):
                asked["used_max"] = self._used_max(strm, high, flat)
            self._asked.append(asked)
        if cache.windowed:
            self._ids = cache.all_ids()
            self._ends = self.table.extremes(self._ids, high).flatten()
        self._undo(undo)
        if self.trial and (cache.windowed or self.table.minus_one is not None):
            cache.forget_ranges()  # what a trial purges stays purged, and position -1 leaves traces
        if cache.n_stream > 1:
            cache.high = high  # a head that was put back may be another stream's, of a trial
        if cache.windowed and len(ubatches) > 1:
            self._place_once_more(high)

    # -- on the device -------------------------------------------------------------------------

    def _search(self, strm: tuple[int, ...], n: int, hi: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The next ``n`` cells from the head on, in each stream. No used cell is at or after ``hi``, and the
        cells before it are enough unless the cache is."""
        cache, table, where = self.cache, self.table, self.table.streams_at(strm)
        pos = table.planes[POS, where, :hi]
        usable = pos == -1
        if cache.windowed:
            usable = usable | self._passed(strm, where, pos)
        count = torch.cumsum(usable, 1, dtype=torch.int32)
        total = count[:, -1:]
        plain = not cache.windowed and table.minus_one is None
        used = hi - total if plain else table.used(where, hi).sum(1, keepdim=True)
        head = table.heads[where][:, None]
        head = torch.where((head > used + 2 * n) | (head >= cache.size), 0, head)
        before = count.gather(1, head) - usable.gather(1, head).to(torch.int32)
        rank = before + table.counting(n)
        rank = torch.where(rank > total, rank - total, rank)
        cells = torch.searchsorted(count, rank).clamp_(max=hi - 1)
        flat = cells if cache.n_stream == 1 else cells + table.streams[where][:, None] * cache.size
        asked = {"cells": cells}
        if self._may_fail(strm, n):
            found = total[:, 0] if hi == cache.size else total[:, 0] + n
            found = found.clamp(max=n) if n <= cache.size else torch.zeros_like(found)
            self.ok = self.ok & (found >= n).all()
            free = (pos == -1).sum(1)
            asked |= {
                "found": found,
                "usable": usable.sum(1),
                "free": free,
                "hole": _longest_run(usable),
                "used": used,
            }
        return flat.flatten(), asked

    def _passed(self, strm: tuple[int, ...], where: slice | Tensor, pos: Tensor) -> Tensor:
        """Cells of one owner alone that its window has passed, as seen from its next token."""
        spec, table, hi = self.cache.spec, self.table, pos.shape[1]
        ids = sorted({s for stream in strm for s in table.ids[stream]})
        if not ids:
            return torch.zeros_like(pos, dtype=torch.bool)
        query = table.extremes(ids, hi)[1] + 1
        if spec.swa_type is SwaType.STANDARD:
            start = query - (spec.n_swa - 1)
        elif spec.swa_type is SwaType.CHUNKED:
            start = query // spec.n_swa * spec.n_swa
        else:
            start = query - spec.n_swa // 2
        start_of = torch.full((ids[-1] + 2,), -(2**31), dtype=torch.int32, device=self.cache.device)
        for i, s in enumerate(ids):
            start_of[s] = start[i]
        owner = table.only_owner(where, hi)  # -1 is the last entry, of nobody
        return pos < start_of[owner]

    def _knows_top(self, strm: tuple[int, ...]) -> bool:
        """Whether the host knows the last used cell of these streams."""
        return all(self.cache.exact_top[s] for s in strm)

    def _used_max(self, strm: tuple[int, ...], hi: int, flat: Tensor) -> Tensor:
        """One past the last used cell of each stream, once this ubatch is placed."""
        used = self.table.used(self.table.streams_at(strm), hi)
        last = torch.where(used, self.table.index[:hi] + 1, 0).amax(1)
        if self.trial:
            return last
        return torch.maximum(last, (flat % self.cache.size).view(len(strm), -1).amax(1) + 1)

    def _undo(self, undo: list[Undo]) -> None:
        """Put everything back but what was purged outside of the slots, and the heads as llama.cpp does: the
        i-th stream of a ubatch gets the head of stream i."""
        table = self.table
        for (flat, saved, heads, ok, traces), strm in reversed(list(zip(undo, self.strm, strict=False))):
            if saved is not None:
                table.put_back(flat, saved)
                if table.minus_one is not None:
                    table.minus_one.undo_unless(ok, traces)
            elif strm == tuple(range(len(strm))):
                continue
            back = table.heads.clone()
            for local, stream in enumerate(strm):
                back[stream] = heads[local]
            table.heads.copy_(torch.where(ok, back, heads))

    def _place_once_more(self, hi: int) -> None:
        """With a window, what a later ubatch purged is gone when an earlier one is applied: only a second run
        knows the lengths their graphs will see."""
        table, heads, undo = self.table, self.table.heads.clone(), []
        traces = table.minus_one and table.minus_one.save()
        for row, strm, flat, asked in zip(self.rows, self.strm, self.flat, self._asked, strict=True):
            undo.append((flat, table.take(flat)))
            self.cache.write_cells(flat, row, strm, True, self.ok, hi)
            asked["used_max"] = self._used_max(strm, hi, flat)
        for flat, saved in reversed(undo):
            table.put_back(flat, saved)
        if table.minus_one is not None:
            table.minus_one.put_back(traces)
        table.heads.copy_(heads)

    def _may_fail(self, strm: tuple[int, ...], n: int) -> bool:
        """Whether the host cannot rule out that there are too few empty cells."""
        asked: dict[int, int] = {}
        for earlier in range(len(self.flat) + 1):
            rows = self.rows[earlier]
            for stream in self.strm[earlier]:
                asked[stream] = asked.get(stream, 0) + rows.ubatch.n_tokens // rows.n_parts
        return any(asked[stream] > self.cache.free[stream] for stream in strm)

    # -- on the host ---------------------------------------------------------------------------

    def asked(self) -> Tensor:
        """Everything the host must know, as one tensor."""
        parts = [part.flatten() for asked in self._asked for part in asked.values()]
        if self.cache.windowed:
            parts.append(self._ends)
        return torch.cat([part.to(torch.int64) for part in parts]) if len(parts) > 1 else parts[0]

    def finish(self, values: np.ndarray) -> list[DeviceSlot] | None:
        """The slots, or None with the cache's ``last_failure`` set."""
        from engine.kv import DeviceSlot

        cache, at = self.cache, 0
        slots: list[DeviceSlot] = []
        for i, (row, strm, flat) in enumerate(zip(self.rows, self.strm, self.flat, strict=True)):
            told = {}
            for name, part in self._asked[i].items():
                told[name] = values[at : at + part.numel()].reshape(len(strm), -1)
                at += part.numel()
            n = row.ubatch.n_tokens // len(strm)
            if "found" in told:
                if (told["found"] < n).any():
                    cache.last_failure = self._failure(i, n, told)
                    return None
                if i == 0:
                    for stream, used in zip(strm, told["used"][:, 0].tolist(), strict=True):
                        cache.free[stream] = cache.size - used
            cells = told["cells"].astype(np.int32)
            slots.append(
                DeviceSlot(
                    strm, tuple(cells), cache=cache, flat=flat, rows=row, used_max=self._lengths(i, told)
                )
            )
        if cache.windowed and self.trial:
            object.__setattr__(slots[-1], "ends", (self._ids, values[at:].reshape(2, -1)))
        return slots

    def _lengths(self, i: int, told: dict[str, np.ndarray]) -> tuple[int, ...] | None:
        """Per stream one past the last used cell; None where a placement that was not tried may purge."""
        if self.cache.windowed and not self.trial:
            return None
        if "used_max" in told:
            return tuple(told["used_max"][:, 0].tolist())
        ends = told["cells"].max(1).tolist()
        return tuple(max(self.table.top[s], end + 1) for s, end in zip(self.strm[i], ends, strict=True))

    def _failure(self, i: int, n: int, told: dict[str, np.ndarray]) -> PrepareFailure:
        """The four numbers of the first stream of ubatch ``i`` that has no room."""
        part = int(np.argmax(told["found"][:, 0] < n))
        found, usable, free, hole = (int(told[name][part, 0]) for name in ("found", "usable", "free", "hole"))
        stream = self.strm[i][part]
        return PrepareFailure(
            self.cache.name, stream, i, n, free, usable - free, hole, found, n_ubatches=len(self.rows)
        )


def _longest_run(flags: Tensor) -> Tensor:
    """Length of the longest run of true values of each row."""
    index = torch.arange(flags.shape[1], device=flags.device)
    last_false = torch.where(flags, -1, index).cummax(1).values
    return (index - last_false).amax(1)
