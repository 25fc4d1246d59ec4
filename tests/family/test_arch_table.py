"""The arch table against every recorded header, and rule by rule where no recording reaches."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import CacheUsageError, ModelError
from kvsim.models.arch import KNOWN_ARCHS, MEMORY_KINDS, NonCausal, memory_kind, memory_plan, non_causal_kind
from kvsim.models.cache_spec import MemorySpec
from kvsim.models.context_params import ContextParams, resolve
from kvsim.models.memory_spec import memory_spec
from kvsim.models.params import LayerParams, ModelParams, RopeType, SwaType

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
PATHS = sorted(TRACES.glob("*/*.jsonl.gz"))


def header_of(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        header: dict[str, Any] = json.loads(lines.readline())
    return header


def spec_of(header: dict[str, Any]) -> MemorySpec:
    model = ModelParams.from_header(header)
    spec = memory_spec(model, resolve(model, ContextParams.from_header(header)))
    assert spec is not None
    return spec


def test_recordings_cover_every_memory_kind() -> None:
    assert len(PATHS) == 106
    assert {header_of(path)["memory"] for path in PATHS} == set(MEMORY_KINDS)


@pytest.mark.parametrize("kind", MEMORY_KINDS)
def test_specs_equal_every_recorded_header(kind: str) -> None:
    """config.caches, config.recurrent, config.dsv4 and the memory's name, without a difference."""
    for path in sorted(TRACES.glob(f"{kind}/*.jsonl.gz")):
        header = header_of(path)
        config, spec = header["config"], spec_of(header)
        assert spec.kind == header["memory"], path.name
        assert {name: cache.to_json() for name, cache in spec.caches.items()} == config["caches"], path.name
        assert list(spec.caches) == list(config["caches"]), path.name
        assert (spec.recurrent and spec.recurrent.to_json()) == config["recurrent"], path.name
        rings = {name: ring.to_json() for name, ring in spec.compressors.items()}
        assert rings == config.get("dsv4", {}), path.name


@pytest.mark.parametrize("kind", MEMORY_KINDS)
def test_resolved_parameters_equal_every_recorded_header(kind: str) -> None:
    for path in sorted(TRACES.glob(f"{kind}/*.jsonl.gz")):
        header = header_of(path)
        ctx = resolve(ModelParams.from_header(header), ContextParams.from_header(header))
        recorded = header["config"]["cparams"]
        assert {name: getattr(ctx, name) for name in recorded} == recorded, path.name


@pytest.mark.parametrize("kind", MEMORY_KINDS)
def test_rope_of_every_layer_equals_the_header(kind: str) -> None:
    for path in sorted(TRACES.glob(f"{kind}/*.jsonl.gz")):
        header = header_of(path)
        recorded = header["config"]["rope_layers"]
        for cache in spec_of(header).caches.values():
            for layer in cache.layers:
                got = {"freq_base": layer.freq_base, "freq_scale": layer.freq_scale, "factors": layer.factors}
                assert got == recorded[layer.il], path.name


def model(arch: str, layers: list[LayerParams], **fields: Any) -> ModelParams:
    return ModelParams(arch=arch, layers=tuple(layers), n_ctx_train=4096, **fields)


ATTN = LayerParams(n_head_kv=2, n_embd_head_k=64, n_embd_head_v=64, n_rot=64)
SWA = replace(ATTN, is_swa=True)
RECR = LayerParams(is_recr=True, n_embd_head_k=64, n_embd_head_v=64)


def test_there_are_153_architectures() -> None:
    assert len(KNOWN_ARCHS) == 153


@pytest.mark.parametrize("arch", ["bert", "gemma-embedding", "llada", "dream", "wavtokenizer-dec", "clef"])
def test_encoders_and_diffusion_models_keep_nothing(arch: str) -> None:
    assert memory_kind(arch, model(arch, [ATTN])) is None


@pytest.mark.parametrize("arch", ["mamba", "rwkv7", "arwkv7"])
def test_recurrent_architectures(arch: str) -> None:
    plan = memory_plan(model(arch, [RECR, RECR]))
    assert plan is not None
    assert (plan.kind, plan.recr) == ("recurrent", (0, 1))


