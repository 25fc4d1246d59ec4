"""DeepSeek-V4's compressors on a device: rings of the newest tokens, and what one ubatch does with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from engine.dsv4_plan import build_plans
from engine.sync import read_back, upload
from kvsim.batch import Ubatch
from kvsim.caches.saved_rows import read_ring, write_ring
from kvsim.models.cache_spec import CompressorSpec
from kvsim.state import StateReader, StateWriter
from kvsim.tensors.compressor import CompressorShape, Plan


@dataclass
class CompressorState:
    """Values and scores of the newest tokens of one block, ``float32[planes * ring_rows, n_state]`` each."""

    shape: CompressorShape
    kv: Tensor
    score: Tensor


class CompressorRing:
    """One compressor's rings, for all blocks; see :class:`kvsim.caches.dsv4_ring.CompressorRing`."""

    def __init__(self, spec: CompressorSpec, kv_size: int, data: bool, device: torch.device) -> None:
        self.spec, self.device = spec, device
        overlap = spec.ratio != spec.state_size
        self.shape = CompressorShape(
            spec.ratio, overlap, spec.state_size, kv_size, spec.n_stream, spec.n_rs_seq
        )
        self.pending_copies: list[tuple[int, int]] = []
        n_rows = (1 + spec.n_rs_seq) * self.shape.ring_rows
        self.states: dict[int, CompressorState] = {}
        for il in spec.layers if data else ():
            kv, score = torch.zeros(2, n_rows, spec.n_embd_state, dtype=torch.float32, device=device)
            self.states[il] = CompressorState(self.shape, kv, score)

    def plans(self, ubatches: Sequence[Ubatch], rs_idx: Sequence[int]) -> list[Plan]:
        return build_plans(ubatches, self.shape, rs_idx)

    def _planes(self, rows: Tensor) -> Tensor:
        """Rows as ``[plane, stream, row, n_state]``."""
        return rows.view(-1, self.spec.n_stream, self.spec.state_size, rows.shape[1])

    def _each(self) -> list[Tensor]:
        return [self._planes(rows) for state in self.states.values() for rows in (state.kv, state.score)]

    def clear(self, stream: int | None = None) -> None:
        """Zero every plane of a stream (None: of all)."""
        for planes in self._each():
            planes[:, slice(None) if stream is None else stream] = 0

    def seq_cp(self, src: int, dst: int) -> None:
        """Zero the target now, copy plane 0 at the next update."""
        if src != dst:
            self.clear(dst)
            self.pending_copies.append((src, dst))

    def run_copies(self, copies: Sequence[tuple[int, int]]) -> None:
        for src, dst in copies:
            for planes in self._each():
                planes[0, dst] = planes[0, src]

    def n_bytes(self) -> int:
        rows = (1 + self.spec.n_rs_seq) * self.shape.ring_rows
        return 8 * rows * self.spec.n_embd_state * len(self.spec.layers)

    def state_write(self, io: StateWriter, seq: int, rs_idx: Sequence[int]) -> None:
        """Write the rings of ``seq`` (-1: of all streams), each from the plane its pending rollback names."""

        def read(il: int, part: str, stream: int) -> bytes:
            plane = rs_idx[stream if seq < 0 else seq]
            return read_back(self._planes(getattr(self.states[il], part))[plane, stream]).tobytes()

        write_ring(io, self.spec, self.shape.saved_streams(seq), read if self.states else None)

    def state_read(self, io: StateReader, seq: int) -> None:
        """Read the rings into plane 0 of ``seq`` (-1: of all streams). Raises StateError on a mismatch."""
        read_ring(io, self.spec, self.shape.saved_streams(seq), self._put if self.states else None)

    def _put(self, il: int, name: str, stream: int, data: bytes | memoryview) -> None:
        rows = np.frombuffer(data, "<f4").reshape(self.spec.state_size, -1)
        self._planes(getattr(self.states[il], name))[0, stream] = upload(rows, self.device, torch.float32)


class DevicePlan:
    """The index lists of a plan, uploaded at once."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        names = [f.name for f in fields(plan) if isinstance(getattr(plan, f.name), np.ndarray)]
        arrays = [getattr(plan, name) for name in names]
        packed = upload(np.concatenate(arrays), device)
        for name, part in zip(names, packed.split([len(a) for a in arrays]), strict=True):
            setattr(self, name, part)
        self.n_kv = plan.n_kv


def run_plan(state: CompressorState, plan: DevicePlan, kv: Tensor, score: Tensor) -> Tensor:
    """One ubatch: restore, compress, snapshot, persist. ``kv, score [token, n_state]``, the score with its
    bias. Returns the raw rows ``[block, n_state or n_state / 2]`` in plan order, dummies included."""
    for rows in (state.kv, state.score):
        rows.index_copy_(0, plan.state_restore_dst_idxs, rows.index_select(0, plan.state_restore_src_idxs))
    ring = state.shape.ring_rows
    nothing = kv.new_zeros(1, kv.shape[1])
    values = torch.cat([state.kv[:ring], kv, nothing]).index_select(0, plan.state_read_idxs)
    scores = torch.cat([state.score[:ring], score, nothing - torch.inf]).index_select(0, plan.state_read_idxs)
    compressed = (_windows(scores, state.shape).softmax(1) * _windows(values, state.shape)).sum(1)
    for rows, tokens in ((state.kv, kv), (state.score, score)):
        snapshot = torch.cat([rows, tokens]).index_select(0, plan.state_snapshot_src_idxs)
        rows.index_copy_(0, plan.state_snapshot_dst_idxs, snapshot)
        rows.index_copy_(0, plan.state_persist_dst_idxs, tokens.index_select(0, plan.state_persist_src_idxs))
    return compressed


def _windows(rows: Tensor, shape: CompressorShape) -> Tensor:
    """Gathered rows as blocks ``[block, ratio, d]``, with overlap ``[block, 2 * ratio, d / 2]``."""
    if not shape.overlap:
        return rows.view(-1, shape.ratio, rows.shape[1])
    before, own = rows.view(2, -1, shape.ratio, rows.shape[1])
    half = rows.shape[1] // 2
    return torch.cat([before[..., :half], own[..., half:]], 1)
