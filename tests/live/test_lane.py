"""The real llama.cpp as something that performs operations and can be looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_lane import model_file, needs_library

from kvsim.context import Context, Fault
from kvsim.errors import CacheUsageError
from kvsim.lanes.library import LaneError
from kvsim.lanes.llamacpp import EndedError, LlamaCpp
from kvsim.models.context_params import ContextParams
from kvsim.models.tiny import TINY
from kvsim.ops import Op
from kvsim.replay import Replayer

pytestmark = needs_library

UNIFIED = ContextParams(n_ctx=256, n_batch=64, n_ubatch=8, n_seq_max=3, kv_unified=True, swa_full=False)
STREAMS = ContextParams(n_ctx=768, n_batch=64, n_ubatch=8, n_seq_max=3, swa_full=False)
SHARED = [
    Op.decode_run(0, 0, range(10)), Op.seq_cp(0, 1), Op.decode_run(0, 10, [1, 2]),
    Op.decode_run(2, 0, [3] * 13), Op.decode_run(1, 10, [5]), Op.seq_rm(2, 9, -1),
]  # fmt: skip


def seen_by_kvsim(context: Context) -> dict[str, list[dict[str, object]]]:
    picture = context.memory.snapshot().caches
    return {
        name: [
            {"head": s["head"], "used": s["used"], "cells": [cell[:3] for cell in s["cells"]]}
            for s in streams
        ]
        for name, streams in picture.items()
    }


@pytest.mark.parametrize("params", [UNIFIED, STREAMS], ids=["unified", "streams"])
@pytest.mark.parametrize("name", TINY)
def test_every_model_runs_and_shows_the_cells_that_kvsim_has(name: str, params: ContextParams) -> None:
    with LlamaCpp(model_file(name), params) as live:
        ours = Context(live.model, params, live.n_vocab)
        replayer = Replayer(ours)
        for op in SHARED:
            assert live.apply(op).ret == replayer.apply(op.op, op.args), op
        seen, wanted = live.snapshot(), seen_by_kvsim(ours)
        unseen = [n for n, streams in seen["caches"].items() if streams == [None] * len(streams)]
        assert unseen == {"dsv4": ["csa", "hca", "lid"], "hybrid_idx": ["idx"]}.get(live.spec.kind, [])
        for cache in set(wanted) - set(unseen):
            assert seen["caches"][cache] == wanted[cache]
        assert seen["pos"] == ours.memory.snapshot().pos


def test_looking_changes_nothing() -> None:
    def after(looks: int) -> tuple[bytes, list[tuple[int, int]]]:
        with LlamaCpp(model_file("gemma3"), UNIFIED) as live:
            for op in SHARED:
                live.apply(op)
                pictures = [live.snapshot() for _ in range(looks)]
                assert all(picture == pictures[0] for picture in pictures)
            answer = live.apply(Op.decode_run(0, 12, [7]))
            return live.state_bytes(), answer.pos

    assert after(0) == after(2)


@pytest.mark.parametrize(("ubatch", "end"), [(0, 9), (1, 17), (2, 25)])
@pytest.mark.parametrize("shift", [False, True], ids=["", "after a shift"])
def test_an_abort_hits_the_ubatch_that_was_asked_for(ubatch: int, end: int, shift: bool) -> None:
    """The graph of a pending K-shift runs first and is not counted."""
    with LlamaCpp(model_file("llama"), UNIFIED) as live:
        live.apply(Op.decode_run(0, 0, range(10)))
        if shift:
            live.apply(Op.seq_add(0, 0, -1, 3))
        start = 13 if shift else 10
        answer = live.apply(Op.decode_run(0, start, [1] * 30, fault=Fault(ubatch)))
        assert answer.ret == 2
        assert answer.pos[0][1] == end + (3 if shift else 0)
        assert live.apply(Op.decode_run(0, answer.pos[0][1] + 1, [1] * 30)).ret == 0


def test_a_call_that_ends_llamacpp_is_told_with_its_words() -> None:
    partial = Op.seq_cp(0, 1, 2, 5)
    live = LlamaCpp(model_file("llama"), STREAMS)
    live.apply(Op.decode_run(0, 0, range(10)))
    with pytest.raises(
        EndedError, match=r"ended at seq_cp\(src=0, dst=1, p0=2, p1=5\) \(signal 6\)"
    ) as ended:
        live.apply(partial)
    assert "GGML_ASSERT" in ended.value.last_words
    live.close()
    ours = Replayer(Context(live.model, STREAMS, live.n_vocab))
    ours.apply("decode", Op.decode_run(0, 0, range(10)).args)
    with pytest.raises(CacheUsageError):
        ours.apply(partial.op, partial.args)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba", "jamba"])
def test_llamacpp_reads_the_states_that_kvsim_writes(name: str) -> None:
    with LlamaCpp(model_file(name), UNIFIED) as live:
        ours = Replayer(Context(live.model, UNIFIED, live.n_vocab))
        for op in SHARED:
            ours.apply(op.op, op.args)
        data = ours.context.state_get()
        assert live.restore(data) == len(data)
        assert live.snapshot()["pos"] == ours.context.memory.snapshot().pos
        assert live.state_bytes() == data


def test_a_state_goes_into_another_sequence_and_damage_is_refused() -> None:
    with LlamaCpp(model_file("llama"), UNIFIED) as live:
        live.apply(Op.decode_run(0, 0, range(10)))
        size = live.apply(Op.state_seq_get(0, slot=0)).ret
        assert live.apply(Op.state_seq_set(2, slot=0)).ret == size
        assert live.apply(Op.state_seq_set(1, slot=0, truncate=40)).ret == 0
        assert live.apply(Op.state_seq_set(1, slot=0, xor0=1)).ret == 0
        assert live.state().sections["kv"].streams[0].cells[-1].owners == (2,)


def test_logits_come_by_batch_entry() -> None:
    with LlamaCpp(model_file("llama"), UNIFIED) as live:
        op = Op.decode([5, 6, 7], [0, 1, 2], [[0]] * 3, out=[1, 0, 1])
        logits = live.apply(op, logits=True).logits
        assert sorted(logits) == [0, 2]
        assert logits[0].shape == (128,)
        assert live.apply(op).logits == {}


def test_a_model_that_does_not_load_is_told_in_llamacpps_words(tmp_path: Path) -> None:
    data = bytearray(model_file("llama").read_bytes())
    data[data.index(b"output_norm.weight")] ^= 1
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    with pytest.raises(LaneError, match=r"cannot load it: .*output_norm"):
        LlamaCpp(path, UNIFIED)


def test_a_library_that_is_missing_is_told_before_anything_runs() -> None:
    with pytest.raises(LaneError, match="no such file"):
        LlamaCpp(model_file("llama"), UNIFIED, lib=Path("nowhere.so"))


def test_a_look_survives_where_no_state_can_be_saved() -> None:
    """Since b11434 a shared recurrent state with a rollback of one of its owners ends llama.cpp when saved."""
    params = ContextParams(n_ctx=768, n_batch=64, n_ubatch=8, n_seq_max=3, n_rs_seq=2)
    with LlamaCpp(model_file("lfm2"), params) as live:
        for op in (Op.decode_run(0, 0, [8, 9, 7]), Op.seq_rm(0, 2, -1), Op.seq_cp(0, 1)):
            live.apply(op)
        picture, state = live.look()
        if live.version == "b11549":
            assert state is None
        assert picture["caches"]["attn"][0]["cells"] == [[0, 0, [0]], [1, 1, [0]]]
        assert live.apply(Op.decode_run(0, 2, [5])).ret == 0
