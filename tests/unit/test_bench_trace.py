"""``kvsim bench trace``: the recording it makes is a good one, and its table is complete. Times are never checked."""

from __future__ import annotations

import gzip
import json
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvsim.bench import trace
from kvsim.cli import app
from kvsim.trace import read_trace

CELLS, OPERATIONS = 1024, 90


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("bench")
    both = folder / "whole.jsonl.gz", folder / "short.jsonl.gz"
    trace.make_recording(*both, CELLS, OPERATIONS)
    return both


def test_both_ways_to_write_it_are_the_same_recording(recordings: tuple[Path, Path]) -> None:
    whole, short = map(read_trace, recordings)
    assert whole.header == short.header
    assert list(whole) == list(short)
    assert trace.parse_plainly(recordings[0]) == OPERATIONS + 1
    texts = [gzip.decompress(path.read_bytes()).splitlines()[1:] for path in recordings]
    lines = [list(map(json.loads, text)) for text in texts]
    assert all(line["after"] is not None for line in lines[0])
    left_out = [line["op"] for line in lines[1] if line["after"] is None]
    assert left_out == ["state_seq_get"] * len(left_out) != []


def test_its_caches_are_full_and_fragmented_and_every_decode_finds_room(
    recordings: tuple[Path, Path],
) -> None:
    steps = list(read_trace(recordings[0]))
    assert {step.ret for step in steps if step.op == "decode"} == {0}
    cells = [cell[0] for cell in steps[-1].after["caches"]["kv"][0]["cells"]]
    assert CELLS * 0.7 < len(cells) < CELLS
    holes = sum(b > a + 1 for a, b in pairwise(cells))
    assert holes > 3
    one_token = [step for step in steps[30:] if step.op == "decode" and len(step.args["seq"]) == 1]
    assert len(one_token) > len(steps[30:]) // 2


def test_it_replays_without_a_difference(recordings: tuple[Path, Path]) -> None:
    assert [trace.compare(path) for path in recordings] == [0, 0]


def test_the_player_gets_the_beginning_or_all_of_it(recordings: tuple[Path, Path]) -> None:
    first, whole = (json.loads(trace.pack(recordings[0], n))["steps"] for n in (20, None))
    assert (len(first), len(whole)) == (20, OPERATIONS)
    assert first == whole[:20]


def test_chats_never_run_out_of_cells() -> None:
    ops = list(islice(trace._operations(CELLS), 3000))
    held = dict.fromkeys(range(trace.N_SEQ), 0)
    for op in ops:
        if op.op == "seq_rm":
            held[op.args["seq"]] = max(op.args["p0"], 0)
        elif op.op == "decode":
            for (seq,), pos in zip(op.args["seq"], op.args["pos"], strict=True):
                assert pos == held[seq]
                held[seq] += 1
        assert sum(held.values()) <= CELLS


def test_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "trace_table", partial(trace.trace_table, n_operations=OPERATIONS))
    result = CliRunner().invoke(app, ["bench", "trace", "--size", "1024", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout[result.stdout.index("{") :])["rows"]
    assert [row["name"].partition(": ")[2] for row in rows[1:]] == [
        "the player opens", "read to the end", "compared with kvsim",
    ] * 2  # fmt: skip
    assert all(row["seconds"] > 0 and row["reference"] > 0 for row in rows[1:])
    assert [row["goal"] for row in rows[1:4]] == ["under 2 s", "within 1 times", None]
