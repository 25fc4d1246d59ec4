"""Every part of transparency can fail: with one step of the reference broken, playing operations says so.

A fault of what tokens attend to is found by the exact comparison (``block``), one of what rows hold by that of
values (the name of a reading).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from play import POISON, POISON_F16, Play
from test_transparency import EVERY_OPERATION, FLASH, perform

from kvsim.caches.kv_view import KVView
from kvsim.memory import BoolArray
from kvsim.models import probe_dsv4, probe_sparse
from kvsim.tensors import kpool
from kvsim.tensors import msa_select as msa
from kvsim.tensors.compressor import CompressorState
from kvsim.tensors.recurrent_store import RecurrentStore
from kvsim.tensors.store import KVStore

TURNING = (
    "kv-llama", "iswa-gemma3", "hybrid-falcon-h1", "hybrid_iswa-lfm2-l4", "dsa-deepseek32-choosing all",
    "dsa_iswa-dots3note-choosing all", "msa-minimax-m3",
)  # fmt: skip
"""A model of each memory whose keys turn (those of hybrid-idx have no rope, those of DeepSeek-V4 cannot)."""

MEMBERS = (
    *TURNING, "dsa-deepseek32", "dsa_iswa-dots3note", "hybrid_idx-glm5-next", "hybrid_idx-qwen4exp",
    "dsv4-deepseek4",
)  # fmt: skip
ROLLED_BACK = ("hybrid-qwen35", "hybrid-kimi-k3", "hybrid_iswa-lfm2-l4", "hybrid_idx-glm5-next")
RECURRENT = ("recurrent-mamba", "hybrid-falcon-h1", "hybrid_iswa-lfm2-l4", "hybrid_idx-glm5-next")


def played(name: str, kv_unified: bool = False, **asked: Any) -> None:
    sparse = name.startswith("msa") and not kv_unified
    asked = {"flash": True, "tolerance": FLASH} | asked if sparse else asked
    perform(Play(name, kv_unified, 8, **asked), EVERY_OPERATION)


def nothing(*args: Any) -> None:
    """What a step that is left out does."""


MASKED = tuple(name for name in MEMBERS if not name.startswith("hybrid_idx"))
"""Those of which a mask can show too much: pools and tails are made of the sequence's own cells."""


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, "one cell too many") for name in MASKED] + [(name, "first cell missing") for name in MEMBERS],
)
def test_a_wrong_mask_is_noticed(name: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = KVView.mask

    def mask(view: KVView, causal: bool = True) -> BoolArray:
        mask = whole(view, causal)
        if change == "one cell too many":
            mask[:, -1] = True
        else:
            first = mask.argmax(axis=1)
            mask[np.arange(len(mask)), first] = mask.sum(axis=1) == 1
        return mask

    monkeypatch.setattr(KVView, "mask", mask)
    with pytest.raises(AssertionError, match="block"):
        played(name)


@pytest.mark.parametrize(
    "name", ["iswa-gemma3-swa20", "hybrid_iswa-lfm2", "dsa_iswa-dots3note", "dsv4-deepseek4"]
)
@pytest.mark.parametrize("by", [-1, 1])
def test_a_window_that_is_off_by_one_is_noticed(name: str, by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(*args: Any, n_swa: int, **others: Any) -> BoolArray:
        return attention_mask(*args, n_swa=n_swa + by if n_swa else 0, **others)

    from kvsim.caches import kv_view

    attention_mask = kv_view.attention_mask
    monkeypatch.setattr(kv_view, "attention_mask", shifted)
    with pytest.raises(AssertionError, match="block"):
        played(name)


def worst_instead(scores: Any, k: int, visible: Any) -> Any:
    return select(-scores, k, visible)


def worst_blocks(scores: Any, bias: Any, k: int) -> Any:
    return choose_blocks(-np.maximum(scores, -1e9), bias, k)


def neighbours_gathered(blocks: Any, slots: Any, visible: Any, block: int) -> Any:
    cells, count = gathered_cells(blocks, slots, visible, block)
    return np.roll(cells, 1, axis=-1), count


def tail_forgotten(inputs: Any, top: Any, visible: Any) -> Any:
    return selection_mask(inputs, top, visible) & ~np.eye(*visible.shape, dtype=bool)


select, choose_blocks, gathered_cells = probe_sparse.select, msa.choose_blocks, msa.gathered_cells
selection_mask, top_k = kpool.selection_mask, probe_sparse.top_k

SELECTIONS: list[tuple[str, Any, str, Callable[..., Any]]] = [
    ("dsa-deepseek32", probe_sparse, "select", worst_instead),
    ("dsa_iswa-dots3note", probe_sparse, "select", worst_instead),
    ("dsv4-deepseek4", probe_dsv4, "select", worst_instead),
    ("msa-minimax-m3", msa, "choose_blocks", worst_blocks),
    ("msa-minimax-m3", msa, "gathered_cells", neighbours_gathered),
    ("hybrid_idx-glm5-next", probe_sparse, "top_k", lambda scores, k: top_k(-scores, k)),
    ("hybrid_idx-qwen4exp", probe_sparse, "top_k", lambda scores, k: top_k(-scores, k)),
    ("hybrid_idx-glm5-next", kpool, "selection_mask", tail_forgotten),
]


@pytest.mark.parametrize(("name", "where", "what", "wrong"), SELECTIONS)
def test_a_wrong_choice_is_noticed(
    name: str, where: Any, what: str, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, what, wrong)
    with pytest.raises(AssertionError, match="block"):
        played(name)


UNTURNED = {
    ("msa-minimax-m3", "f16"), ("msa-minimax-m3", "q8_0"),
    ("dsa-deepseek32-choosing all", "q8_0"), ("dsa_iswa-dots3note-choosing all", "q8_0"),
}  # fmt: skip
"""Not played with shifts: rounded index keys choose other blocks, latent rows of q8_0 are refused."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [pair for pair in product(TURNING, ("f32", "f16", "q8_0")) if pair not in UNTURNED],
)
def test_keys_that_do_not_turn_are_noticed(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In caches that round, too: the tolerance of q8_0 is 2 % of the largest value."""
    asked = {} if kind == "f32" else {"kind": kind, "flash": True, "tolerance": 0.02}
    assert Play(name, False, 8, **asked).can_move()
    monkeypatch.setattr(KVStore, "apply_shift", nothing)
    with pytest.raises(AssertionError, match=r"Not equal|block"):
        played(name, **asked)


COPIED_LATER = tuple(name for name in MEMBERS if not name.startswith("dsv4"))
"""DeepSeek-V4 copies rows with the sequence, not at the next update."""


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, "write_k") for name in MEMBERS] + [(name, "copy_stream") for name in COPIED_LATER],
)
def test_rows_that_stay_behind_are_noticed(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a restored state, and those of a sequence that was copied to another stream."""
    monkeypatch.setattr(KVStore, method, nothing)
    with pytest.raises(AssertionError, match=r"Not equal|block"):
        played(name)


def test_cells_that_move_without_their_rows_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVStore, "move_cells", nothing)
    with pytest.raises(AssertionError, match="Not equal"):
        played("kv-llama", kv_unified=True)


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("method", ["write", "write_states"])
def test_states_that_are_lost_are_noticed(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecurrentStore, method, nothing)
    with pytest.raises(AssertionError, match="recurrent"):
        played(name)


@pytest.mark.parametrize("name", ROLLED_BACK)
def test_a_rollback_to_the_wrong_state_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write = RecurrentStore.write_states

    def newest_in_every_plane(self: RecurrentStore, part: str, il: int, head: int, planes: Any) -> None:
        write(self, part, il, head, np.repeat(planes[:1], len(planes), axis=0))

    monkeypatch.setattr(RecurrentStore, "write_states", newest_in_every_plane)
    with pytest.raises(AssertionError, match="recurrent"):
        played(name)


def test_a_compressor_that_forgets_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of unfinished blocks wait in the ring from ubatch to ubatch."""
    run = probe_dsv4.run_plan

    def forgetful(state: CompressorState, *args: Any) -> Any:
        rows = run(state, *args)
        state.kv[:] = 0
        return rows

    monkeypatch.setattr(probe_dsv4, "run_plan", forgetful)
    with pytest.raises(AssertionError, match="raw"):
        played("dsv4-deepseek4")


@pytest.mark.parametrize("name", [name for name in MEMBERS if not name.startswith("dsv4")])
def test_a_row_without_an_owner_that_is_read_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free rows hold huge values, so a reading that takes a trace of one is far off; were the poison left out,
    what was there before might do no harm."""
    decode = KVStore.decode_k

    def trace_of_a_free_row(store: KVStore, il: int, stream: int, cells: Any) -> Any:
        rows = decode(store, il, stream, cells)
        free = decode(store, il, stream, np.array([store.size - 1]))
        rows[:1] += free / (POISON_F16 if name.startswith("msa") else POISON)
        return rows

    monkeypatch.setattr(KVStore, "decode_k", trace_of_a_free_row)
    with pytest.raises(AssertionError):
        played(name)
    monkeypatch.setattr(Play, "poison", nothing)
    played(name)
