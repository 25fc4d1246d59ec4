"""An uploaded model file as a file on disk, for readers that map files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Upload(Protocol):
    """What Streamlit gives for a file."""

    def getvalue(self) -> bytes: ...


@contextmanager
def on_disk(file: Upload) -> Iterator[str]:
    """The path of a copy, which is gone afterwards: a page keeps what it has read, not the file."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as copy:
        copy.write(file.getvalue())
        copy.flush()
        yield copy.name
