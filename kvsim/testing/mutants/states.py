"""Faults in saving and restoring."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.caches import kv_state, recurrent_state
from kvsim.caches.composite import CompositeMemory
from kvsim.caches.hybrid import HybridBase
from kvsim.caches.kv import KVCache
from kvsim.errors import CacheUsageError
from kvsim.testing.mutants.mutant import Patches, mutant


@mutant("B088", memories=("kv",), symptom="a state is refused although enough cells are free")
def restore_needs_one_hole(patch: Patches) -> None:
    """A restored sequence must fit into one run of cells."""

    def find_slot(right: Any, self: KVCache, ubatch: Any, cont: bool | None = None) -> Any:
        return right(self, ubatch, cont is None or cont)  # only a restore does not say

    patch(KVCache, "find_slot", find_slot)


@mutant("B091", memories=("kv", "iswa"), symptom="restoring a state of nothing ends the process")
def empty_state_asserts(patch: Patches) -> None:
    """A state without cells cannot be restored."""

    def read(right: Any, cache: KVCache, io: Any, seq: int, *mirror: Any) -> Any:
        slots = right(cache, io, seq, *mirror)
        if seq != -1 and not any(slots):
            raise CacheUsageError("a state of no cells")
        return slots

    patch(kv_state, "read", read)


@mutant("B092", memories=("kv",), symptom="after a restore images stand in another place")
def places_not_restored(patch: Patches) -> None:
    """The places of image patches are saved and not restored."""

    def read(right: Any, cache: KVCache, *args: Any) -> Any:
        slots = right(cache, *args)
        for slot in slots if cache.spec.n_pos_per_embd > 1 else ():
            if slot is not None:
                table, cells = cache.cells[slot.strm[0]], slot.idxs[0]
                table.set_ext(cells, table.tok[cells])
        return slots

    patch(kv_state, "read", read)


@mutant("B094", memories=("kv",), symptom="the search for room begins again at the front after every restore")
def restore_resets_head(patch: Patches) -> None:
    """After the restore of a sequence the search begins at cell 0."""

    def read(right: Any, cache: KVCache, *args: Any) -> Any:
        slots = right(cache, *args)
        cache.heads = [0] * len(cache.heads)
        return slots

    patch(kv_state, "read", read)


@mutant("B095", memories=("kv", "iswa"), symptom="another conversation goes mad after this one was restored")
def restore_zeroes_others(patch: Patches) -> None:
    """Restoring one sequence zeroes the rows of all."""

    def read(right: Any, cache: KVCache, *args: Any) -> Any:
        if cache.store is not None:
            cache.store.zero()
        return right(cache, *args)

    patch(kv_state, "read", read)


@mutant("B101", memories=("dsa", "msa"), symptom="right for short prompts, wrong once a selection is needed")
def index_not_saved(patch: Patches) -> None:
    """Index keys are no part of a saved state."""
    patch(CompositeMemory, "state_parts", lambda right, self, flags: right(self, flags)[:-1])


@mutant("B083", memories=("hybrid",), symptom="after a restore the two halves hold different texts")
def restore_forgets_states(patch: Patches) -> None:
    """Saved states of a hybrid have no recurrent part."""

    def state_parts(right: Any, self: CompositeMemory, flags: int) -> Any:
        parts = right(self, flags)
        return [each for each in parts if each[0] != "recurrent"] if isinstance(self, HybridBase) else parts

    patch(CompositeMemory, "state_parts", state_parts)


@mutant("B049", memories=("kv",), symptom="a restored sequence reads what lay in its cells before")
def rows_restored_elsewhere(patch: Patches) -> None:
    """Restored rows go to the first cells, wherever the sequence was placed."""

    def read_rows(right: Any, io: Any, spec: Any, store: Any, stream: int, cells: Any) -> None:
        right(io, spec, store, stream, np.arange(len(cells), dtype=np.int32))

    patch(kv_state, "read_kv_rows", read_rows)


@mutant(
    "B049", memories=("recurrent",), symptom="the restore of one sequence overwrites the state of another"
)
def state_restored_elsewhere(patch: Patches) -> None:
    """A restored recurrent state goes to the first row, wherever the sequence was placed."""

    def read_rows(right: Any, io: Any, layers: Any, store: Any, first: int, count: int) -> None:
        right(io, layers, store, 0, count)

    patch(recurrent_state, "read_recurrent_rows", read_rows)
