"""The Hadamard rotation that spreads outliers over a row before it is quantised.

The Sylvester matrix, ``H[i, j] = (-1)^popcount(i & j) / sqrt(n)``, is symmetric and its own inverse, so
one function serves storing and un-storing.

Upstream: ``src/llama-kv-cache.cpp: ggml_gen_hadamard``, ``src/llama-impl.h: llama_mul_mat_hadamard``.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import CacheUsageError


@cache
def hadamard_matrix(n: int) -> NDArray[np.float32]:
    """The orthonormal matrix, ``float32[n, n]``, read-only. Raises CacheUsageError if n is no power of 2."""
    if n < 1 or n & (n - 1):
        raise CacheUsageError(
            f"a Hadamard matrix of size {n} does not exist: the size must be a power of two"
        )
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    matrix = matrix * np.float32(1 / np.sqrt(n))
    matrix.flags.writeable = False
    return matrix


def hadamard(x: NDArray[np.floating], n: int) -> NDArray[np.floating]:
    """Rotate ``x[..., m]`` in blocks of ``n`` along the last axis; the result has the type of ``x``.

    Raises CacheUsageError if n does not divide m (llama.cpp asserts).
    """
    if x.shape[-1] % n:
        raise CacheUsageError(f"rows of {x.shape[-1]} values cannot be rotated in blocks of {n}")
    blocks = x.reshape(-1, n) @ hadamard_matrix(n).astype(x.dtype, copy=False)
    return blocks.reshape(x.shape)
