"""What the tokens of a probe attended to and read, as seen from outside of the cache: by sequence and position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvsim.batch import Ubatch
from kvsim.caches.kv import KVCache
from kvsim.context import Context
from kvsim.memory import BoolArray, View
from kvsim.models.cached_rows import Floats, Read
from kvsim.models.memory_spec import memory_spec
from kvsim.models.probe import ProbeNetwork
from kvsim.models.probe_truth import Truth

TOLERANCE = 2e-6
"""Relative to the largest value: stored rows are float32, the truth is float64."""

FOREIGN = -2
"""The position of a cell that the token's sequence does not own."""

Seen = list[tuple[list[int], list[int]]]
"""For each head (one, if all see the same): positions of the cells, numbers of the compressed rows."""


class Readings:
    """Collects what each token attends to (``seen``, by block) and reads (``found``, by name).

    ``left_out`` counts, by block, the tokens before a token that it must not attend to.
    """

    def __init__(self, ctx: Context, left_out: dict[int, int] | None = None) -> None:
        assert isinstance(ctx.network, ProbeNetwork)
        self.ctx, self.probe = ctx, ctx.network
        self.found: dict[tuple[int, int], dict[str, Floats]] = {}
        self.seen: dict[tuple[int, int], dict[int, Seen]] = {}
        self.left_out = {} if left_out is None else left_out
        spec = memory_spec(ctx.model, ctx.resolved)
        assert spec is not None
        self.spec = spec
        self._reads: list[Read] = []
        self._read = self.probe.readings
        self.probe.readings = self._collect
        self.probe.watch = self._reads.append

    def _collect(self, ubatch: Ubatch, views: Mapping[str, View]) -> dict[str, Floats]:
        self._reads.clear()
        got = self._read(ubatch, views)
        caches = {c.name: c for c in self.ctx.memory.leaves().values() if isinstance(c, KVCache)}
        for i, ids in enumerate(ubatch.seq_ids):
            seen = {  # a token of several sequences looks at the cells of the first
                read.il: seen_by(read, caches[read.cache], i, ids[0])
                for read in self._reads
                if read.rows.start <= i < read.rows.stop
            }
            for s in ids:
                at = s, int(ubatch.pos0[i])
                self.seen[at] = seen
                self.found[at] = {name: rows[i] for name, rows in got.items()}
        return got

    def assert_true(
        self, seq: int, tokens: list[int], pos: list[int], last: int, tolerance: float = TOLERANCE
    ) -> None:
        """The last tokens of a sequence that holds ``tokens`` at ``pos`` attended to what they must, exactly,
        and read what they must, within a tolerance relative to the largest value."""
        truth = Truth(self.probe, self.spec, tokens, pos)
        for i in range(len(pos) - last, len(pos)):
            for il, mask in truth.masks.items():
                assert self.seen[seq, pos[i]][il] == expected(mask, i, pos), f"block {il}, position {pos[i]}"
                n_hidden = (i + 1) - mask[..., i, : len(pos)].sum(axis=-1)
                self.left_out[il] = self.left_out.get(il, 0) + int(n_hidden.sum())
        readings = truth.readings()
        for i in range(len(pos) - last, len(pos)):
            got = self.found[seq, pos[i]]
            assert set(got) == set(readings)
            for name, rows in readings.items():
                atol = tolerance * np.abs(rows).max()
                np.testing.assert_allclose(got[name], rows[i], rtol=0, atol=atol, err_msg=name)


def seen_by(read: Read, cache: KVCache, token: int, seq: int) -> Seen:
    """What a token of a ubatch attended to."""
    table = cache.cells[read.stream]
    pos = np.where(table.has(seq, read.n_cells), table.pos[: read.n_cells], FOREIGN)
    return _per_head(read.mask[..., token - read.rows.start, :], pos)


def expected(mask: BoolArray, token: int, pos: list[int]) -> Seen:
    """What a token must attend to."""
    return _per_head(mask[..., token, :], np.array(pos))


def _per_head(mask: Any, pos: Any) -> Seen:
    rows = mask.reshape(-1, mask.shape[-1])
    n = len(pos)
    return [(sorted(pos[row[:n]].tolist()), np.flatnonzero(row[n:]).tolist()) for row in rows]
