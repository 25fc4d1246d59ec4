"""The rows of a large cache: turning, moving, copying, encoding them, and reading through them.

Beside a plain copy of the same rows, or beside torch where that is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np

from kvsim.bench.measure import Goal, Row, Step, beside_copy, median_of, side_by_side
from kvsim.memory import IntArray
from kvsim.models.cache_spec import LayerSpec
from kvsim.models.cache_types import CACHE_TYPES, CacheType, cache_type
from kvsim.tensors.attention import attention
from kvsim.tensors.codecs import U8, decode, encode
from kvsim.tensors.indexer import index_scores, select
from kvsim.tensors.rope import Rope
from kvsim.tensors.shift import BLOCK_BYTES, KeyShift
from kvsim.tensors.store import KVStore

N_CELLS = 131_072
REPEATS = 3
N_HEAD, HEAD = 2, 128
"""Key heads of a row: 256 values."""

PLAIN_COPY = "a plain copy"
COPY_GOAL = Goal("within", 2)
RUN = 16
"""Cells of one run in the defragmented cache: every other run is empty."""


def tensors_table(n_cells: int = N_CELLS, repeats: int = REPEATS) -> Iterator[Row]:
    """The rows, one after the other as they are measured."""
    for kind in CACHE_TYPES.values():
        for neox in (False, True):
            if not (neox and kind.is_quantized):  # one matrix turns either pairing
                yield shift_row(kind, n_cells, repeats, neox)
    yield shift_row(cache_type("f16"), n_cells, repeats, share=0.5)
    for kind in CACHE_TYPES.values():
        if not kind.is_quantized:
            yield torch_shift_row(kind, n_cells, repeats)
    yield defrag_row(n_cells, repeats)
    yield stream_copy_row(n_cells, repeats)
    for kind in CACHE_TYPES.values():
        yield from codec_rows(kind, n_cells // 8, repeats)
    yield attention_row(n_cells // 16, repeats)
    yield indexer_row(n_cells // 16, repeats)


def rows_of(kind: CacheType, n: int, width: int = N_HEAD * HEAD) -> U8:
    """``n`` random rows of ``width`` values, of which 256 are different."""
    some = encode(kind.name, np.random.default_rng(0).normal(size=(min(n, 256), width)))
    return np.tile(some, (-(-n // len(some)), 1))[:n]


def shift_row(kind: CacheType, n_cells: int, repeats: int, neox: bool = False, share: float = 1.0) -> Row:
    """A K-shift of all rows, or of a share of them in runs, beside a copy of the rows that turn."""
    rows = rows_of(kind, n_cells)
    key = KeyShift(kind, N_HEAD, HEAD, Rope(n_rot=HEAD, neox=neox), HEAD if kind.is_quantized else 0)
    moved = np.arange(n_cells) < share * n_cells
    shift = np.where(moved, -7, 0).astype(np.int32)
    times = beside_copy(lambda: key.apply(rows, shift), int(moved.sum()) * rows.shape[1], repeats)
    which = "" if share == 1 else f", {share:.0%} of the cells"
    return Row(
        f"K-shift, {kind.name} ({pairing(kind, neox)}){which}", times[0], PLAIN_COPY, times[1], COPY_GOAL
    )


def pairing(kind: CacheType, neox: bool = False) -> str:
    """How values pair up for turning; one matrix turns quantised rows of either pairing."""
    return "quantised" if kind.is_quantized else "halves" if neox else "neighbours"


def torch_shift_row(kind: CacheType, n_cells: int, repeats: int) -> Row:
    """A K-shift of all rows, beside the same turn with torch's own operations (in float32), block by block."""
    rows = rows_of(kind, n_cells)
    key, shift = KeyShift(kind, N_HEAD, HEAD, Rope(n_rot=HEAD)), np.full(n_cells, -7, np.int32)
    name, torch = f"K-shift, {kind.name} (neighbours), beside torch", torch_if_installed()
    if torch is None:
        return Row(name, median_of(lambda: key.apply(rows, shift), repeats), "torch (not installed)")
    cos, sin = (torch.from_numpy(table).float() for table in key.rope.cos_sin([-7]))
    factor = torch.complex(cos, sin)
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kind.name]
    theirs = torch.from_numpy(rows.copy()).view(dtype).view(-1, N_HEAD, HEAD // 2, 2)

    def turn() -> None:
        for block in theirs.split(BLOCK_BYTES // (4 * N_HEAD * HEAD)):
            block.copy_(torch.view_as_real(torch.view_as_complex(block.float()) * factor))

    ours, reference = side_by_side(lambda: key.apply(rows, shift), turn, repeats)
    return Row(name, ours, "torch", reference)


def _store(n_cells: int, n_stream: int) -> KVStore:
    f16 = cache_type("f16")
    width = N_HEAD * HEAD
    layer = LayerSpec(
        il=0, k=f16, n_embd_k=width, v=f16, n_embd_v=width, n_head_kv=N_HEAD, n_rot=HEAD, rope_offset=0,
        has_rope=True, freq_base=10000.0, freq_scale=1.0, factors=None, n_embd_v_own=width,
    )  # fmt: skip
    return KVStore([layer], n_stream, n_cells, v_trans=False)


def defrag_row(n_cells: int, repeats: int) -> Row:
    """Closing holes: every other run of cells moves, beside a copy of as many rows in one piece."""
    store = _store(n_cells, 1)
    runs = np.arange(n_cells, dtype=np.int32).reshape(-1, RUN)
    last, holes = runs[len(runs) // 2 + 1 :: 2].reshape(-1), runs[1 : len(runs) // 2 : 2].reshape(-1)
    n = min(len(last), len(holes))
    src: IntArray = last[:n]
    dst: IntArray = holes[:n]
    n_bytes = n * sum(slab.shape[-1] for slab in (store.k[0], store.v[0]))
    ours, plain = beside_copy(lambda: store.move_cells(0, src, dst), n_bytes, repeats)
    return Row(f"defragmentation, {n:,} cells in runs of {RUN}", ours, PLAIN_COPY, plain, COPY_GOAL)


def stream_copy_row(n_cells: int, repeats: int) -> Row:
    """All rows of one stream over another's."""
    store = _store(n_cells // 2, 2)
    ours, plain = beside_copy(lambda: store.copy_stream(0, 1), store.n_bytes // 2, repeats)
    return Row(f"stream copy, {n_cells // 2:,} cells", ours, PLAIN_COPY, plain, COPY_GOAL)


def codec_rows(kind: CacheType, n_cells: int, repeats: int) -> Iterator[Row]:
    """Encoding and decoding, beside a copy of the float32 values."""
    values = decode(kind.name, rows_of(kind, n_cells))
    raw = encode(kind.name, values)
    steps: dict[str, Step] = {
        "encode": lambda: encode(kind.name, values),
        "decode": lambda: decode(kind.name, raw),
    }
    for name, step in steps.items():
        ours, plain = beside_copy(step, values.nbytes, repeats)
        yield Row(f"{name} {kind.name}", ours, "a copy of the float32 values", plain)


def torch_if_installed() -> Any:
    """torch, to measure against; None without it. (kvsim itself never needs it.)"""
    return importlib.import_module("torch") if importlib.util.find_spec("torch") else None


def attention_row(n_cells: int, repeats: int, n_token: int = 16, n_head: int = 8) -> Row:
    """Attention of a few tokens over all cells, beside torch's where it is installed."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(n_token, n_head, HEAD)).astype(np.float32)
    k, v = rng.normal(size=(2, n_cells, N_HEAD, HEAD)).astype(np.float32)
    mask = np.arange(n_cells) <= np.arange(n_cells - n_token, n_cells)[:, None]
    name = f"attention, {n_token} tokens, {n_head} heads, {n_cells:,} cells"
    torch = torch_if_installed()

    def ours() -> object:
        return attention(q, k, v, mask, scale=HEAD**-0.5)

    if torch is None:
        return Row(name, side_by_side(ours, ours, repeats)[0], "torch (not installed)")
    queries = torch.from_numpy(q).transpose(0, 1)
    keys, values = (
        torch.from_numpy(x).transpose(0, 1).repeat_interleave(n_head // N_HEAD, 0) for x in (k, v)
    )
    visible = torch.from_numpy(mask)
    scaled = torch.nn.functional.scaled_dot_product_attention
    times = side_by_side(ours, lambda: scaled(queries, keys, values, attn_mask=visible), repeats)
    return Row(name, times[0], "torch", times[1])


def indexer_row(n_cells: int, repeats: int, n_token: int = 16, n_head: int = 4, top_k: int = 256) -> Row:
    """Scores of the lightning indexer and the choice of its best cells."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(n_token, n_head, HEAD)).astype(np.float32)
    keys = rng.normal(size=(n_cells, HEAD)).astype(np.float32)
    weights = rng.normal(size=(n_token, n_head)).astype(np.float32)
    visible = np.ones((n_token, n_cells), np.bool_)
    top_k = min(top_k, n_cells)
    name = f"lightning indexer, {n_token} tokens, best {top_k} of {n_cells:,} cells"
    torch = torch_if_installed()

    def ours() -> object:
        return select(index_scores(q, keys, weights, visible), top_k, visible)

    if torch is None:
        return Row(name, side_by_side(ours, ours, repeats)[0], "torch (not installed)")
    tq, tk, tw = (torch.from_numpy(x) for x in (q, keys, weights))

    def theirs() -> object:
        scores = torch.einsum("thc,th->tc", torch.relu(torch.einsum("thd,cd->thc", tq, tk)), tw)
        return torch.topk(scores, top_k)

    times = side_by_side(ours, theirs, repeats)
    return Row(name, times[0], "torch", times[1])
