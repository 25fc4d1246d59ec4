"""What a KV cache quietly does to its callers, told while it happens; only an observer pays for it.

Each function is called where it happens and looks at the cells before or after; the ids are explained in
:mod:`kvsim.hazards`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvsim import window
from kvsim.batch import Ubatch
from kvsim.cell_index import all_empty, index_of
from kvsim.errors import StateError
from kvsim.memory import IntArray, Memory, SlotInfo
from kvsim.models.params import RopeType

if TYPE_CHECKING:
    from kvsim.caches.kv import KVCache, Purged


def after_prepare(
    cache: KVCache,
    ubatches: Sequence[Ubatch],
    slots: Sequence[SlotInfo],
    purged: Sequence[Purged],
    heads: list[int],
    half_alive: list[frozenset[int]],
) -> None:
    """What a preparation leaves behind although it was undone. For every ubatch that found its slot,
    ``purged`` says what it took from each sequence; of that, cells of earlier slots are put back. Heads and
    cells at position -1, per stream, were these before; they are not always put back."""
    taken: set[tuple[int, int]] = set()
    survives: dict[int, int] = {}  # seq -> highest position that is not put back
    for i, (slot, purge) in enumerate(zip(slots, purged, strict=True) if any(purged) else ()):
        for s, cells in purge.items():
            stream = cache.stream_of(s)
            highest = max((pos for cell, pos in cells.items() if (stream, cell) not in taken), default=-1)
            if highest < 0:
                continue
            survives[s] = max(highest, survives.get(s, -1))
            earlier = [p for ubatch in ubatches[:i] for p in _positions(ubatch, s)]
            if earlier and highest >= _start(cache, min(earlier)):
                cache._hazard("purge-blinds-earlier-ubatch", seq=s, highest=highest)
        taken |= {
            (stream, c) for stream, part in zip(slot.strm, slot.idxs, strict=True) for c in part.tolist()
        }
    refused = len(slots) < len(ubatches)
    wanted = [s for s, highest in survives.items() if highest >= _start(cache, cache.seq_pos_max(s) + 1)]
    if refused and wanted:
        cache._hazard("purge-survives-refusal", seqs=sorted(wanted))
    if [table.half_alive for table in cache.cells] != half_alive:
        cache._hazard("undo-misses-position-minus-one")
    if cache.heads != heads and refused:
        cache._hazard("heads-exchanged", before=heads, after=list(cache.heads))


def _start(cache: KVCache, query: int) -> int:
    """Smallest position that a token at ``query`` sees."""
    return window.window_start(cache.spec.swa_type, cache.spec.n_swa, query)


def _positions(ubatch: Ubatch, seq: int) -> list[int]:
    """Positions of the rows that attend as ``seq``."""
    return [p for p, ids in zip(ubatch.pos0.tolist(), ubatch.seq_ids, strict=True) if ids[0] == seq]


def before_place(cache: KVCache, slot: SlotInfo, ubatch: Ubatch) -> None:
    """Cells that will not be what their new owner expects: position -1 is also the mark of an empty cell."""
    pos = ubatch.pos0.tolist()
    if min(pos) < 0:
        seqs = sorted({s for p, ids in zip(pos, ubatch.seq_ids, strict=True) if p < 0 for s in ids})
        cache._hazard("position-minus-one", seqs=seqs)
    keeps_ext = not cache.writes_ext(ubatch)
    for stream, part in zip(slot.strm, slot.idxs, strict=True):
        table = cache.cells[stream]
        held = table.pos[index_of(part)]
        if not all_empty(held):
            _warn_of_eviction(cache, stream, part, ubatch)
        if table.is_literal:
            _warn_of_old_owners(cache, stream, part[held == -1])
        if keeps_ext:
            empty = part[held == -1]
            old = empty[table.tok[empty] != -1].tolist()
            if old:
                cache._hazard("cell-keeps-old-token", stream, cells=old)


def _warn_of_old_owners(cache: KVCache, stream: int, empty: IntArray) -> None:
    """Cells that are empty by the only test, and yet have owners (cells R21)."""
    table = cache.cells[stream]
    half_alive = empty[table.seq[:, empty].any(axis=0)].tolist()
    owners = sorted({s for i in half_alive for s in table.owners(i)})
    if owners:
        cache._hazard("cell-keeps-old-owner", stream, cells=half_alive, others=owners)


def _warn_of_eviction(cache: KVCache, stream: int, part: IntArray, ubatch: Ubatch) -> None:
    """Window cells count as passed for the position after the last one; a token at a repeated position that
    is placed into one of them may still see it."""
    table = cache.cells[stream]
    taken = part[table.pos[part] != -1]
    for s in {s for i in taken.tolist() for s in table.owners(i)}:
        own = _positions(ubatch, s)
        if not own:
            continue
        highest = int(table.pos[taken[table.has(s, table.size)[taken]]].max())
        if highest >= _start(cache, min(own)):
            cache._hazard("eviction-blinds-own-ubatch", stream, seq=s, highest=highest)


def after_place(cache: KVCache, robbed: Iterable[int]) -> None:
    """At the end of a chunk, or with a window of one, the next token sees nothing of its sequence: all its
    cells can be taken, and then nobody knows where it ends."""
    forgotten = [s for s in robbed if cache.seq_pos_max(s) < 0]
    if forgotten:
        cache._hazard("window-forgets-sequence", seqs=forgotten)


def before_shift(cache: KVCache) -> None:
    """All rows are turned, those that did not move by 0: what rounds is rounded again, and an indexer's keys
    are turned although they are stored rotated, or in other pairs."""
    if cache.spec.rope_type is RopeType.NONE:
        return
    if cache.spec.is_quantized_k:
        cache._hazard("shift-requantizes-all")
    elif cache.spec.n_rot_k or cache.name == "lid":
        cache._hazard("indexer-keys-turned-as-stored")


def before_save(cache: KVCache, seq: int) -> None:
    """A saved state holds new positions with old keys, rows that a queued copy has yet to bring, or cells
    whose owner it cannot name."""
    turned: set[int] = set()
    waiting: set[int] = set()
    unlisted: set[int] = set()
    for stream, table in enumerate(cache.cells):
        hi = table.used_max_p1
        owners = [s for s in (table.sequences() if seq == -1 else [seq]) if table.has(s, hi).any()]
        turned.update(s for s in owners if table.shift[:hi][table.has(s, hi)].any())
        if any(dst == stream for _, dst in cache.pending_copies):
            waiting.update(owners)
        unlisted.update(s for s in owners if s >= cache.n_seq_max)
    for hazard, seqs in (
        ("save-before-shift", turned), ("save-before-copy", waiting), ("state-omits-owner", unlisted),
    ):  # fmt: skip
        if seqs:
            cache._hazard(hazard, seqs=sorted(seqs))


@contextmanager
def restoring(cache: KVCache, seq: int) -> Iterator[None]:
    """Around a restore: queued copies that will overwrite it, and what a refused one has taken away."""
    if cache.observer is None:
        yield
        return
    had, target = _holders(cache), _positions_of(cache, seq)
    try:
        yield
        warn_of_queued_copies(cache, seq)
    except StateError:
        have = _holders(cache)
        changed = had ^ have if seq != -1 else had | have
        if _positions_of(cache, seq) != target:
            changed.add(seq)
        if changed:
            cache._hazard("failed-restore-loses-sequence", seqs=sorted(changed))
        warn_of_queued_copies(cache, seq)  # the rows it was to fill were zeroed
        raise


def warn_of_queued_copies(cache: KVCache, seq: int) -> None:
    """Rows of a stream have changed that a queued copy reads or will overwrite."""
    streams = {stream for pair in cache.pending_copies for stream in pair}
    if (streams if seq == -1 else streams & {cache.stream_of(seq)}) and streams & _holders(cache):
        cache._hazard("restore-under-queued-copy", seqs=sorted(streams))


def _positions_of(cache: KVCache, seq: int) -> list[int]:
    """The positions of a sequence, by cell; of none for -1."""
    if seq == -1:
        return []
    table = cache.cells[cache.stream_of(seq)]
    held: list[int] = table.pos[table.has(seq, table.size)].tolist()
    return held


def _holders(cache: KVCache) -> set[int]:
    """Sequences with a cell that attention can see."""
    return {
        s for table in cache.cells for s in table.sequences()
        if bool((table.pos[table.has(s, table.size)] >= 0).any())
    }  # fmt: skip


def holds_more(memory: Memory, ubatch: Ubatch, seq: int, p0: int) -> bool:
    """Whether ``seq`` holds tokens from ``p0`` on that are not of this ubatch: a rollback takes them too."""
    n = sum(seq in ids for ids in ubatch.seq_ids)
    for leaf in memory.leaves().values():
        cells = getattr(leaf, "cells", None)
        if isinstance(cells, list):
            table = cells[seq if len(cells) > 1 else 0]
            if int((table.pos[table.has(seq, table.size)] >= max(p0, 0)).sum()) > n:
                return True
    return False


def split_histories(memory: Memory, coupled: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pairs of sequences that are to share tokens and do not hold the same tokens so far: the shared ones
    attend to the history of one of them only."""
    return [pair for pair in coupled if _history(memory, pair[0]) != _history(memory, pair[1])]


def _history(memory: Memory, seq: int) -> list[object]:
    """Positions and tokens of a sequence, per attention cache; per recurrent memory the cell of its state; how
    far it has been rolled back and nothing has been computed since."""
    history: list[object] = [
        part.rs_idx[seq] for part in (memory, *memory.leaves().values()) if hasattr(part, "rs_idx")
    ]
    for leaf in memory.leaves().values():
        cells = getattr(leaf, "cells", None)
        if isinstance(cells, list):
            table = cells[seq if len(cells) > 1 else 0]
            own = table.has(seq, table.size) & (table.pos >= 0)
            history.append(sorted(zip(table.pos[own].tolist(), table.tok[own].tolist(), strict=True)))
        elif cells is not None:
            history.append(cells.cell_of(seq))
    return history
