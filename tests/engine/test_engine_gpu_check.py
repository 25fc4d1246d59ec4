"""The prepared GPU run: says so where there is none, and measures what it names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pretended_gpu import pretended_gpu

from engine import gpu_check
from engine.gpu_check import NO_GPU, Failed, Measured, table
from engine.store import KVStore

OPERATIONS = [
    "K-shift", "rows moved by a compaction", "stream copy", "decode attention", "indexer", "mask",
]  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a CUDA device there is nothing to refuse")
def test_without_a_gpu_it_says_so_and_exits_3() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine.gpu_check"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == NO_GPU == 3
    assert "no GPU" in done.stderr
    assert not done.stdout


def test_the_table_measures_every_operation(device: str) -> None:
    """On a small cache: without a GPU the figures mean nothing, that there are any does."""
    rows = list(table(device, n_cells=1024, n_tokens=32, repeats=2))
    assert all(isinstance(row, Measured) for row in rows), rows
    assert [row.operation.split(",")[0] for row in rows] == OPERATIONS
    row = 8 * 128 * 2
    assert [r.n_bytes for r in rows[:4]] == [1024 * row, 256 * 2 * row, 512 * 2 * row, 1024 * 2 * row]
    assert all(r.microseconds > 0 and r.fraction > 0 for r in rows)


def test_an_operation_that_fails_leaves_the_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: KVStore, src: int, dst: int) -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(KVStore, "copy_stream", broken)
    rows = list(table("cpu", n_cells=1024, n_tokens=32, repeats=1))
    assert rows[2] == Failed("stream_copy", "RuntimeError('an illegal memory access')")
    assert [isinstance(row, Measured) for row in rows] == [True, True, False, True, True, True]


@pytest.mark.parametrize(("tests_pass", "copies"), [(True, True), (False, True), (True, False)])
def test_a_whole_run_writes_what_it_has_found(
    tests_pass: bool, copies: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(gpu_check, "run_tests", lambda: (tests_pass, "12 passed"))
    monkeypatch.setattr(gpu_check, "N_CELLS", 1024)
    monkeypatch.setattr(gpu_check, "N_TOKENS", 32)
    if not copies:
        monkeypatch.delattr(KVStore, "copy_stream")
    with pretended_gpu(), monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "get_device_name", lambda: "none at all")
        status = gpu_check.main(["--out", str(tmp_path / "out.json")])
    assert status == (0 if tests_pass and copies else 1)
    report = json.loads((tmp_path / "out.json").read_text())
    assert report == json.loads(capsys.readouterr().out)
    assert (report["device"], report["tests_passed"], report["tests"]) == (
        "none at all",
        tests_pass,
        "12 passed",
    )
    assert len(report["rows"]) == (6 if copies else 5)
    assert [line["operation"] for line in report["failed"]] == ([] if copies else ["stream_copy"])


def test_tests_that_take_too_long_say_how_far_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*args: object, **kwargs: object) -> None:
        raise subprocess.TimeoutExpired("pytest", 1, output=b"....F.")

    monkeypatch.setattr(subprocess, "run", late)
    passed, tail = gpu_check.run_tests()
    assert not passed
    assert tail.startswith("....F.\nthe tests took more than")


def test_the_run_selects_the_tests_on_a_gpu_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked to collect only, it names them."""
    real = subprocess.run

    def collect(command: list[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        return real([part for part in command if part != "-q"] + ["--collect-only"], **kwargs)

    monkeypatch.setattr(subprocess, "run", collect)
    monkeypatch.setattr(gpu_check, "TAIL", 1_000_000)
    passed, listed = gpu_check.run_tests()
    chosen = [line for line in listed.splitlines() if "::" in line]
    assert passed
    assert len(chosen) > 100
    assert all("[cuda" in line for line in chosen)
