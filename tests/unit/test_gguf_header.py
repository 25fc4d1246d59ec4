"""Model files: their metadata gives the memory the recordings have; damaged ones say so."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import ModelError
from kvsim.models.context_params import ContextParams, resolve
from kvsim.models.gguf_file import open_gguf
from kvsim.models.gguf_header import model_from_metadata, read_model
from kvsim.models.gguf_metadata import read_header
from kvsim.models.known import KNOWN, known_model
from kvsim.models.memory_spec import memory_spec
from kvsim.models.params import ModelParams, RopeType, SwaType
from kvsim.models.rope_types import rope_type_of

FIXTURES = Path(__file__).parents[2] / "fixtures"
MODELS = sorted((FIXTURES / "goldens" / "logits").glob("*.gguf"))
LLAMA_HEADER_BYTES = 1816
METADATA: dict[str, dict[str, Any]] = json.loads((FIXTURES / "models" / "metadata.json").read_text())


def headers_of(model: str) -> list[dict[str, Any]]:
    """Headers of the recordings made with a model file as it is."""
    found = []
    for path in sorted((FIXTURES / "traces").glob("*/*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            header: dict[str, Any] = json.loads(lines.readline())
        changed = "n_swa_override" in header["config"] or "is_swa_override" in header["config"]
        if header["model"] == model and not changed:
            found.append(header)
    return found


@pytest.mark.parametrize("name", sorted(set(METADATA) - {"lfm2-l4-dense.gguf"}))
def test_file_and_recordings_give_the_same_memory(name: str) -> None:
    model = model_from_metadata(METADATA[name])
    headers = headers_of(name)
    assert headers, name
    for header in headers:
        recorded = ModelParams.from_header(header)
        params = ContextParams.from_header(header)
        spec = memory_spec(model, resolve(model, params))
        assert spec == memory_spec(recorded, resolve(recorded, params)), name


def test_lfm2_file_has_a_window_in_every_attention_block() -> None:
    """The recorder took the window off block 2; in the file all attention blocks have it."""
    model = model_from_metadata(METADATA["lfm2-l4-dense.gguf"])
    assert [layer.is_swa for layer in model.layers] == [True, False, True, True]
    assert [layer.is_recr for layer in model.layers] == [False, True, False, False]


def test_models_of_the_logits_goldens() -> None:
    got = {path.stem: read_model(path) for path in MODELS}
    kinds = {}
    for name, model in got.items():
        spec = memory_spec(model, resolve(model, ContextParams(n_ctx=256, flash_attn=False)))
        kinds[name] = spec.kind if spec else None
    assert kinds == {
        "gemma2-s0": "iswa",
        "jamba-s0": "hybrid",
        "lfm2-s0": "hybrid",
        "lfm2swa-s0": "hybrid_iswa",
        "llama-s0": "kv",
        "llamahd64-s0": "kv",
        "mamba-s0": "recurrent",
        "mamba2-s0": "recurrent",
    }
    assert (got["gemma2-s0"].n_swa, got["gemma2-s0"].swa_type) == (8, SwaType.STANDARD)
    assert (got["mamba-s0"].n_embd_r, got["mamba-s0"].n_embd_s) == (3 * 128, 16 * 128)
    assert (got["mamba2-s0"].n_embd_r, got["mamba2-s0"].n_embd_s) == (3 * (128 + 2 * 2 * 16), 16 * 128)


# -- rules, without files -----------------------------------------------------------------------


def metadata(arch: str, **keys: Any) -> dict[str, Any]:
    values = {
        "block_count": 12,
        "embedding_length": 256,
        "attention.head_count": 4,
        "context_length": 1024,
        **{key.replace("__", "."): value for key, value in keys.items()},
    }
    return {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in values.items()}}


def windows(arch: str, **keys: Any) -> str:
    """S for a window block, D for a dense one."""
    model = model_from_metadata(metadata(arch, attention__sliding_window=16, **keys))
    return "".join("S" if layer.is_swa else "D" for layer in model.layers)


@pytest.mark.parametrize(
    ("arch", "blocks"),
    [
        ("gemma2", "SDSDSDSDSDSD"),
        ("gemma3", "SSSSSDSSSSSD"),
        ("llama4", "SSSDSSSDSSSD"),
        ("cohere2moe", "DSSSDSSSDSSS"),
        ("plamo3", "SSSSSSSDSSSS"),
        ("phi3", "DDDDDDDDDDDD"),
    ],
)
def test_default_window_patterns(arch: str, blocks: str) -> None:
    """models.md 4."""
    assert windows(arch) == blocks


def test_a_period_or_a_list_in_the_file_overrides_the_pattern() -> None:
    assert windows("gemma3", attention__sliding_window_pattern=3) == "SSDSSDSSDSSD"
    flags = [True, False, False] * 4
    assert windows("gemma3", attention__sliding_window_pattern=flags) == "SDDSDDSDDSDD"


def test_llama4_ignores_the_width_but_not_a_zero() -> None:
    assert model_from_metadata(metadata("llama4", attention__sliding_window=16)).n_swa == 8192
    assert model_from_metadata(metadata("llama4")).swa_type is SwaType.CHUNKED
    assert model_from_metadata(metadata("llama4", attention__sliding_window=0)).swa_type is SwaType.NONE


def test_exaone4_has_a_window_only_with_64_blocks() -> None:
    assert windows("exaone4") == "D" * 12
    assert windows("exaone4", block_count=64).count("D") == 16


def test_prediction_heads_have_no_window() -> None:
    assert windows("afmoe", nextn_predict_layers=2) == "SSSDSSSDSSDD"


def test_window_blocks_turn_with_their_own_base() -> None:
    gemma = model_from_metadata(
        metadata("gemma3", attention__sliding_window=16, rope__freq_base=1e6, rope__scaling__factor=8.0)
    )
    assert (gemma.rope_freq_base_train, gemma.rope_freq_base_train_swa) == (1e6, 1e4)
    assert (gemma.rope_freq_scale_train, gemma.rope_freq_scale_train_swa) == (0.125, 1.0)
    cohere = model_from_metadata(metadata("cohere2", attention__sliding_window=16, rope__freq_base=5e4))
    assert cohere.rope_freq_base_train_swa == 5e4


def test_every_third_block_attends_if_the_interval_says_so() -> None:
    ssm = {"ssm__conv_kernel": 4, "ssm__inner_size": 64, "ssm__state_size": 16, "ssm__group_count": 2}
    model = model_from_metadata(metadata("qwen3next", full_attention_interval=3, **ssm))
    assert [layer.is_recr for layer in model.layers] == [True, True, False] * 4
    assert (model.n_embd_r, model.n_embd_s) == (3 * (64 + 2 * 2 * 16), 16 * 64)


def test_granite_switch_gets_a_router_block() -> None:
    model = model_from_metadata(metadata("graniteswitch", attention__head_count_kv=2))
    assert (model.n_layer_all, model.n_layer, model.router_layer) == (13, 12, 12)
    assert model.layers[12].n_head_kv == 1


def test_glm_5_2_shares_indexers() -> None:
    index = {
        "attention__indexer__head_count": 2,
        "attention__indexer__key_length": 64,
        "attention__indexer__top_k": 8,
    }
    old = model_from_metadata(metadata("glm-dsa", **index))
    new = model_from_metadata(metadata("glm-dsa", **index) | {"glm-dsa.context_length": 2**20})
    assert all(layer.indexer_full for layer in old.layers)
    assert [il for il, layer in enumerate(new.layers) if layer.indexer_full] == [0, 1, 2, 6, 10]


def test_rope_types() -> None:
    none = (0, 0, 0, 0)
    assert rope_type_of("llama", none) is RopeType.NORM
    assert rope_type_of("qwen2", none) is RopeType.NEOX
    assert rope_type_of("mamba", none) is RopeType.NONE
    assert rope_type_of("qwen35", none) is RopeType.IMROPE
    assert rope_type_of("glm4", (8, 12, 12, 0)) is RopeType.MROPE
    assert rope_type_of("glm4", none) is RopeType.NORM


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"llama.block_count": 0}, r"llama.block_count = 0 must be 1 to 512"),
        ({"llama.block_count": 10**9}, "must be an integer from 0 to"),
        ({"llama.context_length": "long"}, "context_length = 'long' must be an integer"),
        ({"llama.attention.head_count_kv": [1, 2]}, "a list of 12 values, one per block"),
        ({"llama.rope.freq_base": float("nan")}, "freq_base = nan must be a number"),
        ({"general.architecture": "gemma9"}, "unknown architecture 'gemma9'"),
        ({"general.architecture": 3}, "must be a string"),
    ],
)
def test_impossible_metadata_names_the_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        model_from_metadata(metadata("llama") | change)


def test_missing_key_is_named() -> None:
    values = metadata("llama")
    del values["llama.embedding_length"]
    with pytest.raises(ModelError, match=r"llama.embedding_length is missing"):
        model_from_metadata(values)


# -- damaged files -------------------------------------------------------------------------------


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such file, or it is not a regular one"):
        read_model(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="there is no such file, or it is not a regular one"):
        read_model(tmp_path)
    with pytest.raises(ModelError, match="cannot be opened: File name too long"):
        read_model("a" * 5000)


def outcome_of(data: bytes, path: Path) -> str:
    """The architecture read from a damaged file, or the error's text."""
    path.write_bytes(data)
    try:
        return read_model(path).arch
    except ModelError as error:
        return str(error)


