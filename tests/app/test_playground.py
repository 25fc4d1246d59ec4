"""The playground without its page: setups, lines, acts, runs, links, traces, scripts."""

from __future__ import annotations

import base64
import gzip
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from app.playground.acts import ActError, Decode, Part, Plain, Restore, Save, Speculate
from app.playground.files import scene_of_trace, trace_bytes
from app.playground.line_text import text_of
from app.playground.lines import parse
from app.playground.link import packed, unpacked
from app.playground.run import Run
from app.playground.scenarios import NAMES, scenario
from app.playground.script import scene_of_script, script
from app.playground.session import Play, Position
from app.playground.setup import MEMBERS, OTHERS, Setup, SetupError
from kvsim.context import Fault
from kvsim.errors import TraceError
from kvsim.models.arch import MEMORY_KINDS
from kvsim.models.known import KNOWN
from kvsim.ops import Op
from kvsim.policies.slot import Slot
from kvsim.replay import context_of
from kvsim.speculative import Speculation
from kvsim.trace import compare_step, read_trace, replay

EVERYTHING = """prompt 0 18
share 0 1
prompt 1 9
decode 0 1
decode 2*4 0+1@40
remove 1 24 28
save 0
save 0 partial
restore 3 from 0
restore 2 from 0 flip 9
restore 2 from 0 cut 60 flip 4
save all
restore all from 2
speculate 0 4 2
prompt 2 20 abort 2
prompt 2 3 alloc 1
prompt 2 3 compute 1
shift 2 0 end 3
defragment classic
divide 2 0 end 2
remove all 3 5
clear keep-rows
keep 0""".splitlines()


def ran(setup: Setup, *lines: str) -> Run:
    run = Run(setup.header)
    run.perform(lines)
    return run


# -- setups ----------------------------------------------------------------------------------------


def test_every_member_of_the_family_can_be_played_with() -> None:
    assert {Setup(model).header.memory for model in MEMBERS} == set(MEMORY_KINDS)


@pytest.mark.parametrize("model", [*MEMBERS, *OTHERS, *KNOWN])
def test_every_model_of_the_table_decodes(model: str) -> None:
    run = ran(Setup(model, cells=64, sequences=2), "prompt 0 5", "decode 0")
    assert run.error is None
    assert run.steps[-1].after["pos"]["0"][1] == 5


def test_small_caches_are_no_larger_than_asked_for() -> None:
    """llama.cpp would make 256 cells; a window cache needs window and batch only."""
    caches = Setup("gemma3", cells=64, ubatch=4, sequences=2, window=8).header.caches
    assert {name: cache["size"] for name, cache in caches.items()} == {"base": 64, "swa": 20}
    caches = Setup("gemma3", cells=512, ubatch=4, sequences=2, window=8).header.caches
    assert {name: cache["size"] for name, cache in caches.items()} == {"base": 512, "swa": 256}


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("sequences", 300, "n_seq_max = 300: llama.cpp knows at most 256 sequences"),
        ("sequences", 0, "n_seq_max = 0: a context has at least 1 sequence"),
        ("ubatch", 0, "n_ubatch = 0: a ubatch takes at least 1 token"),
        ("cells", 7, "7 cells: this page plays with 8 to 16,384"),
        ("window", 8, "n_swa = 8: llama has no sliding window to set"),
        ("snapshots", -1, "n_rs_seq = -1 is not between 0 and 2147483391"),
    ],
)
def test_a_field_that_cannot_be_says_why_and_the_others_are_taken(field: str, value: int, error: str) -> None:
    wanted = replace(Setup(), type_k="q8_0", **{field: value})
    made, errors = Setup().changed(wanted)
    assert errors == {field: error}
    assert made == replace(Setup(), type_k="q8_0")


def test_another_model_is_taken_and_a_type_that_does_not_fit_it_is_not() -> None:
    """DeepSeek's latent cache has one row for K and V."""
    old = Setup(type_v="q8_0")
    made, errors = old.changed(replace(old, model="deepseek32"))
    assert (made, list(errors)) == (Setup("deepseek32"), ["type_v"])
    assert "give the same type twice" in errors["type_v"]


