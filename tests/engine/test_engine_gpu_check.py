"""The prepared GPU run: says so where there is none, and measures what it names."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from engine.gpu_check import NO_GPU, table


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a CUDA device there is nothing to refuse")
def test_without_a_gpu_it_says_so_and_exits_3() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine.gpu_check"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == NO_GPU == 3
    assert "no GPU" in done.stderr
    assert not done.stdout


def test_the_table_measures_every_operation() -> None:
    """On the CPU, on a small cache: the figures mean nothing here, that there are any does."""
    rows = table("cpu", n_cells=1024, n_tokens=32, repeats=2)
    assert [row.operation.split(",")[0] for row in rows] == [
        "K-shift", "rows moved by a compaction", "stream copy", "decode attention", "indexer", "mask",
    ]  # fmt: skip
    row = 8 * 128 * 2
    assert [r.n_bytes for r in rows[:4]] == [1024 * row, 256 * 2 * row, 512 * 2 * row, 1024 * 2 * row]
    assert all(r.microseconds > 0 and r.fraction > 0 for r in rows)
