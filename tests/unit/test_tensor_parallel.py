"""A cache split over devices: who gets which heads, blocks kept whole, bytes, and nothing lost on the way."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from small_memories import kv_spec

from kvsim.errors import CacheUsageError
from kvsim.models.cache_spec import LayerSpec
from kvsim.models.cache_types import CACHE_TYPES
from kvsim.models.context_params import ContextParams, resolve
from kvsim.models.known import known_model
from kvsim.models.memory_spec import memory_spec
from kvsim.models.params import LayerParams, ModelParams
from kvsim.tensor_parallel import (
    LayerSplit,
    SplitStore,
    heads_per_part,
    split_cache,
    split_heads,
    workspace_bytes,
)  # fmt: skip
from kvsim.tensors.attention import attention
from kvsim.tensors.rope import Rope
from kvsim.tensors.shift import KeyShift
from kvsim.tensors.store import KVStore

BLOCKY = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"]


def layer(
    heads: int, size_k: int = 64, size_v: int = 64, k: str = "f16", v: str | None = "f16", il: int = 0
) -> LayerSpec:
    return replace(
        kv_spec().layers[0], il=il, n_head_kv=heads, k=CACHE_TYPES[k], n_embd_k=heads * size_k,
        v=None if v is None else CACHE_TYPES[v], n_embd_v=heads * size_v, n_embd_v_own=heads * size_v,
    )  # fmt: skip


def filled(*layers: LayerSpec, n_stream: int = 2, size: int = 6, seed: int = 0) -> KVStore:
    store = KVStore(layers, n_stream, size, v_trans=False)
    rng = np.random.default_rng(seed)
    for slab in (*store.k.values(), *store.v.values()):
        slab[...] = rng.integers(0, 256, slab.shape, np.uint8)
    return store


# -- who gets which heads --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_gqa", "head_size", "n_devices", "weight_block", "heads"),
    [
        (1, 64, 2, 1, 1),  # 1 doubles up to 32, which 64 is a multiple of
        (4, 128, 2, 32, 1),  # 512 values: 128 divides them
        (
            1,
            80,
            2,
            1,
            4,
        ),  # 64 is the first power of two of which two devices need 80 or more; lcm(80, 64) = 320
        (1, 80, 2, 32, 4),
        (4, 80, 2, 1, 2),  # 320 values, 128: lcm 640
        (4, 80, 8, 1, 1),  # 64 suffices for 8 devices
        (1, 128, 2, 256, 2),  # blocks of the weights are longer than a head
        (8, 128, 2, 256, 1),
        (3, 128, 2, 256, 2),
        (1, 96, 3, 1, 1),  # 32 for each of three is all there is
    ],
)
def test_granularity(n_gqa: int, head_size: int, n_devices: int, weight_block: int, heads: int) -> None:
    assert heads_per_part(n_gqa, head_size, n_devices, weight_block) == heads


@pytest.mark.parametrize(
    ("n_head_kv", "n_devices", "heads"),
    [
        (8, 1, (8,)),
        (8, 2, (4, 4)),
        (8, 3, (2, 3, 3)),
        (8, 4, (2, 2, 2, 2)),
        (2, 4, (0, 1, 0, 1)),
        (1, 2, (0, 1)),
        (5, 2, (2, 3)),
    ],
)
def test_an_even_split_rounds_down_and_the_last_gets_the_rest(
    n_head_kv: int, n_devices: int, heads: tuple[int, ...]
) -> None:
    assert split_heads(n_head_kv, n_devices) == heads


def test_whole_parts_only() -> None:
    """Two heads at a time: 5 of 10 become 4."""
    assert split_heads(10, 2, n_gqa=4, head_size=80) == (4, 6)


@pytest.mark.parametrize(
    ("shares", "heads"),
    [
        ((1, 1), (4, 4)),
        ((3, 1), (6, 2)),
        ((0.6, 0.4), (4, 4)),
        ((0, 1), (0, 8)),
        ((1, 0), (8, 0)),
        ((0, 0), (4, 4)),
        ((5, 3), (5, 3)),
    ],
)
def test_shares(shares: tuple[float, float], heads: tuple[int, int]) -> None:
    assert split_heads(8, 2, shares=shares) == heads


def test_rotation_moves_the_rest_to_another_device() -> None:
    assert [split_heads(5, 3, rotation=r) for r in range(3)] == [(1, 2, 2), (2, 1, 2), (2, 2, 1)]
    assert split_heads(8, 2, shares=(3, 1), rotation=1) == (6, 2)  # the shares stay with their devices


@given(
    n_head_kv=st.integers(1, 64),
    n_devices=st.integers(1, 8),
    n_gqa=st.integers(1, 8),
    head_size=st.sampled_from([32, 64, 80, 96, 128, 256]),
    weight_block=st.sampled_from([1, 32, 256]),
    rotation=st.integers(0, 9),
    data=st.data(),
)
def test_a_split_deals_out_every_head_in_whole_parts(
    n_head_kv: int,
    n_devices: int,
    n_gqa: int,
    head_size: int,
    weight_block: int,
    rotation: int,
    data: st.DataObject,
) -> None:
    shares = data.draw(
        st.none() | st.lists(st.floats(0, 9, width=32), min_size=n_devices, max_size=n_devices)
    )
    asked = {"n_gqa": n_gqa, "head_size": head_size, "weight_block": weight_block}
    heads = split_heads(n_head_kv, n_devices, shares=shares, rotation=rotation, **asked)
    assert sum(heads) == n_head_kv
    assert min(heads) >= 0
    part = heads_per_part(n_gqa, head_size, n_devices, weight_block)
    last = (n_devices - 1 + rotation) % n_devices
    assert all(n % part == 0 for device, n in enumerate(heads) if device != last)
    assert part * n_gqa * head_size % weight_block == 0


@pytest.mark.parametrize(("n_devices", "shares"), [(0, None), (2, (1.0,)), (2, (1.0, -1.0))])
def test_impossible_devices_are_refused(n_devices: int, shares: tuple[float, ...] | None) -> None:
    with pytest.raises(CacheUsageError, match="cannot split over"):
        split_heads(8, n_devices, shares=shares)


def test_layers_of_each_kind_take_turns() -> None:
    """Layers 0, 1, 3 have a window, 2 does not: it is the first of its kind."""
    kinds = (True, True, False, True)
    blocks = tuple(LayerParams(is_swa=swa, n_head_kv=3, n_embd_head_k=64, n_embd_head_v=64) for swa in kinds)
    spec = kv_spec(layers=tuple(layer(3, il=il) for il in range(4)))
    heads = split_cache(spec, ModelParams("gemma2", blocks), 2)
    assert heads == {0: (1, 2), 1: (2, 1), 2: (1, 2), 3: (1, 2)}


# -- blocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BLOCKY)
def test_a_split_that_breaks_a_block_is_refused_with_the_reason(kind: str) -> None:
    """Rows of 4 heads of 80 values are 10 whole blocks of 32, but one head is two and a half."""
    with pytest.raises(CacheUsageError) as refusal:
        LayerSplit(layer(4, 80, k=kind), (1, 3))
    assert str(refusal.value) == (
        f"layer 0: device 0 would get 1 K heads of 80 values, 16 more than whole blocks of {kind} (32 "
        "values), so that one block would lie on two devices; llama.cpp aborts. Give it a multiple of 2 "
        "heads, or use f16"
    )
    halves = LayerSplit(layer(4, 80, k=kind), (2, 2))
    assert halves.k_bytes(1).start == halves.layer.row_k // 2


def test_values_must_fit_too() -> None:
    with pytest.raises(CacheUsageError, match="device 1 would get 3 V heads of 80 values, 16 more"):
        LayerSplit(layer(4, 64, 80, v="q8_0"), (0, 3, 1))
    LayerSplit(layer(4, 64, 80, v="f16"), (0, 3, 1))


@pytest.mark.parametrize("heads", [(1, 2), (4, 4), (5, -1), ()])
def test_heads_must_be_those_of_the_layer(heads: tuple[int, ...]) -> None:
    with pytest.raises(CacheUsageError, match="has 4 KV heads"):
        LayerSplit(layer(4), heads)


def test_where_a_devices_part_lies_in_a_row() -> None:
    """Heads of 64 values of q8_0 are two blocks of 34 bytes, of q4_0 two of 18."""
    split = LayerSplit(layer(5, k="q8_0", v="q4_0"), (2, 0, 3))
    assert [split.k_bytes(d) for d in range(3)] == [slice(0, 136), slice(136, 136), slice(136, 340)]
    assert [split.v_bytes(d) for d in range(3)] == [slice(0, 72), slice(72, 72), slice(72, 180)]
    assert (split.spec_of(2).row_k, split.spec_of(2).row_v, split.spec_of(2).n_head_kv) == (204, 108, 3)


# -- rows ------------------------------------------------------------------------------------------


@given(
    heads=st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(sum),
    k=st.sampled_from(sorted(CACHE_TYPES)),
    v=st.sampled_from([*sorted(CACHE_TYPES), None]),
    size_k=st.sampled_from([32, 64, 80]),
    size_v=st.sampled_from([32, 80]),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_split_and_gathered_rows_are_the_same_bytes(
    heads: list[int], k: str, v: str | None, size_k: int, size_v: int, seed: int
) -> None:
    n = sum(heads)
    broken = [m * size % 32 for m in heads for size, kind in ((size_k, k), (size_v, v)) if kind in BLOCKY]
    assume(not any(broken))
    whole = filled(layer(n, size_k, size_v, k, v), layer(n, size_k, size_v, k, v, il=7), seed=seed)
    split = SplitStore(whole, {0: heads, 7: heads[::-1]})
    back = split.gather()
    assert sum(split.n_bytes) == whole.n_bytes == back.n_bytes
    for il in (0, 7):
        np.testing.assert_array_equal(back.k[il], whole.k[il])
        if v is not None:
            np.testing.assert_array_equal(back.v[il], whole.v[il])


@pytest.mark.parametrize(("k", "v"), [("f32", "f32"), ("f16", "bf16"), ("q8_0", "q4_0"), ("q5_1", "iq4_nl")])
def test_each_device_rounds_its_heads_as_the_whole_row_would(k: str, v: str) -> None:
    whole = KVStore([layer(5, k=k, v=v)], 1, 8, v_trans=False)
    split = SplitStore(whole, {0: (2, 0, 3)})
    rng = np.random.default_rng(1)
    cells, rows = np.array([6, 1, 3], np.int32), rng.normal(size=(2, 3, 320))
    whole.encode_k(0, 0, cells, rows[0])
    whole.encode_v(0, 0, cells, rows[1])
    split.write(0, 0, cells, rows[0], rows[1])
    back = split.gather()
    np.testing.assert_array_equal(back.k[0], whole.k[0])
    np.testing.assert_array_equal(back.v[0], whole.v[0])


@pytest.mark.parametrize("n_gqa", [1, 4])
@pytest.mark.parametrize(("k", "v"), [("f32", "f32"), ("q8_0", "q4_0")])
def test_attention_by_device_is_attention_of_the_whole(n_gqa: int, k: str, v: str) -> None:
    whole = KVStore([layer(5, 64, 32, k, v)], 2, 8, v_trans=False)
    rng = np.random.default_rng(2)
    whole.encode_k(0, 1, slice(0, 8), rng.normal(size=(8, 320)))
    whole.encode_v(0, 1, slice(0, 8), rng.normal(size=(8, 160)))
    q, mask = rng.normal(size=(3, 5 * n_gqa, 64)), rng.random((3, 7)) < 0.6
    keys = whole.decode_k(0, 1, slice(0, 7)).reshape(7, 5, 64)
    values = whole.decode_v(0, 1, slice(0, 7)).reshape(7, 5, 32)
    want = attention(q, keys, values, mask, scale=0.125)
    for heads in ((5,), (2, 0, 3), (1, 1, 1, 1, 1)):
        got = SplitStore(whole, {0: heads}).attend(0, 1, q, mask, scale=0.125)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("k", "n_rot_k"), [("f16", 0), ("q8_0", 64)])
def test_each_device_turns_its_own_keys(k: str, n_rot_k: int) -> None:
    spec = layer(5, k=k)
    rope = Rope(n_rot=64, neox=True, base=10000.0)
    whole = KVStore([spec], 1, 6, v_trans=False, shifts={0: KeyShift(spec.k, 5, 64, rope, n_rot_k)})
    rng = np.random.default_rng(3)
    whole.encode_k(0, 0, slice(0, 6), rng.normal(size=(6, 320)))
    split = SplitStore(whole, {0: (2, 0, 3)})
    shift = np.array([[0, 3, -2, 0, 7, 1]], np.int32)
    before = whole.k[0].copy()
    whole.apply_shift(shift)
    split.apply_shift(shift)
    assert (whole.k[0] != before).any()
    np.testing.assert_array_equal(split.gather().k[0], whole.k[0])


def test_a_device_without_heads_has_no_rows() -> None:
    split = SplitStore(filled(layer(1)), {0: (0, 1)})
    assert split.n_bytes == [0, 2 * 6 * 256]
    assert split.devices[0].k == {}


def test_bytes_of_a_known_model_on_three_devices() -> None:
    """Llama 3 8B: 8 KV heads of 128 in 32 layers. The rest of 8 over 3 falls to each device in turn, but
    32 is no multiple of 3."""
    model = known_model("llama3-8b")
    spec = memory_spec(model, resolve(model, ContextParams(n_ctx=256, type_k="q8_0", type_v="q8_0")))
    assert spec is not None
    heads = split_cache(spec.caches["kv"], model, 3, n_gqa=4, weight_block=32)
    assert [heads[il] for il in range(4)] == [(2, 3, 3), (3, 2, 3), (3, 3, 2), (2, 3, 3)]
    per_device = [sum(heads[il][d] for il in range(32)) for d in range(3)]
    assert per_device == [85, 85, 86]
    store = KVStore(spec.caches["kv"].layers, 1, 256, v_trans=False)
    split = SplitStore(store, heads)
    assert split.n_bytes == [n * 256 * 2 * (128 // 32 * 34) for n in per_device]


def test_transposed_values_cannot_be_split() -> None:
    with pytest.raises(CacheUsageError, match="without flash attention"):
        SplitStore(KVStore([layer(4)], 1, 4, v_trans=True), {0: (2, 2)})


def test_all_layers_are_on_the_same_devices() -> None:
    with pytest.raises(CacheUsageError, match=r"different numbers of devices: \[2, 3\]"):
        SplitStore(filled(layer(4), layer(4, il=1)), {0: (2, 2), 1: (1, 1, 2)})


def test_a_refused_split_copies_nothing() -> None:
    whole = filled(layer(4, 80, k="q8_0"))
    before = whole.k[0].copy()
    with pytest.raises(CacheUsageError):
        SplitStore(whole, {0: (1, 3)})
    np.testing.assert_array_equal(whole.k[0], before)


@pytest.mark.parametrize(
    ("n_devices", "n_bytes"),
    [(1, 0), (2, 8388608), (3, 2 * 8388608), (4, 2 * 8388608), (5, 3 * 8388608), (8, 3 * 8388608)],
)
def test_workspace_of_a_device(n_devices: int, n_bytes: int) -> None:
    """4096 values of 512 tokens in f32 are 8 MiB, once for each step of adding up."""
    assert workspace_bytes(n_devices, 4096, 512) == n_bytes


def test_heads_lie_in_order() -> None:
    split = LayerSplit(layer(6), (1, 3, 0, 2))
    assert [split.first_head(d) for d in range(4)] == list(accumulate((0, 1, 3, 0)))