def test_two_fields_that_only_go_together_are_taken_together() -> None:
    one = Setup("deepseek32")
    made, errors = one.changed(replace(one, type_k="q8_0"))
    assert (made, list(errors)) == (one, ["type_k"])
    both = replace(one, type_k="q8_0", type_v="q8_0")
    assert one.changed(both) == (both, {})


@given(
    some.builds(
        Setup,
        some.sampled_from([*MEMBERS, *KNOWN]),
        some.integers(1, 9999),
        some.integers(1, 999),
        some.integers(1, 256),
        some.booleans(),
        some.sampled_from(["f16", "q8_0"]),
        some.sampled_from(["f16", "q4_0"]),
        some.integers(0, 99),
        some.booleans(),
        some.integers(0, 9),
    )
)
def test_a_setup_reads_its_own_line(setup: Setup) -> None:
    assert Setup.of_line(setup.line()) == setup


@pytest.mark.parametrize(
    "line",
    [
        "",
        "memory",
        "memory gpt9",
        "memory llama cells=x",
        "memory llama model=x",
        "x llama",
        "memory llama a",
    ],
)
def test_a_line_that_is_no_memory_is_refused(line: str) -> None:
    with pytest.raises(SetupError):
        Setup.of_line(line)


# -- lines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "act"),
    [
        ("prompt 0 18", Decode((Part((0,), 18),))),
        ("prompt 0+1 18 at 5", Decode((Part((0, 1), 18, 5),))),
        ("prompt 2 40 abort 2", Decode((Part((2,), 40),), fault=Fault(1, "abort"))),
        ("decode 0 1 x6", Decode((Part((0,), 1), Part((1,), 1)), 6)),
        ("decode 0*3 1*2@9 every", Decode((Part((0,), 3), Part((1,), 2, 9)), every=True)),
        ("share 0 1", Plain(Op.seq_cp(0, 1))),
        ("remove 0 18 end", Plain(Op.seq_rm(0, 18, -1))),
        ("remove all", Plain(Op.seq_rm(-1))),
        ("shift 0 8 end -8", Plain(Op.seq_add(0, 8, -1, -8))),
        ("divide 0 start end 2", Plain(Op.seq_div(0, -1, -1, 2))),
        ("clear", Plain(Op.clear())),
        ("save 0 partial", Save(0, True)),
        ("restore 1 from 0 cut 100", Restore(1, 0, cut=100)),
        ("restore all from 2", Restore(None, 2)),
        ("defragment minimal", Plain(Op.defrag("minimal"))),
        ("speculate 0 4 2", Speculate(0, 4, 2)),
        ('{"op":"seq_rm","args":{"seq":-2,"p0":4,"p1":-1}}', Plain(Op.seq_rm(-2, 4, -1))),
    ],
)
def test_a_line_and_its_act(line: str, act: object) -> None:
    assert parse(line) == act
    assert text_of(parse(line)) == line


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("jump 0", "'jump' is no act: use prompt, decode"),
        ("", "is no act"),
        ("prompt 0", 'a prompt has a sequence and a number of tokens: "prompt 0 18"'),
        ("prompt x 3", "'x' is no number"),
        ("prompt 0 0", "0 is too small: from 1 on"),
        ("prompt 0 99999", "99,999 is too large: at most 2,048"),
        ("decode 0*", "is no part of a batch"),
        ("decode 0+0", "names a sequence twice"),
        ("decode 0 x9999", "9,999 is too large"),
        ("share 0 1 4", "all or a part"),
        ("speculate 0 2 3", "3 is too large: at most 2"),
        ("restore 1", "from a save"),
        ("defragment twice", "classic"),
        ("{", "not JSON"),
        ('{"op":"init","args":{}}', "op is 'init'"),
        ('{"op":"seq_rm","args":{"seq":0}}', "seq_rm args has no 'p0'"),
        ('{"op":"seq_rm","args":{"seq":true,"p0":0,"p1":1}}', "must be an integer"),
        ('{"op":"clear","args":{"data":true},"x":1}', "unknown key 'x'"),
    ],
)
def test_a_line_that_is_none_says_what_was_expected(line: str, says: str) -> None:
    with pytest.raises(ActError) as error:
        parse(line)
    assert says in str(error.value)


