"""Small memories for tests: KV caches of a few cells, contexts like the recorded ones with tiny leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.batch import Batch, Ubatch
from kvsim.caches.factory import LeafFactory
from kvsim.caches.kv import KVCache
from kvsim.caches.kv_view import KVView
from kvsim.context import Context
from kvsim.models.cache_spec import CacheSpec
from kvsim.models.context_params import ContextParams, ResolvedContext, resolve
from kvsim.models.memory_spec import memory_spec
from kvsim.models.params import LayerParams, ModelParams, RopeType, SwaType
from kvsim.replay import context_of
from kvsim.trace import read_trace

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"

LAYER = LayerParams(n_head_kv=1, n_embd_head_k=64, n_embd_head_v=64, n_rot=64)
LLAMA = ModelParams("llama", (LAYER,), n_ctx_train=4096, rope_type=RopeType.NORM)


def kv_spec(size: int = 8, **changes: Any) -> CacheSpec:
    """The cache of a one-layer llama with ``size`` cells, one stream and 4 sequences, then changed."""
    spec = memory_spec(LLAMA, resolve(LLAMA, ContextParams(n_ctx=256, n_seq_max=4, kv_unified=True)))
    assert spec is not None
    return replace(spec.caches["kv"], size=size, **changes)


def kv_cache(size: int = 8, name: str = "kv", **changes: Any) -> KVCache:
    return KVCache(kv_spec(size, **changes), name)


def streams(n: int = 4, size: int = 8, **changes: Any) -> KVCache:
    """One stream per sequence."""
    return kv_cache(size, n_stream=n, n_seq_max=n, **changes)


def window_cache(n_swa: int = 4, size: int = 8, swa: SwaType = SwaType.STANDARD, **changes: Any) -> KVCache:
    return kv_cache(size, n_swa=n_swa, swa_type=swa, **changes)


def ubatch(pos: Sequence[int], seqs: Sequence[int | Sequence[int]] | int = 0, /, **changes: Any) -> Ubatch:
    """Tokens at ``pos``; ``seqs``: the sequences of each, or the one of all. Token ids are 100, 101, ..."""
    n = len(pos)
    listed: Sequence[int | Sequence[int]] = [seqs] * n if isinstance(seqs, int) else seqs
    ids = tuple((s,) if isinstance(s, int) else tuple(s) for s in listed)
    made = Ubatch(
        pos=np.array([pos], np.int32), seq_ids=ids, output=np.zeros(n, np.bool_),
        idx=np.arange(n, dtype=np.int32), tokens=np.arange(100, 100 + n, dtype=np.int32), has_embd=False,
        n_seq_tokens=1, n_seqs=n, equal_seqs=False,
        seq_id_unq=tuple(sorted({s for each in ids for s in each})),
    )  # fmt: skip
    return replace(made, **changes)


def put(
    cache: KVCache, pos: Sequence[int], seqs: Sequence[int | Sequence[int]] | int = 0, /, **changes: Any
) -> KVView:
    """Place tokens as a decode does; there must be room."""
    ub = ubatch(pos, seqs, **changes)
    slots = cache.prepare([ub])
    assert slots is not None, cache.last_failure
    return cache.apply_ubatch(slots[0], ub)


def owners(cache: KVCache, stream: int = 0) -> str:
    """The cells, one character each: ``.`` empty, the owner, ``*`` shared."""
    cells = cache.cells[stream]
    return "".join(
        "." if pos == -1 else "*" if len(ids) > 1 else str(ids[0]) if ids else "?"
        for pos, ids in ((int(cells.pos[i]), cells.owners(i)) for i in range(cells.size))
    )


def positions(cache: KVCache, stream: int = 0) -> list[int]:
    """Position of every cell, -1 where empty."""
    return [int(p) for p in cache.cells[stream].pos]


@dataclass(frozen=True)
class TinyLeaves(LeafFactory):
    """Leaves with another window than the model's."""

    n_swa: int | None = None

    def kv(self, name: str, spec: CacheSpec, ctx: ResolvedContext) -> KVCache:
        if self.n_swa is not None and spec.swa_type is not SwaType.NONE:
            spec = replace(spec, n_swa=self.n_swa)
        return super().kv(name, spec, ctx)


def recorded(
    name: str,
    cells: dict[str, int] | None = None,
    n_swa: int | None = None,
    n_ubatch: int | None = None,
    data: bool = False,
) -> Context:
    """A context like that of the recording ``name``, ``kind/file``, with tiny leaves."""
    header = read_trace(TRACES / f"{name}.jsonl.gz").header
    context = context_of(header, TinyLeaves(data, sizes=cells or {}, n_swa=n_swa))
    context.resolved = replace(context.resolved, n_ubatch=n_ubatch or context.resolved.n_ubatch)
    return context


KV = "kv/llama-uni-c256-u16-s4-f16-03"
KV_STREAMS = "kv/llama-str-c256-u32-s4-f16-00"
KV_MROPE = "kv/qwen2vl-uni-c256-u32-s4-f16-11"
ISWA = "iswa/gemma3n-uni-c1024-u64-s8-f16-11"
ISWA_STREAMS = "iswa/gemma3n-str-c256-u16-s2-f16-10"
DSA = "dsa/deepseek32-uni-c256-u16-s4-f16-03"
DSA_STREAMS = "dsa/deepseek32-str-c256-u16-s4-f16-08"
DSA_ISWA = "dsa_iswa/dots3note-uni-c256-u16-s4-f16-03"
DSA_ISWA_STREAMS = "dsa_iswa/dots3note-str-c256-u16-s4-f16-08"
MSA = "msa/minimax-m3-uni-c256-u16-s4-f16-03"
MSA_STREAMS = "msa/minimax-m3-str-c256-u16-s4-f16-08"


def tokens(seq: int | Sequence[int], n: int, start: int | None = None, out: bool = True) -> Batch:
    """``n`` tokens of one sequence (or shared by several), each an output or none."""
    made = Batch.tokens_of(seq, [1 + i % 100 for i in range(n)], start)
    return replace(made, output=[out] * n)


def feed(
    context: Context, seq: int | Sequence[int], n: int, start: int | None = None, step: int | None = None
) -> None:
    """Decode ``n`` tokens, ``step`` at a time; all must find room."""
    done = 0
    while done < n:
        part = min(step or n, n - done)
        code = context.decode(tokens(seq, part, None if start is None else start + done))
        assert code == 0, context.last_failure
        done += part


def leaf(context: Context, name: str) -> KVCache:
    cache = context.memory.leaves()[name]
    assert isinstance(cache, KVCache)
    return cache


def snapshot(context: Context) -> dict[str, Any]:
    return context.memory.snapshot().to_json()
