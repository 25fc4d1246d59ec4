"""Recompute what llama.cpp computed: the numeric goldens, one module per family.

A golden is one ``.npz`` file in a folder named after its family (``fixtures/goldens/README.md``). The
module of that name has ``check(arrays, meta) -> list[ArrayCheck]``: it computes from the recorded inputs
and compares with the recorded results. Files are only read, families are imported when first needed.
"""

from __future__ import annotations

import importlib
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvsim.errors import KvsimError

Arrays = Mapping[str, NDArray[Any]]
Meta = Mapping[str, Any]

FAMILIES = (
    "rowcodec",
    "kshift",
    "masks",
    "attention",
    "dsa",
    "msa",
    "dsv4",
    "kpool",
    "recurrent",
    "ngram",
    "logits",
)


class GoldenError(KvsimError):
    """A path that holds no golden, or a golden that cannot be read."""


@dataclass(frozen=True)
class ArrayCheck:
    """One comparison. ``tolerance`` 0 means exact; then ``max_error`` counts the differing elements."""

    name: str
    max_error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.max_error <= self.tolerance


@dataclass(frozen=True)
class Result:
    """All comparisons of one file."""

    path: Path
    family: str
    checks: tuple[ArrayCheck, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


def exact(name: str, got: ArrayLike, want: ArrayLike) -> ArrayCheck:
    """Compare indices, masks or bytes: the error is the number of differing elements."""
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return ArrayCheck(f"{name}: shape {got.shape}, recorded {want.shape}", np.inf, 0)
    return ArrayCheck(name, int(np.count_nonzero(got != want)), 0)


def close(name: str, got: ArrayLike, want: ArrayLike, tolerance: float) -> ArrayCheck:
    """Compare values by their largest absolute difference. Infinities must agree; NaN never does."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape:
        return ArrayCheck(f"{name}: shape {got.shape}, recorded {want.shape}", np.inf, tolerance)
    with np.errstate(invalid="ignore"):
        error = np.where(got == want, 0.0, np.abs(got - want))
    worst = float(np.max(np.nan_to_num(error, nan=np.inf), initial=0.0))
    return ArrayCheck(name, worst, tolerance)


def load(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read one golden: its arrays and its metadata, to which ``path`` (str) is added.

    Raises GoldenError if the file is damaged or is no golden.
    """
    try:
        with np.load(path) as npz:
            arrays = {name: npz[name] for name in npz.files}
        meta = json.loads(bytes(arrays.pop("meta_json")))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise GoldenError(f"{path}: not a readable golden (.npz with meta_json): {error}") from error
    return arrays, {**meta, "path": str(path)}


def golden_files(paths: Iterable[Path | str]) -> list[Path]:
    """The ``.npz`` files under the given files and folders, in order. Raises GoldenError for none."""
    found: list[Path] = []
    for path in map(Path, paths):
        files = sorted(path.rglob("*.npz")) if path.is_dir() else [path]
        if not files or not files[0].is_file():
            raise GoldenError(f"{path}: no goldens there; give .npz files or folders that hold some")
        found += files
    for path in found:
        family_of(path)
    return found


def family_of(path: Path) -> str:
    """The family of a golden: the name of its folder. Raises GoldenError if there is no such family."""
    family = path.resolve().parent.name
    if family not in FAMILIES:
        raise GoldenError(f"{path}: its folder {family!r} is no family of goldens ({', '.join(FAMILIES)})")
    return family


def verify(paths: Iterable[Path | str]) -> Iterator[Result]:
    """Check goldens (files, or folders searched for ``.npz``) one by one.

    Raises GoldenError before the first result if a path is wrong, and at a file that is damaged.
    """
    for path in golden_files(paths):
        yield verify_file(path)


def verify_file(path: Path) -> Result:
    """Check one golden."""
    family = family_of(path)
    arrays, meta = load(path)
    module = importlib.import_module(f"kvsim.verify.{family}")
    try:
        checks = module.check(arrays, meta)
    except KeyError as error:
        raise GoldenError(f"{path}: incomplete golden of family {family}: {error} is missing") from error
    return Result(path, family, tuple(checks))
