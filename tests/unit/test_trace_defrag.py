"""Defragmentation as an operation of a trace: performed, written, read and replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvsim.changes import PictureReader
from kvsim.errors import TraceError
from kvsim.models.context_params import ContextParams
from kvsim.models.tiny import tiny_model
from kvsim.narrate import narrate
from kvsim.ops import Op
from kvsim.replay import Replayer, context_of
from kvsim.trace import Header, Step, TraceWriter, compare_step, read_trace, replay
from kvsim.trace.describe import header_of

PARAMS = ContextParams(n_ctx=256, n_ubatch=16, n_seq_max=3, kv_unified=True, swa_full=False)
HOLES = [
    Op.decode_run(0, 0, range(6)),
    Op.decode_run(1, 0, range(10)),
    Op.decode_run(0, 6, range(4)),
    Op.seq_rm(0),
]


def performed(name: str, *ops: Op) -> tuple[Header, list[Step]]:
    header = header_of(tiny_model(name).params(), PARAMS)
    replayer = Replayer(context_of(header))
    return header, [replayer.step(i, op.op, op.args) for i, op in enumerate([Op("init"), *ops])]


def used(step: Step, cache: str = "kv") -> list[int]:
    return [cell[0] for cell in step.after["caches"][cache][0]["cells"]]


@pytest.mark.parametrize(("strategy", "moves"), [("classic", [[0, 10, 0, 6]]), ("minimal", [[0, 10, 0, 6]])])
def test_the_last_cells_move_into_the_holes(strategy: str, moves: list[list[int]]) -> None:
    _, steps = performed("llama", *HOLES, Op.defrag(strategy))
    assert used(steps[-2]) == list(range(6, 16))
    assert used(steps[-1]) == list(range(10))
    assert steps[-1].extra == {"moves": {"kv": moves}}
    assert steps[-1].after["caches"]["kv"][0]["head"] == 0


def test_caches_that_belong_together_make_the_same_moves() -> None:
    _, steps = performed("deepseek32", *HOLES, Op.defrag())
    assert steps[-1].extra == {"moves": {"mla": [[0, 10, 0, 6]], "lid": [[0, 10, 0, 6]]}}


def test_a_decode_afterwards_does_not_defragment_again() -> None:
    _, steps = performed("llama", *HOLES, Op.defrag(), Op.seq_rm(1, 0, 2), Op.decode_run(1, 10, [5]))
    assert used(steps[-1])[0] == 0  # the hole is filled by the token, nothing moved into it


@pytest.mark.parametrize("name", ["llama", "gemma3", "jamba", "mamba", "minimax-m3", "deepseek4"])
def test_a_trace_with_it_is_read_and_replayed_without_a_difference(name: str, tmp_path: Path) -> None:
    header, steps = performed(name, *HOLES, Op.defrag("minimal"))
    path = tmp_path / "t.jsonl.gz"
    with TraceWriter(path, header) as writer:
        for step in steps:
            writer.write(step)
    trace = read_trace(path)
    pairs = list(zip(trace, replay(trace), strict=True))
    assert [compare_step(read, ours) for read, ours in pairs] == [[]] * len(steps)


@pytest.mark.parametrize("move", [[0, 250, 0, 10], [1, 10, 0, 6], [0, -1, 0, 1], [0, 1, 0], [0, 1, 0, 0]])
def test_impossible_moves_are_refused_by_the_reader(move: list[int], tmp_path: Path) -> None:
    header, steps = performed("llama", *HOLES, Op.defrag())
    path = tmp_path / "t.jsonl"
    with TraceWriter(path, header) as writer:
        for step in [*steps[:-1], replace(steps[-1], extra={"moves": {"kv": [move]}})]:
            writer.write(step)
    with pytest.raises(TraceError, match=r"t\.jsonl:7: defrag\.moves\.kv has "):
        list(read_trace(path))


def test_it_is_told_in_words() -> None:
    header, steps = performed("llama", *HOLES, Op.defrag(), Op.defrag())
    reader = PictureReader(header)
    pictures = [reader.read(step.after) for step in steps]
    told = [narrate(steps[i], pictures[i - 1], pictures[i], reader.owners, header).sentence for i in (5, 6)]
    assert told == [
        "6 cells move from the end into the holes, in 1 block copy. Cells keep position and owner; only "
        "their index changes. The last used cell was 15, now it is 9.",
        "There is no hole before the last used cell: nothing changes.",
    ]
