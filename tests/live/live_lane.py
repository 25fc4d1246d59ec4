"""What the tests of the live lane share: the library if it is there, and model files."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kvsim.lanes.library import LaneError, find_library
from kvsim.models.tiny import write_tiny

_FOLDER = TemporaryDirectory(prefix="kvsim-tiny-")


def _missing() -> str:
    for package in ("cffi", "gguf"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    try:
        find_library()
    except LaneError as error:
        return str(error)
    return ""


needs_library = pytest.mark.skipif(bool(_missing()), reason=f"no live llama.cpp: {_missing()}")


@cache
def model_file(name: str) -> Path:
    """The tiny model of that name, written once."""
    path = Path(_FOLDER.name) / f"{name}.gguf"
    write_tiny(name, path)
    return path
