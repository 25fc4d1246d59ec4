"""Every golden recorded from llama.cpp is recomputed within its tolerance."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from kvsim.verify import FAMILIES, GoldenError, close, exact, verify, verify_file

GOLDENS = Path(__file__).parents[2] / "fixtures" / "goldens"
CHECKED = [f for f in FAMILIES if importlib.util.find_spec(f"kvsim.verify.{f}")]
FILES = [path for family in CHECKED for path in sorted((GOLDENS / family).glob("*.npz"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_golden(path: Path) -> None:
    result = verify_file(path)
    assert result.checks, "nothing was compared"
    wrong = [f"{c.name}: {c.max_error:.3g} > {c.tolerance:.3g}" for c in result.checks if not c.ok]
    assert not wrong, "\n".join(wrong)


def test_a_changed_value_is_found(tmp_path: Path) -> None:
    """The comparison can fail: one visible cell of a recorded mask is hidden."""
    folder = tmp_path / "masks"
    folder.mkdir()
    arrays = dict(np.load(GOLDENS / "masks" / "unified_holes.npz"))
    first_visible = np.argwhere(arrays["kv.mask"] == 0)[0]
    arrays["kv.mask"][tuple(first_visible)] = -np.inf
    np.savez(folder / "changed.npz", **arrays)
    (result,) = verify([tmp_path])
    assert not result.ok
    assert [(c.name, c.ok) for c in result.checks] == [("kv.mask", False)]


def test_paths_are_checked_first(tmp_path: Path) -> None:
    with pytest.raises(GoldenError, match="no goldens there"):
        next(verify([GOLDENS / "masks", tmp_path / "missing"]))
    (tmp_path / "other.npz").touch()
    with pytest.raises(GoldenError, match="no family of goldens"):
        next(verify([GOLDENS / "masks", tmp_path]))


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04damaged"])
def test_a_damaged_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "masks" / "damaged.npz"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(GoldenError, match=r"damaged\.npz: not a readable golden"):
        next(verify([path]))


def test_an_incomplete_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "masks" / "short.npz"
    path.parent.mkdir()
    np.savez(path, meta_json=np.frombuffer(b'{"caches": {"kv": {}}}', np.uint8))
    with pytest.raises(GoldenError, match=r"incomplete golden of family masks: 'kv\.mask'"):
        verify_file(path)


def test_comparisons_count_or_measure() -> None:
    assert exact("a", [1, 2, 3], [1, 0, 0]).max_error == 2
    assert exact("a", [1], [1, 1]).ok is False
    assert close("a", [1.0, np.inf], [1.5, np.inf], 0.5).max_error == 0.5
    assert not close("a", [np.nan], [np.nan], 1.0).ok
    assert not close("a", [np.inf], [1.0], 1.0).ok
    assert not close("a", [1.0], [1.0, 1.0], 1.0).ok
