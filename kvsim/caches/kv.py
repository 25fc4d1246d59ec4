"""The attention KV cache: one cell table, head and slab of rows per stream (``src/llama-kv-cache.cpp``).

What it leaves out: the split of the cache over layers with other windows (iswa.py), recurrent states
(recurrent.py), indexers (dsa.py, msa.py). State formats are in kv_state.py, what a graph sees in
kv_view.py.

A batch is placed in two phases. ``prepare`` looks for the slots of all ubatches, one after the other,
each on top of the ones before, then undoes them in reverse::

    cells  0 0 0 . 1 1 . .     ubatch 1 -> 3, 6     ubatch 2 -> 7, no more: refused, all put back
                 ^ head
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from kvsim.batch import Ubatch
from kvsim.caches import kv_hazards, kv_state
from kvsim.caches.attention_leaf import AttentionLeaf, Pools
from kvsim.caches.kv_view import KVView
from kvsim.caches.slot_search import SlotSearch
from kvsim.cell_index import Index, all_empty, index_of, where
from kvsim.cells import CellTable, SavedCells
from kvsim.defrag import DefragReport, StreamMoves, defragment, plan_update
from kvsim.errors import IntegrityError
from kvsim.events import NO_CELLS, Event
from kvsim.memory import (
    IntArray,
    SlotInfo,
    check_delta,
    position_range,
)
from kvsim.models.cache_spec import CacheSpec
from kvsim.models.params import RopeType
from kvsim.seq_ranges import least
from kvsim.state import StateReader, StateWriter
from kvsim.tensors.store import KVStore

Purged = dict[int, dict[int, int]]
"""Per sequence the cells it lost by a purge, with their positions."""


class KVCache(AttentionLeaf):
    """Cells for keys and values: unified (one stream) or one stream per sequence.

    ``spec`` is the cache as llama.cpp constructs it (size, streams, window, layers); ``store`` holds the
    rows when numbers are wanted, None when only the metadata is.

    Two habits that llama.cpp has given up can be switched on: ``defrag``, a strategy by which an update
    moves cells into holes (``last_defrag`` reports what the last one did; caches in ``together`` make the
    same moves), and ``contiguous``, slots that are one run of cells.
    """

    kind = "kv"
    has_mask = True
    """Whether the graph masks attention over these cells; an indexer's cells are masked otherwise."""
    """What the graph of a ubatch sees of this cache."""

    def __init__(self, spec: CacheSpec, name: str = "kv", store: KVStore | None = None) -> None:
        self.spec = spec
        self.name = name
        self.store = store
        self.n_seq_max = spec.n_seq_max
        self.cells: list[CellTable] = [CellTable(spec.size) for _ in range(spec.n_stream)]
        self.heads = [0] * spec.n_stream
        self.pending_copies: list[tuple[int, int]] = []
        self.defrag = None
        self.together: tuple[AttentionLeaf, ...] = (self,)
        self.last_defrag: tuple[DefragReport, ...] = ()
        self.contiguous = False

    @property
    def has_shift(self) -> bool:
        return any(cells.has_shift for cells in self.cells)

    # -- finding slots -------------------------------------------------------------------------

    def search(self, stream: int) -> SlotSearch:
        """A search for free cells, from the head of ``stream``."""
        return SlotSearch(self.cells[stream], self.heads[stream], self.spec.swa_type, self.spec.n_swa)

    def find_slot(self, ubatch: Ubatch, cont: bool = False) -> SlotInfo | None:
        """Cells for every token, searched from the head, wrapping once (``find_slot``).

        ``cont`` asks for one contiguous run per stream, as the historic allocator did; decoding does only if
        :attr:`contiguous`. Returns None and sets ``last_failure`` if a stream has no room.
        """
        streams = ubatch.seq_id_unq if self.n_stream > 1 else (0,)
        n = ubatch.n_tokens // len(streams)
        parts = []
        for stream in streams:
            search = self.search(stream)
            found = search.find_run(n) if cont else search.find(n)
            if len(found) < n:
                self.last_failure = search.refusal(self.name, stream, n, len(found))
                self._emit("slot", stream, found=False, asked=n)
                return None
            parts.append(found)
        slot = SlotInfo(streams, tuple(parts))
        if self.observer is not None:
            for stream, found in zip(streams, parts, strict=True):
                self._emit("slot", stream, found, found=True, asked=n)
        return slot

    # -- placing -------------------------------------------------------------------------------

    def prepare(self, ubatches: Sequence[Ubatch]) -> list[SlotInfo] | None:
        """Slots of all ubatches, or None. Cells inside the slots are put back; what a placement purged
        outside of them stays purged, and heads are put back by llama.cpp's odd indexing (P2, P3)."""
        slots: list[SlotInfo] = []
        undo: list[tuple[SlotInfo, list[int], list[SavedCells]]] = []
        purged: list[Purged] = []
        old_heads = list(self.heads)
        half_alive = [table.half_alive for table in self.cells] if self.observer is not None else []
        for i, ubatch in enumerate(ubatches):
            slot = self.find_slot(ubatch, self.contiguous)
            if slot is None:
                assert self.last_failure is not None
                self.last_failure = self.last_failure._replace(ubatch=i, n_ubatches=len(ubatches))
                break
            slots.append(slot)
            if i == len(ubatches) - 1 and self._only_fills(slot, ubatch):
                undo.append((slot, list(self.heads), []))  # no search comes after it: nothing to try
                purged.append({})
                continue
            saved = [self.cells[st].save(part) for st, part in zip(slot.strm, slot.idxs, strict=True)]
            undo.append((slot, list(self.heads), saved))
            purged.append(self._place(slot, ubatch, trial=True))
        for slot, heads, saved in reversed(undo):
            for stream, cells in zip(slot.strm, saved, strict=bool(saved)):
                self.cells[stream].restore(cells)
            for local, stream in enumerate(slot.strm):
                self.heads[stream] = heads[local]
        if self.heads != old_heads:
            for stream, (old, new) in enumerate(zip(old_heads, self.heads, strict=True)):
                if old != new:
                    self._emit("head", stream, old=old, new=new)
        if self.observer is not None:
            kv_hazards.after_prepare(self, ubatches, slots, purged, old_heads, half_alive)
        return slots if len(slots) == len(ubatches) else None

    def _only_fills(self, slot: SlotInfo, ubatch: Ubatch) -> bool:
        """Whether placing this ubatch and undoing it would leave all as it was: its cells are empty, and no
        position is negative (cells R21)."""
        if least(ubatch.pos0) < 0:
            return False
        for stream, part in zip(slot.strm, slot.idxs, strict=True):
            cells = self.cells[stream]
            if cells.is_literal or not all_empty(cells.pos[index_of(part)]):
                return False
        return True

    def apply_ubatch(self, slot: SlotInfo, ubatch: Ubatch) -> KVView:
        """Place a ubatch (``apply_ubatch``) and return what its graph sees."""
        self._place(slot, ubatch)
        return self.view(slot, ubatch)

    def view(self, slot: SlotInfo, ubatch: Ubatch) -> KVView:
        return KVView(self, slot, ubatch)

    def pool_layout(self, size: int, by_order: bool) -> Pools:
        from kvsim.caches.pool_layout import PoolLayout

        return PoolLayout(size, by_order)

    def same_cells(self, other: AttentionLeaf) -> bool:
        """Whether heads, counts and positions are equal."""
        return list(self.heads) == list(other.heads) and all(
            a.used == b.used and np.array_equal(a.pos[: a.used_max_p1], b.pos[: b.used_max_p1])
            for a, b in zip(self.cells, other.cells, strict=True)
        )

    def _place(self, slot: SlotInfo, ubatch: Ubatch, trial: bool = False) -> Purged:
        """Write positions, ext and owners; purge so that sequences stay gapless; move the heads.
        Returns what was purged outside the slot. What a ``trial`` writes is told to nobody, since it will be
        undone."""
        if self.observer is not None and not trial:
            kv_hazards.before_place(self, slot, ubatch)
        lost: dict[int, int] = {}  # seq -> largest position that was overwritten
        at = 0
        for stream, part in zip(slot.strm, slot.idxs, strict=True):
            table, rows = self.cells[stream], slice(at, at + len(part))
            pos, seq_ids, cells = ubatch.pos0[rows], ubatch.seq_ids[rows], index_of(part)
            if not all_empty(table.pos[cells]):
                for s, reach in table.evict(part).items():
                    lost[s] = max(reach, lost.get(s, -1))
            table.place(part, pos, seq_ids)
            at += len(part)
            if not trial:
                self._write_ext(table, cells, ubatch, rows)
                self._emit("write", stream, part, pos=pos, seqs=seq_ids)
        purged = {s: gone for s, reach in sorted(lost.items()) if (gone := self._purge(s, reach))}
        if lost and self.observer is not None and not trial:
            kv_hazards.after_place(self, lost)
        for stream, part in zip(slot.strm, slot.idxs, strict=True):
            if trial:
                self.heads[stream] = int(part[-1]) + 1
            else:
                self._move_head(stream, int(part[-1]) + 1)
        return purged

    def _write_ext(self, table: CellTable, cells: Index, ubatch: Ubatch, rows: slice) -> None:
        """Token and 2-D position (A2). An embedding ubatch with one position per token writes none, and
        what the cell held before stays visible (cells R16)."""
        if not self.writes_ext(ubatch):
            return
        two_d = ubatch.n_pos >= 3
        tok: Any = self.spec.embd_token
        if ubatch.tokens is not None:
            tok = ubatch.tokens[rows]
            if ubatch.is_embd is not None:
                tok = np.where(ubatch.is_embd[rows], self.spec.embd_token, tok)
        x, y = (ubatch.pos[2, rows], ubatch.pos[1, rows]) if two_d else (0, 0)
        table.set_ext(cells, tok, x, y)

    def writes_ext(self, ubatch: Ubatch) -> bool:
        """Whether placing this ubatch writes token ids and 2-D positions."""
        return ubatch.n_pos >= 3 or ubatch.tokens is not None or self.spec.ngram_token is not None

    def _purge(self, s: int, reach: int) -> dict[int, int]:
        """Drop the positions of ``s`` up to ``reach``, so that all between its min and max are there (A4).
        Returns the cells that lost it, with their positions (only if somebody observes)."""
        stream = self.stream_of(s)
        cells = self.cells[stream]
        lowest = cells.seq_pos_min(s)
        if lowest > reach:
            return {}
        pos = cells.pos.copy() if self.observer is not None else cells.pos
        lost, freed = cells.seq_rm(s, max(lowest, 0), reach + 1)  # the head will move behind the slot anyway
        if len(lost):
            self._emit("purge", stream, lost, seq=s, reach=reach, freed=freed)
        return dict(zip(lost.tolist(), pos[lost].tolist(), strict=True)) if self.observer is not None else {}

    def _move_head(self, stream: int, to: int) -> None:
        if self.observer is not None and self.heads[stream] != to:
            self._emit("head", stream, old=self.heads[stream], new=to)
        self.heads[stream] = to

    def get_n_kv(self, slot: SlotInfo) -> int:
        """Padded attention length: one value for all streams of a ubatch, so that graphs repeat."""
        pad = self.n_kv_step
        used = max([self.cells[stream].used_max_p1 for stream in slot.strm])
        return min(self.size, max(pad, -(-used // pad) * pad))

    # -- preparing changes ---------------------------------------------------------------------

    def plans_moves(self, optimize: bool) -> bool:
        return bool(plan_update(self, optimize))

    def take_update(self, optimize: bool = False) -> Callable[[], None] | None:
        """Take the pending work out of the cache; None if there is none."""
        moves = plan_update(self, optimize)
        copies, self.pending_copies = self.pending_copies, []
        shift = self.has_shift
        return partial(self._update, copies, shift, moves) if copies or shift or moves else None

    def _update(self, copies: Sequence[tuple[int, int]], shift: bool, moves: Sequence[StreamMoves]) -> None:
        """Copy whole streams, turn the keys, then move cells (D8); positions were changed long before."""
        self._copy_and_shift(copies, shift)
        if moves:
            self.last_defrag = defragment(self, moves)

    def _copy_and_shift(self, copies: Sequence[tuple[int, int]], shift: bool) -> None:
        for src, dst in copies:
            if self.store is not None:
                self.store.copy_stream(src, dst)
            self._emit("stream_copy", dst, src=src)
        if not shift:
            return
        if self.observer is not None:
            kv_hazards.before_shift(self)
        if self.spec.rope_type is not RopeType.NONE and self.store is not None:
            self.store.apply_shift(np.stack([cells.shift for cells in self.cells]))
        for stream, cells in enumerate(self.cells):
            if self.observer is not None:
                self._emit("k_shift", stream, np.flatnonzero(cells.shift).astype(np.int32))
            cells.reset_shift()

    # -- sequence operations -------------------------------------------------------------------

    def clear(self, data: bool) -> None:
        """Empty all tables and heads. Queued stream copies stay queued (surprise 6)."""
        for stream, cells in enumerate(self.cells):
            if self.observer is not None:
                self._tell_freed(stream, cells.occupied(), reason="clear")
            cells.reset()
            self._move_head(stream, 0)
        if self.pending_copies:
            self._hazard("clear-keeps-copies", copies=list(self.pending_copies))
        if data and self.store is not None:
            self.store.zero()

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """Always True. The head is lowered to the first freed cell."""
        self.check_seq("seq_rm", seq, wildcard=True)
        p0, p1 = position_range(p0, p1)
        if seq >= 0:
            self._drop(self.stream_of(seq), seq, p0, p1)
            return True
        for stream, cells in enumerate(self.cells):
            freed = cells.rm_range(p0, p1)
            self._tell_freed(stream, freed, reason="seq_rm", seq=-1)
            self._lower_head(stream, freed)
        return True

    def _drop(self, stream: int, seq: int, p0: int, p1: int) -> tuple[IntArray, IntArray]:
        lost, freed = self.cells[stream].seq_rm(seq, p0, p1)
        self._tell_freed(stream, freed, lost, reason="seq_rm", seq=seq)
        self._lower_head(stream, freed)
        return lost, freed

    def _lower_head(self, stream: int, freed: IntArray) -> None:
        """Let the next search start at a cell that was just freed, if that is earlier."""
        if len(freed) and int(freed[0]) < self.heads[stream]:
            self._move_head(stream, int(freed[0]))

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Within a stream the cells gain an owner; to another stream everything is copied, cell by cell now,
        the rows at the next update. A proper sub-range between streams ends llama.cpp (section 5)."""
        self.check_seq("seq_cp", src)
        self.check_seq("seq_cp", dst)
        if self.stream_of(src) != self.stream_of(dst):
            self._copy_stream(src, dst, p0, p1)
        elif src != dst:
            lo, hi = position_range(p0, p1)
            gained = self.cells[self.stream_of(src)].seq_share(src, dst, lo, hi)
            if len(gained):
                self._emit("share", self.stream_of(src), gained, src=src, dst=dst)

    def _copy_stream(self, src: int, dst: int, p0: int, p1: int) -> None:
        self.check_full_copy(src, dst, p0, p1)
        if self.observer is not None:
            lo, hi = position_range(p0, p1)
            table = self.cells[self.stream_of(src)]
            held = table.pos[table.has(src, self.size)]  # the smallest position may be one below 0 (R21)
            if ((held >= 0) & ((held < lo) | (held >= hi))).any():
                self._hazard("copy-ignores-range", src=src, dst=dst, p0=p0, p1=p1)
        a, b = self.stream_of(src), self.stream_of(dst)
        self.pending_copies.append((a, b))
        source, target = self.cells[a], self.cells[b]
        if self.observer is not None:
            self._tell_freed(b, target.occupied(), reason="seq_cp", seq=dst)
        target.reset()
        held = where(source.has(src))
        # a shifted cell is rebuilt from its old position, and one that was divided below 0 falls (R14)
        taken = held[(source.pos[held] >= 0) | (source.shift[held] == 0)]
        target.place(taken, source.pos[taken], [(dst,)] * len(taken))
        target.set_ext(held, source.tok[held], source.x[held], source.y[held])
        target.shift[taken] = source.shift[taken]
        target.has_shift = bool(source.shift[held].any())
        self._move_head(b, self.heads[a])
        self._emit("copy_queued", b, taken, src=src, dst=dst)

    def seq_keep(self, seq: int) -> None:
        """Only ``seq`` stays, in its own stream; other streams are not touched (O7)."""
        self.check_seq("seq_keep", seq)
        stream = self.stream_of(seq)
        shed, freed = self.cells[stream].seq_keep(seq)
        self._tell_freed(stream, freed, shed, reason="seq_keep", seq=seq)
        self._lower_head(stream, freed)
        others = [s for s, cells in enumerate(self.cells) if s != stream and cells.used]
        if others:
            self._hazard("keep-spares-other-streams", seq=seq, streams=others)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move positions; the keys turn at the next update. A shared cell moves for every owner, and below
        position 0 it is freed for all of them. The head goes to the first freed cell, else to 0."""
        self.check_editable("seq_add", seq)
        check_delta(delta)
        p0, p1 = position_range(p0, p1)
        if delta == 0 or p0 == p1:
            return
        stream = self.stream_of(seq)
        cells = self.cells[stream]
        before = self._shared_by(cells, seq, p0, p1)
        moved, freed = cells.pos_add(seq, p0, p1, delta)
        if self.observer is not None:
            if len(moved):
                self._emit("shift", stream, moved, seq=seq, delta=delta)
            self._tell_freed(stream, freed, reason="seq_add", seq=seq)
            if before:
                self._hazard("shift-moves-other-owners", stream=stream, seq=seq, others=before)
        self._move_head(stream, int(freed[0]) if len(freed) else 0)

    def _shared_by(self, cells: CellTable, seq: int, p0: int, p1: int) -> list[int]:
        """Who else owns cells of ``seq`` in the range; looked up only for an observer."""
        if self.observer is None:
            return []
        mine = cells.has(seq, cells.size) & (cells.pos >= p0) & (cells.pos < p1)
        return [s for s in cells.sequences() if s != seq and bool((cells.has(s, cells.size) & mine).any())]

    def holds_in_range(self, seq: int, p0: int, p1: int) -> bool:
        pos = self.cells[self.stream_of(seq)].pos[self.cells[self.stream_of(seq)].has(seq, self.size)]
        return bool(((pos >= p0) & (pos < p1)).any())

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Divide positions. The pending shift gets old minus new, so the keys will turn the wrong way."""
        self.check_editable("seq_div", seq)
        self.check_divisor(seq, p0, p1, d)
        p0, p1 = position_range(p0, p1)
        if d == 1 or p0 == p1:
            return
        stream = self.stream_of(seq)
        others = self._shared_by(self.cells[stream], seq, p0, p1)
        touched = self.cells[stream].pos_div(seq, p0, p1, d)
        if len(touched):
            self._emit("shift", stream, touched, seq=seq, divisor=d)
            self._hazard("division-turns-backwards", seq=seq, d=d)
        if others:
            self._hazard("shift-moves-other-owners", stream=stream, seq=seq, others=others)

    def seq_pos_min(self, seq: int) -> int:
        self.check_seq("seq_pos_min", seq)
        return self.cells[self.stream_of(seq)].seq_pos_min(seq)

    def seq_pos_max(self, seq: int) -> int:
        self.check_seq("seq_pos_max", seq)
        return self.cells[self.stream_of(seq)].seq_pos_max(seq)

    def seq_range(self, seq: int) -> tuple[int, int]:
        self.check_seq("seq_range", seq)
        return self.cells[self.stream_of(seq)].seq_range(seq)

    # -- saved states, pictures, proof ---------------------------------------------------------

    def state_write(self, io: StateWriter, seq: int = -1, flags: int = 0) -> None:
        if self.observer is not None:
            kv_hazards.before_save(self, seq)
        kv_state.write(self, io, seq)

    def state_read(self, io: StateReader, seq: int = -1, flags: int = 0) -> None:
        self.restore(io, seq)

    def restore(
        self, io: StateReader, seq: int, mirror: kv_state.Mirror | None = None
    ) -> list[SlotInfo | None]:
        """:meth:`state_read`, which may have to take the slots of another cache, and returns its own."""
        with kv_hazards.restoring(self, seq):
            slots = kv_state.read(self, io, seq, mirror)
        if self.observer is not None and seq != -1 and not any(slots) and self.seq_pos_max(seq) >= 0:
            self._hazard("empty-state-removes-nothing", seq=seq)
        return slots

    def drop_sequence(self, seq: int) -> None:
        kv_state.drop_sequence(self, seq)
        if self.observer is not None:
            kv_hazards.warn_of_queued_copies(self, seq)

    def memory_breakdown(self) -> dict[str, int]:
        return self.spec.bytes_by_tensor()

    def snapshot_into(
        self, name: str, caches: dict[str, list[dict[str, Any]]], extra: dict[str, Any]
    ) -> dict[str, Any] | None:
        caches[name] = self.records()
        if self.pending_copies:
            extra.setdefault("pending_copies", {})[name] = [list(pair) for pair in self.pending_copies]
        return None

    def records(self) -> list[dict[str, Any]]:
        """Every stream as a picture has it."""
        return [
            {"head": head, "used": cells.used, "has_shift": cells.has_shift, "cells": cells.rows()}
            for head, cells in zip(self.heads, self.cells, strict=True)
        ]

    def check_integrity(self) -> None:
        for stream, cells in enumerate(self.cells):
            try:
                cells.check_integrity()
            except IntegrityError as err:
                raise IntegrityError(f"cache {self.name!r}, stream {stream}: {err}") from err
            head = self.heads[stream]
            if not 0 <= head <= self.size:
                raise IntegrityError(f"cache {self.name!r}, stream {stream}: head {head} is outside")

    # -- telling the observer ------------------------------------------------------------------

    def _tell_freed(self, stream: int, freed: IntArray, lost: IntArray | None = None, **detail: Any) -> None:
        """``freed`` cells are empty; all of ``lost`` have one owner less."""
        if self.observer is not None and (len(freed) or (lost is not None and len(lost))):
            self._emit("free", stream, freed, lost=freed if lost is None else lost, **detail)

    def _emit(self, what: str, stream: int, cells: IntArray | None = None, **detail: Any) -> None:
        if self.observer is not None:
            self.observer(Event(what, self.name, stream, NO_CELLS if cells is None else cells, detail))

    def _hazard(self, hazard: str, stream: int = -1, **detail: Any) -> None:
        if self.observer is not None:
            self.observer(Event("hazard", self.name, stream, detail={"id": hazard, **detail}))
