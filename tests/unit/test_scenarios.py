"""Scenarios: what ships shows what it says and replays without a difference; mistakes are told by line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvsim.cli import app
from kvsim.scenarios import SHIPPED, ScenarioError, load_scenario, parse_scenario, record_reference
from kvsim.scenarios.run import Unexpected
from kvsim.trace import Step, TraceWriter, compare_step, read_trace, replay

HEAD = """\
title: A test
about: What it shows.
model: llama
context: {n_ctx: 256, n_seq_max: 3, kv_unified: true}
steps:
"""


def recorded(name: str, model: str | None = None) -> tuple[list[Step], list[Unexpected]]:
    unexpected: list[Unexpected] = []
    _, steps = record_reference(load_scenario(name), model, unexpected.append)
    return list(steps), unexpected


def run(steps: str, head: str = HEAD) -> list[Step]:
    return list(record_reference(parse_scenario(head + steps, "t.yaml"))[1])


# -- what ships -----------------------------------------------------------------------------------


def test_ten_ship_and_say_what_they_show():
    assert len(SHIPPED) >= 10
    for name in SHIPPED:
        scenario = load_scenario(name)
        assert len(scenario.title) < 60
        assert len(scenario.about) > 80


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ships_answers_as_it_expects_and_replays_without_a_difference(name, tmp_path):
    unexpected: list[Unexpected] = []
    header, steps = record_reference(load_scenario(name), report=unexpected.append)
    with TraceWriter(tmp_path / "t.jsonl.gz", header) as writer:
        for step in steps:
            writer.write(step)
    assert unexpected == []
    trace = read_trace(tmp_path / "t.jsonl.gz")
    assert [d for a, b in zip(trace, replay(trace), strict=True) for d in compare_step(a, b)] == []


def cells(step: Step, cache: str = "kv") -> list[tuple[int, int, list[int]]]:
    return [(cell[0], cell[1], cell[2]) for cell in step.after["caches"][cache][0]["cells"]]


def test_the_context_shift_keeps_the_beginning_and_moves_the_rest():
    steps, _ = recorded("chat-context-shift")
    at = next(i for i, step in enumerate(steps) if step.op == "seq_rm")
    removed, shifted = steps[at], steps[at + 1]
    assert steps[at - 1].after["pos"]["0"] == [0, 254]
    assert removed.after["pos"]["0"] == [0, 254]
    assert shifted.after["pos"]["0"] == [0, 130]
    assert [pos for _, pos, _ in cells(shifted)] == [*range(8), *range(8, 131)]


def test_shared_prompts_take_their_cells_once():
    steps, _ = recorded("parallel-slots")
    assert {tuple(seqs) for _, _, seqs in cells(steps[4])} == {(0, 1, 2, 3)}
    assert len(cells(steps[4])) == 48


def test_a_restored_sequence_goes_into_the_holes():
    steps, _ = recorded("save-restore-fragmented")
    restored = next(step for step in steps if step.op == "state_seq_set")
    own = [index for index, _, seqs in cells(restored) if seqs == [0]]
    assert len(own) == 70
    assert own != list(range(own[0], own[0] + 70))
    lost = [step for step in steps if step.op == "state_seq_set"][-1]
    assert (lost.ret, lost.after["pos"]["2"]) == (0, [-1, -1])


def test_the_window_forgets_while_the_other_cache_keeps():
    last = recorded("window-eviction")[0][-1]
    assert min(pos for _, pos, seqs in cells(last, "base") if 0 in seqs) == 0
    assert min(pos for _, pos, seqs in cells(last, "swa") if 0 in seqs) > 0


def test_another_model_may_answer_otherwise_and_that_is_told():
    _, unexpected = recorded("speculative-decode", "mamba")
    assert {(u.step.op, u.got, u.step.gives) for u in unexpected} == {("seq_rm", 0, 1)}
    assert str(unexpected[0]) == "line 14: seq_rm answered 0, the scenario expects 1"


# -- steps to operations ---------------------------------------------------------------------------


def test_positions_go_on_where_the_sequence_ends():
    steps = run(
        "- decode: {seq: 0, n: 4}\n- decode: {seq: [0, 1], tokens: [5, 6], at: 4}\n".replace("[0, 1]", "0")
    )
    assert [step.args["pos"] for step in steps[1:]] == [[0, 1, 2, 3], [4, 5]]
    assert steps[2].args["tokens"] == [5, 6]


def test_parts_of_one_batch_follow_each_other_and_each_wants_an_output():
    [_, step] = run("- decode: [{seq: 0, n: 2}, {seq: [1, 2], n: 1}, {seq: 0, n: 1}]")
    assert step.args["pos"] == [0, 1, 0, 2]
    assert step.args["seq"] == [[0], [0], [1, 2], [0]]
    assert step.args["out"] == [0, 1, 1, 1]


def test_last_counts_from_the_end_and_ranges_are_open():
    steps = run(
        "- decode: {seq: 0, n: 9}\n- seq_rm: {seq: 0, last: 2}\n- seq_cp: {src: 0, dst: 1}\n- clear:\n"
    )
    assert [step.args for step in steps[2:]] == [
        {"seq": 0, "p0": 7, "p1": -1},
        {"src": 0, "dst": 1, "p0": -1, "p1": -1},
        {"data": True},
    ]


def test_a_slot_may_be_saved_again_and_the_latest_is_restored():
    steps = run(
        "- decode: {seq: 0, n: 3}\n- state_seq_get: {seq: 0, slot: 7}\n- decode: {seq: 0, n: 1}\n"
        "- state_seq_get: {seq: 0, slot: 7}\n- state_seq_set: {seq: 1, slot: 7}\n"
    )
    assert [step.args["slot"] for step in steps if "slot" in step.args] == [0, 1, 1]
    assert steps[-1].after["pos"]["1"] == [0, 3]


def test_repetitions_are_unrolled():
    steps = run(
        "- repeat: {times: 3, steps: [{decode: {seq: 0, n: 1}}, {repeat: {times: 2, steps: [clear: ]}}]}"
    )
    assert [step.op for step in steps] == ["init", *["decode", "clear", "clear"] * 3]


def test_a_step_that_would_end_llama_cpp_is_refused_by_line():
    streams = HEAD.replace("kv_unified: true", "kv_unified: false")
    with pytest.raises(ScenarioError, match=r"t.yaml, line 7: seq_cp: .*\b9\b"):
        run("- decode: {seq: 0, n: 2}\n- seq_cp: {src: 0, dst: 9}\n", streams)


# -- mistakes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        ("- decode: {seq: 0}", "line 6: steps[0].decode must have either n (how many tokens) or tokens"),
        ("- decode: {seq: 0, n: 1, tokens: [2]}", "line 6: steps[0].decode must have either n"),
        ("- decode: {n: 1}", "line 6: steps[0].decode has no 'seq'"),
        ("- decode: {seq: -1, n: 1}", "line 6: steps[0].decode.seq is -1, must be a sequence"),
        ("- decode: {seq: [0, 0], n: 1}", "must be a sequence, 0 to 255, or a list of different ones"),
        ("- decode: []", "line 6: steps[0].decode is empty"),
        (
            "- clear:\n- decode:\n    - {seq: 0, n: 1}\n    - {seq: 0, n: 0}",
            "line 9: steps[1].decode[1].n is 0",
        ),
        ("- fly: {}", "line 6: steps[0] must be one of decode, seq_rm"),
        ("- {clear: , seq_keep: {seq: 0}}", "line 6: steps[0] must be one of"),
        ("- decode", "line 6: steps[0] must be one of"),
        (
            "- seq_rm: {seq: 0, p2: 4}",
            "line 6: steps[0].seq_rm.p2 is not known; steps[0].seq_rm has seq, p0, p1",
        ),
        ("- seq_rm: {seq: 0, last: 4, p0: 1}", "steps[0].seq_rm.last stands for p0 and p1"),
        ("- seq_div: {seq: 0, d: 0}", "steps[0].seq_div.d is 0, must be an integer from 1"),
        ("- clear:\n  gives: yes", "line 7: steps[0].gives is True"),
        ("- repeat: {times: 0, steps: [clear: ]}", "steps[0].repeat.times is 0"),
        ("- repeat: {times: 2, steps: []}", "steps[0].repeat.steps is empty"),
        ("- repeat: {times: 1000, steps: [repeat: {times: 1000, steps: [clear: ]}]}", "1000000 operations"),
        ("- state_seq_set: {seq: 0, slot: 1}", "line 6: state_seq_set: nothing was saved in slot 1 before"),
        ("- decode: {seq: 0, n: [1}", "line 6: not YAML"),
        ("[]", "line 6: not YAML"),
    ],
)
def test_a_mistake_is_told_with_its_line(steps, wanted):
    with pytest.raises(ScenarioError) as told:
        run(steps)
    assert str(told.value).startswith("t.yaml, line ")
    assert wanted in str(told.value)


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("title: A test", "title: ''", "line 1: title is '', must be text"),
        ("title: A test\n", "", "line 1: a scenario has no 'title'".replace("a scenario ", "")),
        ("model: llama", "model: no-such", "there is no model 'no-such'; there are llama"),
        ("n_ctx: 256", "n_ctx: many", "line 4: context.n_ctx is 'many', must be an integer"),
        ("n_ctx: 256", "m_ctx: 256", "line 4: context.m_ctx is not known; context has n_ctx, n_batch"),
        ("kv_unified: true", "type_k: q9", "line 4: context.type_k is 'q9', must be one of"),
        ("steps:", "step:", "line 5: step is not known; a scenario has title, about"),
    ],
)
def test_a_mistake_in_the_head_is_told_with_its_line(old, new, wanted):
    with pytest.raises(ScenarioError) as told:
        run("- clear:\n", HEAD.replace(old, new))
    assert wanted in str(told.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just words",
        "[1, 2]",
        "\x00",
        "a: &a [*a]",
        "[" * 300,
        "title: !!python/object:os.system",
        "title: 2020-99-99",
        "title: " + "9" * 5000,
    ],
)
def test_other_files_are_refused(text):
    with pytest.raises(ScenarioError):
        parse_scenario(text)


def test_a_name_that_is_neither_a_file_nor_shipped_is_told_with_those_that_are():
    with pytest.raises(ScenarioError, match=r"no-such: neither a file .*chat-context-shift"):
        load_scenario("no-such")


# -- the command -------------------------------------------------------------------------------------


def test_on_the_command_line(tmp_path: Path):
    out = tmp_path / "t.jsonl.gz"
    result = CliRunner().invoke(app, ["record", "full-cache", "-o", str(out)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "No room, and what helps; 8 operations on kvsim, llama" in result.stdout
    assert len(list(read_trace(out))) == 8
    result = CliRunner().invoke(app, ["record", "hybrid-checkpoint", "--arch", "gemma3-1b", "-o", str(out)])
    assert "note: line 11: seq_rm answered 1, the scenario expects 0" in result.stderr
    assert read_trace(out).header.arch == "gemma3"
    assert len(CliRunner().invoke(app, ["record"]).stdout.splitlines()) == len(SHIPPED)


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (["no-such"], "neither a file"),
        (["full-cache", "--lib", "libllama.so"], "--lib needs --model"),
        (["full-cache", "--arch", "llama", "--model", "m.gguf"], "give either --arch"),
        (["full-cache", "--arch", "none"], "there is no model 'none'"),
        (["full-cache", "-o", "no/such/folder/t.jsonl"], "there is no folder no/such/folder"),
        (["full-cache", "-o", "."], "is a folder"),
        (["full-cache", "-o", "/dev/full"], "No space left"),
        (["own.yaml", "-o", "own.yaml"], "own.yaml is the file that is read"),
        (["/dev/zero"], "/dev/zero: longer than 256 KiB"),
    ],
)
def test_arguments_that_cannot_be(args, wanted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(HEAD)
    result = CliRunner().invoke(app, ["record", *args])
    assert result.exit_code == 2
    assert (tmp_path / "own.yaml").read_text() == HEAD
    assert wanted in result.stderr
