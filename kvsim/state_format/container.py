"""What stands around the sections of a memory, and which sections a memory has.

docs/spec/state.md 1::

    whole buffer     u32 length, architecture; sections
    sequence buffer  u32 0xaf143cd8, i32 source sequence; sections
    whole file       u32 'ggsn', u32 version, u32 n, n tokens, then as a whole buffer
    sequence file    u32 'ggsq', u32 version, u32 n, n tokens; sections
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from kvsim.errors import StateError
from kvsim.models.cache_spec import MemorySpec
from kvsim.state import SEQ_MAGIC, StateReader, StateWriter
from kvsim.state_format.dsv4_section import CompressedSection, DSV4Header, RingSection
from kvsim.state_format.form import Form, count
from kvsim.state_format.kv_section import KVSection
from kvsim.state_format.recurrent_section import RecurrentSection
from kvsim.state_versions import CURRENT, LAYOUTS, SEQ_FILE_MAGIC, SESSION_MAGIC, Layout, layouts_of, refusal

Section = KVSection | RecurrentSection | DSV4Header | CompressedSection | RingSection

ORDER: dict[str, tuple[str, ...]] = {
    "kv": ("kv",),
    "iswa": ("base", "swa"),
    "recurrent": ("recurrent",),
    "hybrid": ("attn", "recurrent"),
    "hybrid_iswa": ("base", "swa", "recurrent"),
    "hybrid_idx": ("attn", "recurrent", "idx"),
    "dsa": ("mla", "lid"),
    "dsa_iswa": ("mla", "lid", "swa"),
    "msa": ("base", "idx"),
    "dsv4": ("header", "raw.base", "raw.swa", "csa", "hca", "lid", "csa.ring", "hca.ring", "lid.ring"),
}
"""Kind of memory -> its sections, in order."""

NOT_IN_PARTIAL: dict[str, frozenset[str]] = {
    "iswa": frozenset({"base"}),
    "hybrid": frozenset({"attn"}),
    "hybrid_iswa": frozenset({"base"}),
    "hybrid_idx": frozenset({"attn", "idx"}),
    "dsa_iswa": frozenset({"mla", "lid"}),
    "dsv4": frozenset({"raw.base", "csa", "hca", "lid"}),
}
"""Sections that a PARTIAL_ONLY state leaves out; the other memories ignore the flag."""


class Container(Enum):
    WHOLE = "whole state"
    SEQUENCE = "state of a sequence"
    WHOLE_FILE = "whole-state file"
    SEQUENCE_FILE = "sequence file"

    @property
    def is_whole(self) -> bool:
        return self in (Container.WHOLE, Container.WHOLE_FILE)


@dataclass(frozen=True)
class SavedState:
    """A saved state. ``arch`` is of whole states, ``source`` of sequence buffers, ``tokens`` of files;
    ``rest`` are the bytes behind the last section, which llama.cpp ignores but in whole-state files."""

    container: Container
    layout: Layout
    sections: Mapping[str, Section]
    arch: str = ""
    source: int = -1
    tokens: tuple[int, ...] = ()
    rest: bytes = field(default=b"", repr=False)

    def to_bytes(self) -> bytes:
        """The bytes this was parsed from."""
        io = StateWriter()
        if self.container is Container.WHOLE_FILE:
            _write_file_head(io, SESSION_MAGIC, self.layout.whole, self.tokens)
        elif self.container is Container.SEQUENCE_FILE:
            _write_file_head(io, SEQ_FILE_MAGIC, self.layout.sequence, self.tokens)
        elif self.container is Container.SEQUENCE:
            io.u32(SEQ_MAGIC)
            io.i32(self.source)
        if self.container.is_whole:
            io.string(self.arch)
        for section in self.sections.values():
            section.write(io)
        io.raw(self.rest)
        return io.getvalue()


def container_of(data: bytes) -> Container:
    """Which container ``data`` is, by its first four bytes; anything unknown passes for a whole buffer."""
    magic = int.from_bytes(data[:4], "little")
    known = {
        SESSION_MAGIC: Container.WHOLE_FILE,
        SEQ_FILE_MAGIC: Container.SEQUENCE_FILE,
        SEQ_MAGIC: Container.SEQUENCE,
    }
    return known.get(magic, Container.WHOLE)


def parse_state(
    data: bytes,
    spec: MemorySpec,
    partial: bool = False,
    on_device: bool = False,
    layout: Layout | None = None,
) -> SavedState:
    """Take a saved state of a memory of this kind apart.

    ``partial`` and ``on_device`` say with which flags it was saved, which the bytes do not. ``layout`` is
    found from the version of a file; a buffer is taken to be of the current one. Raises StateError naming
    the byte; nothing is allocated for a count that the bytes left cannot hold.
    """
    if layout is not None:
        return _parse(data, spec, partial, on_device, layout)
    layouts = _file_layouts(data)
    for last, candidate in zip([False] * (len(layouts) - 1) + [True], layouts, strict=True):
        try:
            state = _parse(data, spec, partial, on_device, candidate)
        except StateError:
            if last:
                raise
        else:
            if last or not state.rest:
                return state
    raise AssertionError("a last layout either parses or raises")


def older_layouts(data: bytes, spec: MemorySpec, partial: bool = False) -> list[Layout]:
    """The older layouts in which a buffer can be read to its last byte, if it cannot in the current one."""
    if _fits(data, spec, partial, CURRENT):
        return []
    return [layout for layout in LAYOUTS[1:] if _fits(data, spec, partial, layout)]


def _fits(data: bytes, spec: MemorySpec, partial: bool, layout: Layout) -> bool:
    try:
        return not _parse(data, spec, partial, False, layout).rest
    except StateError:
        return False


def _file_layouts(data: bytes) -> list[Layout]:
    """The layouts that the version in a file's head leaves open; buffers have the current one."""
    if container_of(data) not in (Container.WHOLE_FILE, Container.SEQUENCE_FILE):
        return [CURRENT]
    io = StateReader(data)
    magic, version = io.u32("the magic number"), io.u32("the version")
    layouts = layouts_of(magic, version)
    if not layouts:
        raise StateError(f"at byte 4: {refusal(magic, version)}")
    return layouts


