"""From counts to seconds: a model, not a measurement.

A pass over the network takes as long as the slower of two things, plus a fixed time per ubatch::

    seconds = max(bytes moved / bandwidth, FLOPs / rate) + ubatches * overhead

Bytes: all weights once per ubatch; the rows of the cells that the tokens of each sequence see, once per
ubatch; the rows written; recurrent states read and written. FLOPs: two per active parameter and token, and
per layer with attention four per embedding value and cell seen. Left out: kernels that read masked cells,
caches of the device, overlap of copies with work, batches too small to fill the device, sampling, the network
between client and server. So treat a result as a bound that a good implementation may come near, and compare
configurations rather than believe seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import CacheUsageError, ModelError
from kvsim.models.context_params import ContextParams, resolve
from kvsim.models.gguf_metadata import read_header
from kvsim.models.memory_bytes import F32_BYTES
from kvsim.models.memory_spec import memory_spec
from kvsim.models.params import ModelParams, SwaType

Counts = NDArray[np.int64]
NO_WINDOW = 2**31 - 1

FASTEST, SLOWEST = 1e36, 1e6
MOST_PARAMETERS, MOST_BYTES = 1e18, 1024
"""Beyond these, times are no numbers any more."""

PARAMETERS: dict[str, tuple[float, float]] = {
    "llama2-7b": (6.74e9, 6.74e9), "llama2-13b": (13.0e9, 13.0e9),
    "llama3-8b": (8.03e9, 8.03e9), "llama3.1-8b": (8.03e9, 8.03e9), "llama3.1-70b": (70.6e9, 70.6e9),
    "llama3.2-1b": (1.24e9, 1.24e9), "llama3.2-3b": (3.21e9, 3.21e9),
    "mistral-7b": (7.24e9, 7.24e9), "mixtral-8x7b": (46.7e9, 12.9e9),
    "qwen2.5-7b": (7.62e9, 7.62e9), "qwen3-0.6b": (0.6e9, 0.6e9), "qwen3-4b": (4.02e9, 4.02e9),
    "qwen3-8b": (8.19e9, 8.19e9), "qwen3-30b-a3b": (30.5e9, 3.3e9), "phi3-mini-4k": (3.82e9, 3.82e9),
    "deepseek-v3": (671e9, 37e9), "deepseek-v3.2": (671e9, 37e9),
    "gemma2-2b": (2.61e9, 2.61e9), "gemma2-9b": (9.24e9, 9.24e9), "gemma2-27b": (27.2e9, 27.2e9),
    "gemma3-1b": (1.0e9, 1.0e9), "gemma3-4b": (3.88e9, 3.88e9), "gemma3-12b": (11.8e9, 11.8e9),
    "gemma3-27b": (27.0e9, 27.0e9), "gpt-oss-20b": (20.9e9, 3.6e9), "gpt-oss-120b": (116.8e9, 5.1e9),
    "llama4-scout": (109e9, 17e9), "mamba-130m": (0.13e9, 0.13e9), "mamba-2.8b": (2.77e9, 2.77e9),
    "mamba2-2.7b": (2.7e9, 2.7e9), "jamba-v0.1": (52e9, 12e9), "lfm2-1.2b": (1.17e9, 1.17e9),
    "qwen3-next-80b-a3b": (80e9, 3e9),
}  # fmt: skip
"""Parameters in all and active per token, about as published, of the models known by name."""


@dataclass(frozen=True)
class Device:
    """``bandwidth`` bytes a second, ``rate`` floating-point operations a second, ``overhead`` seconds that
    each ubatch takes in any case."""

    bandwidth: float = 2.039e12
    rate: float = 312e12
    overhead: float = 0.5e-3

    def __post_init__(self) -> None:
        positive = all(1 <= each <= FASTEST for each in (self.bandwidth, self.rate))
        if not positive or not 0 <= self.overhead <= SLOWEST:
            raise CacheUsageError(
                f"a device of {self.bandwidth:g} bytes/s, {self.rate:g} FLOP/s and {self.overhead:g} s per "
                f"ubatch cannot be: give positive numbers, 1 to {FASTEST:g} a second and at most {SLOWEST:g} s"
            )


@dataclass(frozen=True)
class Weights:
    """``total`` parameters of ``bytes_each`` bytes, ``active`` of them used for each token."""

    total: float
    active: float
    bytes_each: float = 2.0

    def __post_init__(self) -> None:
        if not (0 < self.active <= self.total <= MOST_PARAMETERS and 0 < self.bytes_each <= MOST_BYTES):
            raise CacheUsageError(
                f"{self.total:g} parameters of {self.bytes_each:g} bytes, {self.active:g} of them active, cannot "
                f"be: give 1 to {MOST_PARAMETERS:g}, up to {MOST_BYTES} bytes each, and no more active than all"
            )

    @classmethod
    def of(cls, name: str, bytes_each: float = 2.0) -> Weights:
        """Those of a model known by name. Raises CacheUsageError for others."""
        if name not in PARAMETERS:
            raise CacheUsageError(f"how many parameters {name!r} has is not known: give --n-params")
        return cls(*PARAMETERS[name], bytes_each)

    @classmethod
    def in_file(cls, path: str) -> Weights:
        """Those of a model file, from its list of tensors; of experts as many are active as the file says.
        ``bytes_each`` as stored, or 2 if only the header is there. Raises ModelError for a file that cannot be
        read or lists no tensor."""
        header = read_header(path)
        sizes = {name: info.n_values for name, info in header.tensors.items()}
        total = sum(sizes.values())
        if total == 0:
            raise ModelError(f"{path}: lists no tensor, so how many parameters it has is not known")
        arch = header.values.get("general.architecture", "")
        used, count = (header.values.get(f"{arch}.expert_{key}", 0) for key in ("used_count", "count"))
        if not (type(used) is type(count) is int and 0 <= used <= count):
            raise ModelError(
                f"{path}: {arch}.expert_used_count = {used!r} of {arch}.expert_count = {count!r}"
            )
        experts = sum(n for name, n in sizes.items() if "_exps." in name)
        idle = experts * (1 - used / count) if count else 0
        stored = header.path.stat().st_size - header.data_start
        whole = stored > max(info.offset for info in header.tensors.values())
        try:
            return cls(total, total - idle, stored / total if whole else 2.0)
        except CacheUsageError as error:
            raise ModelError(f"{path}: {error}") from None


class CostModel:
    """The time of passes of one model with one context on one device.

    A *part* of a pass is (start, n): n tokens of a sequence that held ``start`` before.
    """

    def __init__(self, model: ModelParams, params: ContextParams, weights: Weights, device: Device) -> None:
        self.device = device
        self.weights = weights
        resolved = resolve(model, params)
        self.n_ubatch = resolved.n_ubatch
        spec = memory_spec(model, resolved)
        caches = [] if spec is None else list(spec.caches.values())
        recurrent = None if spec is None else spec.recurrent
        # per cache: bytes of a cell in all layers, FLOPs per cell seen, window
        self._caches = [
            (
                sum(layer.row_k + layer.row_v for layer in cache.layers),
                4 * model.n_embd * len(cache.layers),
                cache.n_swa if cache.swa_type is not SwaType.NONE else NO_WINDOW,
            )
            for cache in caches
        ]
        self._state_bytes = 0 if recurrent is None else 2 * F32_BYTES * sum(map(sum, recurrent.layers))

    def seconds(self, parts: Sequence[tuple[int, int]], n_ubatches: int = 0) -> float:
        """The time of one pass, in ``n_ubatches`` (0: as few as hold its tokens)."""
        n_tokens = sum(n for _, n in parts)
        n_ubatches = n_ubatches or -(-n_tokens // self.n_ubatch)
        n_bytes = flops = 0
        for start, n in parts:
            n_bytes += self._state_bytes
            if n == 1:  # most are; the same, without the sums over ubatches
                for row, per_cell, window in self._caches:
                    seen = min(start + 1, window)
                    n_bytes += row * (seen + 1)
                    flops += per_cell * seen
                continue
            last = (n - 1) % self.n_ubatch + 1 if n > self.n_ubatch else n
            for row, per_cell, window in self._caches:
                read = -(-n // self.n_ubatch) * (last + min(start + n - last, window - 1))
                n_bytes += row * (read + n)
                flops += per_cell * _seen(start, n, window)
        return float(self._time(np.int64(n_bytes), np.int64(flops), n_tokens, n_ubatches))

    def step_seconds(self, starts: Sequence[int], n_steps: int, n_ubatches: int = 0) -> NDArray[np.float64]:
        """The times of ``n_steps`` passes of one token each of several sequences: ``float64[n_steps]``."""
        held = np.arange(n_steps)[:, None] + np.asarray(starts, np.int64)
        n_bytes = np.full(n_steps, self._state_bytes * len(starts), np.int64)
        flops = np.zeros(n_steps, np.int64)
        for row, per_cell, window in self._caches:
            seen = (1 + np.minimum(held, window - 1)).sum(axis=1)
            n_bytes += row * (seen + len(starts))
            flops += per_cell * seen
        n_ubatches = n_ubatches or -(-len(starts) // self.n_ubatch)
        times: NDArray[np.float64] = self._time(n_bytes, flops, len(starts), n_ubatches)
        return times

    def step_ends(
        self, starts: Sequence[int], n_steps: int, clock: float, until: float, n_ubatches: int = 0
    ) -> NDArray[np.float64]:
        """When each of ``n_steps`` passes of one token each ends, the first of which begins at ``clock``; at
        least one, but none that begins at ``until`` or later."""
        ends = clock + np.cumsum(self.step_seconds(starts, n_steps, n_ubatches))
        return ends[: int(np.searchsorted(ends, until)) + 1]

    def _time(
        self, n_bytes: Counts | np.int64, flops: Counts | np.int64, n_tokens: int, n_ubatches: int
    ) -> NDArray[np.float64]:
        moved = n_bytes + n_ubatches * self.weights.total * self.weights.bytes_each
        worked = flops + 2.0 * n_tokens * self.weights.active
        slower = np.maximum(moved / self.device.bandwidth, worked / self.device.rate)
        return np.asarray(slower + n_ubatches * self.device.overhead)


def _seen(start: int, n: int, window: int) -> int:
    """Cells that n tokens see, each its own and those before it as far as the window goes."""
    growing = max(0, min(n, window - start))  # tokens whose window is not full
    return growing * start + growing * (growing + 1) // 2 + (n - growing) * window
