"""Dependencies point downward only (CONTRIBUTING.md, The map)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kvsim

PACKAGE = Path(kvsim.__file__).parent
ABOVE = {
    "tensors": {"caches", "verify", "bench", "testing", "lanes", "cli", "render", "player"},
    "caches": {"verify", "bench", "testing", "lanes", "cli", "render", "player", "policies", "workload"},
}
"""Rooms that the modules of a room must not import."""


def imported(module: Path) -> set[str]:
    """The rooms of kvsim that a module imports, also where it only needs their types."""
    nodes = ast.walk(ast.parse(module.read_text(encoding="utf-8")))
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.split(".")[1] for name in names if name.startswith("kvsim.")}


@pytest.mark.parametrize(
    "module",
    [path for room in ABOVE for path in sorted((PACKAGE / room).rglob("*.py"))],
    ids=lambda p: p.stem,
)
def test_nothing_above_is_imported(module: Path) -> None:
    assert not imported(module) & ABOVE[module.parent.name]


@pytest.mark.parametrize("module", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_neither_torch_nor_streamlit_is_imported(module: Path) -> None:
    """Not even inside a function: what needs them is above."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    assert not {name.split(".")[0] for name in names} & {"torch", "streamlit"}


def test_an_import_from_above_would_be_seen() -> None:
    assert {"tensors", "batch"} <= imported(PACKAGE / "caches" / "pool_inputs.py")
