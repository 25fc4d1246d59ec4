"""Faults in finding room, in counting it, and in what a decode makes of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

from kvsim import window
from kvsim.caches import kv as kv_module
from kvsim.caches.iswa import WindowPair
from kvsim.caches.kv import KVCache
from kvsim.cells import CellTable
from kvsim.context import NO_SLOT, OK, Context
from kvsim.defrag import Defrag
from kvsim.testing.mutants.mutant import Patches, mutant

ATTENTION = ("kv", "iswa")
WINDOWS = ("iswa",)


@mutant("B002", memories=("kv",), symptom="decode returns 1 although cells are free")
def contiguous_slots(patch: Patches) -> None:
    """A slot must be one run of cells."""
    patch(KVCache, "find_slot", lambda right, self, ubatch, cont=False: right(self, ubatch, True))


@mutant("B004", memories=WINDOWS, symptom="decode returns 1 while a silent sequence holds masked cells")
def idle_windows_kept(patch: Patches) -> None:
    """Cells that a window has passed are reused only if they belong to a sequence of the batch."""

    def find_slot(right: Any, self: KVCache, ubatch: Any, *cont: bool) -> Any:
        self.asking = set(ubatch.seq_id_unq)  # type: ignore[attr-defined]
        return right(self, ubatch, *cont)

    def search(right: Any, self: KVCache, stream: int) -> Any:
        found = right(self, stream)
        found.starts = {s: at for s, at in found.starts.items() if s in self.asking}  # type: ignore[attr-defined]
        return found

    patch(KVCache, "find_slot", find_slot)
    patch(KVCache, "search", search)


@mutant("B005", memories=WINDOWS, symptom="decode returns 1 although an equal split would fit")
def one_split_only(patch: Patches) -> None:
    """If the simple split finds no room in one of the two caches, the equal split is not tried."""
    patch(WindowPair, "splits", lambda right, self, *args: islice(right(self, *args), 1))


@mutant(
    "B010", memories=WINDOWS, symptom="the first tokens of a batch see fewer keys than their window holds"
)
def reuse_by_newest(patch: Patches) -> None:
    """Whether a cell may be reused is judged by the newest token of the batch."""

    def find_slot(right: Any, self: KVCache, ubatch: Any, *cont: bool) -> Any:
        self.newest = {}  # type: ignore[attr-defined]
        for ids, pos in zip(ubatch.seq_ids, ubatch.pos0.tolist(), strict=True):
            for s in ids:
                self.newest[s] = max(pos, self.newest.get(s, pos))  # type: ignore[attr-defined]
        return right(self, ubatch, *cont)

    def search(right: Any, self: KVCache, stream: int) -> Any:
        found = right(self, stream)
        for s, pos in self.newest.items():  # type: ignore[attr-defined]
            if self.spec.n_swa and self.cells[stream].seq_pos_max(s) >= 0:
                found.starts[s] = window.window_start(self.spec.swa_type, self.spec.n_swa, pos)
        return found

    patch(KVCache, "find_slot", find_slot)
    patch(KVCache, "search", search)


@mutant("B011", memories=WINDOWS, symptom="decode returns 1 although masked cells are there")
def only_oldest_reused(patch: Patches) -> None:
    """Of the cells that a window has passed only the one at the lowest position may be taken."""

    def search(right: Any, self: KVCache, stream: int) -> Any:
        found = right(self, stream)
        table = self.cells[stream]
        found.starts = {s: min(at, table.seq_pos_min(s) + 1) for s, at in found.starts.items()}
        return found

    patch(KVCache, "search", search)


@mutant("B137", memories=ATTENTION, symptom="the cache holds fewer tokens than were asked for")
def size_rounded(patch: Patches) -> None:
    """The size asked for is rounded, here down to a multiple of 4."""

    def init(right: Any, self: KVCache, spec: Any, *args: Any, **kwargs: Any) -> None:
        right(self, replace(spec, size=max(spec.size // 4 * 4, 4)), *args, **kwargs)

    patch(KVCache, "__init__", init)


@mutant("B034", memories=("kv",), symptom="a cache with shared cells passes for fuller than it is")
def shared_counted_twice(patch: Patches) -> None:
    """The use of a cache is counted per owner, so shared cells count several times."""

    def used(right: Any, self: CellTable) -> int:
        return right(self) + sum(max(len(self.owners(i)) - 1, 0) for i in range(self.size))  # type: ignore[no-any-return]

    patch(CellTable, "used", used)


@mutant("B064", memories=("kv",), symptom="garbage for ever after the first defragmentation", exact=False)
def cells_move_without_rows(patch: Patches) -> None:
    """A defragmentation moves cells and leaves their rows behind."""

    def init(right: Any, self: KVCache, *args: Any, **kwargs: Any) -> None:
        right(self, *args, **kwargs)
        self.defrag = Defrag()

    def defragment(right: Any, cache: KVCache, plans: Any) -> Any:
        store, cache.store = cache.store, None
        try:
            return right(cache, plans)
        finally:
            cache.store = store

    patch(KVCache, "__init__", init)
    patch(kv_module, "defragment", defragment)


@mutant(
    "B082", memories=("kv", "iswa"), symptom="positions of a failed decode stay, and the retry is refused"
)
def failed_ubatch_stays(patch: Patches) -> None:
    """The tokens of a ubatch that failed to compute are not removed."""
    patch(Context, "_roll_back", lambda right, self, ubatch, views, code, i: self._fail(code, "failed"))


@mutant("B086", memories=("kv", "iswa"), symptom="decode reports success and has placed nothing")
def no_room_ignored(patch: Patches) -> None:
    """That no slot was found is not passed on."""

    def decode(right: Any, self: Context, *args: Any) -> int:
        code: int = right(self, *args)
        return OK if code == NO_SLOT else code

    patch(Context, "decode", decode)
