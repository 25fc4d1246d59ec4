"""The header of a GGUF file: key-value pairs and the list of tensors, without reading the rest.

The ``gguf`` package reads headers too, but makes an object of every token: half a minute for a vocabulary
of a quarter million. Here lists of strings (vocabularies, merges) are passed over, and a file is only
believed as far as it reaches. Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
NUMBERS = dict(enumerate(("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "|b1")))
NUMBERS |= {10: "<u8", 11: "<i8", 12: "<f8"}
"""Value types that are numbers, by id."""

F32 = 0
DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: ``offset`` counts from the start of the data; ``type`` is a ggml type id."""

    n_values: int
    type: int
    offset: int


@dataclass(frozen=True)
class GGUFHeader:
    """Key-value pairs (lists of strings left out) and the tensors' places, by name."""

    path: Path
    values: dict[str, Any]
    tensors: dict[str, TensorInfo]
    data_start: int

    def floats(self, name: str) -> NDArray[np.float32]:
        """A tensor of type f32, flat. Raises ModelError if it has another type or lies outside the file."""
        info = self.tensors[name]
        if info.type != F32:
            raise ModelError(f"{self.path}: tensor {name!r} is not f32")
        with self.path.open("rb") as file:
            file.seek(self.data_start + info.offset)
            data = file.read(4 * info.n_values)
        if len(data) < 4 * info.n_values:
            raise ModelError(f"{self.path}: the file ends inside tensor {name!r}")
        return np.frombuffer(data, "<f4").astype(np.float32)


def read_header(path: str | Path) -> GGUFHeader:
    """Read a file's header. Raises ModelError if it is missing, damaged or not GGUF."""
    path = Path(path)
    try:
        if not path.is_file():
            raise ModelError(f"{path}: there is no such file, or it is not a regular one")
        with path.open("rb") as file:
            if path.stat().st_size < 24:
                raise ModelError(f"{path}: not a readable GGUF file: it is too short")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _header(path, _Cursor(data))
    except OSError as error:
        raise ModelError(f"{path}: cannot be opened: {error.strerror}") from None
    except _DamagedError as error:
        raise ModelError(f"{path}: not a readable GGUF file: {error}") from None


class _DamagedError(Exception):
    """What is wrong, for an error that also names the file."""


class _Cursor:
    """Reads forward, and never past the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def take(self, n: int) -> bytes:
        end = self.at + n
        if end > len(self.data):
            raise _DamagedError(f"it ends at byte {len(self.data)}, inside its header")
        part = self.data[self.at : end]
        self.at = end
        return part

    def integer(self, code: str) -> int:
        value: int = struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]
        return value

    def string(self) -> str:
        try:
            return self.take(self.integer("Q")).decode("utf-8")
        except UnicodeDecodeError:
            raise _DamagedError(f"there is no text before byte {self.at}") from None

    def skip_strings(self, n: int) -> None:
        data, size, unpack = self.data, len(self.data), struct.Struct("<Q").unpack_from
        at = self.at
        for _ in range(n):
            if at + 8 > size:
                raise _DamagedError(f"it ends at byte {size}, inside its header")
            at += 8 + unpack(data, at)[0]
        self.at = at
        self.take(0)


def _header(path: Path, cursor: _Cursor) -> GGUFHeader:
    if cursor.take(4) != MAGIC:
        raise _DamagedError("it does not begin with GGUF")
    version = cursor.integer("I")
    if version not in VERSIONS:
        raise _DamagedError(f"version {version} is unknown (byte-swapped files are not supported)")
    n_tensors, n_values = cursor.integer("Q"), cursor.integer("Q")
    values: dict[str, Any] = {}
    for _ in range(n_values):
        key = cursor.string()
        value = _value(cursor, cursor.integer("I"))
        if value is not None:
            values[key] = value
    tensors = dict(_tensor(cursor) for _ in range(n_tensors))
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise _DamagedError(f"general.alignment = {alignment!r}")
    return GGUFHeader(path, values, tensors, -(-cursor.at // alignment) * alignment)


def _value(cursor: _Cursor, kind: int) -> Any:
    """A value, None for a list of strings."""
    if kind in NUMBERS:
        dtype = np.dtype(NUMBERS[kind])
        return np.frombuffer(cursor.take(dtype.itemsize), dtype)[0].item()
    if kind == STRING:
        return cursor.string()
    if kind != ARRAY:
        raise _DamagedError(f"value type {kind} before byte {cursor.at} is unknown")
    kind, n = cursor.integer("I"), cursor.integer("Q")
    if kind == STRING:
        cursor.skip_strings(n)
        return None
    if kind not in NUMBERS:
        raise _DamagedError(f"list of type {kind} before byte {cursor.at} is unknown")
    dtype = np.dtype(NUMBERS[kind])
    return np.frombuffer(cursor.take(n * dtype.itemsize), dtype).tolist()


def _tensor(cursor: _Cursor) -> tuple[str, TensorInfo]:
    name = cursor.string()
    n_values = 1
    for _ in range(cursor.integer("I")):
        n_values *= cursor.integer("Q")
    return name, TensorInfo(n_values, cursor.integer("I"), cursor.integer("Q"))
