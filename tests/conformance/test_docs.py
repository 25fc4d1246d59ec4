"""Every Python block of the pages runs, and prints what the page says.

The blocks of a page run one after another, as a reader would paste them. A ``text`` block right after a
Python block is what it prints. A block that cannot run says why in a comment before it
(``<!-- not run: reason -->``), one that wants the live library is left out without it
(``<!-- needs: llama.cpp -->``).

Of the other blocks: lines that begin with ``kvsim`` must name commands and options that exist, and what takes a
moment is run; YAML is performed or read. Not run: what wants a model file, a server's log, a build of llama.cpp or
minutes (the options are checked all the same), layouts of bytes (tests/unit/test_state.py holds them), and the pipe
protocol's messages (tests/stateful/test_difftest_pipe.py speaks it with a program in C).
"""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from live_lane import needs_library
from typer.testing import CliRunner

from app.lessons.course import LESSONS
from app.lessons.page import page as lessons_page
from app.lessons.page import picture
from kvsim.cli import app
from kvsim.trace import read_trace
from kvsim.workload.sweep import read_spec

ROOT = Path(__file__).parents[2]
MADE = ROOT / "docs" / "lessons.md"  # by the site's build, where that has run
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *{*(ROOT / "docs").rglob("*.md")} - {MADE}])

BLOCK = re.compile(
    r"(?:^<!-- (not run|needs): (.*?) -->\n)?^```python\n(.*?)^```\n(?:\n?^```text\n(.*?)^```)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One Python block: its line, what it prints (None: anything), why it is not run, what it needs."""

    line: int
    code: str
    printed: str | None
    not_run: str
    needs: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        mark, why, code, printed = match.groups()
        line = text.count("\n", 0, match.start(3)) + 1
        reasons = {mark: why}
        found.append(Block(line, code, printed, reasons.get("not run", ""), reasons.get("needs", "")))
    assert len(found) == text.count("```python"), f"{page.name}: a block is not as the runner reads them"
    return found


WITH_BLOCKS = [page for page in PAGES if any(not block.not_run for block in blocks_of(page))]


def marks(page: Path) -> list[pytest.MarkDecorator]:
    needs = {block.needs for block in blocks_of(page)} - {""}
    assert needs <= {"llama.cpp"}, f"{page.name} needs {needs}"
    return [needs_library] if needs else []


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=marks(page), id=str(page.relative_to(ROOT))) for page in WITH_BLOCKS]
)
def test_every_block_runs_and_prints_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what a block writes stays here
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks_of(page):
        if block.not_run:
            continue
        out = io.StringIO()
        # as many lines before it as in the page, so that an error names the line of the page
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        with contextlib.redirect_stdout(out):
            exec(code, names)
        if block.printed is not None:
            assert out.getvalue() == block.printed, f"{page.name}, line {block.line}"


def test_the_pages_with_examples_are_these():
    names = {str(page.relative_to(ROOT)) for page in WITH_BLOCKS}
    assert names >= {
        "README.md",
        "docs/policies.md",
        "docs/logs.md",
        "docs/scenarios.md",
        "docs/adapt_your_cache.md",
    }


def test_what_is_not_run_says_why():
    for page in PAGES:
        for block in blocks_of(page):
            assert not block.not_run or len(block.not_run) > 10, f"{page.name}, line {block.line}"


def test_an_example_that_prints_something_else_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nprint(1)\n```\n```text\n2\n```\n\n<!-- not run: it has no end -->\n```python\n1/0\n```\n"
    )
    first, second = blocks_of(page)
    assert (first.code, first.printed, second.not_run) == ("print(1)\n", "2\n", "it has no end")
    page.write_text("```python\nprint(1)\n")
    with pytest.raises(AssertionError, match="not as the runner reads"):
        blocks_of(page)


# -- commands and YAML -----------------------------------------------------------------------------

COMMANDS = [
    pytest.param(line, id=f"{page.name}: {' '.join(line.split()[:3])}")
    for page in PAGES
    for block in re.findall(
        r"^```[a-z]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    for line in re.findall(r"^ *(kvsim [a-z].*)$", block, re.MULTILINE)
]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_on_a_page_has_the_options_that_it_shows(line: str) -> None:
    command = line.split()[1]
    assert command in {one.name for one in app.registered_commands}
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).stdout
    for option in re.findall(r"(?<=[ \[])--?[a-z][\w-]*", line.partition("  ")[0]):
        assert option in shown, f"kvsim {command} {option}"


def block_of(page: str, language: str, n: int = 0) -> str:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[n]


def test_the_commands_that_record_scenarios_do_what_the_page_says(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line.split("   ")[0].split()[1:] for line in block_of("scenarios.md", "text").splitlines()]
    listed, recorded, elsewhere, _live = lines
    assert "chat-context-shift" in CliRunner().invoke(app, listed).stdout
    assert CliRunner().invoke(app, recorded).exit_code == 0
    assert CliRunner().invoke(app, ["replay", "shift.jsonl.gz"]).exit_code == 0
    assert CliRunner().invoke(app, elsewhere).exit_code == 0


def test_the_scenario_of_the_page_can_be_performed(tmp_path) -> None:
    file, trace = tmp_path / "drafts.yaml", tmp_path / "drafts.jsonl.gz"
    file.write_text(block_of("scenarios.md", "yaml"))
    done = CliRunner().invoke(app, ["record", str(file), "-o", str(trace)])
    assert done.exit_code == 0, done.output
    steps = [step.op for step in read_trace(trace.read_bytes(), name="drafts")]
    assert steps == ["init", "decode", *["decode", "seq_rm"] * 6]


def test_the_sweep_of_the_page_is_six_configurations(tmp_path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(block_of("workloads.md", "yaml"))
    (tmp_path / "azure_llm_2023_conv.csv.gz").write_bytes(
        (ROOT / "fixtures" / "workloads" / "azure_llm_2023_conv.csv.gz").read_bytes()
    )
    assert len(read_spec(file)) == 6


# -- the site --------------------------------------------------------------------------------------


def test_the_lessons_of_the_site_are_those_of_the_app() -> None:
    """Every text and every computed answer, in the order of the course, and a picture of each lesson."""
    text = "\n".join(lessons_page())
    for lesson in LESSONS:
        for n, step in enumerate(lesson.steps):
            assert f"**Step {n + 1}.** {step.text}\n" in text
            assert f"**{step.ask.told(lesson.right(n))}**" in text
            assert step.why in text
    titles = re.findall(r"^## \d+\. (.*)$", text, re.MULTILINE)
    assert titles == [lesson.title for lesson in LESSONS]
    assert re.findall(r"\]\(lessons/(.*?)\.svg\)", text) == [lesson.key for lesson in LESSONS]
    assert b"<svg" in picture(LESSONS[0])


def test_every_page_is_in_the_contents():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {
        line for block in re.findall(r"```{toctree}\n(.*?)```", index, re.DOTALL) for line in block.split()
    }
    pages = {str(p.relative_to(ROOT / "docs")).removesuffix(".md") for p in (ROOT / "docs").rglob("*.md")}
    assert pages - {"index"} <= listed, "docs/index.md lists every page"


def test_every_link_between_pages_leads_somewhere():
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", text):
            there = page.parent / target
            assert there.exists() or there == MADE, f"{page.name}: {target}"
