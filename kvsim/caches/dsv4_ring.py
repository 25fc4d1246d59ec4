"""The ring of a DeepSeek-V4 compressor: the newest tokens of each stream, and their rollback planes
(``src/llama-kv-cache-dsv4.cpp: llama_dsv4_comp_state``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvsim.batch import Ubatch
from kvsim.caches.dsv4_plan import build_plans
from kvsim.errors import StateError
from kvsim.models.cache_spec import CompressorSpec
from kvsim.state import StateReader, StateWriter
from kvsim.tensors.compressor import CompressorShape, CompressorState, Plan

VERSION = 1
F32 = 0


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
        streams = range(self.spec.n_stream) if seq < 0 else [self.shape.stream(seq)]
        planes = [rs_idx[stream if seq < 0 else seq] for stream in streams]
        spec = self.spec
        for value in (
            VERSION,
            spec.ratio,
            spec.state_size,
            spec.n_embd_state,
            len(streams),
            len(spec.layers),
        ):
            io.u32(value)
        row = 4 * spec.n_embd_state
        for il in spec.layers:
            io.u32(il)
            for name in ("kv", "score"):
                write_tensor_head(io, F32, spec.n_embd_state, spec.state_size, row)
                for stream, plane in zip(streams, planes, strict=True):
                    rows = (
                        getattr(self.states[il], name)[self.rows_of(stream, plane)] if self.states else None
                    )
                    io.rows(None if rows is None else rows.tobytes(), spec.state_size * row)

    def state_read(self, io: StateReader, seq: int) -> None:
        """Read the rings into plane 0 of ``seq`` (-1: of all streams). Raises StateError on a mismatch."""
        spec = self.spec
        found = [io.u32("the ring header") for _ in range(6)]
        n_stream = spec.n_stream if seq < 0 else 1
        wanted = [VERSION, spec.ratio, spec.state_size, spec.n_embd_state, n_stream, len(spec.layers)]
        if found != wanted:
            raise StateError(f"ring of ratio {spec.ratio}: header {found} in the state, {wanted} expected")
        first = 0 if seq < 0 else self.shape.stream(seq)
        row = 4 * spec.n_embd_state
        for il in spec.layers:
            expect_block(io, il)
            for name in ("kv", "score"):
                read_tensor_head(io, F32, spec.n_embd_state, spec.state_size, row)
                for stream in range(first, first + n_stream):
                    data = io.rows(spec.state_size * row, f"ring rows of block {il}")
                    if self.states:
                        io.defer(lambda il=il, n=name, s=stream, d=data: self._put(il, n, s, d))  # type: ignore[misc]

    def _put(self, il: int, name: str, stream: int, data: bytes) -> None:
        rows = np.frombuffer(data, "<f4").reshape(self.spec.state_size, -1)
        getattr(self.states[il], name)[self.rows_of(stream)] = rows


def write_tensor_head(io: StateWriter, type_id: int, width: int, n_rows: int, row_bytes: int) -> None:
    """What stands before the rows of a tensor in a DSV4 state."""
    io.i32(type_id)
    for value in (width, n_rows, row_bytes):
        io.u64(value)


def read_tensor_head(io: StateReader, type_id: int, width: int, n_rows: int, row_bytes: int) -> None:
    found = (io.i32("a tensor type"), *(io.u64("a tensor size") for _ in range(3)))
    if found != (type_id, width, n_rows, row_bytes):
        raise StateError(f"tensor is {found} in the state, {(type_id, width, n_rows, row_bytes)} expected")


def expect_block(io: StateReader, il: int) -> None:
    found = io.u32("a block index")
    if found != il:
        raise StateError(f"the state goes on with block {found}, block {il} was expected")
