"""Reading a trace: the header at once, the operations one by one."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from kvsim.errors import TraceError
from kvsim.trace.header import Header
from kvsim.trace.lines import read_lines
from kvsim.trace.operation import EXTRA, OPTIONAL_EXTRA, check_operation
from kvsim.trace.picture import check_picture, check_ubatches


@dataclass(frozen=True)
class Step:
    """One operation and what came of it, in the values of the format: all of it can be written as JSON.

    ``after`` is always the whole picture (the file leaves it out where nothing changed; steps between
    which nothing changed may share one object, so take it as read-only). ``ubatches`` is None but for
    a decode. ``extra`` holds what only some operations carry: ``size``, ``sha256``, ``blob`` of a saved
    state, ``k`` and ``v`` of ``rows``.
    """

    i: int
    op: str
    args: dict[str, Any]
    ret: int | None
    ubatches: list[dict[str, Any]] | None
    after: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self, changed: bool = True) -> dict[str, Any]:
        """The line of this step; without its picture unless ``changed``."""
        ubatches = {} if self.ubatches is None else {"ubatches": self.ubatches}
        after = self.after if changed else None
        head = {"i": self.i, "op": self.op, "args": self.args, "ret": self.ret}
        return {**head, **ubatches, **self.extra, "after": after}


class Trace:
    """A recording: :attr:`header` is read and checked, iterating reads and checks the operations.

    Each iteration reads the file anew and holds one line at a time. Raises
    :class:`~kvsim.errors.TraceError` with file and line at the first one that cannot be used.
    """

    def __init__(self, source: str | os.PathLike[str] | bytes, name: str = "") -> None:
        self._source = source
        self.path = name or ("<bytes>" if isinstance(source, bytes) else os.fspath(source))
        self.bytes_total = 0
        self._file: BinaryIO | None = None
        with self._open() as file:
            self.bytes_total = file.seek(0, os.SEEK_END)
            file.seek(0)
            first = next(read_lines(file, self.path), None)
        if first is None:
            raise TraceError("the file is empty", self.path, 1)
        try:
            self.header = Header.from_json(first[1])
        except TraceError as error:
            raise TraceError(error.reason, self.path, 1) from None

    def __iter__(self) -> Iterator[Step]:
        with self._open() as file:
            self._file = file
            lines = read_lines(file, self.path)
            next(lines)
            reader = _Reader(self.header)
            for number, line in lines:
                try:
                    step = reader.read(line)
                except TraceError as error:
                    raise TraceError(error.reason, self.path, number) from None
                yield step
            if reader.count == 0:
                raise TraceError("no operations: the file ends after its header", self.path, 2)

    @property
    def bytes_read(self) -> int:
        """How far the latest iteration is in the file, in bytes as stored, for a progress display."""
        return self.bytes_total if self._file is None or self._file.closed else self._file.tell()

    def _open(self) -> BinaryIO:
        if isinstance(self._source, bytes):
            return io.BytesIO(self._source)
        try:
            return open(self._source, "rb")
        except OSError as error:
            raise TraceError(f"cannot be opened: {error.strerror}", self.path) from None
        except ValueError as error:  # a NUL in the name
            raise TraceError(f"cannot be opened: {error}", repr(self.path)) from None


def read_trace(source: str | os.PathLike[str] | bytes, name: str = "") -> Trace:
    """Open a trace: a path, or the bytes of a file; ``.jsonl`` or gzip, told by the content.

    ``name`` stands for the file in messages (the path if not given). Only the header is read here.
    Raises :class:`~kvsim.errors.TraceError` with file and line if it cannot be used.
    """
    return Trace(source, name)


class _Reader:
    """What must be remembered from line to line: the last picture, and which states were saved."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.count = 0
        self._after: dict[str, Any] | None = None
        self._slots: set[int] = set()

    def read(self, line: Any) -> Step:
        check_operation(line, self.header)
        self._check_order(line)
        self._check_slot(line)
        if line["after"] is not None:
            check_picture(line["after"], self.header, self._after)
            self._after = line["after"]
        ubatches = None
        if line["op"] == "decode":
            ubatches = line.get("ubatches")
            check_ubatches(ubatches, len(line["args"]["seq"]), self.header)
        self.count += 1
        assert self._after is not None  # operation 0 has a picture
        carried = (*EXTRA.get(line["op"], ()), *OPTIONAL_EXTRA.get(line["op"], ()))
        extra = {key: line[key] for key in carried if key in line}
        return Step(line["i"], line["op"], line["args"], line["ret"], ubatches, self._after, extra)

    def _check_order(self, line: dict[str, Any]) -> None:
        if line["i"] != self.count:
            raise TraceError(
                f"operation {line['i']} follows operation {self.count - 1}: lines are missing or doubled"
            )
        if (line["op"] == "init") != (self.count == 0):
            raise TraceError("operation 0, and only it, must be init")
        if self.count == 0 and line["after"] is None:
            raise TraceError("operation 0 has no picture to start from: its after is null")

    def _check_slot(self, line: dict[str, Any]) -> None:
        slot = line["args"].get("slot")
        if slot is None:
            return
        if line["op"].endswith("_get"):
            if slot in self._slots:
                raise TraceError(f"{line['op']} args.slot {slot} was saved before, each slot is used once")
            self._slots.add(slot)
        elif slot not in self._slots and "data" not in line["args"]:
            raise TraceError(f"{line['op']} args.slot {slot} was never saved")
