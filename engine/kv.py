"""The attention KV cache on a device: cells, heads and rows are tensors, the host keeps what it knows anyway.

A batch is placed in two phases, as in kvsim. ``prepare`` enqueues the search for all ubatches, one on top of
the other, undoes it, and then reads back one tensor with everything the host needs: cells found, lengths,
ranges. Applying a prepared ubatch tells the device what to do and asks nothing::

    prepare   search, place, search, place, undo, undo          one read-back
    apply     place                                             none
    inputs    indices, mask, views                              none

The search is a prefix sum: the j-th free cell from the head on is where the running count of free cells
reaches the count at the head plus j, counted around the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine import kv_state
from engine.cells import POS, Cells
from engine.defrag import StreamMoves, defragment, plan_update
from engine.kv_view import KVView
from engine.picture import check_integrity, host_tables, owners_of
from engine.pool_layout import PoolLayout
from engine.prepare import SlotSearch, prepare_all
from engine.rows import Rows
from engine.sync import read_back, upload
from kvsim.batch import Ubatch
from kvsim.caches.attention_leaf import AttentionLeaf, Mirror
from kvsim.defrag import DefragReport
from kvsim.memory import (
    Leaf,
    PrepareFailure,
    SlotInfo,
    check_delta,
    position_range,
)
from kvsim.models.cache_spec import CacheSpec
from kvsim.models.params import RopeType, SwaType
from kvsim.state import StateReader, StateWriter


@dataclass(frozen=True)
class DeviceSlot(SlotInfo):
    """A slot of ``cache`` whose cells are on the device too: ``flat`` is ``stream * size + cell`` of each
    token.

    ``used_max``: per stream, one past the last used cell once it was placed (None: ask the device). ``ends``:
    the first and last positions of sequences after that, where the search has found them out.
    """

    cache: KVCache = field(repr=False, compare=False, kw_only=True)
    flat: Tensor = field(repr=False, compare=False, kw_only=True)
    rows: Rows = field(repr=False, compare=False, kw_only=True)
    used_max: tuple[int, ...] | None = field(default=None, compare=False, kw_only=True)
    ends: tuple[list[int], np.ndarray] | None = field(default=None, repr=False, compare=False, kw_only=True)

    def part(self, i: int) -> DeviceSlot:
        n = len(self.idxs[i])
        return replace(
            self, strm=(self.strm[i],), idxs=(self.idxs[i],), flat=self.flat[i * n : (i + 1) * n],
            used_max=None if self.used_max is None else (self.used_max[i],), ends=None,
        )  # fmt: skip


class KVCache(AttentionLeaf):
    """Cells for keys and values: unified (one stream) or one stream per sequence.

    Same meaning as :class:`kvsim.caches.kv.KVCache`, which says what each operation does. ``store`` holds the
    rows, None when only the metadata is kept.
    """

    kind = "kv"

    def __init__(
        self, spec: CacheSpec, name: str = "kv", store: Any = None, device: torch.device | str = "cpu"
    ) -> None:
        self.spec = spec
        self.name = name
        self.store = store
        self.n_seq_max = spec.n_seq_max
        self.device = torch.device(device)
        self.table = Cells(spec.n_stream, spec.size, self.device)
        self.pending_copies: list[tuple[int, int]] = []
        self.has_mask = True
        self.together: tuple[AttentionLeaf, ...] = (self,)
        self.last_defrag: tuple[DefragReport, ...] = ()
        self.history = 0
        self._ranges: dict[int, tuple[int, int]] = dict.fromkeys(range(self.known_ids()), (-1, -1))
        self.exact_top = [True] * spec.n_stream  # whether the table's bounds are exact
        self.high = 0  # no cell from here on was used since the last clear, and no head is beyond
        self.free = [spec.size] * spec.n_stream  # at least so many cells are empty

    # -- what does not need the device ---------------------------------------------------------

    @property
    def windowed(self) -> bool:
        """Whether cells that still hold tokens may be taken."""
        return self.spec.swa_type is not SwaType.NONE

    def _changed(self, *what: Any) -> None:
        """An operation on sequences. Two caches with one history hold equal cells; what the host knew of
        ranges and of the last used cell is void."""
        self.history = hash((self.history, *what))
        self.forget_ranges()

    def forget_ranges(self) -> None:
        self._ranges = {}
        self.exact_top = [False] * self.n_stream

    # -- placing -------------------------------------------------------------------------------

    @staticmethod
    def prepare_all(
        leaves: Sequence[Leaf], ubatches: Sequence[Ubatch]
    ) -> list[list[Any]] | PrepareFailure | None:
        """Prepare several leaves with one read-back."""
        return prepare_all(leaves, ubatches)

    def prepare(self, ubatches: Sequence[Ubatch]) -> list[DeviceSlot] | None:
        found = prepare_all([self], ubatches)
        return found[0] if isinstance(found, list) else None

    def begin_prepare(self, ubatches: Sequence[Ubatch], ok: Tensor | None) -> SlotSearch:
        return SlotSearch(self, ubatches, ok)

    def find_slot(self, ubatch: Ubatch) -> DeviceSlot | None:
        """Cells for every token of one ubatch, placed nowhere. One read-back."""
        search = SlotSearch(self, [ubatch], None, place=False)
        slots = search.finish(read_back(search.asked()))
        return slots[0] if slots is not None else None

    def know(self, ubatch: Ubatch) -> None:
        """Tokens of these sequences are about to come."""
        for s in ubatch.seq_id_unq:
            self.table.know(self.stream_of(s), {s})
        self.table.highest = max(self.table.highest, int(ubatch.pos0.max(initial=0)))
        if int(ubatch.pos0.min(initial=0)) < 0:
            self.table.watch_minus_one()

    def rows_of(self, ubatch: Ubatch) -> Rows:
        """Upload a ubatch."""
        n_parts = 1 if self.n_stream == 1 else ubatch.n_seqs_unq
        return Rows.of(ubatch, n_parts, self.table.n_words, self.spec.embd_token, self.device)

    def slot_on_device(self, slot: SlotInfo, ubatch: Ubatch) -> DeviceSlot:
        """A slot that came from elsewhere, for this cache's tables."""
        self.know(ubatch)
        parts = zip(slot.strm, slot.idxs, strict=True)
        flat = np.concatenate([np.int64(stream * self.size) + part for stream, part in parts])
        rows = replace(self.rows_of(ubatch), n_parts=len(slot.strm))
        return DeviceSlot(slot.strm, slot.idxs, cache=self, flat=upload(flat, self.device), rows=rows)

    def apply_ubatch(self, slot: SlotInfo, ubatch: Ubatch) -> KVView:
        """Place a ubatch and return what its graph sees."""
        self.know(ubatch)
        self.note_applied(slot, ubatch)
        if isinstance(slot, DeviceSlot) and (slot.cache is self or slot.cache.history == self.history):
            placed = (
                slot if slot.rows.n_words == self.table.n_words else replace(slot, rows=self.rows_of(ubatch))
            )
            self.place(placed, may_evict=self.windowed)
        else:  # cells that another cache found empty may be taken in this one
            placed = self.slot_on_device(slot, ubatch)
            self.place(placed, may_evict=True)
        return self.view(placed, ubatch)

    def note_applied(self, slot: SlotInfo, ubatch: Ubatch) -> None:
        """Two caches in which the same ubatches were placed hold equal cells."""
        self.history = hash((self.history, ubatch.pos.tobytes(), ubatch.seq_ids, slot.strm))

    def view(self, slot: SlotInfo, ubatch: Ubatch) -> KVView:
        return KVView(self, self.known_slot(slot, ubatch), ubatch)

    def known_slot(self, slot: SlotInfo, ubatch: Ubatch) -> DeviceSlot:
        """The slot of a ubatch that was placed here, be it found by another cache in step with this one."""
        if isinstance(slot, DeviceSlot) and (slot.cache is self or slot.cache.history == self.history):
            return slot
        return self.slot_on_device(slot, ubatch)

    def place(self, slot: DeviceSlot, may_evict: bool) -> None:
        """Write positions, ext and owners; purge so that sequences stay gapless; move the heads."""
        self.note_placed(slot, may_evict)
        self.write_cells(slot.flat, slot.rows, slot.strm, may_evict, hi=self.high)

    def note_placed(self, slot: DeviceSlot, may_evict: bool) -> None:
        """What the host remembers of a placement."""
        table = self.table
        for i, (stream, part) in enumerate(zip(slot.strm, slot.idxs, strict=True)):
            reach = max(table.top[stream], int(part.max(initial=-1)) + 1)
            table.top[stream] = reach if slot.used_max is None else slot.used_max[i]
            self.exact_top[stream] = slot.used_max is not None or (self.exact_top[stream] and not may_evict)
            self.high = max(self.high, reach)
            self.free[stream] = max(0, self.free[stream] - len(part))
        if slot.ends is not None:
            self.learn_ranges(*slot.ends)
        elif may_evict:
            self._ranges = {}
        else:
            self._extend_ranges(slot.rows.ubatch)

    def write_cells(
        self,
        flat: Tensor,
        rows: Rows,
        strm: Sequence[int],
        may_evict: bool,
        ok: Tensor | None = None,
        hi: int = 0,
    ) -> None:
        """What the device does to place tokens in cells before ``hi``. ``ok`` false: nothing is purged."""
        table = self.table
        if may_evict:
            ids = sorted({s for stream in strm for s in table.ids[stream]})
            lost = table.evict(flat, ids)
            reach = lost if ok is None else [torch.where(ok, top, -1) for top in lost]
        table.place(flat, rows.cells_int32, rows.words, self.writes_ext(rows.ubatch))
        if may_evict:
            for stream in strm:
                own = [i for i, s in enumerate(ids) if self.stream_of(s) == stream]
                table.purge(stream, [ids[i] for i in own], [reach[i] for i in own], hi)
        for part, stream in enumerate(strm):
            table.heads[stream] = flat[(part + 1) * (len(flat) // len(strm)) - 1] - (stream * self.size - 1)

    def writes_ext(self, ubatch: Ubatch) -> bool:
        """Whether placing this ubatch writes token ids and 2-D positions."""
        return ubatch.n_pos >= 3 or ubatch.tokens is not None or self.spec.ngram_token is not None

    def _extend_ranges(self, ubatch: Ubatch) -> None:
        """Tokens were added and nothing was lost: the host knows the new ranges from the old ones."""
        pos = ubatch.pos0
        for s in ubatch.seq_id_unq:
            if s in self._ranges:
                own = pos if len(ubatch.seq_id_unq) == 1 else pos[[s in ids for ids in ubatch.seq_ids]]
                lo, hi = self._ranges[s]
                first, last = int(own.min()), int(own.max())
                self._ranges[s] = (first, last) if (lo, hi) == (-1, -1) else (min(lo, first), max(hi, last))
        if self.table.minus_one is not None:
            self._ranges = {}

    def n_kv_of(self, slot: DeviceSlot) -> int:
        """Padded attention length: one value for all streams of a ubatch. Asks the device only about a slot
        that no search has found."""
        pad = max(self.spec.n_pad, 256)
        if slot.used_max is None:
            used = self.table.used(slice(None), self.size)
            last = read_back(torch.where(used, self.table.index + 1, 0).amax(1))
            used_max = max(int(last[stream]) for stream in slot.strm)
        else:
            used_max = max(slot.used_max)
        return min(self.size, max(pad, -(-used_max // pad) * pad))

    # -- preparing changes ---------------------------------------------------------------------

    @property
    def has_shift(self) -> bool:
        """Whether positions moved since the keys last turned. Asks the device only after an edit."""
        if not self.table.may_shift:
            return False
        self.table.may_shift = bool(read_back(self.table.has_shift.any()))
        return self.table.may_shift

    def take_update(self, optimize: bool = False) -> Callable[[], None] | None:
        moves = plan_update(self, optimize)
        copies, self.pending_copies = self.pending_copies, []
        shift = self.has_shift
        return partial(self._update, copies, shift, moves) if copies or shift or moves else None

    def plans_moves(self, optimize: bool) -> bool:
        return bool(plan_update(self, optimize))

    def _update(self, copies: Sequence[tuple[int, int]], shift: bool, moves: Sequence[StreamMoves]) -> None:
        """Copy whole streams, turn the keys, then move cells; positions were changed long before."""
        self._copy_and_shift(copies, shift)
        if moves:
            self._changed("moves", *((m.stream, m.src.tobytes(), m.dst.tobytes()) for m in moves))
            self.last_defrag = defragment(self, moves)

    def _copy_and_shift(self, copies: Sequence[tuple[int, int]], shift: bool) -> None:
        for src, dst in copies:
            if self.store is not None:
                self.store.copy_stream(src, dst)
        if not shift:
            return
        if self.spec.rope_type is not RopeType.NONE and self.store is not None:
            self.store.apply_shift(self.table.shifts())
        self.table.reset_shift()

    # -- sequence operations -------------------------------------------------------------------

    def clear(self, data: bool) -> None:
        self.table.clear()
        self._changed("clear")
        self._ranges = dict.fromkeys(range(self.known_ids()), (-1, -1))
        self.exact_top = [True] * self.n_stream
        self.high, self.free = 0, [self.size] * self.n_stream
        if data and self.store is not None:
            self.store.zero()

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        self.check_seq("seq_rm", seq, wildcard=True)
        p0, p1 = position_range(p0, p1)
        self._changed("rm", seq, p0, p1)
        if seq >= 0:
            self.table.seq_rm(self.stream_of(seq), seq, p0, p1)
        else:
            for stream in range(self.n_stream):
                self.table.rm_range(stream, p0, p1)
        return True

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        self.check_seq("seq_cp", src)
        self.check_seq("seq_cp", dst)
        if src == dst:
            return
        if self.stream_of(src) == self.stream_of(dst):
            self.table.seq_share(self.stream_of(src), src, dst, *position_range(p0, p1))
        else:
            self.check_full_copy(src, dst, p0, p1)
            self.pending_copies.append((self.stream_of(src), self.stream_of(dst)))
            self.table.copy_sequence(self.stream_of(src), self.stream_of(dst), src, dst)
            self.free[self.stream_of(dst)] = self.free[self.stream_of(src)]
        self._changed("cp", src, dst, p0, p1)

    def seq_keep(self, seq: int) -> None:
        self.check_seq("seq_keep", seq)
        self._changed("keep", seq)
        self.table.seq_keep(self.stream_of(seq), seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        self.check_editable("seq_add", seq)
        check_delta(delta)
        p0, p1 = position_range(p0, p1)
        if delta == 0 or p0 == p1:
            return
        self._changed("add", seq, p0, p1, delta)
        self.table.pos_add(self.stream_of(seq), seq, p0, p1, delta)

    def holds_in_range(self, seq: int, p0: int, p1: int) -> bool:
        stream = self.stream_of(seq)
        table, hi = self.table, self.table.reach(stream)
        pos = table.planes[POS, stream, :hi]
        return bool(read_back((table.has(stream, seq, hi) & (pos >= p0) & (pos < p1)).any()))

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        self.check_editable("seq_div", seq)
        self.check_divisor(seq, p0, p1, d)
        p0, p1 = position_range(p0, p1)
        if d in (0, 1) or p0 == p1:
            return
        self._changed("div", seq, p0, p1, d)
        self.table.pos_div(self.stream_of(seq), seq, p0, p1, d)

    def seq_pos_min(self, seq: int) -> int:
        return self._range("seq_pos_min", seq)[0]

    def seq_pos_max(self, seq: int) -> int:
        return self._range("seq_pos_max", seq)[1]

    def _range(self, op: str, seq: int) -> tuple[int, int]:
        """First and last position of ``seq``. Asks the device, for all sequences at once, only after an
        edit."""
        self.check_seq(op, seq)
        if seq not in self._ranges:
            ids = self.all_ids()
            self.learn_ranges(ids, read_back(self.table.extremes(ids, self.high)))
        return self._ranges[seq]

    def all_ids(self) -> list[int]:
        """Sequences that may have cells, ascending."""
        return sorted(set().union(*self.table.ids))

    def learn_ranges(self, ids: Sequence[int], ends: np.ndarray) -> None:
        """``ends int[2, n]`` are the first and last positions of ``ids``; other sequences have none."""
        self._ranges = dict.fromkeys(range(self.known_ids()), (-1, -1))
        self._ranges.update(zip(ids, zip(*ends.tolist(), strict=True), strict=True))

    # -- saved states, pictures, proof ---------------------------------------------------------

    def state_write(self, io: StateWriter, seq: int = -1, flags: int = 0) -> None:
        kv_state.write(self, io, seq)

    def state_read(self, io: StateReader, seq: int = -1, flags: int = 0) -> None:
        self.restore(io, seq)

    def restore(self, io: StateReader, seq: int, mirror: Mirror | None = None) -> Mirror:
        self._changed("restore", id(io), io.at)
        slots = kv_state.read(self, io, seq, mirror)
        for partner in self.together:
            if partner is not self and self.same_cells(partner):
                self.history = partner.history
        return slots

    def pool_layout(self, size: int, by_order: bool) -> PoolLayout:
        return PoolLayout(size, by_order)

    def drop_sequence(self, seq: int) -> None:
        kv_state.drop_sequence(self, seq)

    def same_cells(self, other: AttentionLeaf) -> bool:
        """Whether the tables are equal. The device is asked only if the two have seen different
        operations."""
        assert isinstance(other, KVCache)
        if self.history == other.history:
            return True
        a, b = self.table, other.table
        if a.planes.shape != b.planes.shape or a.seq.shape != b.seq.shape or a.minus_one or b.minus_one:
            return False
        same = (a.planes == b.planes).all() & (a.seq == b.seq).all() & (a.heads == b.heads).all()
        return bool(read_back(same))

    def memory_breakdown(self) -> dict[str, int]:
        return self.spec.bytes_by_tensor()

    @property
    def cells(self) -> list[Any]:
        """The tables as kvsim has them, read back: for observers and debuggers."""
        return host_tables(self)

    @property
    def heads(self) -> list[int]:
        """Where the next search begins, per stream, read back."""
        return read_back(self.table.heads).tolist()

    def snapshot_into(
        self, name: str, caches: dict[str, list[dict[str, Any]]], extra: dict[str, Any]
    ) -> dict[str, Any] | None:
        table = self.table
        planes, seq, heads, has_shift = map(
            read_back, (table.planes, table.seq, table.heads, table.has_shift)
        )
        used = read_back(table.used(slice(None), self.size))
        caches[name] = []
        for stream in range(self.n_stream):
            at = np.flatnonzero(used[stream])
            pos, tok, x, y, _, shift = planes[:, stream, at].tolist()
            rows = zip(at.tolist(), pos, owners_of(seq[:, stream, at]), shift, tok, x, y, strict=True)
            caches[name].append({
                "head": int(heads[stream]), "used": len(at), "has_shift": bool(has_shift[stream]),
                "cells": [list(row) for row in rows],
            })  # fmt: skip
        if self.pending_copies:
            extra.setdefault("pending_copies", {})[name] = [list(pair) for pair in self.pending_copies]
        return None

    def check_integrity(self) -> None:
        check_integrity(self)
