"""What the player shows beside a step: both sides of what differs, or what the tester says of the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kvsim.ops import Op
from kvsim.player.notes import notes_of
from kvsim.testing.cache_info import CACHES
from kvsim.testing.match import DifferenceError
from kvsim.testing.recorded import write_failure, write_steps
from kvsim.trace import read_trace

MUSEUM = Path(__file__).parents[2] / "fixtures" / "museum"
TINY = CACHES["kv"].configs[0]
OPS = [Op.decode([7], [0], [[0]]), Op.seq_cp(0, 1)]


def apart(path: Path) -> dict[int, Any]:
    return {i: note["apart"] for i, note in notes_of(read_trace(path)) if "apart" in note}


def test_the_last_step_of_a_museum_trace_tells_both_sides() -> None:
    [(i, told)] = apart(MUSEUM / "lanes-cut-apart.jsonl").items()
    assert i == 2
    assert told["title"] == "lanes-cut-apart differs from the ledger"
    assert told["sides"] == ["lanes-cut-apart", "reference"]
    assert told["rows"]
    assert all(ours != theirs for _, ours, theirs in told["rows"])


def test_cells_are_told_in_words(tmp_path: Path) -> None:
    """A recording whose last step lacks the copy: no tester says anything of it."""
    write_failure(tmp_path / "t.jsonl", TINY, DifferenceError("mine", "differs", "what", OPS))
    trace = read_trace(tmp_path / "t.jsonl")
    *before, last = trace
    config = {key: value for key, value in trace.header.config.items() if key != "failure"}
    stream = before[-1].after["caches"]["kv"][0]
    wrong = replace(last, after={**last.after, "caches": {"kv": [stream]}})
    write_steps(tmp_path / "u.jsonl", replace(trace.header, config=config), [*before, wrong])
    assert apart(tmp_path / "u.jsonl") == {
        2: {
            "title": "Differs from the reference",
            "sides": ["recorded", "reference"],
            "rows": [["kv[0].cells[0]", "position 0, seq 0, token 7", "position 0, seq 0, 1, token 7"]],
            "more": 0,
        }
    }


def test_where_the_picture_is_the_references_own_the_end_has_the_testers_words(tmp_path: Path) -> None:
    error = DifferenceError("mine", "differs", "it answered 1, expected was 0", OPS)
    write_failure(tmp_path / "t.jsonl", TINY, error)
    assert apart(tmp_path / "t.jsonl") == {
        2: {"title": "mine differs", "text": "it answered 1, expected was 0"}
    }