TEXT = """prompt decode share remove keep shift divide clear save restore defragment speculate all partial
    from at cut flip start end every abort alloc x3 0 1 2 7 -1 -8 0+1 0*3 1*2@9 + * @ classic {"""
WORDS = some.sampled_from(TEXT.split())


@settings(max_examples=400)
@given(some.lists(WORDS, max_size=7).map(" ".join) | some.text(max_size=20))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        act = parse(text)
    except ActError:
        return
    assert parse(text_of(act)) == act


# -- running ---------------------------------------------------------------------------------------


def test_acts_begin_where_sequences_end() -> None:
    run = ran(Setup(), "prompt 0 18", "share 0 1", "prompt 1 9", "decode 0 1 x6", "prompt 2 11")
    assert run.steps[-1].after["pos"] == {"0": [0, 23], "1": [0, 32], "2": [0, 10], "3": [-1, -1]}
    assert [(done.first, done.end) for done in run.done] == [(1, 2), (2, 3), (3, 4), (4, 10), (10, 11)]


def test_a_line_that_would_end_llama_cpp_stops_the_run_before_it() -> None:
    run = ran(Setup(cells=64), "prompt 0 4", "prompt 0 99", "keep 0")
    assert run.lines == ["prompt 0 4"]
    assert run.error == (
        1,
        "a batch of 99 tokens exceeds n_batch = 64; llama.cpp aborts. Decode it in parts",
    )
    assert run.steps[-1].after["pos"]["0"] == [0, 3]


def test_what_is_not_there_is_told() -> None:
    assert ran(Setup(), "restore 0 from 0").error == (0, "there is no save 0: nothing was saved before")
    assert ran(Setup(sequences=2), "keep 2").error == (0, "there is no seq 2: this context has 2, 0 to 1")


def test_hazards_are_noted_at_their_step() -> None:
    run = ran(Setup(), "prompt 0 6", "share 0 1", "shift 0 0 end 4")
    assert [hazard["title"] for hazard in run.notes[3]["hazards"]] == ["shift moves other owners"]


def test_a_trial_says_what_would_happen_and_changes_nothing() -> None:
    run = ran(Setup(cells=32), "prompt 0 6", "prompt 1 8")
    before = run.live.context.memory.snapshot().to_json()
    assert run.trial(parse("remove 1 2 6")).text == "frees 4 cells"
    assert run.trial(parse("remove 1 2 6")).cells == [(0, [8, 9, 10, 11])]
    assert run.trial(parse("prompt 0 4")).text == "writes cells 14–17"
    assert run.trial(parse("prompt 0 30")).text == "answers 1 no slot; changes no cell"
    assert run.trial(parse("prompt 0 33")).error.startswith("a batch of 33 tokens exceeds n_batch = 32")
    assert run.live.context.memory.snapshot().to_json() == before
    assert len(run.steps) == 3


@pytest.mark.parametrize("model", ["llama", "gemma3", "lfm2", "mamba", "deepseek4"])
@pytest.mark.parametrize(("guesses", "accepted"), [(2, 1), (4, 1), (4, 4), (1, 0)])
def test_speculation_leaves_what_the_policy_leaves(model: str, guesses: int, accepted: int) -> None:
    """The act is the target's side of :class:`kvsim.speculative.Speculation`."""
    setup = Setup(model, snapshots=2, sequences=1, unified=False)
    run = ran(setup, "prompt 0 10", f"speculate 0 {guesses} {accepted}")
    target, draft = (Slot(context_of(setup.header)) for _ in range(2))
    speculation = Speculation(target, draft)
    target.feed(range(10))
    speculation.catch_up()
    speculation.round(1, list(range(guesses)), accepted, 2)
    kept = "caches", "recurrent", "pos"
    ours, theirs = run.steps[-1].after, target.context.memory.snapshot().to_json()
    assert [_placed(ours[name]) for name in kept] == [_placed(theirs[name]) for name in kept]


