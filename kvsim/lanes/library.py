"""Finding llama.cpp's shared library, opening it, and making sure that we speak its version."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.lanes.declarations import VERSIONS, Version

WHEEL = "xllamacpp"
"""The wheel whose extension module exports the C API."""


class LaneError(KvsimError):
    """The live lane cannot be used: no library, an unknown version, a model that does not load."""


def find_library(path: Path | None = None) -> Path:
    """The library at ``path``, or that of the installed wheel. Raises LaneError if there is none."""
    if path is not None:
        if not path.is_file():
            raise LaneError(
                f"{path}: no such file; give the shared library itself, such as build/bin/libllama.so"
            )
        return path
    spec = importlib.util.find_spec(WHEEL)
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    for folder in folders:
        for found in sorted(folder.glob(f"{WHEEL}*.so")):
            return found
    raise LaneError(
        "llama.cpp's library is not installed: pip install 'kvsim[llamacpp]', or name one with --lib"
    )


def is_installed() -> bool:
    """Whether everything is there that the extra ``llamacpp`` brings."""
    return all(importlib.util.find_spec(package) for package in (WHEEL, "cffi", "gguf"))


def library_named(where: str) -> Path | None:
    """The library behind ``llamacpp@where``: a file, a folder that the wheel was unpacked into, or a version if
    that is the installed one (as is the empty text: None). Raises LaneError."""
    path = Path(where)
    if not where or path.is_file():
        return path if where else None
    if path.is_dir():
        found = [*path.glob(f"{WHEEL}*.so"), *path.glob(f"{WHEEL}/{WHEEL}*.so"), *path.glob("libllama.*")]
        if not found:
            raise LaneError(f"{path}: there is neither {WHEEL}*.so nor libllama.* in this folder")
        return sorted(found)[0]
    installed = open_library()[2]
    if installed.name == where:
        return None
    wheel = next((version.wheel for version in VERSIONS if version.name == where), "")
    how = f": pip install --no-deps --target {where} {WHEEL}=={wheel}, then name that folder" if wheel else ""
    raise LaneError(f"llama.cpp {where} is not here, installed is {installed.name}{how}")


def open_library(path: Path | None = None) -> tuple[Any, Any, Version]:
    """Open the library: cffi's ``ffi``, the library, and its version.

    Raises LaneError if there is none, or if its default parameters are those of no version known.
    """
    try:
        import cffi
    except ModuleNotFoundError as error:
        raise LaneError("the live lane needs cffi: pip install 'kvsim[llamacpp]'") from error
    found = find_library(path)
    reasons = []
    for version in VERSIONS:
        ffi = cffi.FFI()
        ffi.cdef(version.declarations)
        try:
            # never unloaded: its destructors don't survive that
            lib = ffi.dlopen(str(found), ffi.RTLD_NOW | ffi.RTLD_NODELETE)
        except OSError as error:
            raise LaneError(f"{found}: cannot be loaded: {error}") from error
        reason = mismatch(ffi, lib, version)
        if not reason:
            return ffi, lib, version
        reasons.append(f"not {version.name}: {reason}")
    raise LaneError(f"{found}: not a version of llama.cpp that the lane knows; {'; '.join(reasons)}")


def mismatch(ffi: Any, lib: Any, version: Version) -> str:
    """The first default parameter that is not what ``version`` has there; empty if there is none."""
    try:
        pairs = (
            ("llama_model_default_params", version.model),
            ("llama_context_default_params", version.context),
        )
        for function, defaults in pairs:
            params = getattr(lib, function)()
            for field, wanted in defaults.items():
                value = getattr(params, field)
                got = None if isinstance(value, ffi.CData) and value == ffi.NULL else value
                if got != wanted:
                    return f"{function}() has {field} = {got!r}, expected {wanted!r}"
        for name in ("llama_decode", "llama_state_seq_get_data_ext", version.function):
            getattr(lib, name)
    except AttributeError as error:
        return str(error)
    return ""
