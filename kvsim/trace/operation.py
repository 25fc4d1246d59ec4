"""One operation of a trace: its name, its arguments, what it returned and what it carries."""

from __future__ import annotations

import binascii
import reprlib
from itertools import chain
from typing import Any

from kvsim.errors import TraceError
from kvsim.memory import MAX_SEQ
from kvsim.models.params import MAX_LAYERS
from kvsim.trace.header import Header
from kvsim.trace.kinds import (
    BOOL,
    COUNT,
    INT,
    INT_LISTS,
    INTS,
    NULL,
    RECORD,
    TEXT,
    Kind,
    Table,
    all_within,
    check_keys,
    check_names,
    check_record,
    integer,
    integers,
    one_of,
    or_null,
)


def _is_base64(value: Any) -> bool:
    try:
        binascii.a2b_base64(value, strict_mode=True)
    except (binascii.Error, TypeError, ValueError):
        return False
    return type(value) is str


BASE64 = Kind("bytes as base64", _is_base64)

LOG_TEXT = Kind(
    "printable text of at most 1000 characters",
    lambda v: type(v) is str and len(v) <= 1000 and v.isprintable(),
)

ARGS: dict[str, Table] = {
    "init": {},
    "decode": {"tokens": or_null(INTS), "pos": INTS, "seq": INT_LISTS, "out": integers(0, 1)},
    "seq_rm": {"seq": INT, "p0": INT, "p1": INT},
    "seq_cp": {"src": INT, "dst": INT, "p0": INT, "p1": INT},
    "seq_keep": {"seq": INT},
    "seq_add": {"seq": INT, "p0": INT, "p1": INT, "delta": INT},
    "seq_div": {"seq": INT, "p0": INT, "p1": INT, "d": INT},
    "clear": {"data": BOOL},
    "defrag": {"strategy": one_of("classic", "minimal")},
    "state_seq_get": {"seq": INT, "flags": one_of(0, 1, 2, 3), "slot": COUNT},
    "state_seq_set": {"seq": INT, "flags": one_of(0, 1, 2, 3), "slot": COUNT},
    "state_get": {"slot": COUNT},
    "state_set": {"slot": COUNT},
    "rows": {"cache": TEXT, "stream": COUNT, "layer": integer(0, MAX_LAYERS - 1), "cells": INTS, "tag": TEXT},
    "seen": {"line": COUNT, "cache": TEXT, "stream": COUNT},
    "said": {"line": COUNT, "text": LOG_TEXT, "explanation": TEXT},
}
"""Every operation with its arguments and their kinds."""

FAULT = Kind(
    'an object with "kind" (alloc or compute) and "ubatch"',
    lambda v: (
        type(v) is dict
        and set(v) == {"kind", "ubatch"}
        and v["kind"] in ("alloc", "compute")
        and COUNT.test(v["ubatch"])
    ),
)
"""A fault other than an abort, which the recordings of llama.cpp do not have: the graph of that ubatch
found no memory, or its computation failed."""

OPTIONAL_ARGS: dict[str, Table] = {
    "decode": {"embd_seed": COUNT, "abort_at_ubatch": COUNT, "fault": FAULT, "note": TEXT},
    "state_seq_set": {"truncate": COUNT, "xor0": integer(0, 255), "data": BASE64},
}
"""``data``: a state that was saved before the first operation."""

_RET: dict[str, Kind] = {
    "decode": one_of(0, 1, 2, -1, -2, -3),
    "seq_rm": one_of(0, 1),
    "rows": one_of(0),
    **dict.fromkeys(("state_seq_get", "state_seq_set", "state_get", "state_set"), integer(0, 2**53)),
}

_BLOB = Kind("base64 text", lambda v: type(v) is str and v.isascii())
_ROWS: Table = {"n": COUNT, "f32": _BLOB}

EXTRA: dict[str, Table] = {
    "state_seq_get": {"size": integer(0, 2**53)},
    "state_get": {"size": integer(0, 2**53)},
    "rows": {"k": or_null(RECORD), "v": or_null(RECORD)},
    "defrag": {"moves": RECORD},
}
"""What a line carries beside ``args`` and ``ret``."""

_DIGEST: Table = {"sha256": TEXT, "blob": _BLOB}
OPTIONAL_EXTRA: dict[str, Table] = {"state_seq_get": _DIGEST, "state_get": _DIGEST}
"""What it may carry: llama.cpp's recordings have digests of the saved bytes, and small states themselves."""

_LINE: Table = {
    "i": COUNT,
    "op": Kind("an operation: " + ", ".join(ARGS), lambda v: type(v) is str and v in ARGS),
    "args": RECORD,
    "after": or_null(RECORD),
}


