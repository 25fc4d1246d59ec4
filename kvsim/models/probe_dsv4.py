"""The probe's DeepSeek-V4 blocks: a raw window, and compressed rows beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from kvsim.batch import Ubatch
from kvsim.caches.dsv4 import PlanView, RawView, per_sequence
from kvsim.memory import BoolArray, View
from kvsim.models.cached_rows import Floats, Read, parts_of, rounded_attention, rows_of, store_rows
from kvsim.models.probe_sparse import NORM_EPS, index_weights
from kvsim.tensors.compressor import add_position_bias, finish_rows, run_plan, visible_rows
from kvsim.tensors.hadamard import hadamard
from kvsim.tensors.indexer import VARIANTS, index_scores, index_vectors, select
from kvsim.tensors.rope import Rope, rope
from kvsim.tensors.store import KVStore

if TYPE_CHECKING:
    from kvsim.models.probe import ProbeNetwork

COMPRESS_BASE = 160000.0
"""Rope base of compressed rows."""

N_HEAD = 2


def read_compressed(probe: ProbeNetwork, ubatch: Ubatch, views: Mapping[str, View]) -> dict[str, Floats]:
    """What each block reads, ``[token, width]``: its window, and the compressed rows of its kind."""
    raw = views["raw"]
    assert isinstance(raw, RawView)
    plans = {name: view for name, view in views.items() if isinstance(view, PlanView)}
    return {f"raw {il}": _Block(probe, ubatch, il, raw, plans).read() for il in raw.cache.spec.map_layer_ids}


class _Block:
    """One block and one ubatch."""

    def __init__(
        self, probe: ProbeNetwork, ubatch: Ubatch, il: int, raw: RawView, plans: Mapping[str, PlanView]
    ) -> None:
        self.probe, self.ubatch, self.il, self.raw, self.plans = probe, ubatch, il, raw, plans
        self.layer = raw.cache.spec.layers[raw.cache.spec.map_layer_ids[il]]
        width, n_rot = self.layer.n_embd_head_k, self.layer.n_rot
        kind = next((n for n in ("csa", "hca") if il in plans[n].cache.spec.map_layer_ids), None)
        self.kind = kind
        base = COMPRESS_BASE if kind else self.layer.freq_base
        self.turn = Rope(n_rot, offset=width - n_rot, base=base)

    def read(self) -> Floats:
        probe, ubatch, raw = self.probe, self.ubatch, self.raw
        width, n_rot_k = self.layer.n_embd_head_k, raw.cache.spec.n_rot_k
        q = rope(probe.vectors(f"q {self.il}", ubatch, N_HEAD, width), ubatch.pos0, self.turn)
        self._store_raw()
        for name in ("csa", "lid", "hca"):
            if self.il in self.plans[name].cache.spec.map_layer_ids:
                self._compress(name)
        mask = raw.mask(probe.context.causal_attn)
        q = hadamard(q, n_rot_k) if n_rot_k else q
        outs = []
        for stream, rows in self._parts():
            keys = rows_of(raw).decode_k(self.il, stream, slice(0, raw.n_kv))
            seen = mask[rows]
            if self.kind is not None:
                view = self.plans[self.kind]
                keys = np.concatenate([keys, self._rows(self.kind, stream)])
                seen = np.concatenate([seen, self._visible(view, stream, rows)], axis=1)
            k = keys[:, None]
            if probe.watch is not None:
                name, scale = raw.cache.name, width**-0.5
                probe.watch(
                    Read(self.il, name, stream, rows, q[rows], k, seen, scale, 0.0, raw.n_kv, self.kind)
                )
            outs.append(
                rounded_attention(
                    self.layer, q[rows], k, k, seen, scale=width**-0.5, flash_attn=probe.context.flash_attn
                )
            )
        out = np.concatenate(outs)
        out = hadamard(out, n_rot_k) if n_rot_k else out
        return rope(out, -ubatch.pos0, self.turn).reshape(ubatch.n_tokens, -1)

    def _parts(self) -> Iterator[tuple[int, slice]]:
        """Stream and token rows of each part that is read; shared tokens are read in one stream."""
        if len(self.raw.slot.strm) == 1:
            yield self.raw.slot.strm[0], slice(0, self.ubatch.n_tokens)
        else:
            yield from ((stream, rows) for stream, _, rows in parts_of(self.raw.slot))

    def _store_raw(self) -> None:
        """Keys into the window cache, a shared token once for each of its sequences."""
        written = per_sequence(self.ubatch)
        k = self.probe.vectors(f"k {self.il}", written, 1, self.layer.n_embd_head_k)
        store_rows(self.raw, self.il, rope(k, written.pos0, self.turn), slot=self.raw.written)

    def _compress(self, name: str) -> None:
        """Run one compressor and store the rows it completes."""
        probe, view = self.probe, self.plans[name]
        spec, ring, plan = view.cache.spec, view.ring, view.plan
        if not plan.state_pos.size:
            return  # all at position -1: such a graph has no compressors
        layer = spec.layers[spec.map_layer_ids[self.il]]
        kv = probe.vectors(f"{name} kv {self.il}", self.ubatch, ring.spec.n_embd_state)
        score = probe.vectors(f"{name} score {self.il}", self.ubatch, ring.spec.n_embd_state)
        ape = probe.table(f"{name} ape {self.il}", ring.spec.ratio, ring.spec.n_embd_state)
        raw = run_plan(ring.states[self.il], plan, kv, add_position_bias(score, ape, plan.state_pos))
        width = layer.n_embd_k
        turn = Rope(layer.n_rot, offset=width - layer.n_rot, base=COMPRESS_BASE)
        rows = finish_rows(raw, plan.state_write_pos, np.ones(width), NORM_EPS, turn, spec.n_rot_k)
        assert view.cache.store is not None
        for at, row in zip(plan.state_write_idxs.tolist(), rows, strict=True):
            stream, local = divmod(at, view.cache.size)
            view.cache.store.encode_k(self.il, stream, np.array([local]), row[None])

    def _rows(self, name: str, stream: int) -> Floats:
        """Compressed rows of a stream, ``[n_kv, width]``."""
        view = self.plans[name]
        store: KVStore | None = view.cache.store
        assert store is not None
        return store.decode_k(self.il, stream, slice(0, view.plan.n_kv))

    def _visible(self, view: PlanView, stream: int, rows: slice) -> BoolArray:
        """Compressed rows that each token reads: all that are complete, of CSA those its indexer chose."""
        visible = visible_rows(view.plan.n_visible[rows], view.plan.n_kv)
        if self.kind != "csa":
            return visible
        probe, size = self.probe, self.probe.model.indexer_head_size
        layer = self.plans["lid"].cache.spec.layers[0]
        turn = Rope(layer.n_rot, base=COMPRESS_BASE)
        q = probe.vectors(f"index q {self.il}", self.ubatch, probe.model.indexer_n_head, size)
        q = index_vectors(q, self.ubatch.pos0, turn, VARIANTS["deepseek4"])
        keys = self._rows("lid", stream).astype(q.dtype)
        weights = index_weights(probe, self.il, self.ubatch, size)
        scores = index_scores(q[rows], keys, weights[rows], visible)
        return select(scores, probe.model.indexer_top_k, visible)