def _placed(part: object) -> object:
    """A picture without token ids, which differ."""
    if isinstance(part, dict):
        return {key: _placed(value) for key, value in part.items()}
    if isinstance(part, list) and part and isinstance(part[0], dict):
        return [{**each, "cells": [cell[:4] for cell in each["cells"]]} for each in part]
    return part


@pytest.mark.parametrize("name", NAMES)
def test_every_scenario_runs_to_its_end(name: str) -> None:
    position = scenario(name)
    run = Play(position).run()
    assert run.error is None
    assert len(run.lines) == len(position.lines)


# -- undo and redo ---------------------------------------------------------------------------------


def test_undo_and_redo_walk_over_lines_and_memories() -> None:
    play = Play(Position.of(Setup(cells=32)))
    play.act("prompt 0 4")
    play.set_setup(Setup(cells=64))
    play.act("decode 0")
    assert len(play.run().steps) == 3
    play.undo()
    play.undo()
    assert (play.now.setup, play.now.lines) == (Setup(cells=32), ("prompt 0 4",))
    play.redo()
    assert (play.now.setup, play.now.lines) == (Setup(cells=64), ("prompt 0 4",))
    play.act("keep 0")
    assert play.future == []


def test_only_what_is_new_is_performed_and_played() -> None:
    play = Play(Position.of(Setup(cells=32), ["prompt 0 4"]))
    run = play.run()
    play.act("decode 0 x3")
    assert play.run() is run
    assert play.start == 1  # the last step of before; 2 to 4 are new
    play.undo()
    assert play.run() is not run
    assert play.start is None


def test_a_long_line_tells_how_far_it_is_and_can_be_interrupted() -> None:
    play, heard = Play(Position.of(Setup("llama", cells=64), ["prompt 0 4"])), []
    play.run()
    play.act("decode 0 x20")

    def told(done: int) -> None:
        heard.append(done)
        if len(heard) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play.run(told)
    assert heard == [0] * 7  # of one line, after every operation
    run = play.run()
    assert [done.text for done in run.done] == ["prompt 0 4", "decode 0 x20"]
    assert [step.i for step in run.steps] == list(range(22))


def test_a_line_put_right_lets_the_run_go_on() -> None:
    play = Play(Position.of(Setup(cells=32), ["prompt 0 4", "nonsense", "decode 0"]))
    assert play.run().error is not None
    play.set_lines(["prompt 0 4", "decode 0"])
    assert play.run().error is None
    assert len(play.run().steps) == 3


# -- links -----------------------------------------------------------------------------------------


def test_a_link_holds_setup_and_lines() -> None:
    setup = Setup("gemma3", cells=64, window=8)
    text = packed(setup, EVERYTHING)
    assert unpacked(text) == (setup, EVERYTHING)
    assert len(text) < 400


@pytest.mark.parametrize("text", ["x", "!!", "eNrLTc3NL6pUyMlJzE3k", "AAAA" * 600, "é"])
def test_a_damaged_link_is_told(text: str) -> None:
    with pytest.raises(SetupError, match="The link is damaged, so the playground starts afresh"):
        unpacked(text)


def test_a_link_does_not_grow_without_end_when_unpacked() -> None:
    bomb = base64.urlsafe_b64encode(zlib.compress(b"memory llama\n" + b"\n" * 10_000_000)).decode()
    with pytest.raises(SetupError, match="cut, or too long"):
        unpacked(bomb)


# -- traces and scripts ----------------------------------------------------------------------------

SETUPS = [
    Setup(),
    Setup("gemma3", window=8, cells=64),
    Setup("llama3-8b", cells=256, unified=False),
    Setup("lfm2", snapshots=2),
    Setup("deepseek32", type_k="q8_0", type_v="q8_0"),
]


