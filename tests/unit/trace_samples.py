"""Recordings as lists of JSON values, to change one thing and read the result."""

import gzip
import json
from pathlib import Path
from typing import Any

from kvsim.errors import TraceError
from kvsim.trace import read_trace

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
KV = TRACES / "kv" / "llama-str-c256-u64-s8-f16-04.jsonl.gz"
ISWA = TRACES / "iswa" / "gemma2-uni-c512-u16-s2-f16-swafull-01.jsonl.gz"
HYBRID = TRACES / "hybrid" / "jamba-str-c256-u32-s4-f16-00.jsonl.gz"
HYBRID_IDX = TRACES / "hybrid_idx" / "qwen4exp-str-c256-u32-s4-f16-00.jsonl.gz"
DSV4 = TRACES / "dsv4" / "deepseek4-str-c256-u32-s4-f16-00.jsonl.gz"
SMALL = TRACES / "kv" / "llama-h32-str-c256-u32-s1-f16-06.jsonl.gz"

Lines = list[dict[str, Any]]


def lines_of(path: Path) -> Lines:
    """All lines of a recording: the header, then the operations."""
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def first(lines: Lines, op: str) -> dict[str, Any]:
    """The first line of an operation that left a picture (a decode: one that succeeded)."""
    return next(x for x in lines[1:] if x["op"] == op and (op != "decode" or (x["ret"] == 0 and x["after"])))


def as_bytes(lines: Lines) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def refusal(data: bytes, name: str = "t.jsonl") -> TraceError | None:
    """The error that reading ``data`` to its end gives; None if it can be read."""
    try:
        for _ in read_trace(data, name):
            pass
    except TraceError as error:
        return error
    return None
