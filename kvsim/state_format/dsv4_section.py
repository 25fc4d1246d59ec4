"""What only a DeepSeek-V4 state has: a header, compressed rows, rings.

docs/spec/dsv4.md 7::

    header      u32 magic, u32 version, u32 mode (0 full, 1 partial)
    compressed  u32 version, u32 rows, u32 streams, u32 blocks; per block u32 index, tensor
    ring        u32 version, u32 ratio, u32 rows, u32 width, u32 streams, u32 blocks
                per block u32 index, tensor of values, tensor of scores
    tensor      i32 type, u64 width, u64 rows, u64 row bytes, then the rows of each stream
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import StateError
from kvsim.models.cache_spec import CacheSpec, CompressorSpec
from kvsim.state import StateReader, StateWriter
from kvsim.state_format.form import Form, expect_i32, expect_u32, expect_u64

MAGIC = 0x34565344
VERSION = 1
ROWS_VERSIONS = (1, 2)
"""Version 1 holds all rows of a cache, 2 as many as it says."""
RING_VERSION = 1
F32 = 0


@dataclass(frozen=True)
class DSV4Header:
    """``partial``: without the base half of the raw pair and without compressed rows."""

    partial: bool

    @classmethod
    def parse(cls, io: StateReader, form: Form) -> DSV4Header:
        expect_u32(io, MAGIC, "the DeepSeek-V4 magic")
        expect_u32(io, VERSION, "the DeepSeek-V4 version")
        expect_u32(io, int(form.partial), "the DeepSeek-V4 mode (0 full, 1 partial)")
        return cls(form.partial)

    def write(self, io: StateWriter) -> None:
        for n in (MAGIC, VERSION, int(self.partial)):
            io.u32(n)


@dataclass(frozen=True)
class Tensor:
    """Rows of one tensor, of every saved stream one after the other."""

    type_id: int
    width: int
    n_rows: int
    row_bytes: int
    data: memoryview

    @classmethod
    def parse(
        cls, io: StateReader, form: Form, head: tuple[int, int, int, int], streams: int, what: str
    ) -> Tensor:
        type_id, width, n_rows, row_bytes = head
        expect_i32(io, type_id, f"the type of {what}")
        for n, name in ((width, "width"), (n_rows, "row count"), (row_bytes, "row bytes")):
            expect_u64(io, n, f"the {name} of {what}")
        return cls(*head, form.rows(io, streams * n_rows * row_bytes, f"the rows of {what}"))

    def write(self, io: StateWriter) -> None:
        io.i32(self.type_id)
        for n in (self.width, self.n_rows, self.row_bytes):
            io.u64(n)
        io.raw(bytes(self.data))


@dataclass(frozen=True)
class CompressedSection:
    """The compressed rows of csa, hca or lid: of one stream, or of all in a whole state."""

    version: int
    n_rows: int
    n_stream: int
    blocks: tuple[tuple[int, Tensor], ...]

    @classmethod
    def parse(cls, io: StateReader, form: Form, spec: CacheSpec, name: str) -> CompressedSection:
        version = io.u32(f"the version of the rows of {name!r}")
        if version not in ROWS_VERSIONS:
            raise StateError(
                f"at byte {io.at - 4}: version {version} of the rows of {name!r}, known are 1 and 2"
            )
        n_rows = io.u32(f"the row count of {name!r}")
        if n_rows > spec.size or (version == 1 and n_rows != spec.size):
            raise StateError(f"at byte {io.at - 4}: {n_rows} rows of {name!r}, the cache has {spec.size}")
        n_stream = spec.n_stream if form.whole else 1
        expect_u32(io, n_stream, f"the stream count of {name!r}")
        expect_u32(io, len(spec.layers), f"the block count of {name!r}")
        blocks = []
        for layer in spec.layers:
            expect_u32(io, layer.il, f"the block index of {name!r}")
            head = layer.k.ggml_id, layer.n_embd_k, n_rows, layer.row_k
            blocks.append((layer.il, Tensor.parse(io, form, head, n_stream, f"block {layer.il} of {name!r}")))
        return cls(version, n_rows, n_stream, tuple(blocks))

    def write(self, io: StateWriter) -> None:
        for n in (self.version, self.n_rows, self.n_stream, len(self.blocks)):
            io.u32(n)
        for il, tensor in self.blocks:
            io.u32(il)
            tensor.write(io)


@dataclass(frozen=True)
class RingSection:
    """The ring of a compressor; ``blocks`` are (index, values, scores)."""

    ratio: int
    state_size: int
    width: int
    n_stream: int
    blocks: tuple[tuple[int, Tensor, Tensor], ...]

    @classmethod
    def parse(cls, io: StateReader, form: Form, spec: CompressorSpec, name: str) -> RingSection:
        n_stream = spec.n_stream if form.whole else 1
        numbers = (RING_VERSION, spec.ratio, spec.state_size, spec.n_embd_state, n_stream, len(spec.layers))
        words = ("version", "ratio", "row count", "width", "stream count", "block count")
        for n, word in zip(numbers, words, strict=True):
            expect_u32(io, n, f"the {word} of the ring of {name!r}")
        head = F32, spec.n_embd_state, spec.state_size, 4 * spec.n_embd_state
        blocks = []
        for il in spec.layers:
            what = f"block {il} of the ring of {name!r}"
            expect_u32(io, il, f"the index of {what}")
            values = Tensor.parse(io, form, head, n_stream, f"the values of {what}")
            scores = Tensor.parse(io, form, head, n_stream, f"the scores of {what}")
            blocks.append((il, values, scores))
        return cls(spec.ratio, spec.state_size, spec.n_embd_state, n_stream, tuple(blocks))

    def write(self, io: StateWriter) -> None:
        numbers = (RING_VERSION, self.ratio, self.state_size, self.width, self.n_stream, len(self.blocks))
        for n in numbers:
            io.u32(n)
        for il, values, scores in self.blocks:
            io.u32(il)
            values.write(io)
            scores.write(io)
