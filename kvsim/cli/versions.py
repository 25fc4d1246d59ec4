"""``kvsim difftest --lane llamacpp@A --against llamacpp@B``: what two releases of llama.cpp do differently."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from kvsim.cli.terminal import stderr, stdout
from kvsim.errors import KvsimError
from kvsim.lanes.against import changes, write_change
from kvsim.lanes.campaign import memory_of
from kvsim.lanes.library import LaneError, library_named
from kvsim.models.tiny import TINY
from kvsim.narrate.words import count

LANE = "llamacpp"


def hold_against(lane: str, against: str, memory: str, config: str, ops: int, seed: int, trace: Path) -> int:
    """Print the changes and write both traces of each; returns how many there are. Raises KvsimError for a lane
    that is not there."""
    libs = [_library("--lane", lane), _library("--against", against)]
    models = [model for model in TINY if memory in ("all", memory_of(model))]
    if not models:
        known = ", ".join(dict.fromkeys(map(memory_of, TINY)))
        raise KvsimError(f"unknown memory {memory!r}: give all, or one of {known}")
    out, n, left_out = stdout(), 0, 0
    with stderr().status("performing the same operations on both"):
        for change in changes(libs, memory, ops, seed, config):
            if isinstance(change, LaneError):
                left_out += 1
                if left_out == len(models):
                    raise KvsimError(f"nothing could be run: {change}")
                out.print(Text(f"left out: {change}"))
                continue
            n += 1
            stem = trace.with_name(f"{trace.stem}-{n}")
            paths = write_change(change, libs, stem)
            out.print(Text(f"{change.memory} ({change.model}): {change.what}, after"))
            for op in change.ops:
                out.print(Text(f"  {op}"))
            out.print(Text(f"  traces: {', '.join(map(str, paths))}"))
    out.print(Text(f"{count(n, 'change')} in {count(ops, 'operation')} a memory"))
    return n


def _library(option: str, text: str) -> Path | None:
    name, _, where = text.partition("@")
    if name != LANE:
        raise KvsimError(f"{option} {text!r} is no release of llama.cpp: give {LANE}, or {LANE}@ and a version, a "
                         "library, or a folder that a wheel was unpacked into")  # fmt: skip
    return library_named(where)