def _parse(data: bytes, spec: MemorySpec, partial: bool, on_device: bool, layout: Layout) -> SavedState:
    io = StateReader(data)
    container = container_of(data)
    arch, source = "", -1
    tokens: tuple[int, ...] = ()
    if container in (Container.WHOLE_FILE, Container.SEQUENCE_FILE):
        io.view(8, "the head of the file")
        n = count(io, "the token count", 4)
        tokens = tuple(np.frombuffer(io.view(4 * n, "the tokens"), "<i4").tolist())
    elif container is Container.SEQUENCE:
        io.view(4, "the magic number")
        source = io.i32("the source sequence")
    if container.is_whole:
        arch = io.string("the architecture")
    whole = container.is_whole or (container is Container.SEQUENCE and source == -1)
    form = Form(layout, whole, partial, on_device)
    sections = dict(_sections(io, form, spec))
    return SavedState(container, layout, sections, arch, source, tokens, bytes(io.view(io.left, "the rest")))


def _sections(io: StateReader, form: Form, spec: MemorySpec) -> Iterator[tuple[str, Section]]:
    left_out = NOT_IN_PARTIAL.get(spec.kind, frozenset()) if form.partial else frozenset()
    for name in ORDER[spec.kind]:
        if name not in left_out and (name != "idx" or name in spec.caches):
            yield name, _section(io, form, spec, name)


def _section(io: StateReader, form: Form, spec: MemorySpec, name: str) -> Section:
    if name == "header":
        return DSV4Header.parse(io, form)
    if name == "recurrent":
        assert spec.recurrent is not None
        return RecurrentSection.parse(io, form, spec.recurrent)
    part, _, ring = name.partition(".")
    if ring == "ring":
        return RingSection.parse(io, form, spec.compressors[part], part)
    if part in spec.compressors:
        return CompressedSection.parse(io, form, spec.caches[part], part)
    return KVSection.parse(io, form, spec.caches[name], name)


def _write_file_head(io: StateWriter, magic: int, version: int, tokens: tuple[int, ...]) -> None:
    io.raw(struct.pack("<III", magic, version, len(tokens)) + np.array(tokens, "<i4").tobytes())
