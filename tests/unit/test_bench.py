"""Benchmarks: goals, and tables that are complete and well-formed. Times are never checked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from kvsim.bench import campaign, cells, tensors
from kvsim.bench.measure import Goal, Row, beside_copy, in_words, median_of, side_by_side
from kvsim.cli import app
from kvsim.lanes.library import LaneError
from kvsim.models.cache_types import CACHE_TYPES, cache_type
from kvsim.testing.cache_info import CACHES

SIZE = 1024


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.bench.measure.COPIED", 1 << 16)
    monkeypatch.setattr(tensors, "torch_if_installed", lambda: None)


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path | None) -> Path:
        raise LaneError("not installed")

    monkeypatch.setattr(cells, "find_library", missing)


@pytest.mark.parametrize(
    ("goal", "seconds", "reference", "held", "text"),
    [
        (Goal("faster", 20), 1.0, 20.0, True, "20 times faster"),
        (Goal("faster", 20), 1.0, 19.9, False, "20 times faster"),
        (Goal("within", 2), 2.0, 1.0, True, "within 2 times"),
        (Goal("within", 2), 2.1, 1.0, False, "within 2 times"),
        (Goal("within", 2), 2.1, None, None, "within 2 times"),
        (Goal("seconds", 1e-4), 1e-4, None, True, "under 100 us"),
        (Goal("seconds", 1e-4), 2e-4, None, False, "under 100 us"),
        (Goal("rate", 5000), 1 / 5000, None, True, "5,000/s"),
        (Goal("rate", 5000), 1 / 4999, None, False, "5,000/s"),
    ],
)
def test_goals(goal: Goal, seconds: float, reference: float | None, held: bool | None, text: str) -> None:
    row = Row("x", seconds, reference=reference, goal=goal)
    assert (row.held, str(goal)) == (held, text)


def test_a_row_without_a_reference_has_no_ratio() -> None:
    assert Row("x", 1.0).to_json() == {
        "name": "x", "seconds": 1.0, "against": "-", "reference": None, "ratio": None, "goal": None,
        "held": None,
    }  # fmt: skip
    assert Row("x", 1.0, "y", 4.0).ratio == 0.25


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.56e-5, "45.6 us"), (7e-9, "7 ns")]
)
def test_seconds_in_words(seconds: float, text: str) -> None:
    assert in_words(seconds) == text


def test_both_sides_run_as_often_and_in_turns() -> None:
    calls: list[str] = []
    side_by_side(lambda: calls.append("ours"), lambda: calls.append("theirs"), 3)
    assert calls == ["ours", "theirs"] * 3
    median_of(lambda: calls.append("do"), 2, lambda: calls.append("undo"))
    assert calls[6:] == ["do", "undo"] * 2


def test_a_copy_is_scaled_to_the_bytes() -> None:
    _, one = beside_copy(lambda: None, 1 << 16, 1)
    _, none = beside_copy(lambda: None, 0, 1)
    assert one > 0
    assert none == 0


@pytest.mark.usefixtures("no_library")
def test_cells_without_the_library() -> None:
    rows = list(cells.cells_table(SIZE, repeats=1))
    names = [row.name for row in rows]
    assert names == [
        "seq_cp of a whole sequence", "seq_rm of a whole sequence", "seq_keep of one of two sequences",
        "seq_add of 959 positions", "decode of one token: here its cells, there all of it",
        "slot search and apply, 0.0% full", "slot search and apply, 50.0% full",
        "slot search and apply, 90.0% full", "slot search and apply, 99.9% full",
        "slot search and apply, every other cell free", "causal mask, 512 x 1,024",
        "K-shift, f16 (neighbours)",
        "defragmentation, 256 cells in runs of 16", "stream copy, 512 cells",
        "seeded campaign against the ledger, an operation",
    ]  # fmt: skip
    assert all(row.seconds > 0 for row in rows)
    assert [row.against for row in rows[:5]] == ["llama.cpp (not installed)"] * 5
    assert [row.held for row in rows[:5]] == [None] * 5
    assert all(row.held is not None for row in rows[5:])


def test_a_library_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(LaneError, match="no such file"):
        list(cells.cells_table(SIZE, lib=tmp_path / "libllama.so", repeats=1))


def test_the_edits_undo_each_other() -> None:
    """What is measured is the same each time: the cells are as before after an edit and what undoes it."""
    params = cells.params_for(SIZE)
    context = cells.filled(params, SIZE - cells.LEFT_FREE)
    for edit in cells.edits(SIZE):
        ops = [edit.undo] if edit.undo.op == "seq_cp" else []
        cells.clock(context, ops)
        before = context.memory.snapshot().to_json()
        cells.clock(context, [edit.op])
        changed = context.memory.snapshot().to_json()
        cells.clock(context, [edit.undo])
        after = context.memory.snapshot().to_json()
        assert before != changed
        assert before["pos"] == after["pos"]
        assert [c[:3] for c in before["caches"]["kv"][0]["cells"]] == [
            c[:3] for c in after["caches"]["kv"][0]["cells"]
        ]
        cells.clock(context, [cells.UNSHARE])


def test_tensors_table_has_every_type() -> None:
    rows = list(tensors.tensors_table(SIZE, repeats=1))
    names = [row.name for row in rows]
    for kind in CACHE_TYPES:
        assert any(name.startswith(f"K-shift, {kind} ") for name in names)
        assert {f"encode {kind}", f"decode {kind}"} <= set(names)
    assert {"K-shift, f32 (halves)", "K-shift, f16 (neighbours), 50% of the cells"} <= set(names)
    assert len(names) == len(set(names))
    assert names[-2:] == [
        "attention, 16 tokens, 8 heads, 64 cells", "lightning indexer, 16 tokens, best 64 of 64 cells",
    ]  # fmt: skip
    assert all(row.seconds > 0 for row in rows)


def test_rows_repeat_what_was_encoded() -> None:
    rows = tensors.rows_of(cache_type("q8_0"), 600)
    assert rows.shape == (600, 272)
    assert np.array_equal(rows[:88], rows[512:])


@pytest.mark.usefixtures("no_library")
def test_the_command_prints_a_table_and_json(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row("turn", 2e-3, "copy", 1e-3, Goal("within", 2))
    monkeypatch.setattr(tensors, "tensors_table", lambda size: iter([row]))
    run = CliRunner().invoke(app, ["bench", "tensors"])
    assert run.exit_code == 0
    assert re.search(r"turn +│ +2 ms +│ +copy +│ +1 ms +│ +2x +│ +within 2 times +│ +yes", run.stdout)
    run = CliRunner().invoke(app, ["bench", "tensors", "--json", "--size", "2048"])
    report = json.loads(run.stdout)
    assert (report["bench"], report["cells"]) == ("tensors", 2048)
    assert report["rows"][0]["held"] is True


def test_the_command_refuses_what_it_cannot_measure(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["bench", "cells", "--lib", str(tmp_path / "nothing.so")])
    assert run.exit_code == 2
    assert "nothing.so: no such file" in run.stderr
    assert CliRunner().invoke(app, ["bench", "cells", "--size", "3"]).exit_code == 2


@pytest.mark.parametrize(
    "args",
    [
        ["campaign", "--size", "2048"],
        ["app", "--size", "2048"],
        ["trace", "--lib", "x"],
        ["cells", "--users", "3"],
    ],
)
def test_options_without_effect_are_refused(args: list[str]) -> None:
    run = CliRunner().invoke(app, ["bench", *args])
    assert run.exit_code == 2
    assert run.stderr == f"{args[1]} changes nothing in kvsim bench {args[0]}: leave it out\n"


def test_the_campaign_has_a_row_for_every_member(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(campaign.CACHES) == list(CACHES)
    monkeypatch.setattr(campaign, "CACHES", {"recurrent": CACHES["recurrent"]})
    monkeypatch.setattr(campaign, "ROUNDS", 1)
    done = CliRunner().invoke(app, ["bench", "campaign", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["bench"] == "campaign"
    assert [row["name"] for row in told["rows"]] == ["recurrent, operation with every check"]
    assert 0 < told["rows"][0]["seconds"] < 1