def lines_for(setup: Setup) -> list[str]:
    """What this memory can do without ending llama.cpp."""
    without: tuple[str, ...] = ()
    if not setup.unified:
        without = ("decode 2*4 0+1",)
    if setup.type_k == "q8_0":  # rows of 96 values have no rotation matrix to be shifted with
        without = ("shift", "divide", "defragment")
    return [line for line in EVERYTHING if not line.startswith(without)] if without else EVERYTHING


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.model)
def test_a_trace_comes_back_and_replays(setup: Setup, tmp_path: Path) -> None:
    run = ran(setup, *lines_for(setup))
    assert run.error is None
    data = trace_bytes(run.header, run.steps)
    trace = read_trace(data)
    assert [compare_step(a, b) for a, b in zip(trace, replay(trace), strict=True)] == [[]] * len(run.steps)
    scene = scene_of_trace(data, "run.jsonl.gz")
    assert (scene.setup, scene.error) == (setup, "")
    again = ran(setup, *scene.lines)
    assert [(s.op, s.args, s.ret) for s in again.steps] == [(s.op, s.args, s.ret) for s in run.steps]
    assert not any(line.startswith("{") for line in scene.lines)


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.model)
def test_a_script_runs_as_written_and_comes_back(setup: Setup, tmp_path: Path) -> None:
    run = ran(setup, *lines_for(setup)[:-2])
    assert run.error is None
    text = script(setup, run.steps)
    file = tmp_path / "run.py"
    file.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    after = run.steps[-1].after
    ends = [f"seq {seq}: {low} to {high}" for seq, (low, high) in after["pos"].items()]
    cells = [
        f"{name} {[[cell[:3] for cell in stream['cells']] for stream in streams]}"
        for name, streams in after["caches"].items()
    ]
    assert done.stdout.splitlines() == [*ends, *cells]
    scene = scene_of_script(text, "run.py")
    assert scene.setup == setup
    assert [s.args for s in ran(setup, *scene.lines).steps] == [s.args for s in run.steps]


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("import os; os.system('x')", 10),
        ("memory.seq_rm(0, 1, print())", 10),
        ("memory.__class__()", 10),
        ("x = 1", 10),
        ("while True: pass", 10),
        ("ctx.decode(Batch.tokens_of(0, [i for i in range(9)], start=0))", 10),
        ("memory.seq_rm(0)", 10),
        ("def", 10),
    ],
)
def test_a_script_is_read_and_never_executed(line: str, number: int) -> None:
    text = script(Setup(), ran(Setup(), "prompt 0 3").steps[:1])
    lines = text.splitlines()
    lines[number - 1] = line
    with pytest.raises(SetupError, match=rf"^x\.py:{number}: "):
        scene_of_script("\n".join(lines), "x.py")


def test_a_script_without_a_model_of_the_table_is_refused() -> None:
    with pytest.raises(SetupError, match="no model of the table"):
        scene_of_script("params = ContextParams(n_ctx=64)", "x.py")


def test_a_recording_of_llama_cpp_is_taken_over_whole() -> None:
    data = Path("fixtures/traces/kv/llama-uni-c256-u16-s4-f16-03.jsonl.gz").read_bytes()
    scene = scene_of_trace(data, "rec.jsonl.gz")
    run = Run(scene.header)
    run.perform(scene.lines)
    recorded = [step for step in read_trace(data) if step.op != "rows"]
    assert scene.setup is None
    assert [(s.op, s.ret) for s in run.steps] == [(s.op, s.ret) for s in recorded]
    assert run.steps[-1].after == recorded[-1].after


def test_a_cut_trace_gives_its_whole_operations() -> None:
    run = ran(Setup(), *EVERYTHING)
    whole = gzip.decompress(trace_bytes(run.header, run.steps)).splitlines(keepends=True)
    scene = scene_of_trace(b"".join(whole[:5]) + whole[5][:30], "cut.jsonl")
    assert scene.lines == EVERYTHING[:3]
    assert scene.error.startswith("cut.jsonl:6: ")
    with pytest.raises(TraceError, match=r"cut\.jsonl:2"):
        scene_of_trace(whole[0] + b"{", "cut.jsonl")