def check_operation(line: Any, header: Header) -> None:
    """Check a line but for its pictures (``after``, ``ubatches``). Raises TraceError, without a place."""
    check_record(line, _LINE, "the operation")
    op, args = line["op"], line["args"]
    optional, extra = OPTIONAL_ARGS.get(op, {}), EXTRA.get(op, {})
    check_record(args, ARGS[op], f"{op} args", optional)
    check_keys(args, {*ARGS[op], *optional}, f"{op} args")
    optional_extra = OPTIONAL_EXTRA.get(op, {})
    check_record(line, {"ret": _RET.get(op, NULL), **extra}, op, optional_extra)
    decode = {"ubatches"} if op == "decode" else set()
    check_keys(line, {*_LINE, "ret", *extra, *optional_extra, *decode}, op)
    if op == "decode":
        _check_decode(line, header)
    elif op == "rows":
        _check_rows(line, header)
    elif op == "seen":
        _check_place(args, header)
    elif op == "defrag":
        _check_moves(line["moves"], header)
    elif extra:
        _check_saved_state(line)


def _check_decode(line: dict[str, Any], header: Header) -> None:
    args = line["args"]
    n = len(args["seq"])
    sections = header.hparams["n_pos_per_embd"] if args["tokens"] is None else 1
    for name, wanted in (("tokens", n), ("pos", n * sections), ("out", n)):
        if args[name] is not None and len(args[name]) != wanted:
            raise TraceError(
                f"decode args.{name} has {len(args[name])} entries, must have {wanted} ({n} tokens)"
            )
    if max(map(len, args["seq"]), default=0) > MAX_SEQ:
        raise TraceError(f"decode args.seq has a token of more than {MAX_SEQ} sequences")
    # a batch that llama.cpp refused may well hold wrong ids, one that it took cannot
    if line["ret"] >= 0 and not all_within(list(chain.from_iterable(args["seq"])), 0, header.n_seq_max - 1):
        raise TraceError(
            f"decode args.seq has a sequence outside 0..{header.n_seq_max - 1}, yet the batch was taken"
        )


def _check_place(args: dict[str, Any], header: Header, op: str = "seen") -> dict[str, Any]:
    """The cache that ``args`` names; its stream must be one of it."""
    cache = header.caches.get(args["cache"])
    if cache is None:
        raise TraceError(f"{op} args.cache is {args['cache']!r}, the caches are {', '.join(header.caches)}")
    integer(0, cache["n_stream"] - 1).check(args["stream"], f"{op} args.stream")
    return cache


def _check_rows(line: dict[str, Any], header: Header) -> None:
    args = line["args"]
    cache = _check_place(args, header, "rows")
    integer(0, header.hparams["n_layer_all"] - 1).check(args["layer"], "rows args.layer")
    if not all_within(args["cells"], 0, cache["size"] - 1):
        raise TraceError(f"rows args.cells has a cell outside 0..{cache['size'] - 1}")
    for name in ("k", "v"):
        if line[name] is not None:
            check_record(line[name], _ROWS, f"rows.{name}")
            size = 4 * line[name]["n"] * len(args["cells"])
            _check_base64(line[name]["f32"], size, f"rows.{name}.f32")


def _check_moves(moves: dict[str, Any], header: Header) -> None:
    check_names(moves, header.caches, "defrag.moves")
    for name, listed in moves.items():
        where, cache = f"defrag.moves.{name}", header.caches[name]
        INT_LISTS.check(listed, where)
        for move in listed:
            stream, src, dst, length = move if len(move) == 4 else (-1, 0, 0, 0)
            if not (
                0 <= stream < cache["n_stream"]
                and 0 < length <= cache["size"]
                and min(src, dst) >= 0
                and max(src, dst) + length <= cache["size"]
            ):
                raise TraceError(
                    f"{where} has {reprlib.repr(move)}, must be [stream, from, to, cells] within "
                    f"{cache['n_stream']} streams of {cache['size']} cells"
                )


def _check_saved_state(line: dict[str, Any]) -> None:
    op = line["op"]
    if line["size"] != line["ret"]:
        raise TraceError(f"{op}.size is {line['size']}, ret is {line['ret']}: both are the bytes written")
    digest = line.get("sha256", "0" * 64)
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise TraceError(f"{op}.sha256 is {reprlib.repr(digest)}, must be 64 hexadecimal digits")
    if "blob" in line:
        _check_base64(line["blob"], line["size"], f"{op}.blob")


def _check_base64(text: str, size: int, where: str) -> None:
    try:
        found = len(binascii.a2b_base64(text, strict_mode=True))
    except binascii.Error as error:
        raise TraceError(f"{where} is not base64: {error}") from None
    if found != size:
        raise TraceError(f"{where} holds {found} bytes, must hold {size}")
