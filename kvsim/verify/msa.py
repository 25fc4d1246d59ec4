"""Goldens of block selection: maps between positions and cells, block scores, chosen blocks, mask.

``base`` and ``idx`` have equal tables; the maps come from the cells of the stream's sequence. Files of the
decode regime (one token per stream) have ``gather_mask``. Attention is always flash attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.tensors import msa_select as msa
from kvsim.tensors.attention import attention
from kvsim.tensors.flash import flash_attention
from kvsim.tensors.rope import Rope, rope
from kvsim.tensors.topk import heap_top_k
from kvsim.verify import ArrayCheck, Arrays, Meta, close, exact

ROTATED = 7e-7
SCORE = 5.8e-6
ATTENTION = 6.4e-7


def check(arrays: Arrays, meta: Meta) -> list[ArrayCheck]:
    checks = list(_check_rope(arrays, meta))
    for i in range(len(arrays["slot_strm.base"])):
        checks += _check_stream(_Stream(arrays, meta, i))
    return checks


def _check_rope(arrays: Arrays, meta: Meta) -> Iterator[ArrayCheck]:
    rotation = Rope(meta["n_rot"], neox=True, base=meta["cparams"]["rope_freq_base"])
    for before, after in (("index_q_pre", "index_q"), ("index_k_pre", "index_k_new")):
        turned = rope(arrays[before].astype(np.float64), arrays["tok_pos"], rotation)
        yield close(after, turned, arrays[after], ROTATED)


class _Stream:
    """The i-th stream of the ubatch: its cells, and its part of every array."""

    def __init__(self, arrays: Arrays, meta: Meta, i: int) -> None:
        self.arrays, self.i = arrays, i
        self.n_streams = len(arrays["slot_strm.base"])
        self.stream = int(arrays["slot_strm.base"][i])
        self.block, self.k, self.n_local = (meta[n] for n in ("block_size", "topk_blocks", "local_blocks"))
        cache = meta["caches"]["base"]
        self.n_pos = msa.padded_positions(int(arrays["base.pos"].max()), cache["n_pad"], self.block)
        n_kv = arrays["kq_mask"].shape[-1]
        self.pos = arrays["base.pos"][self.stream, :n_kv]
        seq = int(self.of_tokens("tok_seq")[0])
        self.mine = (arrays["base.seqbits"][self.stream, :n_kv] >> seq & 1).astype(np.bool_)
        self.visible = self.of_streams("kq_mask") == 0
        self.type_k = next(x["type_k"] for x in cache["layers"] if x["il"] == meta["layer"])

    def of_tokens(self, name: str) -> NDArray[Any]:
        """This stream's rows of a ``[token, ...]`` array."""
        return np.split(self.arrays[name], self.n_streams)[self.i]

    def of_streams(self, name: str) -> NDArray[Any]:
        """This stream's part of a ``[stream in ubatch, ...]`` array."""
        part: NDArray[Any] = self.arrays[name][self.i]
        return part

    def cache(self, name: str) -> NDArray[Any]:
        rows: NDArray[Any] = self.arrays[name][self.stream, : len(self.pos)]
        return rows


def _check_stream(part: _Stream) -> Iterator[ArrayCheck]:
    i, tok_pos = part.i, part.of_tokens("tok_pos")
    slots = msa.slots_of_positions(part.pos, part.mine, part.n_pos)
    cell_blk = msa.blocks_of_cells(part.pos, part.mine, part.block)
    seen = msa.visible_positions(tok_pos, part.pos, part.mine, part.n_pos)
    bias = msa.local_bias(tok_pos, part.block, part.n_local, part.n_pos // part.block)
    yield exact(f"pos_slot[{i}]", slots, part.of_streams("pos_slot"))
    yield exact(f"cell_blk[{i}]", cell_blk, part.of_streams("cell_blk"))
    yield exact(f"pos_mask[{i}]", seen, part.of_tokens("pos_mask") == 0)
    yield exact(f"bias[{i}]", bias, part.of_tokens("bias"))
    q, keys = part.of_tokens("index_q").astype(np.float64), part.cache("idx_k").astype(np.float64)
    recorded = part.of_tokens("block_scores")
    yield close(f"block_scores[{i}]", msa.block_scores(q, keys, slots, seen, part.block), recorded, SCORE)
    biased = recorded + bias[:, None]
    yield exact(f"block_scores_biased[{i}]", biased, part.of_tokens("block_scores_biased"))
    blocks = heap_top_k(biased, min(part.k, biased.shape[-1]))
    yield exact(f"blocks[{i}]", blocks, part.of_tokens("blocks"))
    final = msa.visible_cells(blocks, cell_blk, part.visible)
    yield exact(f"mask_final[{i}]", final, part.of_tokens("mask_final") == 0)
    if "gather_mask" in part.arrays:
        cells, counts = msa.gathered_cells(blocks, slots, seen, part.block)
        yield exact(f"gather_mask[{i}]", counts[0], part.of_streams("gather_mask") == 0)
    else:
        every = np.arange(len(part.pos), dtype=np.int32)
        cells, counts = np.tile(every, (1, final.shape[1], 1)), final
    yield close(f"attn_out[{i}]", _attend(part, cells[0], counts), part.of_tokens("attn_out"), ATTENTION)


def _attend(part: _Stream, cells: NDArray[Any], counts: NDArray[np.bool_]) -> NDArray[Any]:
    """Each group of query heads over its own ``cells [group, n]``, with its own mask ``[token, group, n]``.

    This graph hands f32 rows to flash attention as they are, where others cast them to f16 first.
    """
    q = part.of_tokens("q").astype(np.float64)
    k, v = (part.cache(n).reshape(len(part.pos), len(cells), -1).astype(np.float64) for n in ("k", "v"))
    outs = []
    for g, heads in enumerate(np.split(q, len(cells), axis=1)):
        args = heads, k[cells[g], g, None], v[cells[g], g, None], counts[:, g]
        scale = q.shape[-1] ** -0.5
        if part.type_k == "f32":
            outs.append(attention(*args, scale=scale))
        else:
            outs.append(flash_attention(*args, scale=scale, type_k=part.type_k, type_v=part.type_k))
    return np.concatenate(outs, axis=1)
