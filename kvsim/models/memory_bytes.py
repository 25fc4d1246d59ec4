"""How many bytes a model's memory takes, and how much memory fits into a budget.

Counted are the tensors of the memory itself, exactly as llama.cpp sizes them: K and V rows of every
cache, recurrent states with their rollback planes, DeepSeek-V4's compressor rings. Not counted:
weights, compute buffers, and the padding an allocator may add.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvsim.errors import CacheUsageError
from kvsim.memory import MAX_SEQ
from kvsim.models.cache_spec import CacheSpec, CompressorSpec, MemorySpec, RecurrentSpec
from kvsim.models.context_params import CONTEXT_PAD, MAX_CTX, ContextParams, ResolvedContext, resolve
from kvsim.models.memory_spec import memory_spec
from kvsim.models.params import ModelParams

F32_BYTES = 4
RECURRENT_ROWS = ("R (convolution)", "S (state)", "P (n-grams)")


@dataclass(frozen=True)
class PartBytes:
    """Tensors of one kind: ``rows`` rows in each of ``n_layers`` blocks.

    ``part`` is the cache's name ("recurrent" and "<cache> ring" for the others), ``rows_of`` what the
    rows hold (K, V, R, ...), ``type`` how a value is stored.
    """

    part: str
    rows_of: str
    type: str
    n_layers: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class MemoryReport:
    """The bytes of a memory, part by part. ``kind`` is None for a model that keeps nothing."""

    kind: str | None
    n_ctx: int
    n_ctx_seq: int
    n_seq_max: int
    parts: tuple[PartBytes, ...]

    @property
    def total(self) -> int:
        return sum(part.bytes for part in self.parts)

    def by_part(self) -> dict[str, int]:
        """Bytes by part name."""
        totals: dict[str, int] = {}
        for part in self.parts:
            totals[part.part] = totals.get(part.part, 0) + part.bytes
        return totals

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "total": self.total}


def memory_bytes(model: ModelParams, params: ContextParams) -> MemoryReport:
    """Bytes of the memory that a context with ``params`` gets.

    Raises CacheUsageError or ModelError where llama.cpp refuses to create the context.
    """
    ctx = resolve(model, params)
    spec = memory_spec(model, ctx)
    if spec is None:
        return _report(None, ctx, ())
    return _report(spec.kind, ctx, spec_bytes(spec))


def spec_bytes(spec: MemorySpec) -> tuple[PartBytes, ...]:
    """Bytes of every part of a memory, in the order of its caches; nothing if it shares another's."""
    if spec.shares_target:
        return ()
    parts = [part for name, cache in spec.caches.items() for part in _cache(name, cache)]
    if spec.recurrent is not None:
        parts += _recurrent(spec.recurrent)
    parts += [_ring(name, ring) for name, ring in spec.compressors.items()]
    return tuple(part for part in parts if part.bytes)


def _report(kind: str | None, ctx: ResolvedContext, parts: tuple[PartBytes, ...]) -> MemoryReport:
    return MemoryReport(kind, ctx.n_ctx, ctx.n_ctx_seq, ctx.n_seq_max, parts)


def _cache(name: str, cache: CacheSpec) -> list[PartBytes]:
    if not cache.layers:
        return []
    rows, first, n_layers = cache.n_stream * cache.size, cache.layers[0], len(cache.layers)
    sizes = cache.bytes_by_tensor()
    parts = [PartBytes(name, "K", first.k.name, n_layers, rows, sizes["k"])]
    if first.v is not None:
        parts.append(PartBytes(name, "V", first.v.name, n_layers, rows, sizes["v"]))
    return parts


def _recurrent(spec: RecurrentSpec) -> list[PartBytes]:
    rows = spec.size * (1 + spec.n_rs_seq)
    parts = []
    for i, what in enumerate(RECURRENT_ROWS):
        widths = [layer[i] for layer in spec.layers if layer[i]]
        parts.append(PartBytes("recurrent", what, "f32", len(widths), rows, rows * sum(widths) * F32_BYTES))
    return parts


def _ring(name: str, ring: CompressorSpec) -> PartBytes:
    rows = ring.n_stream * (1 + ring.n_rs_seq) * ring.state_size
    n_bytes = 2 * rows * ring.n_embd_state * F32_BYTES * len(ring.layers)
    return PartBytes(f"{name} ring", "key and score", "f32", len(ring.layers), rows, n_bytes)


@dataclass(frozen=True)
class Fit:
    """The most that fits into ``budget`` bytes: ``n_ctx`` cells for ``n_seq_max`` sequences."""

    budget: int
    params: ContextParams
    report: MemoryReport


def fit_context(model: ModelParams, params: ContextParams, budget: int) -> Fit | None:
    """The longest context that takes at most ``budget`` bytes, all else as in ``params``.

    None if not even 256 cells per stream fit. A memory that no longer grows at the model's training
    context (recurrent states, windows) answers with that context, as any would fit.
    """
    streams = 1 if params.kv_unified else max(1, params.n_seq_max)
    step = CONTEXT_PAD * streams

    def with_steps(n: int) -> ContextParams:
        return replace(params, n_ctx=n * step)

    most, trained = MAX_CTX // step, max(1, model.n_ctx_train // step)
    if memory_bytes(model, with_steps(most)).total == memory_bytes(model, with_steps(trained)).total:
        most = trained
    return _largest(model, with_steps, most, budget)


def fit_sequences(model: ModelParams, params: ContextParams, budget: int) -> Fit | None:
    """The most sequences of ``params.n_ctx`` tokens each that take at most ``budget`` bytes.

    None if not one fits. Never more than 256, the most llama.cpp knows.
    """
    each = params.n_ctx or model.n_ctx_train
    if each == 0:
        raise CacheUsageError("the context of a sequence is unknown: give n_ctx")

    def with_sequences(n: int) -> ContextParams:
        return replace(params, n_ctx=each * n, n_seq_max=n)

    return _largest(model, with_sequences, min(MAX_SEQ, MAX_CTX // each), budget)


def _largest(
    model: ModelParams, params_of: Callable[[int], ContextParams], most: int, budget: int
) -> Fit | None:
    """The largest n in [1, most] whose memory fits; sizes never shrink with n."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if memory_bytes(model, params_of(middle)).total <= budget:
            low = middle
        else:
            high = middle - 1
    if low == 0:
        return None
    return Fit(budget, params_of(low), memory_bytes(model, params_of(low)))
