"""The ring of a DeepSeek-V4 compressor: the newest tokens of each stream, and their rollback planes
(``src/llama-kv-cache-dsv4.cpp: llama_dsv4_comp_state``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvsim.batch import Ubatch
from kvsim.caches.dsv4_plan import build_plans
from kvsim.caches.saved_rows import read_ring, write_ring
from kvsim.models.cache_spec import CompressorSpec
from kvsim.state import StateReader, StateWriter
from kvsim.tensors.compressor import CompressorShape, CompressorState, Plan


class CompressorRing:
    """One compressor's rings: ``state_size`` rows per stream and plane, value and score, f32.

    ``states`` holds the rows per block where numbers are wanted. Which tokens the rings have seen is
    metadata of the plans; here are only the copies that wait for the next update.
    """

    def __init__(self, spec: CompressorSpec, kv_size: int, data: bool = False) -> None:
        self.spec = spec
        self.shape = CompressorShape(
            spec.ratio, spec.ratio != spec.state_size, spec.state_size, kv_size, spec.n_stream, spec.n_rs_seq
        )
        self.pending_copies: list[tuple[int, int]] = []
        self.states: dict[int, CompressorState] = {}
        if data:
            rows = (1 + spec.n_rs_seq) * self.shape.ring_rows
            for il in spec.layers:
                kv, score = (np.zeros((rows, spec.n_embd_state), np.float32) for _ in range(2))
                self.states[il] = CompressorState(self.shape, kv, score)

    def plans(self, ubatches: Sequence[Ubatch], rs_idx: Sequence[int]) -> list[Plan]:
        """What the graph of each ubatch does with this compressor; see :func:`build_plans`."""
        return build_plans(ubatches, self.shape, rs_idx)

    def rows_of(self, stream: int, plane: int = 0) -> slice:
        """The rows of one stream's ring in one plane."""
        first = plane * self.shape.ring_rows + stream * self.spec.state_size
        return slice(first, first + self.spec.state_size)

    def clear(self, stream: int | None = None) -> None:
        """Zero every plane of a stream (None: of all)."""
        for state in self.states.values():
            for rows in (state.kv, state.score):
                if stream is None:
                    rows.fill(0)
                else:
                    for plane in range(1 + self.spec.n_rs_seq):
                        rows[self.rows_of(stream, plane)] = 0

    def seq_cp(self, src: int, dst: int) -> None:
        """Zero the target now, copy plane 0 at the next update."""
        if src != dst:
            self.clear(dst)
            self.pending_copies.append((src, dst))

    def run_copies(self, copies: list[tuple[int, int]]) -> None:
        for src, dst in copies:
            for state in self.states.values():
                for rows in (state.kv, state.score):
                    rows[self.rows_of(dst)] = rows[self.rows_of(src)]

    def n_bytes(self) -> int:
        rows = (1 + self.spec.n_rs_seq) * self.shape.ring_rows
        return 2 * 4 * rows * self.spec.n_embd_state * len(self.spec.layers)

    def state_write(self, io: StateWriter, seq: int, rs_idx: list[int]) -> None:
        """Write the rings of ``seq`` (-1: of all streams), each from the plane its pending rollback names."""

        def read(il: int, part: str, stream: int) -> bytes:
            rows = self.rows_of(stream, rs_idx[stream if seq < 0 else seq])
            return bytes(getattr(self.states[il], part)[rows].tobytes())

        write_ring(io, self.spec, self.shape.saved_streams(seq), read if self.states else None)

    def state_read(self, io: StateReader, seq: int) -> None:
        """Read the rings into plane 0 of ``seq`` (-1: of all streams). Raises StateError on a mismatch."""
        read_ring(io, self.spec, self.shape.saved_streams(seq), self._put if self.states else None)

    def _put(self, il: int, name: str, stream: int, data: bytes | memoryview) -> None:
        rows = np.frombuffer(data, "<f4").reshape(self.spec.state_size, -1)
        getattr(self.states[il], name)[self.rows_of(stream)] = rows
