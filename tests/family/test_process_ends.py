"""Calls that end llama.cpp's process: refused here, before anything has changed.

The numbers are those of the list "Calls that end the process in llama.cpp", ``fixtures/traces/README.md``.
Every check compares the whole picture (pending copies, rollbacks, staleness too) and all rows.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from state_contexts import ATTENTION, HYBRIDS, KINDS, context, decode, everything, spec_of, tiny

from kvsim.batch import Batch
from kvsim.context import Context
from kvsim.errors import CacheUsageError
from kvsim.models.context_params import ContextParams
from kvsim.state import PARTIAL_ONLY
from kvsim.state_format import RecurrentSection, StateCell, parse_state

ENDS = re.compile(r"llama\.cpp .*(abort|crash|throw|fault|end)")


def assert_ends(ctx: Context, call: Callable[[], Any]) -> None:
    before = everything(ctx.memory)
    with pytest.raises(CacheUsageError) as refusal:
        call()
    assert ENDS.search(str(refusal.value)), f"does not say what llama.cpp does: {refusal.value}"
    assert everything(ctx.memory) == before


def busy(kind: str, unified: bool, **asked: Any) -> Context:
    """Two sequences, and where there are streams a copy that is still queued."""
    ctx = context(kind, unified, **asked)
    decode(ctx, 0, 6)
    decode(ctx, 1, 3)
    ctx.memory.seq_cp(0, 2, -1, -1)
    return ctx


def entries(*tokens: tuple[int | list[int], int], **more: Any) -> Batch:
    """A batch of (sequences, position) entries."""
    ids = [[seqs] if isinstance(seqs, int) else seqs for seqs, _ in tokens]
    return Batch(tokens=[5] * len(tokens), pos=[pos for _, pos in tokens], seq_ids=ids, **more)


EVERY = [(kind, unified) for kind in KINDS for unified in (True, False)]
EVERY_ATTENTION = [(kind, unified) for kind, unified in EVERY if kind in ATTENTION]
WITH_SEQ_RM_CHECK = [case for case in EVERY_ATTENTION if case[0] not in HYBRIDS]


def known_ids(kind: str, unified: bool) -> int:
    return 256 if unified and kind != "dsv4" else 3


@pytest.mark.parametrize(("kind", "unified"), EVERY)
def test_1_a_batch_beyond_n_batch(kind: str, unified: bool) -> None:
    ctx = busy(kind, unified, n_batch=7)
    n = min(ctx.resolved.n_batch, 7)
    assert_ends(ctx, lambda: ctx.decode(entries(*((1, 3 + i) for i in range(n + 1)))))


@pytest.mark.parametrize(("kind", "unified"), WITH_SEQ_RM_CHECK)
def test_2_removing_an_unknown_sequence(kind: str, unified: bool) -> None:
    ctx = busy(kind, unified)
    for seq in (-2, known_ids(kind, unified)):
        assert_ends(ctx, lambda seq=seq: ctx.memory.seq_rm(seq, -1, -1))


@pytest.mark.parametrize("kind", ["recurrent", *HYBRIDS])
@pytest.mark.parametrize("unified", [True, False])
def test_2_memories_with_a_recurrent_part_return_false_instead(kind: str, unified: bool) -> None:
    ctx = busy(kind, unified)
    before = everything(ctx.memory)
    for seq in (-2, -1, 3, 256):
        assert ctx.memory.seq_rm(seq, -1, -1) is False
    assert everything(ctx.memory) == before


EDITS: dict[str, Callable[[Any, int], Any]] = {
    "seq_keep": lambda memory, seq: memory.seq_keep(seq),
    "seq_add": lambda memory, seq: memory.seq_add(seq, 0, -1, 1),
    "seq_div": lambda memory, seq: memory.seq_div(seq, 0, -1, 2),
    "seq_cp from": lambda memory, seq: memory.seq_cp(seq, 1, -1, -1),
    "seq_cp to": lambda memory, seq: memory.seq_cp(1, seq, -1, -1),
    "seq_pos_min": lambda memory, seq: memory.seq_pos_min(seq),
    "seq_pos_max": lambda memory, seq: memory.seq_pos_max(seq),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize(("kind", "unified"), EVERY_ATTENTION)
def test_3_editing_an_unknown_sequence(kind: str, unified: bool, edit: str) -> None:
    ctx = busy(kind, unified)
    for seq in (-1, known_ids(kind, unified)):
        if kind == "dsv4" and "pos" in edit:
            assert EDITS[edit](ctx.memory, seq) == -1
        else:
            assert_ends(ctx, lambda seq=seq: EDITS[edit](ctx.memory, seq))


def test_3_a_recurrent_memory_ignores_unknown_sequences_but_keeps_only_them() -> None:
    ctx = busy("recurrent", True)
    before = everything(ctx.memory)
    for edit in EDITS.keys() - {"seq_keep"}:
        EDITS[edit](ctx.memory, 9)
    assert everything(ctx.memory) == before
    ctx.memory.seq_keep(9)
    assert [ctx.memory.seq_pos_max(seq) for seq in range(3)] == [-1] * 3


@pytest.mark.parametrize(("kind", "unified"), EVERY_ATTENTION)
def test_4_restoring_into_an_unknown_sequence(kind: str, unified: bool) -> None:
    ctx = busy(kind, unified)
    blob = ctx.state_seq_get(0)
    for seq in (-2, known_ids(kind, unified)):
        assert_ends(ctx, lambda seq=seq: ctx.state_seq_set(blob, seq))


@pytest.mark.parametrize("unified", [True, False])
def test_4_a_recurrent_memory_refuses_to_restore_into_an_unknown_sequence(unified: bool) -> None:
    ctx = busy("recurrent", unified)
    assert ctx.state_seq_set(ctx.state_seq_get(0), 3) == 0


@pytest.mark.parametrize(("kind", "unified"), EVERY)
def test_4_saving_an_unknown_sequence(kind: str, unified: bool) -> None:
    """Ends with deepseek4 only; the others write an empty state, or none where a cell is asked for an id
    that it cannot have."""
    ctx = busy(kind, unified)
    if kind == "dsv4":
        assert_ends(ctx, lambda: ctx.state_seq_get(3))
        return
    if kind != "recurrent":
        assert ctx.state_seq_get(260) == b""
    state = parse_state(ctx.state_seq_get(200), spec_of(ctx))
    for section in state.sections.values():
        assert not (
            section.cells if isinstance(section, RecurrentSection) else any(s.cells for s in section.streams)
        )


@pytest.mark.parametrize(("kind", "unified"), EVERY_ATTENTION)
def test_5_copying_a_range_between_streams(kind: str, unified: bool) -> None:
    ctx = busy(kind, unified)
    if unified and kind != "dsv4":
        ctx.memory.seq_cp(0, 1, 2, 4)
        return
    for p0, p1 in ((2, -1), (-1, 4), (2, 4)):
        assert_ends(ctx, lambda p0=p0, p1=p1: ctx.memory.seq_cp(0, 1, p0, p1))


@pytest.mark.parametrize("model", ["kv-qwen2vl", "hybrid-qwen35", "hybrid_idx-qwen4exp"])
@pytest.mark.parametrize("unified", [True, False])
def test_6_moving_positions_of_a_model_with_several_per_token(model: str, unified: bool) -> None:
    ctx = busy(model.split("-")[0], unified, model=model)
    assert_ends(ctx, lambda: ctx.memory.seq_add(0, 0, -1, 1))
    assert_ends(ctx, lambda: ctx.memory.seq_div(0, 0, -1, 2))
    assert_ends(ctx, lambda: ctx.memory.seq_add(0, 3, 3, 0))  # even if nothing would move


@pytest.mark.parametrize(("kind", "unified"), EVERY)
def test_7_dividing_positions_by_zero(kind: str, unified: bool) -> None:
    ctx = busy(kind, unified)
    assert_ends(ctx, lambda: ctx.memory.seq_div(0, 0, -1, 0))
    before = everything(ctx.memory)
    ctx.memory.seq_div(0, 100, 200, 0)  # no cell is in range
    assert everything(ctx.memory) == before


@pytest.mark.parametrize("shift", ["seq_add", "seq_div"])
def test_8_decoding_after_a_shift_if_a_cache_has_no_layer(shift: str) -> None:
    for kind in ("dsv4", "hybrid_iswa"):
        made = context(kind)
        if kind == "hybrid_iswa":
            windowed = tuple(replace(layer, is_swa=not layer.is_recr) for layer in made.model.layers)
            made = Context(replace(made.model, layers=windowed), made.params, n_vocab=128, leaves=made.leaves)
            assert not made.memory.leaves()["base"].spec.layers
        decode(made, 0, 6)
        EDITS[shift](made.memory, 0)
        next_pos = made.memory.seq_pos_max(0) + 1
        assert_ends(made, lambda made=made, p=next_pos: made.decode(entries((0, p))))


@pytest.mark.parametrize("model", ["kv-llama-h32", "dsa-deepseek32", "dsa_iswa-dots3note"])
@pytest.mark.parametrize("shift", ["seq_add", "seq_div"])
def test_9_decoding_after_a_shift_of_quantised_keys_without_a_rotation(model: str, shift: str) -> None:
    kind = model.split("-")[0]
    ctx = context(kind, model=model, wide=True, type_k="q8_0", type_v="q8_0")
    decode(ctx, 0, 6)
    EDITS[shift](ctx.memory, 0)
    p = ctx.memory.seq_pos_max(0) + 1
    assert_ends(ctx, lambda: ctx.decode(entries((0, p))))


@pytest.mark.parametrize("kind", HYBRIDS)
def test_10_outputs_of_all_tokens_that_streams_share(kind: str) -> None:
    ctx = busy(kind, False, embeddings=True)
    shared = entries(([0, 2], 6), output=[1])
    assert_ends(ctx, lambda: ctx.decode(shared))
    ctx = context(kind, True, embeddings=True)
    assert ctx.decode(entries(([0, 2], 0), output=[1])) == 0


def test_11_deepseek4_shared_tokens_with_private_ones() -> None:
    ctx = busy("dsv4", True)
    ctx.memory.seq_rm(1, -1, -1)
    ctx.memory.seq_cp(0, 1, -1, -1)
    assert ctx.memory.snapshot().extra["pending_copies"]
    assert_ends(ctx, lambda: ctx.decode(entries(([0, 1], 6), ([0, 1], 7), (0, 8))))
    assert ctx.decode(entries(([0, 1], 6), ([0, 1], 7))) == 0


def test_11_deepseek4_shared_tokens_in_a_quantised_cache() -> None:
    ctx = context("dsv4", wide=True, type_k="q8_0", type_v="q8_0")
    assert_ends(ctx, lambda: ctx.decode(entries(([0, 1], 0))))


@pytest.mark.parametrize(
    ("before", "after"), [([3], []), ([4], []), ([9], []), ([3, 3], []), ([1, 1], [4]), ([2], [2])]
)
def test_12_deepseek4_beginning_at_minus_one(before: list[int], after: list[int]) -> None:
    """``before``: sequences of so many tokens from -1 on; ``after``: from 0 on, in the same batch. Fewer
    biases than tokens of a ubatch, and the one number no multiple of the other."""
    ctx = context("dsv4")
    tokens = [(s, pos) for s, n in enumerate(before) for pos in range(-1, n - 1)]
    tokens += [(s, pos) for s, n in enumerate(after, len(before)) for pos in range(n)]
    assert_ends(ctx, lambda: ctx.decode(entries(*tokens)))


@pytest.mark.parametrize(
    ("lengths", "ends"), [([1], [-1]), ([2], [0]), ([1, 1], [-1, -1]), ([2, 2], [0, 0]), ([3, 2], [1, 0])]
)
def test_12_deepseek4_short_starts_at_minus_one_come_out_even(lengths: list[int], ends: list[int]) -> None:
    ctx = context("dsv4")
    tokens = [(s, pos) for s, n in enumerate(lengths) for pos in range(-1, n - 1)]
    assert ctx.decode(entries(*tokens)) == 0
    assert [ctx.memory.seq_pos_max(s) for s in range(len(lengths))] == ends


def test_12_deepseek4_a_sequence_at_minus_one_beside_another() -> None:
    """llama.cpp reads beyond the arrays of the ubatch then."""
    ctx = context("dsv4")
    assert_ends(ctx, lambda: ctx.decode(entries((0, -1), (1, 0))))


@pytest.mark.parametrize("flags", [0, PARTIAL_ONLY])
@pytest.mark.parametrize(("n_seq_max", "seq"), [(1, 1), (1, 255), (1, -2), (3, -2), (3, 256)])
def test_deepseek4_saves_nothing_of_an_unknown_sequence(n_seq_max: int, seq: int, flags: int) -> None:
    ctx = context("dsv4", n_seq_max=n_seq_max)
    decode(ctx, 0, 5)
    assert ctx.state_seq_get(seq, flags) == b""
    assert ctx.last_failure is not None
    assert f"no sequence {seq}" in str(ctx.last_failure)


def test_deepseek4_with_several_streams_asks_for_the_end_of_an_unknown_sequence() -> None:
    """An assertion; a partial state does not ask, and is refused."""
    ctx = context("dsv4", n_seq_max=3)
    decode(ctx, 0, 5)
    assert_ends(ctx, lambda: ctx.state_seq_get(3))
    assert ctx.state_seq_get(3, PARTIAL_ONLY) == b""


def test_deepseek4_looks_at_the_kind_of_a_state_before_the_sequence() -> None:
    ctx = context("dsv4")
    decode(ctx, 0, 5)
    whole = ctx.state_seq_get(0)
    assert ctx.state_seq_set(whole, 3, PARTIAL_ONLY) == 0
    assert_ends(ctx, lambda: ctx.state_seq_set(whole, 3))


@pytest.mark.parametrize("unified", [True, False])
def test_13_qwen4exp_shared_tokens(unified: bool) -> None:
    ctx = context("hybrid_idx", unified, model="hybrid_idx-qwen4exp")
    decode(ctx, 0, 4)
    assert_ends(ctx, lambda: ctx.decode(entries(([1, 2], 0))))


@pytest.mark.parametrize("kind", ["hybrid", "hybrid_iswa", "hybrid_idx"])
def test_14_saving_everything_when_owners_of_a_state_are_rolled_back_apart(kind: str) -> None:
    model = {"hybrid": "hybrid-lfm2-noswa"}.get(kind, "")
    ctx = context(kind, model=model, n_rs_seq=2)
    decode(ctx, 0, 6)
    ctx.memory.seq_cp(0, 1, -1, -1)
    assert ctx.memory.seq_rm(0, 5, -1)
    assert_ends(ctx, ctx.state_get)
    assert len(ctx.state_seq_get(0)) == len(ctx.state_seq_get(0))


@pytest.mark.parametrize("kind", ["hybrid", "hybrid_idx"])
def test_15_reading_a_full_state_as_a_partial_one(kind: str) -> None:
    """With two streams the cell list of attention reads like two recurrent cells of one sequence."""
    ctx = context(kind, False, n_seq_max=2)
    decode(ctx, 0, 6)
    decode(ctx, 1, 3)
    full = ctx.state_seq_get(0)
    assert_ends(ctx, lambda: ctx.state_seq_set(full, 1, PARTIAL_ONLY))


@pytest.mark.parametrize("kind", ["recurrent", *HYBRIDS])
def test_15_a_damaged_state_with_several_cells_for_a_sequence(kind: str) -> None:
    """The same check, reached when attention has been restored already: that must not show either."""
    ctx = busy(kind, True)
    state = parse_state(ctx.state_seq_get(0), spec_of(ctx))
    recurrent = state.sections["recurrent"]
    assert isinstance(recurrent, RecurrentSection)
    twice = replace(recurrent, cells=(StateCell(5, ()), StateCell(5, ())))
    damaged = replace(state, sections={**state.sections, "recurrent": twice}).to_bytes()
    assert struct.pack("<I", 2) in damaged
    assert_ends(ctx, lambda: ctx.state_seq_set(damaged, 1))


@pytest.mark.parametrize("kind", ["dsa", "dsa_iswa"])
def test_16_decoding_when_a_failed_restore_left_the_indexer_with_more_cells(kind: str) -> None:
    ctx = context(kind, cells=512, n_ctx=512)
    decode(ctx, 1, 3)
    for _ in range(5):
        decode(ctx, 0, 60)
    cut = ctx.state_seq_get(1)[:40]
    assert ctx.state_seq_set(cut, 0) == 0
    assert ctx.memory.leaves()["lid"].seq_pos_max(0) == 299  # the old cells are still there
    assert_ends(ctx, lambda: ctx.decode(entries((0, ctx.memory.seq_pos_max(0) + 1))))


def test_17_output_embeddings() -> None:
    for kind, model in (("dsv4", ""), ("hybrid_idx", "hybrid_idx-qwen4exp")):
        ctx = context(kind, model=model, embeddings=True)
        assert_ends(ctx, lambda ctx=ctx: ctx.decode(entries((0, 0), output=[1])))


def test_18_a_deepseek4_context_with_heads_as_wide_as_the_indexers() -> None:
    model = tiny("dsv4-deepseek4")
    width = model.layers[0].n_embd_head_k
    with pytest.raises(CacheUsageError, match=r"llama\.cpp .*crashes"):
        Context(replace(model, indexer_head_size=width), ContextParams(n_ctx=256, n_seq_max=1))
