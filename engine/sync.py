"""The two doors between host and device.

Everything the host learns from the device goes through :func:`read_back`, which counts; everything the device
gets goes through :func:`upload`, which on CUDA never waits: from pinned memory, ordered by the stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


class ReadBacks:
    """How many times the host waited for the device, since the start, and whether it does so now."""

    n = 0
    inside = False


def read_back(values: Tensor) -> NDArray[Any]:
    """Wait for the device and return its values."""
    ReadBacks.n += 1
    ReadBacks.inside = True
    try:
        return values.detach().cpu().numpy()
    finally:
        ReadBacks.inside = False


def upload(values: ArrayLike, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """A tensor on the device. The caller may change ``values`` afterwards."""
    host = torch.tensor(np.asarray(values), dtype=dtype, device="cpu")
    if device.type != "cuda":
        return host if device.type == "cpu" else host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


@contextmanager
def counting() -> Iterator[list[int]]:
    """Count the read-backs in a block: the list's one number is set when the block ends."""
    before, counted = ReadBacks.n, [0]
    try:
        yield counted
    finally:
        counted[0] = ReadBacks.n - before
