"""``kvsim difftest`` and the pages about it: what a user sees."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from typer.testing import CliRunner

from kvsim.cli import app, terminal
from kvsim.testing import CacheMachine, Subject
from kvsim.testing.difftest import SESSION, Campaign, Failure, session_of, shrink_failure
from kvsim.testing.match import DifferenceError
from kvsim.testing.report import Report
from kvsim.trace import read_trace

ROOT = Path(__file__).parents[2]
CLI = CliRunner()


def test_a_run_without_a_difference_ends_with_the_report(tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    line = ["difftest", "--memory", "kv", "--config", "tiny", "--ops", "400", "--report", str(report)]
    done = CLI.invoke(app, line)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{SESSION} operations in 1 session, ")
    assert json.loads(report.read_text())["ops"] == SESSION
    again = CLI.invoke(app, line)
    assert json.loads(report.read_text())["ops"] == SESSION, "all was done already"
    assert again.exit_code == 0
    other = CLI.invoke(app, [*line, "--seed", "2"])
    assert other.exit_code == 2
    assert "is the report of another campaign" in other.output
    summed = CLI.invoke(app, ["difftest", "--merge", str(report)])
    assert summed.output == again.output


def test_a_difference_is_told_with_its_trace_and_the_command_to_repeat_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    trace, report = tmp_path / "f.jsonl", tmp_path / "r.json"
    line = ["difftest", "--subject", "difftest_subjects:KeepsLast", "--memory", "kv", "--config", "tiny"]
    told = ["--trace", str(trace), "--report", str(report)]
    done = CLI.invoke(app, [*line, "--seed", "3", "--ops", "4000", *told])
    assert done.exit_code == 1
    summed = CLI.invoke(app, ["difftest", "--merge", str(report)])
    assert (summed.exit_code, json.loads(report.read_text())["failures"][0]["verdict"]) == (1, "differs")
    assert f"  kvsim replay --explain {trace}\n  kvsim app {trace}\n" in done.output
    assert "to repeat it: kvsim difftest --subject difftest_subjects:KeepsLast --memory kv" in done.output
    explained = CLI.invoke(app, ["replay", "--explain", str(trace)])
    assert explained.exit_code == 1
    assert "operation 2, seq_rm" in explained.output
    assert "  the same differs at seq_rm(" in explained.output


def test_a_trace_of_a_subject_without_cells_says_what_the_subject_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    trace = tmp_path / "f.jsonl"
    line = [
        "difftest",
        "--subject",
        "difftest_subjects:BehavesButKeepsLast",
        "--memory",
        "kv",
        "--config",
        "tiny",
    ]
    assert CLI.invoke(app, [*line, "--seed", "3", "--ops", "4000", "--trace", str(trace)]).exit_code == 1
    failure = read_trace(trace).header.failure
    assert failure is not None
    assert set(failure) == {"subject", "verdict", "operation", "what"}
    explained = CLI.invoke(app, ["replay", "--explain", str(trace)])
    assert (explained.exit_code, " 0 differences" in explained.output) == (0, True)
    assert f"  the same differs at {failure['operation']}:\n" in explained.output
    assert re.search(
        r"\n    kv: the next token of sequence \d+ attends to \[.*\], expected ", explained.output
    )
    assert "The steps are the reference's" in explained.output
    [told] = json.loads(CLI.invoke(app, ["replay", "--json", str(trace)]).output)["traces"]
    assert told["failure"] == failure


def test_without_a_terminal_lines_say_how_far_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(terminal, "LINE_EVERY", 0)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    line = ["difftest", "--memory", "kv", "--config", "tiny", "--shard", "2/3", "--ops", "2400"]
    done = CLI.invoke(app, line)
    assert done.stderr == "operations: 400 of 800\noperations: 800 of 800\n"
    assert done.stdout.splitlines()[1] == "  shards: 1 of 3"
    faulty = ["--subject", "difftest_subjects:KeepsLast", "--seed", "3", "--trace", str(tmp_path / "f.jsonl")]
    found = CLI.invoke(app, ["difftest", "--memory", "kv", "--config", "tiny", *faulty])
    assert found.stderr.splitlines()[-1] == "shrinking: 2 operations left"


COMMAND = [str(Path(sys.executable).with_name("kvsim")), "difftest", "--memory", "kv", "--config", "tiny"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_saves_what_it_did_and_goes_on_there(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The subject itself sends the signal, in its third session, once."""
    (tmp_path / "stopping.py").write_text(f"""
import os, signal
from pathlib import Path
from kvsim.testing.subject import ContextSubject

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell runs in the background ignores it

class Stops(ContextSubject):
    left = 900

    def apply(self, op):
        Stops.left -= 1
        if Stops.left == 0 and not Path("stopped").exists():
            Path("stopped").touch()
            os.kill(os.getpid(), {int(number)})
        return super().apply(op)
""")
    line = [*COMMAND, "--subject", "stopping:Stops", "--ops", "1200", "--report", "r.json"]
    stopped = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert stopped.stderr == "stopped; with the same command it goes on where r.json ends\n"
    assert (stopped.returncode, stopped.stdout) == (130, "")
    assert json.loads((tmp_path / "r.json").read_text())["shards"] == {"1/1": 2}, (
        "what the third did is no part"
    )
    rest = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    whole = subprocess.run([*line[:-1], "w.json"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert rest.returncode == 0
    assert rest.stdout.splitlines()[:-1] == whole.stdout.splitlines()[:-1], "all but the rate"


def test_who_stops_the_shrinking_gets_what_it_has_come_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(
        campaign: Campaign, failure: Failure, progress: Callable[[DifferenceError], object]
    ) -> Failure:
        def told(error: DifferenceError) -> None:
            progress(error)
            raise KeyboardInterrupt

        return shrink_failure(campaign, failure, told)

    monkeypatch.setattr("kvsim.cli.difftest.shrink_failure", stopped)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    trace = tmp_path / "f.jsonl"
    line = ["--subject", "difftest_subjects:KeepsLast", "--memory", "kv", "--config", "tiny", "--seed", "3"]
    done = CLI.invoke(app, ["difftest", *line, "--trace", str(trace)])
    assert (done.exit_code, done.stderr) == (1, "stopped: fewer operations might do\n")
    n = len(list(read_trace(trace))) - 1
    assert n > 2
    assert f"{n} operations lead there, saved as" in done.stdout


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    line = [*COMMAND, "--ops", "4000000", "--jobs", "2", "--report", "r.json"]
    main = subprocess.Popen(line, cwd=tmp_path, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        _wait(lambda: _alive(main.pid) >= 4, "two workers, and what started them")
        main.kill()
        main.wait()
        _wait(lambda: _alive(main.pid) == 0, "nothing is left")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(main.pid, signal.SIGKILL)


def _alive(group: int) -> int:
    """How many processes of a group have not ended."""
    told = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True, check=True)
    return sum(line.split()[0] == str(group) and "Z" not in line for line in told.stdout.splitlines())


def _wait(until: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 120
    while not until():
        assert time.monotonic() < end, what
        time.sleep(0.1)


FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)); from kvsim.__main__ import main; "


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        (["--ops", "400", "--report", "r.json"], 2, "r.json cannot be written: File too large\n"),
        (["--subject", "difftest_subjects:KeepsLast", "--seed", "3", "--trace", "t.jsonl"], 1, None),
    ],
)
def test_a_full_disk_is_said_in_a_line(
    tmp_path: Path, more: list[str], status: int, said: str | None
) -> None:
    arguments = ["kvsim", *COMMAND[1:], *more]
    code = f"import sys; sys.argv = {arguments!r}; sys.path.insert(0, {str(Path(__file__).parent)!r}); {FULL}main()"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert done.stderr == (said or "t.jsonl cannot be written: File too large\n" * 2)
    assert ("the shortest way there:" in done.stdout) == (status == 1)
    assert not (tmp_path / "r.json.part").exists()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_installed_command_finds_the_module_of_the_page_in_the_working_directory(
    tmp_path: Path, jobs: str
) -> None:
    """docs/adapt_your_cache.md, section 1."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "adapt_your_cache.md").read_text(), re.DOTALL)
    assert code is not None
    (tmp_path / "my_module.py").write_text(code[1])
    command = Path(sys.executable).with_name("kvsim")
    done = subprocess.run(
        [command, "difftest", "--subject", "my_module:ListCache", "--memory", "kv", "--ops", "800",
         "--jobs", jobs],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("800 operations in 2 sessions, ")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--memory", "nothing"], "unknown memory 'nothing'"),
        (["--shard", "2"], "--shard '2' is not of the form 3/16"),
        (["--weight", "seq_cp"], "--weight 'seq_cp' is not of the form seq_cp=20"),
        (["--shard", "1/" + "9" * 5000], "is not of the form 3/16"),
        (["--weight", "seq_cp=" + "9" * 5000], "is not of the form seq_cp=20"),
        (["--weight", "seq_cp=99999999"], "from 0 to 10,000"),
        (["--exec", "/no/such/program"], "/no/such/program cannot be started"),
        (["--exec", "'x"], "is no command: No closing quotation"),
        (["--exec", " "], "names no program"),
        (["--report", "/no/such/folder/r.json"], "there is no folder /no/such/folder"),
        (["--trace", "/no/such/folder/t.jsonl"], "there is no folder /no/such/folder"),
        (["--report", "/dev/zero"], "/dev/zero: not a file"),
        (["--lane", "llamacpp", "--memory", "nothing"], "unknown memory 'nothing'"),
        (["--lane", f"llamacpp@{__file__}", "--memory", "kv"], "nothing could be run"),
        (["--merge", "/no/such/report"], "/no/such/report: No such file or directory"),
        (["--exec", "x", "--subject", "engine"], "--subject changes nothing beside --exec: leave it out"),
        (["--timeout", "9"], "--timeout changes nothing without --exec: leave it out, or give --exec too"),
        (["--exec", "x", "--timeout", "0"], "--timeout 0.0 is no time to wait"),
        (["--exec", "x", "--timeout", "nan"], "--timeout nan is no time to wait"),
        (["--ray", "local", "--jobs", "2"], "--jobs changes nothing beside --ray: leave it out"),
        (["--lane", "llamacpp", "--rows"], "--rows changes nothing beside --lane or --against: leave it out"),
    ],
)
def test_what_cannot_be_run_exits_with_2(more: list[str], said: str) -> None:
    done = CLI.invoke(app, ["difftest", *more])
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("plan", 5), ("shards", {"1/1": -5}), ("shards", []), ("ops", "x"), ("ops", -5), ("seconds", math.nan),
        ("by_config", {"a": "b"}), ("facts", [1, 2]), ("states", "abc"), ("states", [1.5]), ("states", [10**400]),
        ("failures", "x"), ("failures", [1]), ("kvsim_difftest", None), ("shards", {"half": 1}),
    ],
)  # fmt: skip
def test_a_damaged_report_is_refused_and_left_as_it_is(part: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    line = ["--memory", "kv", "--config", "tiny", "--ops", "400"]
    good = Report(Campaign(memory="kv", config="tiny").plan).to_json()
    path.write_text(json.dumps(good | {part: value}))
    before = path.read_text()
    for more in ([*line, "--report", str(path)], ["--merge", str(path)]):
        done = CLI.invoke(app, ["difftest", *more])
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
        assert str(path) in done.stderr
    assert path.read_text() == before


def test_a_report_that_nests_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("[" * 100_000)
    done = CLI.invoke(app, ["difftest", "--merge", str(path)])
    assert done.exit_code == 2
    assert "not a report of kvsim difftest" in done.output


def page_code() -> str:
    """The cache of docs/adapt_your_cache.md, as a module."""
    text = (ROOT / "docs" / "adapt_your_cache.md").read_text(encoding="utf-8")
    first, second = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[:2]
    return (
        "from kvsim.testing import CacheMachine\nfrom kvsim.testing.subject import UnsupportedError\n"
        f"{first}\n{second}"
    )


def test_the_cache_of_the_page_conforms_and_its_three_lines_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "list_cache_page.py").write_text(page_code())
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    campaign = Campaign("list_cache_page:ListCache", memory="kv", seed=4)
    for k in range(4):
        report, failure = session_of(campaign, k, campaign.configs())
        assert failure is None, failure.error
        assert report.ops == SESSION
    module = sys.modules["list_cache_page"]
    assert issubclass(module.ListCacheMachine, CacheMachine)
    run_state_machine_as_test(module.ListCacheMachine, settings=settings(max_examples=6, deadline=None))
    module.TestListCache.settings = settings(max_examples=6, deadline=None)
    module.TestListCache("runTest").runTest()


def test_the_message_of_the_page_is_the_message_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same cache with its seq_rm spoiled: it removes one position too few."""
    code = page_code().replace("pos < p1)", "pos < p1 - 1)")
    (tmp_path / "spoiled_page.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    import spoiled_page

    with pytest.raises(AssertionError) as failed:
        run_state_machine_as_test(
            spoiled_page.ListCacheMachine,
            settings=settings(
                max_examples=300, deadline=None, database=None, derandomize=True, phases=[Phase.generate]
            ),
        )
    text = str(failed.value)
    assert re.search(r"^list cache differs at operation \d+, seq_rm\(", text)
    assert re.search(r"\n  decode\(.*\n  seq_rm\(", text)
    assert text.endswith(
        "Look at it with\n  kvsim replay --explain failures/ListCacheMachine.jsonl\n"
        "  kvsim app failures/ListCacheMachine.jsonl"
    )
    assert (tmp_path / "failures" / "ListCacheMachine.jsonl").is_file()


def test_the_parts_a_user_needs_are_where_the_page_says() -> None:
    import kvsim.testing

    assert {"CacheMachine", "Observes", "Subject"} <= set(kvsim.testing.__all__)
    assert kvsim.testing.Subject is Subject
