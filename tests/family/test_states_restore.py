"""Saving and restoring through a context, in every memory: partial states, states kept on the device, into
fragmented cells, into another context, through files (docs/spec/state.md 1, 3, 5)."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from state_contexts import ATTENTION, KINDS, content, context, decode, everything, hazards, positions, spec_of

from kvsim import state
from kvsim.batch import Batch
from kvsim.caches.kv import KVCache
from kvsim.context import Context
from kvsim.errors import CacheUsageError, StateError
from kvsim.events import Recorder
from kvsim.state import ON_DEVICE, PARTIAL_ONLY
from kvsim.state_format import Container, KVSection, parse_state

IN_PARTIAL = {
    "iswa": {"swa"},
    "hybrid": {"recurrent"},
    "hybrid_iswa": {"swa", "recurrent"},
    "hybrid_idx": {"recurrent"},
    "dsa_iswa": {"swa"},
    "dsv4": {"raw.swa"},
}
"""Leaves that a partial state holds; in the other memories it holds all (3)."""

EVERY = [(kind, unified) for kind in KINDS for unified in (True, False)]


def from_seq(blob: bytes, seq: int) -> bytes:
    """A sequence state as if it had been saved from ``seq``."""
    return blob[:4] + struct.pack("<i", seq) + blob[8:]


def filled(kind: str, unified: bool = True, n: int = 6, **asked: object) -> Context:
    ctx = context(kind, unified, **asked)
    decode(ctx, 0, n)
    decode(ctx, 1, 3)
    return ctx


# -- one sequence, everything --------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "unified"), EVERY)
def test_a_sequence_comes_back_in_another_sequence_and_context(kind: str, unified: bool) -> None:
    blob = filled(kind, unified).state_seq_get(0)
    other = context(kind, unified, seed=1)
    decode(other, 1, 4)
    decode(other, 2, 2)
    before = positions(other.memory, 1)
    assert other.state_seq_set(blob, 2) == len(blob), other.last_failure
    assert content(other, other.state_seq_get(2)) == content(other, blob)
    assert positions(other.memory, 1) == before
    other.memory.check_integrity()


@pytest.mark.parametrize(("kind", "unified"), EVERY)
def test_everything_comes_back_in_another_context(kind: str, unified: bool) -> None:
    blob = filled(kind, unified).state_get()
    other = context(kind, unified, seed=1)
    decode(other, 2, 5)
    assert other.state_set(blob) == len(blob), other.last_failure
    assert other.state_get() == blob
    other.memory.check_integrity()


@pytest.mark.parametrize("model", ["kv-qwen2vl", "hybrid-qwen35", "hybrid_idx-qwen4exp"])
def test_rd3_places_in_an_image_and_tokens_come_back(model: str) -> None:
    """An image of two rows of three, with a token before it; a whole state and one sequence."""
    ctx = context(model.split("-")[0], model=model)
    decode(ctx, 0, 1)
    time, y, x = [1] * 6, [1, 1, 1, 2, 2, 2], [1, 2, 3, 1, 2, 3]
    image = Batch(embd=np.zeros((6, 0), np.float32), pos=[*time, *y, *x, *([0] * 6)], seq_ids=[[0]] * 6)
    assert ctx.decode(image) == 0, ctx.last_failure
    one, everything_saved = ctx.state_seq_get(0), ctx.state_get()
    (stream,) = next(
        s for s in parse_state(one, spec_of(ctx)).sections.values() if isinstance(s, KVSection)
    ).streams
    assert [cell.ext[:2] for cell in stream.cells] == [(0, 0), *zip(x, y, strict=True)]
    other = context(model.split("-")[0], model=model, seed=1)
    assert other.state_seq_set(one, 0) == len(one), other.last_failure
    assert other.state_seq_get(0) == one
    assert other.state_set(everything_saved) == len(everything_saved)
    assert other.state_get() == everything_saved


@pytest.mark.parametrize("kind", ATTENTION)
def test_a_state_of_another_number_of_streams_is_refused(kind: str) -> None:
    """Rd5: a first count that does not fit leaves the target as it was, but not in hybrid-idx (X3)."""
    blob = filled(kind, n_seq_max=2).state_seq_get(0)
    other = filled(kind, unified=False, n_seq_max=3)
    before = everything(other.memory)
    assert other.state_seq_set(blob, 1) == 0
    wanted = 3, 2 if kind == "dsv4" else 1
    assert f"the state has {wanted[1]} streams, the cache {wanted[0]}" in str(other.last_failure)
    if kind == "hybrid_idx":
        assert positions(other.memory, 1) == {"attn": [], "recurrent": [], "idx": []}
    else:
        assert everything(other.memory) == before


@pytest.mark.parametrize("kind", ["kv", "iswa", "hybrid", "msa"])
def test_quantised_rows_do_not_fit_an_f16_cache(kind: str) -> None:
    """State test idea 5: what was to be filled is free, and zeroed, because attention may still read it."""
    blob = filled(kind, wide=True, type_k="q8_0", type_v="q8_0").state_seq_get(0)
    other = filled(kind, wide=True, seed=1)
    leaf = next(iter(other.memory.leaves().values()))
    assert isinstance(leaf, KVCache)
    rows = next(iter(leaf.store.k.values()))
    held = np.flatnonzero(leaf.cells[0].pos != -1)
    assert other.state_seq_set(blob, 2) == 0
    assert np.flatnonzero(~rows[0].any(axis=1)).tolist() == list(range(len(held), len(held) + 6))
    assert positions(other.memory, 2)[leaf.name] == []


# -- partial states ------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "unified"), EVERY)
def test_a_partial_state_brings_back_the_parts_it_holds(kind: str, unified: bool) -> None:
    ctx = filled(kind, unified)
    partial = ctx.state_seq_get(0, PARTIAL_ONLY)
    state_of_0 = parse_state(partial, spec_of(ctx), partial=True)
    assert state_of_0.to_bytes() == partial
    saved = positions(ctx.memory, 0)
    decode(ctx, 0, 3)
    now = positions(ctx.memory, 0)
    assert ctx.state_seq_set(partial, 0, PARTIAL_ONLY) == len(partial), ctx.last_failure
    held = IN_PARTIAL.get(kind, set(now))
    for name, found in positions(ctx.memory, 0).items():
        wanted = saved[name] if name in held else now[name]
        if name in ("swa", "raw.swa"):
            wanted = [2, 3, 4, 5]  # what the window of 4 has not passed
        assert found == wanted, name
    assert ctx.state_seq_get(0, PARTIAL_ONLY) == partial


@pytest.mark.parametrize("kind", IN_PARTIAL)
def test_a_partial_state_is_smaller(kind: str) -> None:
    ctx = filled(kind)
    assert len(ctx.state_seq_get(0, PARTIAL_ONLY)) < len(ctx.state_seq_get(0))


def test_a_partial_deepseek4_state_leaves_later_positions_in_the_base_half() -> None:
    """dsv4 surprise 9, told as a hazard."""
    ctx = filled("dsv4", n=6)
    partial = ctx.state_seq_get(0, PARTIAL_ONLY)
    decode(ctx, 0, 3)
    recorder = Recorder()
    ctx.observe(recorder)
    ctx.state_seq_set(partial, 0, PARTIAL_ONLY)
    assert "base-keeps-later-positions" in hazards(recorder)
    assert positions(ctx.memory, 0)["raw.base"] == list(range(9))


@pytest.mark.parametrize("kind", ["dsv4"])
@pytest.mark.parametrize("saved", [0, PARTIAL_ONLY])
def test_only_deepseek4_checks_the_flag(kind: str, saved: int) -> None:
    ctx = filled(kind)
    blob = ctx.state_seq_get(0, saved)
    before = everything(ctx.memory)
    assert ctx.state_seq_set(blob, 1, saved ^ PARTIAL_ONLY) == 0
    assert "the state is" in str(ctx.last_failure)
    assert everything(ctx.memory) == before


# -- on the device -------------------------------------------------------------------------------

FLAGS = [ON_DEVICE, ON_DEVICE | PARTIAL_ONLY]


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize(("kind", "unified"), EVERY)
def test_od1_rows_stay_on_the_device(kind: str, unified: bool, flags: int) -> None:
    ctx = filled(kind, unified)
    partial = bool(flags & PARTIAL_ONLY)
    host, device = ctx.state_seq_get(0, flags & PARTIAL_ONLY), ctx.state_seq_get(0, flags)
    full = parse_state(host, spec_of(ctx), partial)
    thin = parse_state(device, spec_of(ctx), partial, on_device=True)
    assert thin.to_bytes() == device
    assert list(thin.sections) == list(full.sections)
    assert len(device) + len(ctx.device_states.storage[0].rows) == len(host)
    decode(ctx, 0, 2)
    assert ctx.state_seq_set(device, 0, flags) == len(device), ctx.last_failure
    assert ctx.state_seq_get(0, flags & PARTIAL_ONLY) == host


@pytest.mark.parametrize(("kind", "unified"), EVERY)
def test_od2_one_state_per_source_sequence(kind: str, unified: bool) -> None:
    ctx = filled(kind, unified)
    blobs = {seq: ctx.state_seq_get(seq, ON_DEVICE) for seq in (0, 1)}
    hosts = {seq: ctx.state_seq_get(seq) for seq in (0, 1)}
    assert sorted(ctx.device_states.storage) == [0, 1]
    for seq in (0, 1):
        assert ctx.state_seq_set(blobs[seq], 2, ON_DEVICE) == len(blobs[seq]), ctx.last_failure
        assert content(ctx, ctx.state_seq_get(2)) == content(ctx, hosts[seq])


@pytest.mark.parametrize(("kind", "unified"), EVERY)
def test_od2_a_newer_state_replaces_the_older_and_using_that_says_so(kind: str, unified: bool) -> None:
    """Od3: if the sizes differ llama.cpp aborts. If not (one recurrent state is as large as another), it
    restores the older cells with the newer rows: a hazard, and strict refuses."""
    ctx = filled(kind, unified)
    older = ctx.state_seq_get(0, ON_DEVICE)
    n_older = len(ctx.device_states.storage[0].rows)
    decode(ctx, 0, 1)
    newer = ctx.state_seq_get(0, ON_DEVICE)
    before = everything(ctx.memory)
    with pytest.raises(StateError, match="the device keeps a newer state of sequence 0"):
        state.load_sequence(ctx.memory, older, 2, ON_DEVICE, ctx.device_states, strict=True)
    assert everything(ctx.memory) == before
    recorder = Recorder()
    ctx.observe(recorder)
    if len(ctx.device_states.storage[0].rows) != n_older:
        with pytest.raises(CacheUsageError, match=r"device storage .* llama\.cpp aborts"):
            ctx.state_seq_set(older, 2, ON_DEVICE)
        assert everything(ctx.memory) == before
    else:
        assert kind in ("recurrent", "dsv4")  # of dsv4 the window is full: as many rows as before
        assert ctx.state_seq_set(older, 2, ON_DEVICE) == len(older)
    assert "device-state-replaced" in hazards(recorder)
    recorder.take()
    assert ctx.state_seq_set(newer, 1, ON_DEVICE) == len(newer)
    assert "device-state-replaced" not in hazards(recorder)


@pytest.mark.parametrize("kind", KINDS)
def test_od3_od6_what_is_not_on_the_device_ends_llama_cpp(kind: str) -> None:
    ctx = filled(kind)
    blob = ctx.state_seq_get(0, ON_DEVICE)
    before = everything(ctx.memory)
    for data, words in (
        (from_seq(blob, 1), "no state of sequence 1 is kept on the device"),
        (b"\0" + blob[1:], "throws out of the call"),
        (blob[:7], "throws out of the call"),
        (blob + b"\0\0\0\0", "left over"),
    ):
        with pytest.raises(CacheUsageError, match=words):
            ctx.state_seq_set(data, 2, ON_DEVICE)
        assert everything(ctx.memory) == before


# -- into fragmented cells -----------------------------------------------------------------------


def fragmented(kind: str, **asked: object) -> Context:
    """Sequence 0 in every other cell, and free cells between."""
    ctx = context(kind, **asked)
    for p in range(8):
        for seq in (0, 1):
            batch = Batch(tokens=[p], pos=[p], seq_ids=[[seq]])
            assert ctx.decode(batch) == 0, ctx.last_failure
    ctx.memory.seq_rm(1, -1, -1)
    return ctx


@pytest.mark.parametrize("flash_attn", [True, False], ids=["rows", "transposed V"])
@pytest.mark.parametrize("flags", [0, ON_DEVICE])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dsv4"])
def test_rd2_cells_are_restored_by_runs_where_there_is_room(kind: str, flags: int, flash_attn: bool) -> None:
    """Rd2: the order of the bytes is that of the cells, whatever runs they are in."""
    ctx = fragmented(kind, flash_attn=flash_attn)
    decode(ctx, 2, 5)
    host, blob = ctx.state_seq_get(2), ctx.state_seq_get(2, flags)
    assert ctx.state_seq_set(blob, 1, flags) == len(blob), ctx.last_failure
    assert content(ctx, ctx.state_seq_get(1)) == content(ctx, host)
    for leaf in ctx.memory.leaves().values():
        if isinstance(leaf, KVCache) and leaf.spec.n_swa == 0:
            assert np.flatnonzero(leaf.cells[0].has(2)).tolist() == [1, 3, 5, 7, 9]
            assert np.flatnonzero(leaf.cells[0].has(1)).tolist() == [11, 13, 15, 16, 17]
    ctx.memory.check_integrity()


@pytest.mark.parametrize("kind", ["kv", "iswa", "msa", "hybrid"])
def test_rd2_quantised_rows_into_fragmented_cells(kind: str) -> None:
    ctx = fragmented(kind, wide=True, type_k="q8_0", type_v="q8_0")
    decode(ctx, 2, 5)
    blob = ctx.state_seq_get(2)
    assert ctx.state_seq_set(blob, 1) == len(blob), ctx.last_failure
    assert content(ctx, ctx.state_seq_get(1)) == content(ctx, blob)


# -- files ---------------------------------------------------------------------------------------

TOKENS = [11, 22, 33]


@pytest.mark.parametrize(("kind", "unified"), EVERY)
def test_a_whole_state_file(kind: str, unified: bool, tmp_path: Path) -> None:
    ctx, path = filled(kind, unified), tmp_path / "all.bin"
    arch = ctx.model.arch
    size = state.save_all_file(ctx.memory, arch, path, TOKENS)
    data = path.read_bytes()
    assert (len(data), data[:12]) == (size, struct.pack("<III", 0x6767736E, 11, 3))
    assert data[24:] == ctx.state_get()
    parsed = parse_state(data, spec_of(ctx))
    assert (parsed.container, parsed.tokens, parsed.arch) == (Container.WHOLE_FILE, (11, 22, 33), arch)
    assert parsed.to_bytes() == data
    other = context(kind, unified, seed=1)
    assert state.load_all_file(other.memory, arch, path) == TOKENS
    assert other.state_get() == ctx.state_get()


@pytest.mark.parametrize(("kind", "unified"), EVERY)
def test_a_sequence_file(kind: str, unified: bool, tmp_path: Path) -> None:
    ctx, path = filled(kind, unified), tmp_path / "seq.bin"
    size = state.save_sequence_file(ctx.memory, 0, path, TOKENS)
    data = path.read_bytes()
    assert (len(data), data[:12]) == (size, struct.pack("<III", 0x67677371, 4, 3))
    assert data[24:] == ctx.state_seq_get(0)[8:]
    assert parse_state(data, spec_of(ctx)).to_bytes() == data
    path.write_bytes(data + b"more")  # ignored, as llama.cpp ignores it
    other = filled(kind, unified, seed=1)
    assert state.load_sequence_file(other.memory, 2, path) == TOKENS
    assert content(other, other.state_seq_get(2)) == content(ctx, ctx.state_seq_get(0))


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_state_file_must_end_with_the_state(kind: str, tmp_path: Path) -> None:
    """llama.cpp restores it and then says no; strict restores nothing."""
    ctx, path = filled(kind), tmp_path / "all.bin"
    state.save_all_file(ctx.memory, ctx.model.arch, path)
    path.write_bytes(path.read_bytes() + b"\0")
    other = filled(kind, n=2, seed=1)
    before = everything(other.memory)
    with pytest.raises(StateError, match="1 bytes are left over"):
        state.load_all_file(other.memory, ctx.model.arch, path, strict=True)
    assert everything(other.memory) == before
    with pytest.raises(StateError, match="1 bytes are left over"):
        state.load_all_file(other.memory, ctx.model.arch, path)
    assert other.state_get() == ctx.state_get()


def test_a_damaged_file_has_moved_rows_where_a_buffer_has_not(tmp_path: Path) -> None:
    """Section 6: rows of a file move as they are read, those of a buffer at the end. What the restore
    itself filled is zeroed in both; rows of an earlier part of a composite are not."""
    ctx, path = filled("msa"), tmp_path / "seq.bin"
    state.save_sequence_file(ctx.memory, 0, path)
    data = path.read_bytes()
    path.write_bytes(data[:-4])
    changed = []
    for load in (
        lambda memory: state.load_sequence(memory, ctx.state_seq_get(0)[:-4], 2),
        lambda memory: state.load_sequence_file(memory, 2, path),
    ):
        other = context("msa", seed=1)
        base = other.memory.leaves()["base"].store
        before = {il: rows.copy() for il, rows in base.k.items()}
        with pytest.raises(StateError, match="truncated"):
            load(other.memory)
        assert positions(other.memory, 2) == {"base": list(range(6)), "idx": []}
        changed.append(any((base.k[il] != rows).any() for il, rows in before.items()))
    assert changed == [False, True]


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_file_with_strict_changes_nothing(kind: str, tmp_path: Path) -> None:
    ctx, path = filled(kind), tmp_path / "seq.bin"
    state.save_sequence_file(ctx.memory, 0, path, TOKENS)
    path.write_bytes(path.read_bytes()[:-1])
    before = everything(ctx.memory)
    with pytest.raises(StateError, match="truncated"):
        state.load_sequence_file(ctx.memory, 1, path, strict=True)
    assert everything(ctx.memory) == before
