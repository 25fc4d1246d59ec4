"""What the README shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from kvsim.cli import app

ROOT = Path(__file__).parents[2]
MADE = {ROOT / "docs" / "lessons.md", ROOT / "docs" / "lessons", ROOT / "docs" / "api"}  # by make docs
PAGES = sorted(
    page
    for folder in ("", "docs", "docs/spec", "fixtures", "tests")
    for page in (ROOT / folder).glob("*.md")
    if page not in MADE
)
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_example_runs_as_written_and_prints_what_it_says():
    [example] = blocks("python")
    printed = blocks("text")[0]
    result = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False)
    assert (result.stderr, result.stdout) == ("", printed)
    assert len(example.splitlines()) <= 15


def test_every_command_is_listed_and_every_listed_command_exists():
    listed = set(re.findall(r"^kvsim ([\w-]+)", blocks("text")[1], re.MULTILINE))
    assert listed == {command.name for command in app.registered_commands}


def test_every_option_that_is_listed_exists():
    for line in blocks("text")[1].splitlines():
        command = line.split()[1]
        help_text = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).stdout
        for option in re.findall(r"--[\w-]+", line):
            assert option in help_text, f"kvsim {command} {option}"


def test_every_link_leads_somewhere():
    assert {page.name for page in PAGES} >= {"README.md", "CONTRIBUTING.md", "app.md", "logs.md"}
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
            linked = (page.parent / target).resolve()
            assert linked.exists(), f"{page.name}: {target}"
            assert linked not in MADE, f"{page.name}: {target} is there only after make docs"


def test_every_file_on_the_map_exists():
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    folder = Path()
    for cell in re.findall(r"`([^`]+)`", " ".join(rows)):
        path = Path(cell)
        folder = path.parent if len(path.parts) > 1 else folder
        candidates = [ROOT / path, ROOT / folder / path, ROOT / "kvsim" / path]
        assert any(c.exists() or list(c.parent.glob(c.name)) for c in candidates), cell


def test_recordings_are_as_many_as_said():
    n = len(list((ROOT / "fixtures" / "traces").rglob("*.jsonl.gz")))
    assert f"{n} recordings" in README
    assert f"{n} recordings" in (ROOT / "fixtures" / "README.md").read_text()
