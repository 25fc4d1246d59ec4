"""Every Python block of the pages runs, and prints what the page says.

The blocks of a page run one after another, as a reader would paste them. A ``text`` block right after a
Python block is what it prints. A block that cannot run says why in a comment before it
(``<!-- not run: reason -->``), one that wants the live library is left out without it
(``<!-- needs: llama.cpp -->``).
"""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from live_lane import needs_library

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])

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


# -- the site --------------------------------------------------------------------------------------


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
            assert (page.parent / target).exists(), f"{page.name}: {target}"
