"""From tokens to logits, as llama.cpp computed them; and proof that these goldens notice what breaks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kvsim.batch import Batch
from kvsim.caches.kv_view import KVView
from kvsim.caches.recurrent import RecurrentView
from kvsim.context import Context
from kvsim.errors import CacheUsageError, ModelError
from kvsim.memory import BoolArray
from kvsim.models import cached_rows, network
from kvsim.models.context_params import ContextParams
from kvsim.models.gguf_file import open_gguf
from kvsim.models.gguf_header import read_model
from kvsim.models.layer_memory import Floats
from kvsim.models.layers import Weights, gelu_tanh
from kvsim.models.network import MODELS, load_network
from kvsim.tensors.attention import attention
from kvsim.tensors.store import KVStore
from kvsim.verify import load, verify_file
from kvsim.verify.logits import TOLERANCES

GOLDENS = Path(__file__).parents[2] / "fixtures" / "goldens" / "logits"
FILES = sorted(GOLDENS.glob("*.npz"))


def wrong(name: str) -> list[str]:
    return [check.name for check in verify_file(GOLDENS / f"{name}.npz").checks if not check.ok]


def test_there_are_16_scripts_with_every_operation() -> None:
    ops: set[str] = set()
    decodes = 0
    for path in FILES:
        names = [op[0] for op in load(path)[1]["ops"]]
        ops |= set(names)
        decodes += names.count("decode")
    assert len(FILES) == 16
    assert decodes == 97
    assert ops == {"decode", "seq_cp", "seq_rm", "seq_add", "seq_keep"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_logits_equal_the_recorded_ones(path: Path) -> None:
    """Return values and ubatches exactly, logits of every token within the tolerance."""
    assert wrong(path.stem) == []


# -- the layers alone ---------------------------------------------------------------------------


class NoCache:
    """One sequence in one piece: attention over what it is given, states that start at zero."""

    n_seqs = 1
    n_planes = 1

    def __init__(self, n_tokens: int, windows: dict[int, int], widths: dict[str, int]) -> None:
        self.n_seq_tokens = n_tokens
        self.windows, self.widths = windows, widths

    def attend(self, il: int, q: Floats, k: Floats, v: Floats, scale: float, softcap: float = 0.0) -> Floats:
        ago = np.arange(len(q))[:, None] - np.arange(len(q))
        mask = (ago >= 0) & (ago < self.windows.get(il, len(q)))
        return attention(q, k, v, mask, scale=scale, softcap=softcap)

    def states(self, il: int, part: str) -> Floats:
        return np.zeros((1, self.widths[part]))

    def write_states(self, il: int, part: str, snapshots: Sequence[Floats]) -> None:
        assert snapshots[0].size == self.widths[part]


@pytest.mark.parametrize(
    "golden",
    ["llama_unified", "gemma2_iswa_full", "mamba_unified", "mamba2_unified", "jamba_unified", "lfm2_unified"],
)
def test_layers_alone_equal_the_first_prompt(golden: str) -> None:
    arrays, meta = load(GOLDENS / f"{golden}.npz")
    path = GOLDENS / meta["model"]
    params, weights = read_model(path), Weights(open_gguf(path))
    first = meta["ops"][0][1]
    tokens, pos = (np.array(first[name], np.int32) for name in ("tokens", "pos"))
    windows = {il: params.n_swa for il, layer in enumerate(params.layers) if layer.is_swa}
    memory = NoCache(len(tokens), windows, {"r": params.n_embd_r, "s": params.n_embd_s})
    logits = MODELS[params.arch](params, weights).forward(tokens, pos, memory)
    np.testing.assert_allclose(logits, arrays[first["logits"]], rtol=0, atol=TOLERANCES[meta["arch"]])


def test_gelu_is_looked_up_in_a_table_of_halves() -> None:
    """1 + 2**-12 rounds to 1 as f16, so both have the value of 1; outside [-10, 10] it is 0 or x."""
    x = np.array([1.0, 1 + 2**-12, -11.0, 11.5])
    np.testing.assert_array_equal(gelu_tanh(x), [0.84130859375, 0.84130859375, 0.0, 11.5])


# -- what the goldens notice --------------------------------------------------------------------


def test_a_window_that_is_one_too_wide_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = KVView.mask

    def wider(self: KVView, causal: bool = True) -> BoolArray:
        """Row i also sees what row i - 1 saw."""
        mask = whole(self, causal)
        mask[1:] |= whole(self, causal)[:-1] & (self.cache.spec.n_swa > 0)
        return mask

    monkeypatch.setattr(KVView, "mask", wider)
    assert wrong("gemma2_iswa_ring")
    assert not wrong("llama_unified")  # it has no window


def test_keys_that_do_not_turn_with_their_positions_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVStore, "apply_shift", lambda self, shift: None)
    after = ["8.logits_4", "9.logits_5", "11.logits_6"]
    assert wrong("llama_unified") == after
    assert wrong("llama_hd64_q8_0") == after


def test_a_stream_copy_without_rows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVStore, "copy_stream", lambda self, src, dst: None)
    assert "2.logits_1" in wrong("llama_streams")


def test_a_rollback_that_reads_the_newest_state_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecurrentView, "_source", lambda self, cell: self.memory.cells.src0[cell])
    assert wrong("lfm2_rollback_nrs2")
    assert not wrong("lfm2_unified")  # it never rolls back


def test_a_state_that_is_not_copied_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecurrentView, "_source", lambda self, cell: cell)
    assert wrong("mamba_unified")


def test_rotating_only_what_is_stored_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model has one KV head and two query heads; queries and output stay unrotated."""
    rotate = cached_rows.hadamard
    monkeypatch.setattr(cached_rows, "hadamard", lambda x, n: rotate(x, n) if x.shape[1] == 1 else x)
    assert wrong("llama_hd64_q8_0")


# -- errors ---------------------------------------------------------------------------------------


def test_a_memory_without_rows_is_refused() -> None:
    model, net = load_network(GOLDENS / "llama-s0.gguf")
    context = Context(model, ContextParams(n_ctx=256, flash_attn=False), network=net)
    with pytest.raises(CacheUsageError, match="has no rows"):
        context.decode(Batch.tokens_of(0, [1, 2]))


def test_an_architecture_without_a_forward_pass_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(network.MODELS, "llama")
    with pytest.raises(ModelError, match="no forward pass for 'llama'; there is one for gemma2"):
        load_network(GOLDENS / "llama-s0.gguf")
