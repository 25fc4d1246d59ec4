"""The saved state of a DeepSeek-V4 memory (``src/llama-kv-cache-dsv4.cpp: state_write``; dsv4.md 7).

A header with magic, version and mode; the raw pair (partial: its window half); full states then have the
compressed rows of csa, hca and lid; last the three rings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.caches.attention_leaf import AttentionLeaf
from kvsim.caches.saved_rows import expect_block, read_tensor_head, write_tensor_head
from kvsim.errors import StateError
from kvsim.memory import MAX_SEQ
from kvsim.state import PARTIAL_ONLY, StateReader, StateWriter

if TYPE_CHECKING:
    from kvsim.caches.dsv4 import DSV4Cache

MAGIC = 0x34565344
VERSION = 1
ROWS_VERSION = 2


def write_state(memory: DSV4Cache, io: StateWriter, seq: int, flags: int) -> None:
    """Write everything, or one sequence; rings from the plane of a pending rollback.

    Raises StateError for a sequence that the rings do not have, unless asking for its last position ends
    llama.cpp before: CacheUsageError.
    """
    partial = bool(flags & PARTIAL_ONLY)
    for value in (MAGIC, VERSION, int(partial)):
        io.u32(value)
    memory.raw.state_write(io, seq, flags)
    if seq >= memory.n_seq_max:
        if not partial and (memory.n_seq_max > 1 or seq >= MAX_SEQ):
            memory.check_known("state_write", seq)
        raise StateError(f"there is no sequence {seq}: the rings have {memory.n_seq_max} streams")
    if not partial:
        pos_max = memory.raw.seq_pos_max(seq) if seq >= 0 else -1
        for name, cache in memory.compressed.items():
            ratio = memory.rings[name].spec.ratio
            n_rows = cache.size if seq < 0 else min(cache.size, (pos_max + 1) // ratio)
            _write_rows(cache, io, seq, n_rows)
    for ring in memory.rings.values():
        ring.state_write(io, max(seq, -1), memory.rs_idx)


def _write_rows(cache: AttentionLeaf, io: StateWriter, seq: int, n_rows: int) -> None:
    streams = range(cache.n_stream) if seq < 0 else [cache.stream_of(seq)]
    for value in (ROWS_VERSION, n_rows, len(streams), len(cache.spec.layers)):
        io.u32(value)
    cells = np.arange(n_rows, dtype=np.int32)
    for layer in cache.spec.layers:
        io.u32(layer.il)
        write_tensor_head(io, layer.k.ggml_id, layer.n_embd_k, n_rows, layer.row_k)
        for stream in streams if n_rows else ():
            io.rows(
                cache.store.read_k(layer.il, stream, cells) if cache.store else None, n_rows * layer.row_k
            )


def read_state(memory: DSV4Cache, io: StateReader, seq: int, flags: int) -> None:
    """Read what :func:`write_state` wrote. Raises StateError at the first mismatch; what was read before it
    stays, and a full state has by then lost the old compressed data."""
    partial = bool(flags & PARTIAL_ONLY)
    magic, version = io.u32("the DSV4 magic"), io.u32("the DSV4 version")
    if magic != MAGIC:
        raise StateError(f"not a DeepSeek-V4 state: it begins with 0x{magic:08x} instead of 0x{MAGIC:08x}")
    if version != VERSION:
        raise StateError(f"DeepSeek-V4 state version {version}, this reader knows {VERSION}")
    mode = io.u32("the DSV4 mode")
    if mode != int(partial):
        kinds = {0: "full", 1: "partial"}
        raise StateError(
            f"the state is {kinds.get(mode, mode)}, but a {kinds[int(partial)]} one was asked for"
        )
    memory.check_known("state_read", seq, wildcard=True)
    read_raw = False
    try:
        memory.raw.state_read(io, seq, flags)
        read_raw = True
        if not partial:
            memory._clear_compressed(seq)
            for cache in memory.compressed.values():
                _read_rows(cache, io, seq)
        for ring in memory.rings.values():
            ring.state_read(io, seq)
    except StateError:
        if read_raw:
            memory.hazard("half-restored", restored=["raw"], failed="compressed", seq=seq)
        raise
    if partial and seq >= 0 and memory.raw.base.seq_pos_max(seq) > memory.raw.swa.seq_pos_max(seq):
        memory.hazard("base-keeps-later-positions", seq=seq)
    for s in range(memory.n_seq_max) if seq < 0 else [seq]:
        memory.rs_idx[s] = memory.reach[s] = 0


def _read_rows(cache: AttentionLeaf, io: StateReader, seq: int) -> None:
    version, n_rows = io.u32("the rows version"), io.u32("the row count")
    n_stream, n_layer = io.u32("the stream count"), io.u32("the layer count")
    if version not in (1, ROWS_VERSION):
        raise StateError(
            f"cache {cache.name!r}: rows version {version}, this reader knows 1 and {ROWS_VERSION}"
        )
    if n_rows > cache.size or (version == 1 and n_rows != cache.size):
        raise StateError(
            f"cache {cache.name!r}: {n_rows} compressed rows in the state, {cache.size} in the cache"
        )
    wanted = (cache.n_stream if seq < 0 else 1, len(cache.spec.layers))
    if (n_stream, n_layer) != wanted:
        raise StateError(
            f"cache {cache.name!r}: {n_stream} streams and {n_layer} layers in the state, {wanted[0]} and "
            f"{wanted[1]} expected"
        )
    first = 0 if seq < 0 else cache.stream_of(seq)
    cells = np.arange(n_rows, dtype=np.int32)
    for layer in cache.spec.layers:
        expect_block(io, layer.il)
        read_tensor_head(io, layer.k.ggml_id, layer.n_embd_k, n_rows, layer.row_k)
        for stream in range(first, first + n_stream) if n_rows else ():
            data = io.rows(n_rows * layer.row_k, f"compressed rows of block {layer.il}")
            if cache.store is not None:
                io.defer(lambda il=layer.il, s=stream, d=data: cache.store.write_k(il, s, cells, d))  # type: ignore[misc]
