"""Saved states: the byte streams, and the containers llama.cpp puts around them (spec/state.md).

A memory writes itself through a :class:`StateWriter` and reads itself through a :class:`StateReader`;
the layout of each memory is beside its code. Integers are little-endian, nothing is aligned.

Reading a buffer is *deferred* as in llama.cpp (``src/llama-io.cpp``): rows are collected while the cells
are read and move only at the end, so that a refused state changes no rows. Reading a file is not.

:mod:`kvsim.state_format` reads the same bytes without a memory, to look at them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import CacheUsageError, StateError
from kvsim.events import Event
from kvsim.state_versions import CURRENT, SEQ_FILE_MAGIC, SESSION_MAGIC, refusal

if TYPE_CHECKING:
    from kvsim.memory import Memory

PARTIAL_ONLY = 1
"""Only what a rollback needs: the window and recurrent parts."""
ON_DEVICE = 2
"""Row bytes stay in buffers of the context, one storage per source sequence."""

SEQ_MAGIC = 0xAF143CD8
"""What the state of one sequence begins with, in a buffer."""
SESSION_FILE = (SESSION_MAGIC, CURRENT.whole)
SEQ_FILE = (SEQ_FILE_MAGIC, CURRENT.sequence)
"""Magic and version of a whole-state and of a sequence file."""


class StateWriter:
    """Collects a state. With ``device`` set, row bytes go there instead of into the buffer."""

    def __init__(self, device: list[bytes] | None = None) -> None:
        self._parts: list[bytes] = []
        self._device = device

    def u32(self, value: int) -> None:
        self._parts.append(struct.pack("<I", value))

    def i32(self, value: int) -> None:
        self._parts.append(struct.pack("<i", value))

    def u64(self, value: int) -> None:
        self._parts.append(struct.pack("<Q", value))

    def string(self, text: str) -> None:
        data = text.encode()
        self.u32(len(data))
        self._parts.append(data)

    def raw(self, data: bytes) -> None:
        """Metadata bytes."""
        self._parts.append(data)

    def rows(self, data: bytes | None, n_bytes: int) -> None:
        """Row bytes; ``None`` (no store attached) stands for zeros of the right length."""
        payload = bytes(n_bytes) if data is None else data
        (self._parts if self._device is None else self._device).append(payload)

    def getvalue(self) -> bytes:
        return b"".join(self._parts)


class StateReader:
    """Reads a state. Every read past the end raises StateError with the offset.

    Row writes are put off until :meth:`commit`, or done at once (``immediate``) as llama.cpp does for files.
    ``device`` are the rows of a state that is kept on the device.
    """

    def __init__(self, data: bytes, device: bytes | None = None, immediate: bool = False) -> None:
        self._data = memoryview(data)
        self._device = None if device is None else memoryview(device)
        self._device_at = 0
        self._immediate = immediate
        self.at = 0
        self._deferred: list[Callable[[], None]] = []

    @property
    def left(self) -> int:
        return len(self._data) - self.at

    def view(self, n: int, what: str = "data") -> memoryview:
        """The next ``n`` bytes, not copied."""
        if n > self.left:
            raise StateError(
                f"state is truncated at byte {self.at}: {what} needs {n} more bytes, {self.left} are left"
            )
        self.at += n
        return self._data[self.at - n : self.at]

    def take(self, n: int, what: str = "data") -> bytes:
        """The next ``n`` metadata bytes."""
        return bytes(self.view(n, what))

    def u32(self, what: str = "an integer") -> int:
        return int(struct.unpack("<I", self.view(4, what))[0])

    def i32(self, what: str = "an integer") -> int:
        return int(struct.unpack("<i", self.view(4, what))[0])

    def u64(self, what: str = "an integer") -> int:
        return int(struct.unpack("<Q", self.view(8, what))[0])

    def string(self, what: str = "a name") -> str:
        return self.take(self.u32(f"the length of {what}"), what).decode("utf-8", "replace")

    def rows(self, n_bytes: int, what: str = "rows") -> memoryview:
        """Row bytes, from the buffer or from the device storage."""
        if self._device is None:
            return self.view(n_bytes, what)
        if self._device_at + n_bytes > len(self._device):
            raise CacheUsageError(
                f"the device storage of this state holds {len(self._device)} bytes and {what} need "
                f"{self._device_at + n_bytes}: a newer save of the same sequence replaced it. llama.cpp "
                f"aborts; save again, or keep the state in host memory"
            )
        self._device_at += n_bytes
        return self._device[self._device_at - n_bytes : self._device_at]

    def defer(self, write: Callable[[], None]) -> None:
        """Run ``write`` when the whole state has been read, and never if it is refused."""
        if self._immediate:
            write()
        else:
            self._deferred.append(write)

    def commit(self) -> None:
        for write in self._deferred:
            write()
        self._deferred.clear()

    def check_device_used_up(self) -> None:
        """The host part and the device storage must be consumed exactly (Od3, Od4)."""
        if self._device is None:
            return
        if self.left or self._device_at != len(self._device):
            raise CacheUsageError(
                f"{self.left} bytes of the host part and {len(self._device) - self._device_at} of the device "
                f"storage are left over: the state belongs to another save or memory. llama.cpp aborts"
            )


@dataclass(frozen=True)
class DeviceState:
    """A state kept on the device: its rows, and the host part that was handed out with them."""

    host: bytes
    rows: bytes


@dataclass
class DeviceStates:
    """The states kept on the device: one per source sequence; a newer save replaces it (Od2)."""

    storage: dict[int, DeviceState] = field(default_factory=dict)


def save_sequence(memory: Memory, seq: int, flags: int = 0, device: DeviceStates | None = None) -> bytes:
    """The state of one sequence: magic, source id, then the memory (``llama_state_seq_get_data_ext``)."""
    on_device = bool(flags & ON_DEVICE)
    rows: list[bytes] = []
    io = StateWriter(rows if on_device else None)
    io.u32(SEQ_MAGIC)
    io.i32(seq)
    memory.state_write(io, seq, flags)
    if on_device:
        _storage(device).storage[seq] = DeviceState(io.getvalue(), b"".join(rows))
    return io.getvalue()


def load_sequence(
    memory: Memory,
    data: bytes,
    seq: int,
    flags: int = 0,
    device: DeviceStates | None = None,
    strict: bool = False,
) -> int:
    """Restore a sequence state into ``seq`` and return the bytes read (``llama_state_seq_set_data_ext``).

    Raises StateError where llama.cpp returns 0; the memory is then as llama.cpp leaves it, which may be
    half restored. With ``strict`` it is as before. Trailing bytes are allowed, as there.

    On the device, a newer save of the same sequence has replaced the rows of an older one. llama.cpp
    aborts if their sizes differ: CacheUsageError, and nothing has changed. If not, it restores the cells
    of the older save with the rows of the newer: a hazard event says so, and ``strict`` refuses.
    """
    if flags & ON_DEVICE:
        _check_newest(memory, data, _storage(device), strict)
    _try_first(memory, lambda trial: _load_sequence(trial, data, seq, flags, device), strict, flags)
    return _load_sequence(memory, data, seq, flags, device)


def _load_sequence(memory: Memory, data: bytes, seq: int, flags: int, device: DeviceStates | None) -> int:
    io = StateReader(data) if not flags & ON_DEVICE else _device_reader(data, _storage(device))
    _check_sequence_header(io)
    memory.state_read(io, seq, flags)
    if io.left and memory.observer is not None:
        memory.observer(Event("hazard", detail={"id": "state-not-used-up", "seq": seq, "left": io.left}))
    io.check_device_used_up()
    io.commit()
    return io.at


def _check_sequence_header(io: StateReader) -> int:
    """Returns the source sequence."""
    magic = io.u32("the magic number")
    if magic != SEQ_MAGIC:
        raise StateError(f"not a sequence state: it begins with 0x{magic:08x} instead of 0x{SEQ_MAGIC:08x}")
    return io.i32("the source sequence")


def _device_state(data: bytes, device: DeviceStates) -> tuple[int, DeviceState]:
    """The source sequence of a host part, and what the device keeps of it. A damaged header is not caught by
    llama.cpp here (Od6)."""
    try:
        source = _check_sequence_header(StateReader(data))
    except StateError as err:
        raise CacheUsageError(f"{err}; with ON_DEVICE llama.cpp throws out of the call") from err
    if source not in device.storage:
        raise CacheUsageError(
            f"no state of sequence {source} is kept on the device; llama.cpp aborts. Save it with ON_DEVICE "
            f"first"
        )
    return source, device.storage[source]


def _device_reader(data: bytes, device: DeviceStates) -> StateReader:
    return StateReader(data, _device_state(data, device)[1].rows)


def _check_newest(memory: Memory, data: bytes, device: DeviceStates, strict: bool) -> None:
    """Say so if the rows on the device are not those of this host part. Only another host part shows that:
    two saves of equal cells with other rows cannot be told apart."""
    source, kept = _device_state(data, device)
    if kept.host == data:
        return
    if strict:
        raise StateError(
            f"the device keeps a newer state of sequence {source} than this one: its rows are gone, and "
            f"llama.cpp would restore these cells with the newer ones. Save again, or keep it in host memory"
        )
    if memory.observer is not None:
        memory.observer(Event("hazard", detail={"id": "device-state-replaced", "seq": source}))


def save_all(memory: Memory, arch: str) -> bytes:
    """The whole state: architecture name, then the memory (``llama_state_get_data``)."""
    io = StateWriter()
    io.string(arch)
    memory.state_write(io, -1, 0)
    return io.getvalue()


def load_all(memory: Memory, data: bytes, arch: str, strict: bool = False) -> int:
    """Restore a whole state and return the bytes read (``llama_state_set_data``). Raises StateError as
    :func:`load_sequence` does."""
    _try_first(memory, lambda trial: _load_all(trial, StateReader(data), arch), strict)
    return _load_all(memory, StateReader(data), arch)


def _load_all(memory: Memory, io: StateReader, arch: str, path: Path | None = None) -> int:
    _check_arch(io, arch)
    memory.state_read(io, -1, 0)
    io.commit()
    if path is not None and io.left:
        raise StateError(f"{path}: {io.left} bytes are left over after the state: the file is damaged")
    return io.at


def save_all_file(memory: Memory, arch: str, path: Path, tokens: Sequence[int] = ()) -> int:
    """Write a whole-state file (``llama_state_save_file``). Returns its size."""
    return _write_file(path, SESSION_FILE, tokens, save_all(memory, arch))


def load_all_file(memory: Memory, arch: str, path: Path, strict: bool = False) -> list[int]:
    """Read a whole-state file and return its tokens (``llama_state_load_file``).

    Rows move as they are read: those of a file that turns out to be damaged stay, and one with bytes left
    over is restored although it is refused. With ``strict`` the memory is as before.
    """
    _try_first(memory, lambda trial: _load_all(trial, _open_file(path, SESSION_FILE)[0], arch, path), strict)
    io, tokens = _open_file(path, SESSION_FILE)
    _load_all(memory, io, arch, path)
    return tokens


def save_sequence_file(memory: Memory, seq: int, path: Path, tokens: Sequence[int] = ()) -> int:
    """Write a sequence file (``llama_state_seq_save_file``). Returns its size."""
    io = StateWriter()
    memory.state_write(io, seq, 0)
    return _write_file(path, SEQ_FILE, tokens, io.getvalue())


def load_sequence_file(memory: Memory, seq: int, path: Path, strict: bool = False) -> list[int]:
    """Read a sequence file into ``seq`` and return its tokens (``llama_state_seq_load_file``). Rows move as
    they are read; bytes behind the state are ignored."""
    _try_first(memory, lambda trial: trial.state_read(_open_file(path, SEQ_FILE)[0], seq, 0), strict)
    io, tokens = _open_file(path, SEQ_FILE)
    memory.state_read(io, seq, 0)
    return tokens


def _try_first(memory: Memory, load: Callable[[Memory], object], strict: bool, flags: int = 0) -> None:
    """Try the restore on a copy of the metadata, where it may fail: whatever it raises leaves the original
    as it was. Needed if failures must not show (``strict``), and if llama.cpp may end half-way."""
    if strict:
        load(memory.copy_metadata())
    elif memory.restore_may_end or flags & ON_DEVICE:
        with suppress(StateError):
            load(memory.copy_metadata())


def _storage(device: DeviceStates | None) -> DeviceStates:
    if device is None:
        raise CacheUsageError("ON_DEVICE needs the device storage of a context: use Context.state_seq_get")
    return device


def _check_arch(io: StateReader, arch: str) -> None:
    found = io.string("the architecture")
    if found != arch:
        raise StateError(f"the state is of a model of architecture {found[:64]!r}, this one is {arch!r}")


def _write_file(path: Path, header: tuple[int, int], tokens: Sequence[int], state: bytes) -> int:
    head = struct.pack("<III", *header, len(tokens)) + np.asarray(tokens, "<i4").tobytes()
    path.write_bytes(head + state)
    return len(head) + len(state)


def _open_file(path: Path, header: tuple[int, int]) -> tuple[StateReader, list[int]]:
    io = StateReader(path.read_bytes(), immediate=True)
    magic, version = io.u32("the magic number"), io.u32("the version")
    if magic != header[0]:
        raise StateError(f"{path}: begins with 0x{magic:08x}, not 0x{header[0]:08x}: another kind of file")
    if version != header[1]:
        raise StateError(f"{path}: {refusal(magic, version)}")
    n_tokens = io.u32("the token count")
    return io, np.frombuffer(io.take(4 * n_tokens, "the tokens"), "<i4").tolist()
