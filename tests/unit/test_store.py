"""The rows of a cache: what is written is read, in values and in bytes, in every layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import CacheUsageError
from kvsim.models.cache_spec import LayerSpec
from kvsim.models.cache_types import CACHE_TYPES, cache_type
from kvsim.tensors import store as store_module
from kvsim.tensors.rope import Rope
from kvsim.tensors.shift import KeyShift
from kvsim.tensors.store import KVStore

SIZE = 8


def layer(
    il: int = 0, k: str = "f32", v: str | None = "f32", width: int = 32, v_padded: int = 0
) -> LayerSpec:
    return LayerSpec(
        il=il, k=cache_type(k), n_embd_k=width, v=cache_type(v) if v else None, n_embd_v=v_padded or width,
        n_head_kv=1, n_rot=width, rope_offset=0, has_rope=True, freq_base=10000.0, freq_scale=1.0,
        factors=None, n_embd_v_own=width,
    )  # fmt: skip


def store(*layers: LayerSpec, n_stream: int = 2, v_trans: bool = False) -> KVStore:
    return KVStore(layers or [layer()], n_stream, SIZE, v_trans)


def rows(n: int, width: int = 32, start: float = 1.0) -> np.ndarray:
    return np.arange(start, start + n * width, dtype=np.float32).reshape(n, width)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


LAYOUTS = pytest.mark.parametrize("v_trans", [False, True], ids=["rows", "transposed"])


@LAYOUTS
def test_written_values_are_read(v_trans: bool) -> None:
    kv = store(v_trans=v_trans)
    kv.encode_k(0, 1, ints(5, 2), rows(2))
    kv.encode_v(0, 1, ints(5, 2), rows(2, start=100))
    assert np.array_equal(kv.decode_k(0, 1, ints(2, 5)), rows(2)[::-1])
    assert np.array_equal(kv.decode_v(0, 1, ints(2, 5)), rows(2, start=100)[::-1])
    assert not kv.decode_k(0, 0, slice(None)).any()
    assert np.count_nonzero(kv.decode_v(0, 1, slice(0, SIZE)).any(axis=1)) == 2


@LAYOUTS
def test_slices_and_indices_agree(v_trans: bool) -> None:
    kv = store(v_trans=v_trans)
    kv.encode_k(0, 0, slice(2, 5), rows(3))
    kv.encode_v(0, 0, slice(2, 5), rows(3))
    for read in (kv.decode_k, kv.decode_v):
        assert np.array_equal(read(0, 0, ints(2, 3, 4)), rows(3))
        assert np.array_equal(read(0, 0, slice(2, 5)), rows(3))


@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_every_type_takes_its_bytes(kind: str) -> None:
    """kv_cache.md 1: bytes = streams * cells * (K row + V row)."""
    kv = store(layer(k=kind, v=kind, width=64))
    assert kv.n_bytes == 2 * SIZE * 2 * cache_type(kind).row_bytes(64)
    kv.encode_k(0, 0, ints(3), np.full((1, 64), 2.0))
    assert kv.decode_k(0, 0, ints(3)) == pytest.approx(np.full((1, 64), 2.0), rel=0.02)


def test_transposed_values_lie_by_value() -> None:
    """kv_cache.md 7: element j of a cell is at j * size + cell."""
    kv = store(v_trans=True)
    kv.encode_v(0, 1, ints(6), rows(1))
    column = kv.v[0][1].reshape(-1).view(np.float32)
    assert column[[0 * SIZE + 6, 1 * SIZE + 6, 31 * SIZE + 6]].tolist() == [1.0, 2.0, 32.0]


def test_transposed_values_are_padded_to_the_widest_layer() -> None:
    kv = store(layer(v_padded=48), v_trans=True)
    assert kv.v[0].shape == (2, 48, SIZE, 4)
    kv.encode_v(0, 0, ints(1), rows(1))
    assert kv.decode_v(0, 0, ints(1)).shape == (1, 32)
    assert len(kv.read_v(0, 0, ints(1, 2))) == 2 * 32 * 4  # state.md W2: the own width
    assert not kv.v[0][0, 32:].any()


def test_a_layer_may_have_no_values() -> None:
    kv = store(layer(v=None))
    assert kv.v == {}
    assert kv.n_bytes == 2 * SIZE * 32 * 4
    kv.zero_cells(0, ints(1))
    kv.move_cells(0, ints(1), ints(2))


@LAYOUTS
def test_no_cells_have_no_bytes(v_trans: bool) -> None:
    kv = store(v_trans=v_trans)
    assert kv.read_k(0, 0, ints()) == kv.read_v(0, 0, ints()) == b""
    kv.write_k(0, 0, ints(), b"")
    kv.write_v(0, 0, ints(), b"")


@LAYOUTS
def test_state_bytes_are_in_order(v_trans: bool) -> None:
    """state.md 2: rows cell by cell; transposed, for each value all cells."""
    kv = store(v_trans=v_trans)
    kv.encode_k(0, 0, ints(1, 6), rows(2))
    kv.encode_v(0, 0, ints(1, 6), rows(2))
    assert kv.read_k(0, 0, ints(1, 6)) == rows(2).tobytes()
    assert kv.read_v(0, 0, ints(1, 6)) == (rows(2).T if v_trans else rows(2)).tobytes()


@LAYOUTS
@given(st.permutations(range(SIZE)), st.integers(1, SIZE))
def test_state_bytes_go_into_other_cells(v_trans: bool, order: list[int], n: int) -> None:
    kv = store(v_trans=v_trans)
    kv.encode_k(0, 0, slice(0, n), rows(n))
    kv.encode_v(0, 0, slice(0, n), rows(n, start=500))
    saved, target = np.arange(n, dtype=np.int32), ints(*order[:n])
    kv.write_k(0, 1, target, kv.read_k(0, 0, saved))
    kv.write_v(0, 1, target, kv.read_v(0, 0, saved))
    assert np.array_equal(kv.decode_k(0, 1, target), rows(n))
    assert np.array_equal(kv.decode_v(0, 1, target), rows(n, start=500))


def test_too_few_bytes_are_refused() -> None:
    kv = store()
    with pytest.raises(ValueError, match="reshape"):
        kv.write_k(0, 0, ints(1, 2), bytes(100))
    assert not kv.k[0].any()


@LAYOUTS
def test_copy_stream_takes_everything(v_trans: bool) -> None:
    kv = store(layer(0), layer(3), v_trans=v_trans)
    for il in (0, 3):
        kv.encode_k(il, 0, slice(None), rows(SIZE))
        kv.encode_v(il, 0, slice(None), rows(SIZE))
    kv.encode_k(3, 1, ints(7), rows(1, start=-99))
    kv.copy_stream(0, 1)
    for slab in (*kv.k.values(), *kv.v.values()):
        assert np.array_equal(slab[0], slab[1])


@LAYOUTS
def test_zero_hits_the_cells_alone(v_trans: bool) -> None:
    kv = store(v_trans=v_trans)
    for stream in (0, 1):
        kv.encode_k(0, stream, slice(None), rows(SIZE))
        kv.encode_v(0, stream, slice(None), rows(SIZE))
    kv.zero_cells(1, ints(3, 4))
    for read in (kv.decode_k, kv.decode_v):
        assert np.array_equal(read(0, 0, slice(None)), rows(SIZE))
        assert np.array_equal(read(0, 1, ints(0, 1, 2, 5, 6, 7)), rows(SIZE)[[0, 1, 2, 5, 6, 7]])
        assert not read(0, 1, ints(3, 4)).any()
    kv.zero()
    assert not any(slab.any() for slab in (*kv.k.values(), *kv.v.values()))


@LAYOUTS
@pytest.mark.parametrize("run_bytes", [1, 1 << 20], ids=["run by run", "gathered"])
@pytest.mark.parametrize(
    ("src", "dst"),
    [([4, 5, 6, 7], [0, 1, 2, 3]), ([5, 6, 1, 2], [3, 4, 7, 0]), ([7, 1, 4], [0, 2, 6]), ([], [])],
    ids=["run", "runs that part", "single", "none"],
)
def test_moved_cells_take_their_rows_along(
    v_trans: bool, run_bytes: int, src: list[int], dst: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "RUN_BYTES", run_bytes)
    monkeypatch.setattr(store_module, "MOVE_BLOCK", 3)
    kv = store(v_trans=v_trans)
    kv.encode_k(0, 1, slice(None), rows(SIZE))
    kv.encode_v(0, 1, slice(None), rows(SIZE))
    kv.move_cells(1, ints(*src), ints(*dst))
    want = rows(SIZE)
    want[dst] = want[src]
    assert np.array_equal(kv.decode_k(0, 1, slice(None)), want)
    assert np.array_equal(kv.decode_v(0, 1, slice(None)), want)


def test_a_chain_of_moves_is_refused() -> None:
    kv = store()
    kv.encode_k(0, 0, slice(None), rows(SIZE))
    with pytest.raises(CacheUsageError, match="source and destination at once"):
        kv.move_cells(0, ints(1, 2), ints(0, 1))
    assert np.array_equal(kv.decode_k(0, 0, slice(None)), rows(SIZE))


def test_quantised_values_cannot_be_transposed() -> None:
    with pytest.raises(CacheUsageError, match=r"q8_0 cannot be stored transposed.*flash attention"):
        store(layer(v="q8_0"), v_trans=True)


def test_shift_turns_the_layers_that_rotate() -> None:
    turning = KeyShift(cache_type("f32"), 1, 32, Rope(n_rot=32))
    kv = KVStore([layer(0), layer(1)], 2, SIZE, False, {1: turning})
    for il in (0, 1):
        kv.encode_k(il, 1, slice(None), rows(SIZE))
    shift = np.zeros((2, SIZE), np.int32)
    shift[1, 3] = 5
    kv.apply_shift(shift)
    assert np.array_equal(kv.decode_k(0, 1, slice(None)), rows(SIZE))
    changed = (kv.decode_k(1, 1, slice(None)) != rows(SIZE)).any(axis=1)
    assert changed.tolist() == [False] * 3 + [True] + [False] * 4


def test_a_shift_that_cannot_be_done_changes_nothing() -> None:
    """kv_cache.md 11.2: the second layer has no Hadamard matrix, the first stays as it was."""
    kinds = {
        0: KeyShift(cache_type("f32"), 1, 32, Rope(n_rot=32)),
        1: KeyShift(cache_type("q8_0"), 1, 32, Rope(32)),
    }
    kv = KVStore([layer(0), layer(1, k="q8_0")], 1, SIZE, False, kinds)
    kv.encode_k(0, 0, slice(None), rows(SIZE))
    with pytest.raises(CacheUsageError, match="without a Hadamard rotation"):
        kv.apply_shift(np.ones((1, SIZE), np.int32))
    assert np.array_equal(kv.decode_k(0, 0, slice(None)), rows(SIZE))
