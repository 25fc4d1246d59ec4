"""Finding the library, and refusing one that we would misread."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from live_lane import needs_library

from kvsim.lanes import library
from kvsim.lanes.declarations import VERSIONS
from kvsim.lanes.library import LaneError, find_library, mismatch, open_library


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LaneError, match=r"libllama\.so: no such file; give the shared library itself"):
        find_library(tmp_path / "libllama.so")


def test_without_the_wheel_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "WHEEL", "no_such_wheel")
    with pytest.raises(LaneError, match=r"pip install 'kvsim\[llamacpp\]', or name one with --lib"):
        find_library()


@needs_library
def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "libllama.so"
    path.write_text("not a library")
    with pytest.raises(LaneError, match="cannot be loaded"):
        open_library(path)


@needs_library
def test_a_library_without_the_functions_names_the_known_versions() -> None:
    import _cffi_backend  # a shared library, but another

    found = Path(_cffi_backend.__file__)
    with pytest.raises(LaneError, match=r"not a version of llama\.cpp that the lane knows") as error:
        open_library(found)
    for version in VERSIONS:
        assert f"not {version.name}: " in str(error.value)


@needs_library
def test_the_wheel_is_the_version_it_is_pinned_to() -> None:
    assert open_library()[2].name == "b11549"


@needs_library
@pytest.mark.parametrize(
    ("part", "field", "value"),
    [("context", "n_ubatch", 513), ("context", "ctx_other", 1), ("model", "lazy_mode", 0)],
)
def test_one_default_elsewhere_is_a_mismatch(part: str, field: str, value: int) -> None:
    ffi, lib, version = open_library()
    assert mismatch(ffi, lib, version) == ""
    other = replace(version, **{part: {**getattr(version, part), field: value}})
    assert f"llama_{part}_default_params() has {field} = " in mismatch(ffi, lib, other)
    assert f"expected {value}" in mismatch(ffi, lib, other)


@needs_library
def test_the_layout_of_another_version_is_a_mismatch() -> None:
    import cffi

    b11549, *older = VERSIONS
    for version in older:
        ffi = cffi.FFI()
        ffi.cdef(version.declarations)
        lib = ffi.dlopen(str(find_library()), ffi.RTLD_NODELETE)
        assert mismatch(ffi, lib, version) != ""
        assert b11549.context == version.context


@needs_library
def test_a_function_that_is_missing_is_a_mismatch() -> None:
    import cffi

    version = replace(
        VERSIONS[0],
        declarations=VERSIONS[0].declarations + "void llama_nothing(void);",
        function="llama_nothing",
    )
    ffi = cffi.FFI()
    ffi.cdef(version.declarations)
    lib = ffi.dlopen(str(find_library()), ffi.RTLD_NODELETE)
    assert "llama_nothing" in mismatch(ffi, lib, version)
