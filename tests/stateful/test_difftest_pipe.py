"""Subjects in other languages: the example in C, and programs that misbehave in every way."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvsim.testing.difftest import SESSION, Campaign, attempt, run, session_of, shrink_failure
from kvsim.testing.pipe import PipeSubject
from kvsim.testing.report import Report
from kvsim.testing.subject import Observes, SubjectError

SOURCE = Path(__file__).parents[2] / "examples" / "ring_cache.c"
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def built(folder: Path, *flags: str) -> str:
    program = folder / "ring_cache"
    subprocess.run(
        ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", *flags, "-o", program, SOURCE], check=True
    )
    return str(program)


@needs_cc
def test_the_example_in_c_conforms(tmp_path: Path) -> None:
    campaign = Campaign(command=(built(tmp_path),), seed=1)
    assert [config.name for _, config in campaign.configs()] == ["tiny", "one-sequence", "awkward", "no-rope"]
    report = Report(campaign.plan)
    assert run(campaign, report, 4 * SESSION) is None
    assert report.ops == 4 * SESSION
    assert report.facts["decode=1"] > 100, "it was full now and then"


@needs_cc
def test_its_planted_fault_is_found_and_shrunk(tmp_path: Path) -> None:
    """A cell that two sequences share, then one of them removed: the other must still see it."""
    campaign = Campaign(command=(built(tmp_path, "-DFAULT"),), memory="kv", seed=1)
    failure = run(campaign, Report(campaign.plan), 20 * SESSION)
    assert failure is not None
    small = shrink_failure(campaign, failure)
    assert [op.op for op in small.ops] == ["decode", "seq_cp", "seq_rm"]
    for i in range(3):
        fewer = small.ops[:i] + small.ops[i + 1 :]
        assert attempt(small.info, small.config, campaign.subjects(), fewer) is None
    assert small.error.subject == "ring_cache"
    assert "attends to [], expected [[0, " in small.error.what


HEAD = """
import json, sys, time, os
print(json.dumps({"kvsim": 1, "name": "bad", "observes": "behaviour", "memories": ["kv"]}), flush=True)
sys.stdin.readline()
def answer(line, **more):
    print(json.dumps({"i": json.loads(line)["i"], "ret": None, "after": {"reads": {}}, **more}), flush=True)
line = sys.stdin.readline()
while json.loads(line)["op"] == "create":
    answer(line)
    line = sys.stdin.readline()
"""
"""Greets and is created as it should, as often as it is asked; the first operation has come."""


def program(folder: Path, text: str) -> tuple[str, ...]:
    path = folder / "bad.py"
    path.write_text(text)
    return sys.executable, str(path)


@pytest.mark.parametrize(
    ("rest", "verdict", "said"),
    [
        ("time.sleep(60)", "hung", r"did not answer within 5 s"),
        ("sys.exit('no memory left')", "died", r"exited with status 1; on stderr: no memory left"),
        ("os.abort()", "died", r"ended by SIGABRT"),
        ("os.kill(os.getpid(), 40); time.sleep(9)", "died", r"ended by signal 40"),
        ("print('ok', flush=True); time.sleep(1)", "garbage", r"its answer is no JSON object: ok"),
        ("print('[1]', flush=True); time.sleep(1)", "garbage", r"no JSON object: \[1\]"),
        ("print('[' * 100_000, flush=True); time.sleep(1)", "garbage", r"no JSON object: \[\[\["),
        ("print('\\x1b[31m\\0', flush=True); time.sleep(1)", "garbage", r"no JSON object: \\x1b\[31m\\x00"),
        ("os.close(1); time.sleep(9)", "died", r"it closed its output"),
        ("sys.exit('\\x1b[31m')", "died", r"on stderr: \\x1b\[31m"),
        ("answer('{\"i\": 77}'); time.sleep(1)", "garbage", r'lacks "i": 1 or "after"'),
        ("answer(line, ret='yes'); time.sleep(1)", "garbage", r'"ret" is no integer of 64 bits: "yes"'),
        ("answer(line, ret=2**63); time.sleep(1)", "garbage", r'"ret" is no integer of 64 bits: 9223372036854775808'),
        ("answer(line, refused='why\\x1b'); time.sleep(1)", "differs", r"would end \(bad: why"),
        ("[sys.stdout.write('x' * 65536) for _ in iter(int, 1)]", "flooded", r"longer than 4194304 bytes"),
        ("answer(line, after={'reads': 7}); time.sleep(1)", "differs", r"its snapshot is no account of what"),
        ("answer(line, after={'reads': {'kv': {'x': [[1, 2]]}}})", "differs", r"ValueError: 'x' is no sequence"),
        ("answer(line, after={'reads': {'kv': {'9' * 5000: [[1, 2]]}}})", "differs", r"9' is no sequence|99 is no"),
        ("answer(line, after={'reads': {'kv': {'0': [[1, 'a']]}}})", "differs", r"\[1, 'a'\] is no \[position, tok"),
        ("answer(line, after={'reads': {'kv': {'0': [[float('nan'), 1]]}}})", "differs", r"\[nan, 1\] is no \["),
    ],
)  # fmt: skip
def test_a_program_that_misbehaves_is_reported(tmp_path: Path, rest: str, verdict: str, said: str) -> None:
    timeout = 5 if verdict == "hung" else 60  # which a busy machine may need to start it
    campaign = Campaign(command=program(tmp_path, HEAD + rest), memory="kv", config="tiny", timeout=timeout)
    _, failure = session_of(campaign, 0, campaign.configs())
    assert failure is not None
    assert failure.error.verdict == verdict
    with pytest.raises(type(failure.error), match=said):
        raise failure.error
    assert failure.error.ops, "the operations that lead there are told"


def test_a_program_that_closes_its_input_is_reported(tmp_path: Path) -> None:
    closing = HEAD.replace("    answer(line)", "    os.close(0); answer(line); time.sleep(9)")
    campaign = Campaign(command=program(tmp_path, closing), memory="kv", config="tiny")
    _, failure = session_of(campaign, 0, campaign.configs())
    assert failure is not None
    assert (failure.error.verdict, failure.error.what) == ("died", "it closed its input")


def test_a_program_that_speaks_unasked_is_reported(tmp_path: Path) -> None:
    both = "print((json.dumps({'i': 0, 'after': {'reads': {}}}) + chr(10)) * 2, end='', flush=True)"
    twice = HEAD.replace("    answer(line)", f"    {both}")
    campaign = Campaign(command=program(tmp_path, twice), memory="kv", config="tiny")
    _, failure = session_of(campaign, 0, campaign.configs())
    assert failure is not None
    assert failure.error.verdict == "garbage"
    assert "it spoke without being asked" in failure.error.what


def test_what_a_program_has_started_ends_with_it(tmp_path: Path) -> None:
    """It leaves a child behind that keeps its pipes open."""
    left = tmp_path / "left"
    rest = f"""
