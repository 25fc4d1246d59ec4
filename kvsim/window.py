"""Sliding windows: which keys a query may no longer see (``src/llama-hparams.h: is_masked_swa``)."""

from __future__ import annotations

import numpy as np

from kvsim.memory import POS_INF, BoolArray, IntArray
from kvsim.models.params import SwaType


def masked(swa: SwaType, n_swa: int, key: IntArray, query: IntArray | int) -> BoolArray:
    """True where the window hides ``key`` from ``query`` (positions, broadcast against each other)."""
    distance = np.asarray(query, np.int64) - key
    hidden: BoolArray = np.zeros(distance.shape, np.bool_)
    if swa is SwaType.STANDARD:
        hidden = distance >= n_swa
    elif swa is SwaType.CHUNKED:
        hidden = key < np.asarray(query) // n_swa * n_swa
    elif swa is SwaType.SYMMETRIC:
        hidden = np.abs(distance) > n_swa // 2
    return hidden


def window_start(swa: SwaType, n_swa: int, query: int) -> int:
    """Smallest position that ``query`` still sees; everything below it is out of reach."""
    if swa is SwaType.STANDARD:
        return query - n_swa + 1
    if swa is SwaType.CHUNKED:
        return query // n_swa * n_swa
    if swa is SwaType.SYMMETRIC:
        return query - n_swa // 2
    return -POS_INF
