"""Every saved state whose bytes are recorded, with the picture of the memory it was taken of."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recorded_decodes import TRACES

from kvsim.models.cache_spec import MemorySpec
from kvsim.models.context_params import ContextParams, resolve
from kvsim.models.memory_spec import memory_spec
from kvsim.models.params import ModelParams

KINDS = (
    "kv", "iswa", "recurrent", "hybrid", "hybrid_iswa", "hybrid_idx", "dsa", "dsa_iswa", "msa", "dsv4",
)  # fmt: skip


@dataclass(frozen=True)
class RecordedState:
    """One ``state_get`` or ``state_seq_get`` line: the bytes, and the picture at that moment."""

    where: str
    seq: int
    """-1 of a whole state."""
    flags: int
    data: bytes
    picture: dict[str, Any]


def paths_of(kind: str) -> list[Path]:
    return sorted((TRACES / kind).glob("*.jsonl.gz"))


def header_of(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        header: dict[str, Any] = json.loads(lines.readline())
    return header


def spec_of(header: dict[str, Any]) -> MemorySpec:
    model = ModelParams.from_header(header)
    spec = memory_spec(model, resolve(model, ContextParams.from_header(header)))
    assert spec is not None
    return spec


def states_of(path: Path) -> Iterator[RecordedState]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        next(lines)
        picture: dict[str, Any] = {}
        for text in lines:
            line = json.loads(text)
            picture = line["after"] or picture
            if "blob" in line:
                args = line["args"]
                seq, flags = args.get("seq", -1), args.get("flags", 0)
                data = base64.b64decode(line["blob"])
                yield RecordedState(f"{path.name} operation {line['i']}", seq, flags, data, picture)
