"""The parser of saved states: literal layouts, versions, and errors that say where and how much."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import Any

import pytest

from kvsim.batch import Batch
from kvsim.caches.factory import LeafFactory
from kvsim.context import Context
from kvsim.errors import StateError
from kvsim.models.cache_spec import MemorySpec
from kvsim.models.context_params import ContextParams
from kvsim.models.memory_spec import memory_spec
from kvsim.models.params import LayerParams, ModelParams, RopeType
from kvsim.state import load_all_file, load_sequence_file, save_all, save_sequence_file
from kvsim.state_format import Cell, Container, KVSection, SavedState, older_layouts, parse_state
from kvsim.state_versions import CURRENT, LAYOUTS, SEQ_FILE_MAGIC, SESSION_MAGIC, Layout

LAYER = LayerParams(n_head_kv=1, n_embd_head_k=2, n_embd_head_v=1, n_rot=2)
TEXT = ModelParams("llama", (LAYER,), n_ctx_train=4096, rope_type=RopeType.NORM)
IMAGES = replace(TEXT, arch="qwen2vl", rope_type=RopeType.MROPE)
V2, V2_EARLY = LAYOUTS[2], LAYOUTS[3]
V3 = LAYOUTS[1]


def context(model: ModelParams, **asked: Any) -> Context:
    """Sequence 0 holds tokens 7, 8, 9 at positions 0, 1, 2; its rows are bytes that count up."""
    params = replace(ContextParams(n_ctx=256, n_seq_max=2, kv_unified=True, flash_attn=True), **asked)
    ctx = Context(model, params, n_vocab=16, leaves=LeafFactory(data=True, sizes={"kv": 8}))
    store = ctx.memory.leaves()["kv"].store
    for n, slab in enumerate((store.k[0], store.v[0])):
        slab.reshape(-1)[:] = [(100 * n + i) % 256 for i in range(slab.size)]
    assert ctx.decode(Batch(tokens=[7, 8, 9], pos=[0, 1, 2], seq_ids=[[0]] * 3)) == 0
    return ctx


def spec_of(ctx: Context) -> MemorySpec:
    spec = memory_spec(ctx.model, ctx.resolved)
    assert spec is not None
    return spec


CTX = context(TEXT)
SPEC = spec_of(CTX)
BLOB = CTX.state_seq_get(0)
K_ROWS, V_ROWS = bytes(range(12)), bytes(range(100, 106))


def test_a_sequence_buffer_byte_by_byte() -> None:
    assert (
        struct.pack("<Ii", 0xAF143CD8, 0)
        + struct.pack("<II", 1, 3)
        + b"".join(struct.pack("<iIi", pos, 1, 0) for pos in range(3))
        + struct.pack("<IIII", 0, 1, 0, 0)
        + struct.pack("<iQ", 1, 4) + K_ROWS
        + struct.pack("<iQ", 1, 2) + V_ROWS
    ) == BLOB  # fmt: skip
    state = parse_state(BLOB, SPEC)
    assert (state.container, state.source, state.layout, state.rest) == (Container.SEQUENCE, 0, CURRENT, b"")
    section = state.sections["kv"]
    assert isinstance(section, KVSection)
    (stream,) = section.streams
    assert stream.cells == (Cell(0, (0,)), Cell(1, (0,)), Cell(2, (0,)))
    assert (stream.v_trans, stream.rotations) == (False, (0, 0))
    assert [(rows.type_id, rows.shape, bytes(rows.data)) for rows in stream.k] == [(1, (4,), K_ROWS)]
    assert [(rows.type_id, rows.shape, bytes(rows.data)) for rows in stream.v] == [(1, (2,), V_ROWS)]


def test_transposed_values_and_cells_of_several_sequences() -> None:
    ctx = context(TEXT, flash_attn=False)
    ctx.memory.seq_cp(0, 1, 0, 2)
    blob = ctx.state_get()
    state = parse_state(blob, spec_of(ctx))
    assert (state.container, state.arch, state.source) == (Container.WHOLE, "llama", -1)
    (stream,) = state.sections["kv"].streams
    assert [cell.owners for cell in stream.cells] == [(0, 1), (0, 1), (0,)]
    assert (stream.v_trans, [rows.shape for rows in stream.v]) == (True, [(2, 1)])
    assert state.to_bytes() == blob


def test_bytes_behind_the_state_are_kept() -> None:
    state = parse_state(BLOB + b"more", SPEC)
    assert (state.rest, state.to_bytes()) == (b"more", BLOB + b"more")


# -- versions ------------------------------------------------------------------------------------


def older(state: SavedState, layout: Layout) -> SavedState:
    """The same state as an older llama.cpp would have written it."""
    section = state.sections["kv"]
    assert isinstance(section, KVSection)
    streams = tuple(
        replace(
            stream, rotations=stream.rotations if layout.has_rotation else None,
            cells=tuple(replace(cell, ext=cell.ext[: len(layout.ext)]) for cell in stream.cells),
        )
        for stream in section.streams
    )  # fmt: skip
    return replace(state, layout=layout, sections={"kv": KVSection(streams)})


def in_file(data: bytes, magic: int, version: int, tokens: tuple[int, ...] = (7, 8, 9)) -> bytes:
    return struct.pack(f"<III{len(tokens)}i", magic, version, len(tokens), *tokens) + data


def exts(state: SavedState) -> list[tuple[int, ...]]:
    (stream,) = state.sections["kv"].streams
    return [cell.ext for cell in stream.cells]


@pytest.mark.parametrize(
    ("layout", "version", "ext"),
    [(CURRENT, 4, (1, 1, 8)), (V3, 3, (1, 1, 8)), (V2, 2, (1, 1)), (V2_EARLY, 2, ())],
    ids=["4", "3", "2", "early 2"],
)
def test_sequence_files_of_every_version_can_be_looked_at(
    layout: Layout, version: int, ext: tuple[int, ...]
) -> None:
    """Versions with token ids in the cells (3), without (2), and without the 2-D positions too."""
    ctx = context(IMAGES)
    spec = spec_of(ctx)
    now = parse_state(ctx.state_seq_get(0), spec)
    data = in_file(older(now, layout).to_bytes()[8:], SEQ_FILE_MAGIC, version)
    state = parse_state(data, spec)
    assert (state.layout, state.tokens, exts(state)[1]) == (layout, (7, 8, 9), ext)
    assert state.to_bytes() == data


@pytest.mark.parametrize(("layout", "version"), [(CURRENT, 11), (V3, 10), (V2, 9)], ids=["11", "10", "9"])
def test_whole_state_files_of_every_version_can_be_looked_at(layout: Layout, version: int) -> None:
    ctx = context(IMAGES)
    spec = spec_of(ctx)
    now = parse_state(save_all(ctx.memory, "qwen2vl"), spec)
    data = in_file(older(now, layout).to_bytes(), SESSION_MAGIC, version)
    state = parse_state(data, spec)
    assert (state.layout, state.arch, state.to_bytes()) == (layout, "qwen2vl", data)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (3, r"sequence file of version 3, b11434 reads 4: it lacks the sizes of the rows' rotations"),
        (2, r"sequence file of version 2, b11434 reads 4: it lacks the token of each cell and the sizes"),
        (1, r"sequence file of version 1, b11434 reads 4: it comes from a much older llama\.cpp"),
        (5, r"sequence file of version 5, b11434 reads 4: it comes from a newer llama\.cpp"),
    ],
)
def test_files_of_other_versions_are_not_loaded(version: int, words: str, tmp_path: Any) -> None:
    ctx, path = context(TEXT), tmp_path / "seq.bin"
    save_sequence_file(ctx.memory, 0, path, [7, 8, 9])
    path.write_bytes(path.read_bytes()[:4] + struct.pack("<I", version) + path.read_bytes()[8:])
    before = ctx.memory.snapshot()
    with pytest.raises(StateError, match=words):
        load_sequence_file(ctx.memory, 1, path)
    assert ctx.memory.snapshot() == before


def test_a_whole_state_file_of_another_version_is_not_loaded(tmp_path: Any) -> None:
    path = tmp_path / "all.bin"
    path.write_bytes(in_file(CTX.state_get(), SESSION_MAGIC, 10))
    with pytest.raises(
        StateError, match=r"whole-state file of version 10, b11434 reads 11: it lacks .* Decode"
    ):
        load_all_file(context(TEXT).memory, "llama", path)
    with pytest.raises(StateError, match="another kind of file"):
        load_sequence_file(context(TEXT).memory, 0, path)


@pytest.mark.parametrize(
    ("layout", "versions", "lacks"),
    [
        (V3, "3", "the sizes of the rows' rotations"),
        (V2, "2", "the token of each cell and the sizes of the rows' rotations"),
        (V2_EARLY, "2", "the x of each cell and the y of each cell and the token of each cell and the sizes"),
    ],
    ids=["3", "2", "early 2"],
)
def test_a_buffer_of_an_older_version_is_refused_and_recognised(
    layout: Layout, versions: str, lacks: str
) -> None:
    """Buffers carry no version: what can be read to its last byte in an older layout only is of that."""
    ctx = context(IMAGES)
    spec = spec_of(ctx)
    data = older(parse_state(ctx.state_seq_get(0), spec), layout).to_bytes()
    assert older_layouts(data, spec) == [layout]
    assert parse_state(data, spec, layout=layout).to_bytes() == data
    assert ctx.state_seq_set(data, 1, strict=True) == 0
    said = str(ctx.last_failure)
    assert f"it can be read as version {versions} of the format (b11434 writes 4): it lacks {lacks}" in said


def test_text_models_keep_no_token_so_versions_2_and_3_are_one() -> None:
    data = older(parse_state(BLOB, SPEC), V3).to_bytes()
    assert older_layouts(data, SPEC) == [V3, V2, V2_EARLY]
    ctx = context(TEXT)
    assert ctx.state_seq_set(data, 1) == 0
    assert "as version 3 or 2 of the format" in str(ctx.last_failure)


def test_a_damaged_buffer_is_of_no_older_version() -> None:
    assert older_layouts(BLOB[:-1], SPEC) == []
    ctx = context(TEXT)
    assert ctx.state_seq_set(BLOB[:-1], 1) == 0
    assert "version" not in str(ctx.last_failure)


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (8, 2, "at byte 8: the stream count of 'kv' is 2, must be 1"),
        (
            12,
            200,
            "at byte 12: the cell count of 'kv' stream 0 is 200, which need at least 1600 bytes; 94 are left",
        ),
        (12, 2**32 - 1, "at byte 12: the cell count of 'kv' stream 0 is 4294967295"),
        (
            20,
            2**30,
            r"truncated at byte 24: the 1073741824 owners \(byte 20\) of cell 0 of 3 .* 4294967296 more",
        ),
        (52, 1, "at byte 52: the V layout of 'kv' stream 0 is 1, must be 0"),
        (56, 7, "at byte 56: the layer count of 'kv' stream 0 is 7, must be 1"),
        (60, 64, "at byte 60: the rotation of K of 'kv' stream 0 is 64, must be 0"),
        (64, 64, "at byte 64: the rotation of V of 'kv' stream 0 is 64, must be 0"),
        (68, 8, "at byte 68: the type of K of block 0 of 'kv' stream 0 is 8, must be 1"),
        (72, 2**31, "at byte 72: the row bytes of K of block 0 of 'kv' stream 0 is 2147483648, must be 4"),
        (92, 0, "at byte 92: the type of V of block 0 of 'kv' stream 0 is 0, must be 1"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(at: int, value: int, words: str) -> None:
    damaged = BLOB[:at] + struct.pack("<I", value) + BLOB[at + 4 :]
    with pytest.raises(StateError, match=words):
        parse_state(damaged, SPEC)


def test_every_truncation_says_where_and_how_much_is_missing() -> None:
    for n in range(8, len(BLOB)):
        with pytest.raises(
            StateError, match=r"at byte \d+: .*(needs|need at least) \d+ (more )?bytes[,;] \d+ are left"
        ):
            parse_state(BLOB[:n], SPEC)


def test_whatever_the_bytes_only_one_kind_of_error() -> None:
    rng = random.Random(11)
    parsed = 0
    for _ in range(3000):
        data = bytearray(BLOB[: rng.choice((len(BLOB), rng.randrange(len(BLOB))))])
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data)) if data else 0 :] = rng.randbytes(rng.randrange(12))
        try:
            state = parse_state(bytes(data), SPEC)
        except StateError:
            continue
        assert state.to_bytes() == bytes(data)
        parsed += 1
    assert parsed > 100
