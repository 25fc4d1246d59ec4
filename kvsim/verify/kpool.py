"""Goldens of the pooled indexer: grouping, graph inputs, pooled keys, scores and the final mask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.batch import Ubatch
from kvsim.caches.kv import KVCache
from kvsim.caches.pool_inputs import pool_inputs
from kvsim.caches.pool_layout import PoolLayout, all_clean
from kvsim.memory import SlotInfo
from kvsim.models.arch import NonCausal
from kvsim.models.cache_spec import CacheSpec
from kvsim.models.params import RopeType, SwaType
from kvsim.tensors import kpool
from kvsim.tensors.attention import attention_weights
from kvsim.tensors.codecs import decode, encode
from kvsim.tensors.indexer import index_scores
from kvsim.tensors.rope import Rope
from kvsim.tensors.topk import heap_top_k
from kvsim.verify import ArrayCheck, Arrays, Meta, close, exact
from kvsim.verify.precision import attend

POOLED = {False: 2e-7, True: 1.2e-6}
SCORE = 4.8e-7
ATTENTION = 4.7e-7
NORM_EPS = 1e-5
SECTIONS = (16, 16, 16, 16)


def check(arrays: Arrays, meta: Meta) -> list[ArrayCheck]:
    cache = _cache(arrays, meta)
    layout = PoolLayout(meta["kpool"], by_order=meta["arch"] == "qwen4exp")
    layout.refresh(cache, all_clean())
    ubatch = _ubatch(arrays)
    streams, cells = arrays["slot_strm.idx"], arrays["slot_idxs.idx"]
    stale = all_clean()
    for s, pos in meta["stale_before"].items():
        stale[int(s)] = pos
    new = layout.new_pools(ubatch, SlotInfo(tuple(streams.tolist()), tuple(cells)), stale)
    inputs = pool_inputs(
        layout,
        ubatch,
        cells.reshape(-1),
        new,
        layout.n_new_padded(int(new.sum()), ubatch, cache),
        kv_size=cache.size,
        n_stream=cache.n_stream,
        n_kv=meta["n_kv"],
        gather="sel_idx" in arrays,
    )
    return [
        exact("cache_safe", layout.cache_safe, meta["cache_safe"]),
        exact("n_pools", layout.n_real, arrays["n_pools"]),
        exact("n_new", new.sum(), arrays["n_new"]),
        *_check_inputs(inputs, arrays),
        _check_token_rows(inputs, arrays, meta),
        *_check_keys(inputs, arrays, layout.by_order),
        *_check_selection(inputs, arrays, meta),
    ]


def _cache(arrays: Arrays, meta: Meta) -> KVCache:
    """The recorded cells, in a cache without rows."""
    recorded = meta["caches"]["idx"]
    spec = CacheSpec(
        **{name: recorded[name] for name in ("n_stream", "size", "n_seq_max", "n_pad", "can_shift")},
        n_swa=0,
        swa_type=SwaType.NONE,
        v_trans=False,
        n_rot_k=0,
        n_rot_v=0,
        has_cell_ext=False,
        rope_type=RopeType.NONE,
        layers=(),
        map_layer_ids={},
        n_pos_per_embd=1,
        non_causal=NonCausal.ALL,
        use_alibi=False,
        has_mask=False,
        ngram_token=None,
    )
    cache = KVCache(spec, "idx")
    for table, pos, bits in zip(cache.cells, arrays["idx.pos"], arrays["idx.seqbits"], strict=True):
        cells = np.flatnonzero(pos >= 0).astype(np.int32)
        table.place(cells, pos[cells], [[s for s in range(32) if b >> s & 1] for b in bits[cells].tolist()])
    return cache


def _ubatch(arrays: Arrays) -> Ubatch:
    seq = arrays["tok_seq"].tolist()
    return Ubatch(
        pos=arrays["tok_pos"][None],
        seq_ids=tuple((s,) for s in seq),
        output=np.ones(len(seq), np.bool_),
        idx=np.arange(len(seq), dtype=np.int32),
        tokens=None,
        has_embd=False,
        n_seq_tokens=len(seq) // len(set(seq)),
        n_seqs=len(set(seq)),
        equal_seqs=True,
        seq_id_unq=tuple(sorted(set(seq))),
    )


def _check_inputs(inputs: kpool.PoolInputs, arrays: Arrays) -> Iterator[ArrayCheck]:
    for name in ("pool_cells", "pool_idxs", "tail_idxs", "new_pool_idxs", "new_pool_rep"):
        yield exact(name, getattr(inputs, name), arrays[name])
    yield exact("pool_mask", inputs.pool_mask, arrays["pool_mask"] == 0)


def _check_token_rows(inputs: kpool.PoolInputs, arrays: Arrays, meta: Meta) -> ArrayCheck:
    """Tokens of the ubatch write key, gate and an empty pooled slot; then the new pools fill theirs."""
    recorded = arrays["idx_rows"]
    parts = [arrays[n] for n in ("index_key", "index_gate") if n in arrays]
    kv_size = meta["caches"]["idx"]["size"]
    cells = (arrays["slot_strm.idx"][:, None] * kv_size + arrays["slot_idxs.idx"]).reshape(-1)
    rows = recorded.reshape(-1, recorded.shape[-1]).copy()
    type_k = meta["caches"]["idx"]["layers"][0]["type_k"]
    rows[cells] = decode(type_k, encode(type_k, kpool.token_rows(*parts)))
    d = parts[0].shape[-1]
    rows[inputs.new_pool_rep, -d:] = decode(type_k, encode(type_k, arrays["pooled_new"]))
    return exact("idx_rows", rows.reshape(recorded.shape), recorded)


def _check_keys(inputs: kpool.PoolInputs, arrays: Arrays, by_order: bool) -> Iterator[ArrayCheck]:
    rows = arrays["idx_rows"].reshape(-1, arrays["idx_rows"].shape[-1]).astype(np.float64)
    d = arrays["pooled"].shape[-1]
    members = rows[arrays["new_pool_idxs"][: len(inputs.new_first)]]
    yield exact("pooled", rows[inputs.pool_cells, -d:], arrays["pooled"])
    if not len(inputs.new_first):
        return
    if by_order:
        t, y, x = arrays["new_pool_pos_tyx"].T
        rotation = Rope(arrays["k_norm"].shape[-1], base=10000.0, sections=SECTIONS, interleaved=True)
        norm = arrays["k_norm"].astype(np.float64)
        pooled = kpool.pool_mean(members[..., :d], norm, NORM_EPS, np.stack([t, y, x, t]), rotation)
    else:
        pooled = kpool.pool_gated(members[..., :d], members[..., d : 2 * d], arrays["ape"].astype(np.float64))
    yield close("pooled_new", pooled, arrays["pooled_new"][: len(pooled)], POOLED[by_order])


def _check_selection(inputs: kpool.PoolInputs, arrays: Arrays, meta: Meta) -> Iterator[ArrayCheck]:
    q, pooled, w = (arrays[n].astype(np.float64) for n in ("index_q", "pooled", "index_w"))
    yield close("score", index_scores(q, pooled, w, inputs.pool_mask), arrays["score"], SCORE)
    k = min(len(inputs.pool_cells), meta["top_k_tokens"] // meta["kpool"])
    top = heap_top_k(arrays["score"], k)
    yield exact("top_pools", top, arrays["top_pools"])
    if "sel_idx" in arrays:
        ordered = np.take_along_axis(top, np.argsort(-_at(arrays["score"], top), axis=1, kind="stable"), 1)
        cells, counts = kpool.gathered_selection(inputs, ordered)
        yield exact("top_pools_sorted", ordered, arrays["top_pools_sorted"])
        yield exact("sel_idx", cells, arrays["sel_idx"])
        yield exact("gather_mask", counts, arrays["gather_mask"] == 0)
        yield close("probs", _gathered_weights(arrays, cells, counts), arrays["probs"], ATTENTION)
    else:
        mask = kpool.selection_mask(inputs, top, arrays["kq_mask"] == 0)
        yield exact("sel_mask", mask, arrays["sel_mask"] == 0)
        yield close("attn_out", _attend(arrays, meta, mask), arrays["attn_out"], ATTENTION)


def _attend(arrays: Arrays, meta: Meta, mask: NDArray[np.bool_]) -> NDArray[Any]:
    """Attention of each stream of the ubatch. GLM5-Next's rows are latents, which are also the values."""
    streams = arrays["slot_strm.attn"].tolist()
    layer = meta["caches"]["attn"]["layers"][0]
    width = arrays["attn_out"].shape[-1]
    outs = []
    for stream, q, seen in zip(
        streams, np.split(arrays["q"], len(streams)), np.split(mask, len(streams)), strict=True
    ):
        k, v = (
            arrays[n][stream, : meta["n_kv"]].reshape(meta["n_kv"], -1, width).astype(np.float64)
            for n in ("k", "v" if "v" in arrays else "k")
        )
        outs.append(
            attend(
                q.astype(np.float64),
                k,
                v,
                seen,
                scale=float(arrays["kq_scale"]),
                type_k=layer["type_k"],
                type_v=layer["type_v"] or layer["type_k"],
                flash=meta["cparams"]["flash_attn"],
            )
        )
    return np.concatenate(outs)


def _gathered_weights(arrays: Arrays, cells: NDArray[Any], counts: NDArray[np.bool_]) -> NDArray[Any]:
    """Softmax of each token over its own gathered rows, ``[token, head, n]``."""
    rows = arrays["k"].reshape(-1, arrays["k"].shape[-1]).astype(np.float64)
    q, scale = arrays["q"].astype(np.float64), float(arrays["kq_scale"])
    weights = [
        attention_weights(q[t : t + 1], rows[cells[t], None], counts[t : t + 1], scale=scale)[:, 0]
        for t in range(len(q))
    ]
    return np.stack(weights)


def _at(values: NDArray[Any], idxs: NDArray[Any]) -> NDArray[Any]:
    return np.take_along_axis(values, idxs, axis=1)
