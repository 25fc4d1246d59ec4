"""States that llama.cpp saved, byte for byte: taken apart and put together, restored and saved again.

277 recorded states of all ten memories, whole and of one sequence, full and partial.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from recorded_states import KINDS, RecordedState, header_of, paths_of, spec_of, states_of

from kvsim.caches.factory import LeafFactory
from kvsim.context import Context
from kvsim.models.cache_spec import CacheSpec, MemorySpec
from kvsim.replay import Replayer, context_of
from kvsim.state import PARTIAL_ONLY
from kvsim.state_format import (
    Cell,
    CompressedSection,
    KVSection,
    RecurrentSection,
    RingSection,
    SavedState,
    StateCell,
    older_layouts,
    parse_state,
)
from kvsim.state_versions import CURRENT
from kvsim.trace.header import Header
from kvsim.window import masked


def parse(recorded: RecordedState, spec: MemorySpec) -> SavedState:
    return parse_state(recorded.data, spec, partial=bool(recorded.flags & PARTIAL_ONLY))


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_states_come_apart_and_together(kind: str) -> None:
    n = 0
    for path in paths_of(kind):
        header = header_of(path)
        spec = spec_of(header)
        for recorded in states_of(path):
            state = parse(recorded, spec)
            assert state.to_bytes() == recorded.data, recorded.where
            assert (state.rest, state.layout) == (b"", CURRENT), recorded.where
            assert (state.arch, state.source) == (
                ("", recorded.seq) if recorded.seq >= 0 else (header["arch"], -1)
            )
            n += 1
    assert n >= 15


@pytest.mark.parametrize("kind", KINDS)
def test_the_records_say_what_the_picture_says(kind: str) -> None:
    for path in paths_of(kind):
        header = header_of(path)
        spec = spec_of(header)
        for recorded in states_of(path):
            for name, section in parse(recorded, spec).sections.items():
                check_section(name, section, recorded, spec, header["config"]["cparams"]["n_seq_max"])


def check_section(name: str, section: Any, recorded: RecordedState, spec: MemorySpec, n_seq_max: int) -> None:
    picture, seq = recorded.picture, recorded.seq
    if isinstance(section, KVSection):
        for stream, cells in zip(section.streams, picture["caches"][name], strict=True):
            assert stream.cells == saved_cells(spec.caches[name], cells["cells"], seq, n_seq_max), (
                recorded.where
            )
    elif isinstance(section, RecurrentSection):
        cells = picture["recurrent"]["cells"]
        wanted = [
            StateCell(pos, tuple(owners) if seq < 0 else ()) for _, pos, *_, owners in cells
            if (owners if seq < 0 else seq in owners)
        ]  # fmt: skip
        assert list(section.cells) == wanted, recorded.where
    elif isinstance(section, CompressedSection):
        cache = spec.caches[name]
        pos_max = picture["pos"][str(seq)][1]
        assert section.n_rows == min(cache.size, (pos_max + 1) // spec.compressors[name].ratio)
    elif isinstance(section, RingSection):
        assert [il for il, *_ in section.blocks] == list(spec.compressors[name.removesuffix(".ring")].layers)


def saved_cells(spec: CacheSpec, listed: list[Any], seq: int, n_seq_max: int) -> tuple[Cell, ...]:
    """What W1 says is saved of a stream of a picture."""
    last = max((pos for _, pos, owners, *_ in listed if seq in owners), default=-1)
    kept = []
    for _, pos, owners, _, tok, x, y in listed:
        ids = tuple(s for s in owners if s < n_seq_max) if seq < 0 else (seq,)
        gone = seq >= 0 and (seq not in owners or bool(masked(spec.swa_type, spec.n_swa, pos, last)))
        if pos != -1 and not gone:
            kept.append(Cell(pos, ids, (x, y, tok) if spec.has_cell_ext else ()))
    return tuple(kept)


def restore(context: Context, recorded: RecordedState) -> int:
    if recorded.seq < 0:
        return context.state_set(recorded.data)
    return context.state_seq_set(recorded.data, recorded.seq, recorded.flags)


def save(context: Context, recorded: RecordedState) -> bytes:
    return context.state_get() if recorded.seq < 0 else context.state_seq_get(recorded.seq, recorded.flags)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_restored_is_saved_with_the_same_bytes(kind: str) -> None:
    """Rows included: llama.cpp's bytes go into our rows and come out again."""
    for path in paths_of(kind):
        context = context_of(Header.from_json(header_of(path)), LeafFactory(data=True))
        for recorded in states_of(path):
            context.memory.clear(True)
            assert restore(context, recorded) == len(recorded.data), (recorded.where, context.last_failure)
            assert save(context, recorded) == recorded.data, recorded.where
            context.memory.check_integrity()


@pytest.mark.parametrize("kind", KINDS)
def test_current_states_are_not_taken_for_older_ones(kind: str) -> None:
    path = paths_of(kind)[0]
    spec = spec_of(header_of(path))
    for recorded in states_of(path):
        assert older_layouts(recorded.data, spec, bool(recorded.flags & PARTIAL_ONLY)) == []


def smallest_of_each_architecture() -> list[Path]:
    chosen: dict[str, Path] = {}
    for kind in KINDS:
        for path in sorted(paths_of(kind), key=lambda path: path.stat().st_size):
            chosen.setdefault(f"{kind}/{path.name.split('-uni-')[0].split('-str-')[0]}", path)
    return list(chosen.values())


@pytest.mark.parametrize("path", smallest_of_each_architecture(), ids=lambda path: path.name.split(".")[0])
def test_with_rows_states_have_the_recorded_sizes(path: Path) -> None:
    """The rows are zeros without the model, their number of bytes is not."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        header, *operations = map(json.loads, lines)
    replayer = Replayer(context_of(Header.from_json(header), LeafFactory(data=True)))
    n_states = 0
    for line in operations:
        ret = replayer.apply(line["op"], line["args"])
        if line["op"].startswith("state_"):
            assert ret == line["ret"], f"{path.name} operation {line['i']}"
            n_states += 1
    assert n_states
