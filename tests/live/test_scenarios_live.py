"""Scenarios on the real llama.cpp: recorded, read, replayed on kvsim without a difference."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_lane import model_file, needs_library
from typer.testing import CliRunner

from kvsim.cli import app
from kvsim.replay import replay_beside
from kvsim.scenarios import ScenarioError, load_scenario
from kvsim.scenarios.live import record_live
from kvsim.trace import TraceWriter, compare_step, read_trace

pytestmark = needs_library


@pytest.mark.parametrize(
    "name", ["save-restore-fragmented", "window-checkpoint", "separate-streams", "hybrid-checkpoint"]
)
def test_a_recording_of_the_library_replays_without_a_difference(name: str, tmp_path: Path) -> None:
    scenario, unexpected = load_scenario(name), []
    header, steps = record_live(scenario, model_file(scenario.model), report=unexpected.append)
    path = tmp_path / "live.jsonl.gz"
    with TraceWriter(path, header) as writer:
        for step in steps:
            writer.write(step)
    trace = read_trace(path)
    assert trace.header.source.startswith("llama.cpp ")
    assert unexpected == []
    most = 0
    for recorded, computed in replay_beside(trace):
        assert compare_step(recorded, computed) == []
        caches = recorded.after["caches"].values()
        most = max(most, sum(len(stream["cells"]) for streams in caches for stream in streams))
    assert most > 60  # cells were seen, and so compared


def test_a_difference_of_one_cell_would_be_seen(tmp_path: Path) -> None:
    scenario = load_scenario("prefix-reuse")
    header, steps = record_live(scenario, model_file("llama"))
    path = tmp_path / "live.jsonl"
    with TraceWriter(path, header) as writer:
        for step in steps:
            writer.write(step)
    text = path.read_text()
    assert text.count("[61,61,[0],0,-1,0,0]") > 3
    path.write_text(text.replace("[61,61,[0],0,-1,0,0]", "[61,61,[1],0,-1,0,0]", 1))
    found = [str(d) for pair in replay_beside(read_trace(path)) for d in compare_step(*pair)]
    cells = "recorded [61, 61, [1], 0, -1, 0, 0], computed [61, 61, [0], 0, -1, 0, 0]"
    assert found == [f"after.caches.kv[0].cells[61]: {cells}"]


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    scenario = load_scenario("prefix-reuse")
    with pytest.raises(ScenarioError, match="no such file"):
        record_live(scenario, model_file("llama"), tmp_path / "libllama.so")


def test_on_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl.gz"
    model = str(model_file("llama"))
    result = CliRunner().invoke(app, ["record", "full-cache", "--model", model, "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "8 operations on llama.cpp " in result.stdout
    replayed = CliRunner().invoke(app, ["replay", str(out)])
    assert (replayed.exit_code, "0 differences" in replayed.stdout) == (0, True)
