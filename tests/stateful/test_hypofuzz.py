"""HypoFuzz collects machines, plays them, and a failure is saved as a trace, within a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvsim.errors import TraceError
from kvsim.trace import read_trace

pytest.importorskip("hypofuzz", reason="HypoFuzz is not installed: pip install 'kvsim[fuzz]'")

HERE = Path(__file__).parent
LIMIT = 300
"""Seconds; on an idle machine it needs ten."""

TESTS = """
from difftest_subjects import KeepsLast
from hypothesis import settings
from kvsim.testing import CacheMachine

settings.load_profile("default")  # under CI=true Hypothesis derandomizes, and HypoFuzz leaves such tests out

class Machine(CacheMachine):
    subject = KeepsLast
    memory = "kv"

TestKeepsLast = Machine.TestCase
"""

COLLECT = """
from hypofuzz.collection import collect_tests
found = collect_tests(["-p", "no:cacheprovider", "test_my_cache.py"])
print(*[target.nodeid for target in found.fuzz_targets], len(found.not_collected))
"""

FUZZ = "from hypothesis.extra.cli import main; main()"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "test_my_cache.py").write_text(TESTS)
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{HERE.parents[1]}")
    return tmp_path


def test_it_collects_a_machine(folder: Path) -> None:
    line = [sys.executable, "-c", COLLECT]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=True)
    assert done.stdout.split() == ["test_my_cache.py::TestKeepsLast::runTest", "0"]


def test_it_plays_a_machine_and_the_failure_is_a_trace(folder: Path) -> None:
    """HypoFuzz goes on until it is stopped; whether its own shrinking succeeds does not matter."""
    line = [sys.executable, "-c", FUZZ, "fuzz", "--no-dashboard", "-n", "1", "--", "test_my_cache.py"]
    process = subprocess.Popen(
        line, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    trace, end = folder / "failures" / "Machine.jsonl", time.monotonic() + LIMIT
    try:
        while not is_whole(trace) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert is_whole(trace), f"nothing was found in {LIMIT} s"
    assert read_trace(trace).header.config["failure"]["subject"] == "the same"


def is_whole(trace: Path) -> bool:
    try:
        return len(list(read_trace(trace))) > 1
    except TraceError:
        return False