def test_header_agrees_with_the_gguf_package() -> None:
    """Values and tensor names; the package also has the lists of strings."""
    for path in MODELS:
        header, file = read_header(path), open_gguf(path)
        assert set(header.tensors) == file.tensor_names
        for key, value in header.values.items():
            assert repr(file.values[key]) == repr(value), key
    assert header.floats("output_norm.weight").tolist() == file.tensor("output_norm.weight").tolist()


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 92_000))
def test_truncated_file_is_refused_by_name(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    """Only the header is read: where the data is cut, the model is still known."""
    whole = (FIXTURES / "goldens/logits/llama-s0.gguf").read_bytes()
    assert cut < len(whole)
    path = tmp_path_factory.getbasetemp() / "truncated.gguf"
    outcome = outcome_of(whole[:cut], path)
    if cut < LLAMA_HEADER_BYTES:
        assert outcome.startswith(f"{path}: not a readable GGUF file: ")
    else:
        assert outcome == "llama"


@settings(max_examples=80, deadline=None)
@given(at=st.integers(0, 1500), value=st.integers(0, 255))
def test_flipped_byte_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int
) -> None:
    """No crash, no hang, no other kind of error."""
    whole = bytearray((FIXTURES / "goldens/logits/llama-s0.gguf").read_bytes())
    whole[at] = value
    assert outcome_of(bytes(whole), tmp_path_factory.getbasetemp() / "flipped.gguf")


def test_tensors_have_the_slowest_axis_first() -> None:
    file = open_gguf(FIXTURES / "goldens/logits/llamahd64-s0.gguf")
    assert file.tensor("blk.0.attn_q.weight").shape == (128, 64)
    assert file.tensor("token_embd.weight").dtype == np.float32
    with pytest.raises(ModelError, match=r"no tensor 'blk\.9'"):
        file.tensor("blk.9")


# -- known models --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_known_models_have_a_memory(name: str) -> None:
    model = known_model(name)
    assert memory_spec(model, resolve(model, ContextParams(n_ctx=1024))) is not None


def test_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match="gemma3-4b"):
        known_model("gemma9")
