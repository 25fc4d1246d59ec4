"""Two releases of llama.cpp beside each other.

The second one is that of the folder or library in KVSIM_OTHER_LLAMACPP; without it those tests are left out.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from live_lane import needs_library
from typer.testing import CliRunner

from kvsim.cli import app
from kvsim.lanes import against
from kvsim.lanes.against import Versions, changes, write_change
from kvsim.lanes.campaign import CONFIGURATIONS
from kvsim.lanes.library import library_named
from kvsim.lanes.llamacpp import LlamaCpp
from kvsim.lanes.session import Answer
from kvsim.ops import Op
from kvsim.replay import replay_beside
from kvsim.trace import compare_step, read_trace

OTHER = os.environ.get("KVSIM_OTHER_LLAMACPP", "")

pytestmark = needs_library
needs_other = pytest.mark.skipif(
    not OTHER, reason="needs a second release of llama.cpp, named in KVSIM_OTHER_LLAMACPP"
)


def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second lane answers every removal that begins behind position 0 with 0."""
    apply, opened = LlamaCpp.apply, list[LlamaCpp]()

    def answer(self: LlamaCpp, op: Op, logits: bool = False) -> Answer:
        if self not in opened:
            opened.append(self)
        given = apply(self, op, logits)
        second = opened.index(self) % 2 == 1
        return replace(given, ret=0) if second and op.op == "seq_rm" and op.args["p0"] > 0 else given

    monkeypatch.setattr(LlamaCpp, "apply", answer)


def test_a_release_does_what_itself_does() -> None:
    assert list(changes([None, None], "msa", 60, seed=1, config="streams")) == []


def test_a_change_is_found_shrunk_and_written_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forgetful(monkeypatch)
    found = list(changes([None, None], "msa", 200, seed=1, config="unified"))
    (change,) = found
    assert (change.memory, change.model, change.kind) == ("msa", "minimax-m3", "answer")
    assert change.what == "llama.cpp b11549 answers 1, llama.cpp b11549 answers 0"
    assert [op.op for op in change.ops] == ["seq_rm"]
    monkeypatch.undo()
    for path in write_change(change, [None, None], tmp_path / "one"):
        trace = read_trace(path)
        assert trace.header.config["change"] == change.what
        assert [compare_step(*pair) for pair in replay_beside(trace)] == [[], []]


def test_an_end_of_one_alone_is_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = iter([None, "ends"])
    monkeypatch.setattr(against, "_attempt", lambda lane, op: next(attempts))
    sides = Versions("llama", CONFIGURATIONS["unified"], [None, None])
    try:
        told = "llama.cpp b11549 answers None, llama.cpp b11549 answers ends"
        assert sides.perform(Op.seq_keep(0)) == ("end", told)
    finally:
        sides.close()


def test_on_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = ["difftest", "--memory", "msa", "--config", "unified", "--trace", str(tmp_path / "t.jsonl")]
    same = CliRunner().invoke(app, [*asked, "--against", "llamacpp@b11549", "--ops", "32"])
    assert (same.exit_code, same.stdout) == (0, "0 changes in 32 operations a memory\n")
    wrong = CliRunner().invoke(app, [*asked, "--lane", "reference"])
    assert wrong.exit_code == 2
    assert "'reference' is no release of llama.cpp" in wrong.output
    forgetful(monkeypatch)
    changed = CliRunner().invoke(app, [*asked, "--lane", "llamacpp", "--ops", "200"])
    assert changed.exit_code == 1
    assert "1 change in 200 operations a memory" in changed.stdout
    assert (tmp_path / "t-1.b11549.jsonl").exists()


@needs_other
def test_the_other_release_differs_where_it_is_known_to() -> None:
    """Since b11434 a state that several share is not rolled back for one of them."""
    sides = Versions("lfm2", CONFIGURATIONS["rollback"], [None, library_named(OTHER)])
    try:
        for op in (Op.decode_run(0, 0, [3] * 4), Op.seq_cp(0, 1)):
            assert sides.perform(op) == ("", "")
        kind, what = sides.perform(Op.seq_rm(0, 3, -1))
        assert kind == "answer"
        assert what.startswith("llama.cpp b11549 answers 0, llama.cpp b")
        assert what.endswith(" answers 1")
    finally:
        sides.close()


@needs_other
def test_the_other_release_agrees_on_a_plain_cache() -> None:
    found = changes([None, library_named(OTHER)], "kv", 90, seed=2, config="unified")
    assert [change for change in found if not isinstance(change, Exception)] == []