child = os.fork()
if child == 0:
    time.sleep(600)
open({str(left)!r}, "w").write(str(child))
os._exit(5)
"""
    campaign = Campaign(command=program(tmp_path, HEAD + rest), memory="kv", config="tiny", timeout=5)
    _, failure = session_of(campaign, 0, campaign.configs())
    assert failure is not None
    assert (failure.error.verdict, failure.error.what) == ("died", "it exited with status 5")
    end = time.monotonic() + 60
    while is_running(left.read_text()):
        assert time.monotonic() < end
        time.sleep(0.1)


def is_running(pid: str) -> bool:
    line = ["ps", "-o", "stat=", "-p", pid]
    state = subprocess.run(line, capture_output=True, text=True, check=False).stdout
    return bool(state) and "Z" not in state


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        ('"memories": "kv"', r'"memories" has "kv"; it is a list of dsa, '),
        ('"memories": ["kv", "iswaa"]', r'"memories" has "iswaa"; it is a list of dsa, '),
        (
            '"operations": ["decode", "seq_remove"]',
            r'"operations" has "seq_remove"; it is a list of clear, decode, ',
        ),
        ('"operations": null', r'"operations" has null; it is'),
        ('"operations": [["decode"]]', r'"operations" has \["decode"\]; it is'),
    ],
)
def test_a_greeting_that_names_what_there_is_not_is_refused(tmp_path: Path, greeting: str, said: str) -> None:
    """A misspelt operation would never be tested, and nobody would know."""
    line = f'{{"kvsim": 1, "observes": "behaviour", {greeting}}}'
    with pytest.raises(SubjectError, match=said):
        PipeSubject(program(tmp_path, f"print({line!r}, flush=True); input()"))


def test_a_greeting_that_is_none_is_refused(tmp_path: Path) -> None:
    other = program(tmp_path, "print('{\"kvsim\": 2}', flush=True); input()")
    with pytest.raises(SubjectError, match=r"it speaks version 2, not 1"):
        PipeSubject(other)
    odd = program(tmp_path, 'print(\'{"kvsim": 1, "observes": "all"}\', flush=True); input()')
    with pytest.raises(SubjectError, match=r"'all' is not a valid Observes"):
        PipeSubject(odd)
    with pytest.raises(SubjectError, match=r"/no/such/program cannot be started: No such file"):
        PipeSubject(["/no/such/program"])


def test_a_program_that_shows_cells_is_compared_to_the_last_cell(tmp_path: Path) -> None:
    """The reference itself, behind the pipe."""
    served = f"""
import json, sys
sys.path.insert(0, {str(SOURCE.parents[1])!r})
from kvsim.errors import CacheUsageError
from kvsim.ops import Op
from kvsim.replay import Replayer, context_of
from kvsim.trace.header import Header
for line in sys.stdin:
    ask = json.loads(line)
    if ask["op"] == "hello":
        say = {{"kvsim": 1, "name": "served", "observes": "cells"}}
    else:
        say = {{"i": ask["i"], "ret": None}}
        if ask["op"] == "create":
            context = context_of(Header.from_json(ask["args"]["header"]))
            replayer = Replayer(context)
        else:
            try:
                say["ret"] = replayer.apply(ask["op"], ask["args"])
            except CacheUsageError as error:
                say["refused"] = str(error)
        say["after"] = context.memory.snapshot().to_json()
    print(json.dumps(say), flush=True)
"""
    command = program(tmp_path, served)
    subject = PipeSubject(command)
    assert (subject.name, subject.observes) == ("served", Observes.CELLS)
    subject.close()
    campaign = Campaign(command=command, memory="hybrid_iswa", config="tiny", seed=6)
    report, failure = session_of(campaign, 0, campaign.configs())
    assert failure is None
    assert report.ops == SESSION
