"""Every golden recorded from llama.cpp is recomputed within its tolerance."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from kvsim.verify import FAMILIES, verify_file

GOLDENS = Path(__file__).parents[2] / "fixtures" / "goldens"
CHECKED = [f for f in FAMILIES if importlib.util.find_spec(f"kvsim.verify.{f}")]
FILES = [path for family in CHECKED for path in sorted((GOLDENS / family).glob("*.npz"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_golden(path: Path) -> None:
    result = verify_file(path)
    assert result.checks, "nothing was compared"
    wrong = [f"{c.name}: {c.max_error:.3g} > {c.tolerance:.3g}" for c in result.checks if not c.ok]
    assert not wrong, "\n".join(wrong)