def test_unknown_architecture_is_refused() -> None:
    with pytest.raises(ModelError, match="unknown architecture 'gemma9'"):
        memory_plan(model("gemma9", [ATTN]))


def test_a_window_layer_makes_the_pair() -> None:
    windowed = model("gemma3", [SWA, ATTN], swa_type=SwaType.STANDARD, n_swa=512)
    assert memory_kind("gemma3", windowed) == "iswa"
    assert memory_kind("gemma3", model("gemma3", [ATTN, ATTN])) == "kv"


def test_window_type_without_a_window_layer_is_refused_as_llama_cpp_asserts() -> None:
    with pytest.raises(ModelError, match="no layer has a window"):
        memory_plan(model("gemma3", [ATTN], swa_type=SwaType.STANDARD))


def test_lfm2_with_a_window_is_hybrid_iswa_with_an_empty_base() -> None:
    lfm2 = model("lfm2", [SWA, RECR], swa_type=SwaType.STANDARD, n_swa=8, n_embd_r=4)
    spec = memory_spec(lfm2, resolve(lfm2, ContextParams(n_ctx=512, n_ubatch=16, swa_full=False)))
    assert spec is not None
    assert spec.kind == "hybrid_iswa"
    assert [len(cache.layers) for cache in spec.caches.values()] == [0, 1]
    assert spec.recurrent is not None
    assert spec.recurrent.layers == ((0, 0, 0), (4, 0, 0))


def test_falcon_h1_is_both_in_every_layer() -> None:
    plan = memory_plan(model("falcon-h1", [ATTN, ATTN]))
    assert plan is not None
    assert (plan.attn, plan.recr) == ((0, 1), (0, 1))


def test_nemotron_feed_forward_blocks_keep_nothing() -> None:
    plan = memory_plan(model("nemotron_h", [ATTN, RECR, replace(ATTN, is_ffn=True)]))
    assert plan is not None
    assert (plan.attn, plan.recr) == ((0,), (1,))


def test_prediction_heads_leave_the_default_context_and_fill_the_mtp_context() -> None:
    glm = model("glm4moe", [ATTN, ATTN, ATTN], n_layer_nextn=1)
    trunk, heads = memory_plan(glm), memory_plan(glm, mtp=True)
    assert trunk is not None
    assert heads is not None
    assert (trunk.attn, heads.attn) == ((0, 1), (2,))


def test_a_router_layer_is_cached_beside_the_trunk_but_not_shifted() -> None:
    granite = model("graniteswitch", [ATTN, ATTN], n_layer_nextn=1, router_layer=1, rope_type=RopeType.NORM)
    spec = memory_spec(granite, resolve(granite, ContextParams(n_ctx=256)))
    assert spec is not None
    assert [(layer.il, layer.has_rope) for layer in spec.caches["kv"].layers] == [(0, True), (1, False)]


@pytest.mark.parametrize(
    ("arch", "kind"),
    [("qwen35", "kv"), ("bailingmoe3", "kv"), ("nemotron_h_moe", "kv"), ("qwen4exp", "hybrid_idx")],
)
def test_prediction_heads_of_hybrids(arch: str, kind: str) -> None:
    hybrid = model(arch, [RECR, ATTN, ATTN], n_layer_nextn=1, indexer_head_size=64)
    plan = memory_plan(hybrid, mtp=True)
    assert plan is not None
    assert (plan.kind, plan.attn, plan.recr) == (kind, (2,), ())


def test_dots3note_heads_keep_the_window_in_a_plain_cache() -> None:
    """models.md 5.2: its cells can be reused although it is no pair of caches."""
    dots = model("dots3note", [SWA, ATTN], swa_type=SwaType.STANDARD, n_swa=32, n_layer_nextn=1, is_mla=True)
    spec = memory_spec(dots, resolve(dots, ContextParams(n_ctx=512, mtp=True)))
    assert spec is not None
    cache = spec.caches["kv"]
    assert (cache.n_swa, cache.swa_type) == (32, SwaType.STANDARD)


