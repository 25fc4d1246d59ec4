"""Both sides of ``kvsim bench engine`` do the same work: what is compared is one computation."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from typer.testing import CliRunner

from engine import bench
from kvsim.bench.cells import edits
from kvsim.cli import app

SMALL = {"N_LAYER": 2, "CONTEXT": 1024, "FILLED": 512, "STEPS": 2, "REPEATS": 2}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(bench, name, value)


@pytest.mark.parametrize("static", [True, False])
def test_a_decoded_token_attends_the_same_through_the_engine_and_through_transformers(static: bool) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'kvsim[bench]'")
    inputs = bench.Inputs.random()
    ours, theirs = bench.EngineSide(inputs), bench.TransformersSide(inputs, static)
    for _ in range(2):
        found, wanted = ours.decode(), theirs.decode()
        assert wanted.abs().max() > 1e-4
        torch.testing.assert_close(found.flatten(), wanted.flatten())


def test_the_command_measures_every_row_beside_something() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'kvsim[bench]'")
    run = CliRunner().invoke(app, ["bench", "engine", "--size", "2048", "--json"])
    assert run.exit_code == 0, run.output
    rows = json.loads(run.stdout)["rows"]
    beside = [row["against"].removesuffix(" (not installed)").split(" b")[0] for row in rows]
    assert beside == [
        "StaticCache", "StaticCache and SDPA", "DynamicCache", "DynamicCache and SDPA",
        "bare SDPA, contiguous", *["numpy (kvsim)", "llama.cpp"] * ((len(rows) - 5) // 2),
    ]  # fmt: skip
    assert {row["name"] for row in rows[5:]} == {edit.name for edit in edits(2048)}
    goals = [row["goal"] for row in rows[:5]]
    assert goals == ["within 3 times", None, None, None, "within 1.3 times"]
    assert all(row["seconds"] > 0 for row in rows)


def test_without_transformers_the_engine_is_measured_alone_and_the_rows_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    rows = list(bench.decode_rows())
    assert [row.against for row in rows] == [bench.ABSENT] * 4
    assert [(row.seconds > 0, row.reference) for row in rows] == [(True, None)] * 4
