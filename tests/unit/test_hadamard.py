"""The Hadamard rotation: orthonormal, its own inverse, blockwise (kv_cache.md 1)."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.errors import CacheUsageError
from kvsim.tensors.hadamard import hadamard, hadamard_matrix


def test_size_2() -> None:
    r = np.sqrt(0.5)
    assert hadamard_matrix(2) == pytest.approx(np.array([[r, r], [r, -r]]))


def test_entries_are_signs_by_common_bits() -> None:
    n = 64
    signs = [[(-1) ** (i & j).bit_count() for j in range(n)] for i in range(n)]
    assert np.array_equal(hadamard_matrix(n), np.array(signs, np.float32) / 8)


@pytest.mark.parametrize("n", [1, 2, 64, 256])
def test_is_its_own_inverse(n: int) -> None:
    h = hadamard_matrix(n).astype(np.float64)
    assert h @ h == pytest.approx(np.eye(n), abs=1e-6)


def test_rotates_each_block_alone() -> None:
    x = np.random.default_rng(0).normal(size=(3, 2, 128))
    got = hadamard(x, 64)
    assert got.shape == x.shape
    assert got[1, 1, 64:] == pytest.approx(hadamard_matrix(64).astype(float) @ x[1, 1, 64:])


@pytest.mark.parametrize("n", [0, 3, 48])
def test_other_sizes_do_not_exist(n: int) -> None:
    with pytest.raises(CacheUsageError, match="power of two"):
        hadamard_matrix(n)


def test_block_must_divide_the_row() -> None:
    with pytest.raises(CacheUsageError, match="96 values cannot be rotated in blocks of 64"):
        hadamard(np.zeros((1, 96)), 64)