def test_gemma3n_reuses_the_last_owner_of_the_same_kind() -> None:
    """K = 4 owners: window layers from there on read block 2, the others block 3."""
    gemma = model(
        "gemma3n",
        [SWA, ATTN, SWA, ATTN, SWA, ATTN],
        swa_type=SwaType.STANDARD,
        n_swa=8,
        n_layer_kv_from_start=4,
    )
    spec = memory_spec(gemma, resolve(gemma, ContextParams(n_ctx=512)))
    assert spec is not None
    assert spec.caches["swa"].map_layer_ids == {0: 0, 2: 1, 4: 1}
    assert spec.caches["base"].map_layer_ids == {1: 0, 3: 1, 5: 1}


@pytest.mark.parametrize(
    ("swa_full", "unified", "size"),
    [(True, True, 4096), (False, True, 768), (False, False, 256)],
)
def test_window_cache_size(swa_full: bool, unified: bool, size: int) -> None:
    """iswa.md: pad(min(n_ctx_seq, n_swa * sequences + n_ubatch), 256); one sequence per stream."""
    gemma = model("gemma2", [SWA, ATTN], swa_type=SwaType.STANDARD, n_swa=128)
    ctx = resolve(
        gemma,
        ContextParams(
            n_ctx=4096, n_ubatch=32, n_seq_max=4, kv_unified=unified, swa_full=swa_full, n_batch=64
        ),
    )
    spec = memory_spec(gemma, ctx)
    assert spec is not None
    assert spec.caches["swa"].size == size


def test_hadamard_sizes() -> None:
    """kv_cache.md 1: K the largest power of two from 64 on that divides the head, V always 64."""
    llama = model("llama", [replace(ATTN, n_embd_head_k=192, n_embd_head_v=128)])

    def sizes(m: ModelParams, type_k: str, type_v: str) -> tuple[int, int]:
        params = ContextParams(n_ctx=256, type_k=type_k, type_v=type_v)
        spec = memory_spec(m, resolve(m, params))
        assert spec is not None
        return spec.caches["kv"].n_rot_k, spec.caches["kv"].n_rot_v

    assert sizes(llama, "f16", "f16") == (0, 0)
    assert sizes(llama, "q8_0", "f16") == (64, 0)
    assert sizes(llama, "q8_0", "q4_0") == (64, 64)
    assert sizes(model("llama", [replace(ATTN, n_embd_head_k=256)]), "q8_0", "f16") == (256, 0)
    assert sizes(model("llama", [replace(ATTN, n_embd_head_k=96)]), "q8_0", "f16") == (0, 0)
    mixed = model("llama", [ATTN, replace(ATTN, n_embd_head_k=128)])
    assert sizes(mixed, "q8_0", "q8_0") == (0, 64)


def test_dsv4_with_equal_head_sizes_is_refused_as_llama_cpp_crashes() -> None:
    """fixtures/traces/README.md, item 18."""
    head = replace(SWA, n_head_kv=1)
    dsv4 = model(
        "deepseek4", [head], swa_type=SwaType.STANDARD, n_swa=8, indexer_head_size=64, n_embd_head_k_full=64
    )
    with pytest.raises(CacheUsageError, match="both 64 wide"):
        memory_spec(dsv4, resolve(dsv4, ContextParams(n_ctx=256)))


def test_who_can_shift() -> None:
    def can_shift(m: ModelParams) -> bool:
        spec = memory_spec(m, resolve(m, ContextParams(n_ctx=256)))
        assert spec is not None
        return spec.caches["kv"].can_shift

    assert can_shift(model("llama", [ATTN]))
    assert not can_shift(model("step35", [ATTN]))
    assert not can_shift(model("qwen2vl", [ATTN], rope_type=RopeType.MROPE))


def test_transposed_values_are_padded_to_the_widest_row() -> None:
    narrow = replace(ATTN, n_head_kv=1)
    deci = model("deci", [narrow, ATTN])

    def widths(flash_attn: bool) -> list[int]:
        spec = memory_spec(deci, resolve(deci, ContextParams(n_ctx=256, flash_attn=flash_attn)))
        assert spec is not None
        return [layer.n_embd_v for layer in spec.caches["kv"].layers]

    assert widths(flash_attn=False) == [128, 128]
    assert widths(flash_attn=True) == [64, 128]


def test_non_causal_kinds() -> None:
    assert non_causal_kind("gemma4") is NonCausal.SWA_ONLY
    assert non_causal_kind("deepseek4") is NonCausal.SWA_FULL
    assert non_causal_kind("gemma3") is NonCausal.ALL
