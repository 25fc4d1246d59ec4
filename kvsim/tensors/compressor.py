"""DeepSeek-V4's compressors: every ``ratio`` tokens become one row (CSA and its indexer LID, HCA).

A token gives a value and a score per channel. A block's row is the sum of its tokens' values, weighted
by the softmax of their scores over the block, channel by channel. With overlap (CSA, LID) values are
two rows wide: a token counts with its first half in the block after its own, with its second half in
its own::

    tokens   0 1 2 3 | 4 5 6 7 | 8 ...
    row 1    first halves of 0-3 + second halves of 4-7

Tokens of unfinished blocks wait in the ring of their stream; which rows move where is in the
:class:`Plan`, which :mod:`kvsim.caches.dsv4_plan` makes. Mirrors ``src/models/deepseek4.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.memory import BoolArray, IntArray
from kvsim.tensors.hadamard import hadamard
from kvsim.tensors.norm import rms_norm
from kvsim.tensors.rope import Rope, rope

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class CompressorShape:
    """What is fixed about one compressor (csa, hca or lid) when the cache is made.

    ``overlap``: a block also reads the ``ratio`` tokens before it. ``kv_size``: compressed rows per
    stream. ``n_stream``: streams that have a ring. ``n_rs_seq``: tokens that may be rolled back.
    """

    ratio: int
    overlap: bool
    state_size: int
    kv_size: int
    n_stream: int
    n_rs_seq: int

    @cached_property
    def ring_rows(self) -> int:
        """Rows of one plane: the rings of all streams."""
        return self.state_size * self.n_stream

    def stream(self, seq: int) -> int:
        return seq if self.n_stream > 1 else 0

    def saved_streams(self, seq: int) -> list[int]:
        """The streams whose rings a state of ``seq`` holds (-1: of everything)."""
        return list(range(self.n_stream)) if seq < 0 else [self.stream(seq)]


@dataclass
class Plan:
    """Indices for one ubatch and one compressor, named as in the trace format. All arrays are int32. Take it as
    read-only: compressors of one shape share it.

    ``n_visible`` (per token) is the number of compressed rows it may attend to, ``n_kv`` the number
    read, ``n_stream`` the streams of the compressed part in the graph. ``state_pos`` leaves out
    tokens at negative positions; nothing is stored for those.
    """

    n_stream: int
    n_kv: int
    state_pos: IntArray
    state_persist_src_idxs: IntArray
    state_persist_dst_idxs: IntArray
    state_restore_src_idxs: IntArray
    state_restore_dst_idxs: IntArray
    state_snapshot_src_idxs: IntArray
    state_snapshot_dst_idxs: IntArray
    state_read_idxs: IntArray
    state_write_idxs: IntArray
    state_write_pos: IntArray
    n_visible: IntArray

    def to_json(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}


@dataclass
class CompressorState:
    """Values and scores of the newest tokens, ``[planes * n_stream * state_size, n_state]`` each.

    Plane 0 is the ring now, plane d the ring without the last d tokens.
    """

    shape: CompressorShape
    kv: Floats
    score: Floats


def add_position_bias(score: Floats, ape: Floats, state_pos: IntArray) -> Floats:
    """Add to each token's score ``[token, n_state]`` the bias of its place in the block, ``ape[ratio]``.

    ``state_pos`` is the plan's. It has no entry for a token at position -1: the biases of the others are then
    used over and over again, which must come out even (upstream: ``ggml_add``).
    """
    biased: Floats = score + np.tile(ape[state_pos], (len(score) // len(state_pos), 1))
    return biased


def run_plan(state: CompressorState, plan: Plan, kv: Floats, score: Floats) -> Floats:
    """One ubatch: restore, compress, snapshot, persist, in this order. Changes ``state``.

    ``kv, score [token, n_state]`` are those of the ubatch, the score with its position bias. Returns the
    raw compressed rows ``[block, n_state or n_state/2]`` in plan order, dummies included. Each step reads
    what was there before the step.
    """
    for rows in (state.kv, state.score):
        rows[plan.state_restore_dst_idxs] = rows[plan.state_restore_src_idxs]
    compressed = _compress(state, plan, kv, score)
    for rows, tokens in ((state.kv, kv), (state.score, score)):
        rows[plan.state_snapshot_dst_idxs] = np.concatenate([rows, tokens])[plan.state_snapshot_src_idxs]
        rows[plan.state_persist_dst_idxs] = tokens[plan.state_persist_src_idxs]
    return compressed


def _compress(state: CompressorState, plan: Plan, kv: Floats, score: Floats) -> Floats:
    ring = slice(0, state.shape.ring_rows)
    nothing = np.zeros((1, kv.shape[-1]), kv.dtype)
    values = np.concatenate([state.kv[ring], kv, nothing])[plan.state_read_idxs]
    scores = np.concatenate([state.score[ring], score, nothing - np.inf])[plan.state_read_idxs]
    return weighted_rows(_windows(values, state.shape), _windows(scores, state.shape))


def _windows(rows: Floats, shape: CompressorShape) -> Floats:
    """Gathered rows as blocks: ``[block, ratio, d]``, with overlap ``[block, 2*ratio, d]``."""
    if not shape.overlap:
        return rows.reshape(-1, shape.ratio, rows.shape[-1])
    before, own = rows.reshape(2, -1, shape.ratio, rows.shape[-1])
    d = rows.shape[-1] // 2
    return np.concatenate([before[..., :d], own[..., d:]], axis=1)


def weighted_rows(values: Floats, scores: Floats) -> Floats:
    """Sum ``values [block, row, d]`` weighted by the softmax of ``scores`` over the rows, per channel."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    rows: Floats = (weights * values).sum(axis=1) / weights.sum(axis=1)
    return rows


def finish_rows(
    rows: Floats, positions: IntArray, norm: Floats, eps: float, rotation: Rope, n_hadamard: int
) -> Floats:
    """What the cache stores: normed, turned to the block's first position, mixed (``n_hadamard`` > 0).

    ``positions`` is the plan's ``state_write_pos``; the rotation is of the trailing dimensions.
    """
    turned = rope(rms_norm(rows, norm, eps), positions, rotation)
    return hadamard(turned, n_hadamard) if n_hadamard else turned


def visible_rows(n_visible: IntArray, n_kv: int) -> BoolArray:
    """``bool[token, n_kv]``: the rows complete at the token; the last token of a block sees its row."""
    return np.arange(n_kv) < n_visible[:, None]
