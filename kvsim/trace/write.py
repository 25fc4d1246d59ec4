"""Writing a trace, in the layout of the recordings."""

from __future__ import annotations

import gzip
import json
import os
from types import TracebackType
from typing import Any, BinaryIO

from kvsim.trace.header import Header
from kvsim.trace.read import Step

_LEVEL = 6
"""Of gzip: pictures come out one or two percent larger than at the highest level, in a fifth of the time."""


class TraceWriter:
    """Writes a header and then steps; gzip if the name ends in ``.gz``. Use it in a ``with`` statement.

    A picture equal to the one before is left out, so what was read is written as the same lines.
    The same steps always give the same bytes.
    """

    def __init__(self, path: str | os.PathLike[str], header: Header) -> None:
        self._raw: BinaryIO = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._file: BinaryIO = self._raw
        if os.fspath(path).endswith(".gz"):
            # no name and no time in the gzip header, so that equal traces are equal files
            self._file = gzip.GzipFile("", "wb", _LEVEL, self._raw, mtime=0)  # type: ignore[assignment]
        self._after: dict[str, Any] | None = None
        self._line(header.to_json())

    def write(self, step: Step) -> None:
        """Add one step."""
        self._line(step.to_json(changed=step.after != self._after))
        self._after = step.after

    def close(self) -> None:
        self._file.close()
        self._raw.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _line(self, value: dict[str, Any]) -> None:
        self._file.write(json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n")
