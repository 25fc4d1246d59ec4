"""``kvsim app TRACE`` opens that trace."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from kvsim.cli import app

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "fixtures" / "museum" / "lanes-cut-apart.jsonl"


def test_the_trace_that_was_named_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSIM_TRACE", str(TRACE))
    at = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60).run()
    assert not at.exception
    assert at.session_state["upload"][0] == TRACE.name
    assert at.session_state["opened"].n_steps == 3
    assert at.session_state["scenario"] is None, "the choice names no other recording"


def test_a_log_that_was_named_is_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(gzip.decompress((ROOT / "fixtures/logs/llama-debug3.log.gz").read_bytes()))
    monkeypatch.setenv("KVSIM_TRACE", str(log))
    at = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60).run()
    assert not at.exception
    assert at.session_state["opened"].n_steps == 24
    assert at.session_state["opened"].shows == "all cells"


def test_a_file_that_is_not_there_is_refused_before_anything_starts() -> None:
    done = CliRunner().invoke(app, ["app", "/no/such.jsonl"])
    assert done.exit_code == 2
    assert "/no/such.jsonl: no such file" in done.output
