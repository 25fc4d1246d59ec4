"""The pictures in a trace: the whole metadata after an operation (``after``), and one record per ubatch.

Checked is what a reader relies on: shapes, kinds of values, and that every index points at something.
Whether a picture is *right* is not: a trace may well show a cache with a fault.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from itertools import chain, pairwise
from operator import lt
from typing import Any

from kvsim.errors import TraceError
from kvsim.memory import MAX_SEQ
from kvsim.trace.header import COMPRESSORS, Header
from kvsim.trace.kinds import (
    BOOL,
    COUNT,
    INT,
    INT32,
    INTS,
    LIST,
    RECORD,
    Table,
    all_within,
    check_keys,
    check_names,
    check_record,
    integer,
    integer_lists,
    integers,
    or_null,
)
from kvsim.trace.reuse import common_ends

_AFTER: Table = {"caches": RECORD, "recurrent": or_null(RECORD), "pos": RECORD}
_AFTER_OPTIONAL: Table = {"pending_copies": RECORD, "rs_idx": INTS, "idx_stale": LIST, "unseen": RECORD}
_STREAM: Table = {"head": COUNT, "used": COUNT, "has_shift": BOOL, "cells": LIST}
_CELL = ("index", "pos", "seq", "shift", "tok", "x", "y")
_RECURRENT: Table = {
    **dict.fromkeys(("head", "size", "used", "n", "rs_z", "n_rs_seq"), INT),
    "rs_idx": INTS,
    "cells": LIST,
}
_RECURRENT_CELL = ("index", "pos", "src", "src0", "tail", "seq")
_UBATCH: Table = {
    **dict.fromkeys(("n_tokens", "n_seq_tokens", "n_seqs"), COUNT),
    "equal": BOOL,
    "seq_unq": INTS,
    "idx": INTS,
    "ok": BOOL,
}
_UBATCH_OPTIONAL: Table = {
    "seq": LIST,
    "slots": RECORD,
    "mask": RECORD,
    "recurrent": RECORD,
    "plan": RECORD,
    "raw_n_kv": COUNT,
}
_SLOT: Table = {"strm": INTS, "idxs": LIST}
_COPIES = tuple(
    f"state_{what}_{end}_idxs" for what in ("persist", "restore", "snapshot") for end in ("src", "dst")
)
_PLAN: Table = {
    **dict.fromkeys(("n_stream", "n_kv"), COUNT),
    **dict.fromkeys(("n_visible", "state_pos", "state_read_idxs", *_COPIES), INTS),
    **dict.fromkeys(("state_write_idxs", "state_write_pos"), INTS),
}
"""The plan of one compressor for a ubatch: index lists, and how many rows each token sees."""


# -- after ------------------------------------------------------------------------------------


def check_picture(after: Any, header: Header, before: dict[str, Any] | None = None) -> None:
    """Check an ``after`` that is not null. Raises TraceError, without a place.

    ``before`` is the checked picture before it: cells that are in both need no second look.
    """
    check_record(after, _AFTER, "after", _AFTER_OPTIONAL)
    check_keys(after, {*_AFTER, *_AFTER_OPTIONAL}, "after")
    check_names(after["caches"], header.caches, "after.caches")
    for name, streams in after["caches"].items():
        _check_streams(streams, header, name, before["caches"][name] if before else None)
    if (after["recurrent"] is None) != (header.config["recurrent"] is None):
        raise TraceError("after.recurrent is there or missing against what config.recurrent says")
    if after["recurrent"] is not None:
        _check_recurrent(after["recurrent"], header, "after.recurrent")
    check_names(after["pos"], [str(seq) for seq in range(header.n_seq_max)], "after.pos")
    for seq, ends in after["pos"].items():
        _check_pair(ends, f"after.pos[{seq}]", INT32, INT32)
    _check_extras(after, header)


def _check_streams(streams: Any, header: Header, name: str, before: list[dict[str, Any]] | None) -> None:
    cache = header.caches[name]
    n_stream, size = cache["n_stream"], cache["size"]
    # a cache with several streams knows the configured sequences only, a unified one all of them
    n_seq = header.n_seq_max if n_stream > 1 else MAX_SEQ
    LIST.check(streams, f"after.caches.{name}")
    if len(streams) != n_stream:
        raise TraceError(f"after.caches.{name} has {len(streams)} streams, the header says {n_stream}")
    for s, stream in enumerate(streams):
        where = f"after.caches.{name}[{s}]"
        check_record(stream, _STREAM, where)
        check_keys(stream, _STREAM, where)
        for key in ("head", "used"):
            integer(0, size).check(stream[key], f"{where}.{key}")
        cells = stream["cells"]
        start, stop = common_ends(before[s]["cells"], cells) if before else (0, 0)
        # one known cell at each end is looked at again: the others must stand between them
        check_cells(cells[max(start - 1, 0) : len(cells) - max(stop - 1, 0)], size, n_seq, f"{where}.cells")


def check_cells(cells: list[Any], size: int, n_seq: int, where: str) -> None:
    """Check the non-empty cells of a stream. By columns: a picture can have 100,000 cells."""
    if not cells:
        return
    _check_tuples(cells, len(_CELL), where)
    index, *columns = zip(*cells, strict=True)
    seq = columns.pop(1)
    if not all_within(index, 0, size - 1):
        raise TraceError(f"{where} has a cell index outside 0..{size - 1}")
    if not all(map(lt, index, index[1:])):
        again = next(b for a, b in pairwise(index) if a >= b)
        raise TraceError(f"{where}: cell {again} comes twice or out of order")
    for name, column in zip(("pos", "shift", "tok", "x", "y"), columns, strict=True):
        if not all_within(column, *INT32):
            raise TraceError(f"{where} has a {name} that is not a 32-bit integer")
    _check_owners(seq, n_seq, where)


def _check_tuples(rows: list[Any], length: int, where: str) -> None:
    if set(map(type, rows)) != {list} or set(map(len, rows)) != {length}:
        bad = next(row for row in rows if type(row) is not list or len(row) != length)
        raise TraceError(f"{where} has {reprlib.repr(bad)}, must be lists of {length} values")


def _check_owners(owners: Sequence[Any], n_seq: int, where: str) -> None:
    if set(map(type, owners)) != {list}:
        raise TraceError(f"{where} has a cell whose sequences are not a list")
    if not all_within(list(chain.from_iterable(owners)), 0, n_seq - 1):
        raise TraceError(f"{where} has a cell with a sequence outside 0..{n_seq - 1}")
    for ids in owners:
        if len(ids) > 1 and not all(map(lt, ids, ids[1:])):
            raise TraceError(f"{where} has a cell whose sequences {ids[:8]} are not ascending")


def _check_recurrent(record: Any, header: Header, where: str) -> None:
    size = header.config["recurrent"]["size"]
    check_record(record, _RECURRENT, where)
    check_keys(record, _RECURRENT, where)
    if record["size"] != size or len(record["cells"]) != size:
        raise TraceError(
            f"{where} has {len(record['cells'])} cells and size {record['size']}, the header says {size}"
        )
    _check_tuples(record["cells"], len(_RECURRENT_CELL), f"{where}.cells")
    index, *columns, seq = zip(*record["cells"], strict=True)
    if index != tuple(range(size)):
        raise TraceError(f"{where}.cells must list every cell in order")
    if not all_within(list(chain.from_iterable(columns)), *INT32):
        raise TraceError(f"{where}.cells has a value that is not a 32-bit integer")
    _check_owners(seq, MAX_SEQ, f"{where}.cells")


def _check_extras(after: dict[str, Any], header: Header) -> None:
    # a DeepSeek-V4 memory copies its compressors' states too
    states = {f"{name}_state": part for name, part in header.config.get("dsv4", {}).items()}
    parts = {**header.caches, **states}
    for name, copies in after.get("pending_copies", {}).items():
        where = f"after.pending_copies.{name}"
        if name not in parts:
            raise TraceError(f"{where}: the header has no such cache")
        LIST.check(copies, where)
        streams = (0, parts[name]["n_stream"] - 1)
        for i, pair in enumerate(copies):
            _check_pair(pair, f"{where}[{i}]", streams, streams)
    for name, streams in after.get("unseen", {}).items():
        # of a recurrent part everything is unseen, or nothing
        single = name == "recurrent" and header.config["recurrent"] is not None
        n_stream = 1 if single else _cache_of(name, header, f"after.unseen.{name}")["n_stream"]
        integers(0, n_stream - 1).check(streams, f"after.unseen.{name}")
    for i, pair in enumerate(after.get("idx_stale", [])):
        _check_pair(pair, f"after.idx_stale[{i}]", (0, MAX_SEQ - 1), INT32)


def _check_pair(pair: Any, where: str, first: tuple[int, int], second: tuple[int, int]) -> None:
    LIST.check(pair, where)
    if len(pair) != 2:
        raise TraceError(f"{where} must be a list of 2 values")
    integer(*first).check(pair[0], f"{where}[0]")
    integer(*second).check(pair[1], f"{where}[1]")


# -- ubatches ---------------------------------------------------------------------------------


def check_ubatches(ubatches: Any, n_batch_tokens: int, header: Header) -> None:
    """Check the ubatch records of a decode of ``n_batch_tokens``. Raises TraceError, without a place."""
    LIST.check(ubatches, "ubatches")
    for u, ubatch in enumerate(ubatches):
        where = f"ubatches[{u}]"
        check_record(ubatch, _UBATCH, where, _UBATCH_OPTIONAL)
        check_keys(ubatch, {*_UBATCH, *_UBATCH_OPTIONAL}, where)
        _check_tokens(ubatch, n_batch_tokens, header, where)
        for name, slot in ubatch.get("slots", {}).items():
            _check_slot(slot, name, ubatch["n_tokens"], header, f"{where}.slots.{name}")
        for name, rows in ubatch.get("mask", {}).items():
            _check_mask(rows, name, ubatch["n_tokens"], header, f"{where}.mask.{name}")
        if "recurrent" in ubatch:
            if header.config["recurrent"] is None:
                raise TraceError(f"{where}.recurrent: the header has no recurrent part")
            _check_recurrent(ubatch["recurrent"], header, f"{where}.recurrent")
        if "plan" in ubatch:
            _check_plan(ubatch["plan"], f"{where}.plan")


def _check_tokens(ubatch: dict[str, Any], n_batch_tokens: int, header: Header, where: str) -> None:
    n_tokens = ubatch["n_tokens"]
    if len(ubatch["idx"]) != n_tokens:
        raise TraceError(f"{where}.idx has {len(ubatch['idx'])} entries, n_tokens says {n_tokens}")
    if not all_within(ubatch["idx"], 0, n_batch_tokens - 1):
        raise TraceError(f"{where}.idx points outside the batch of {n_batch_tokens} tokens")
    integers(0, header.n_seq_max - 1).check(ubatch["seq_unq"], f"{where}.seq_unq")
    if "seq" in ubatch:
        _need_rows(ubatch["seq"], n_tokens, f"{where}.seq")
        integer_lists(0, header.n_seq_max - 1).check(ubatch["seq"], f"{where}.seq")


def _need_rows(rows: Any, n_tokens: int, where: str) -> None:
    LIST.check(rows, where)
    if len(rows) != n_tokens:
        raise TraceError(f"{where} has {len(rows)} rows, the ubatch has {n_tokens} tokens")


def _cache_of(name: str, header: Header, where: str) -> dict[str, Any]:
    cache = header.caches.get(name.removesuffix(".read"))
    if cache is None:
        raise TraceError(f"{where}: the header has no such cache")
    return cache


def _check_slot(slot: Any, name: str, n_tokens: int, header: Header, where: str) -> None:
    cache = _cache_of(name, header, where)
    check_record(slot, _SLOT, where, {"n_kv": integer(0, cache["size"])})
    check_keys(slot, {*_SLOT, "n_kv"}, where)
    integers(0, cache["n_stream"] - 1).check(slot["strm"], f"{where}.strm")
    if len(slot["idxs"]) != len(slot["strm"]):
        raise TraceError(f"{where} has cells for {len(slot['idxs'])} streams, strm has {len(slot['strm'])}")
    integer_lists(0, cache["size"] - 1).check(slot["idxs"], f"{where}.idxs")
    # DeepSeek-V4 writes a shared token into the stream of each of its sequences
    if header.memory != "dsv4" and sum(map(len, slot["idxs"])) != n_tokens:
        raise TraceError(f"{where} has {sum(map(len, slot['idxs']))} cells, the ubatch has {n_tokens} tokens")


def _check_mask(rows: Any, name: str, n_tokens: int, header: Header, where: str) -> None:
    size = _cache_of(name, header, where)["size"]
    _need_rows(rows, n_tokens, where)
    integer_lists(0, size).check(rows, where)
    for i, row in enumerate(rows):
        if len(row) % 2 or not all(map(lt, row, row[1:])):
            raise TraceError(f"{where}[{i}] must be pairs of ascending bounds, is {row[:8]}")


def _check_plan(plan: dict[str, Any], where: str) -> None:
    check_names(plan, COMPRESSORS, where)
    for name, part in plan.items():
        check_record(part, _PLAN, f"{where}.{name}")
        check_keys(part, _PLAN, f"{where}.{name}")
        if len(part["state_write_idxs"]) != len(part["state_write_pos"]):
            raise TraceError(
                f"{where}.{name} writes {len(part['state_write_idxs'])} rows for "
                f"{len(part['state_write_pos'])} positions"
            )
