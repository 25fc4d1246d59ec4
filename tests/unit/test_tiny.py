"""Tiny model files: which memory each has, and that they are what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.context import Context
from kvsim.errors import ModelError
from kvsim.models.context_params import ContextParams
from kvsim.models.gguf_file import open_gguf
from kvsim.models.gguf_header import read_model
from kvsim.models.network import MODELS, load_network
from kvsim.models.tiny import TINY, tiny_model, write_tiny
from kvsim.models.tiny_parts import N_VOCAB

MEMORY = {
    "llama": "kv", "llama-1": "kv", "qwen2vl": "kv", "gemma2": "iswa", "gemma3": "iswa", "mamba": "recurrent",
    "jamba": "hybrid", "lfm2": "hybrid", "lfm2-windowed": "hybrid_iswa", "deepseek32": "dsa",
    "dots3note": "dsa_iswa", "minimax-m3": "msa", "deepseek4": "dsv4", "glm5-next": "hybrid_idx",
}  # fmt: skip


def test_every_memory_has_a_model() -> None:
    assert set(MEMORY) == set(TINY)
    assert len(set(MEMORY.values())) == 10


@pytest.mark.parametrize("name", TINY)
def test_a_file_holds_the_model(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_tiny(name, path)
    context = Context(read_model(path), ContextParams(n_ctx=512, n_seq_max=2))
    assert context.memory.kind == MEMORY[name]
    file = open_gguf(path)
    assert file.tensor_names == set(tiny_model(name).tensors())
    for tensor, shape in tiny_model(name).tensors().items():
        assert file.tensor(tensor).shape == shape


def test_name_and_seed_decide_every_byte(tmp_path: Path) -> None:
    files = []
    for seed in (0, 0, 1):
        write_tiny("llama-1", tmp_path / "model.gguf", seed)
        files.append((tmp_path / "model.gguf").read_bytes())
    assert files[0] == files[1] != files[2]
    assert len(files[0]) == len(files[2])


@pytest.mark.parametrize("name", [name for name, model in TINY.items() if model.arch in MODELS])
def test_networks_compute_with_it(name: str, tmp_path: Path) -> None:
    from kvsim.batch import Batch
    from kvsim.caches.factory import LeafFactory

    write_tiny(name, tmp_path / "model.gguf")
    model, network = load_network(tmp_path / "model.gguf")
    params = ContextParams(n_ctx=256, flash_attn=False)
    context = Context(model, params, N_VOCAB, network=network, leaves=LeafFactory(data=True))
    assert context.decode(Batch(tokens=[1, 2, 3])) == 0
    assert context.logits is not None
    assert context.logits.shape == (1, N_VOCAB)
    assert 0.1 < context.logits.std() < 30


def test_unknown_names_are_told() -> None:
    with pytest.raises(ModelError, match="no tiny model 'gpt'; there are llama, "):
        write_tiny("gpt", "nowhere.gguf")
