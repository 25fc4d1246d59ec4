"""The K-shift of llama.cpp's own library, beside kvsim's and beside a plain copy of the rows, in turns.

It tells what the goal of copy speed asks for: how far from it the original is. The cache is full, the rows
of both sides are the same (the library restores a state that kvsim saved), each uses one thread.

llama.cpp turns keys inside the next decode, so what counts is a decode behind a ``seq_add``, less one
without.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from kvsim.bench.cells import LEFT_FREE, filled, library, params_for
from kvsim.bench.measure import COPIED, Row, median_of, plain_copy, seconds_of
from kvsim.bench.tensors import PLAIN_COPY, pairing, rows_of
from kvsim.caches.kv import KVCache
from kvsim.context import Context
from kvsim.lanes.llamacpp import EndedError, LlamaCpp
from kvsim.models.cache_spec import LayerSpec
from kvsim.models.cache_types import CACHE_TYPES, CacheType
from kvsim.ops import Op
from kvsim.tensors.codecs import U8

REPEATS = 5


def upstream_table(n_cells: int, lib: Path | None = None, repeats: int = REPEATS) -> Iterator[Row]:
    """Two rows a type: llama.cpp's K-shift beside a copy, and kvsim's beside llama.cpp's. None without the
    library."""
    for kind in CACHE_TYPES.values():
        yield from shift_rows(kind, n_cells, lib, repeats)


def shift_rows(kind: CacheType, n_cells: int, lib: Path | None, repeats: int) -> Iterator[Row]:
    """The rows of one type; a single one where llama.cpp cannot turn such keys and ends its process."""
    params = replace(params_for(n_cells), type_k=kind.name)
    context = filled(params, n_cells - LEFT_FREE, data=True)
    layer, keys = keys_of(context)
    keys[...] = rows_of(kind, n_cells, layer.n_embd_k)
    name = f"{kind.name} ({pairing(kind)}), {layer.n_head_kv} heads of {layer.n_embd_head_k}"
    with tempfile.TemporaryDirectory() as folder:
        live = library(Path(folder), params, context, lib)
        if live is None:
            return
        try:
            ours, theirs, copying = in_turns(context, live, keys.nbytes, repeats)
        except EndedError:
            seconds = median_of(Turner(context), repeats)
            yield Row(f"K-shift, {name}", seconds, "llama.cpp (ends its process)")
            return
        finally:
            live.close()
    yield Row(f"llama.cpp's own K-shift, {name}", theirs, PLAIN_COPY, copying)
    yield Row(f"K-shift, {name}", ours, f"llama.cpp {live.version}", theirs)


def keys_of(context: Context) -> tuple[LayerSpec, U8]:
    """The only layer of a context of one block, and its key rows ``[cell, row bytes]``."""
    cache = context.memory
    assert isinstance(cache, KVCache)
    assert cache.store is not None
    return cache.spec.layers[0], cache.store.k[0][0]


class Turner:
    """Turns the keys of a context there and back by a step, in turns."""

    def __init__(self, context: Context) -> None:
        self.context, self.step = context, 1

    def __call__(self) -> None:
        self.context.memory.seq_add(0, -1, -1, self.step)
        self.context.update()
        self.step = -self.step


def in_turns(context: Context, live: LlamaCpp, n_bytes: int, repeats: int) -> tuple[float, float, float]:
    """Median seconds of a K-shift here and there, and of a plain copy of ``n_bytes``."""
    end = context.memory.seq_pos_max(0) + 1
    upstream = [*shift_and_decode(1, end + 1), *shift_and_decode(-1, end), *decode(end)]
    turn, copy = Turner(context), plain_copy()
    ours, theirs, copying = [], [], []
    for _ in range(repeats):
        _, there, _, _, back, _, plain, _ = live.clock(upstream)
        theirs.append((there + back) / 2 - plain)
        ours.append(seconds_of(turn))
        copying.append(seconds_of(copy) * n_bytes / COPIED)
    return median(ours), median(theirs), median(copying)


def decode(pos: int) -> list[Op]:
    """One token, that goes again."""
    return [Op.decode_run(0, pos, [0]), Op.seq_rm(0, pos, -1)]


def shift_and_decode(step: int, pos: int) -> list[Op]:
    """Moves all positions by ``step``, then decodes a token, before which keys are turned."""
    return [Op.seq_add(0, 0, -1, step), *decode(pos)]
