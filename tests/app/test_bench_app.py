"""``kvsim bench app``: its table, and what it says where something is missing. Times are never checked."""

from __future__ import annotations

import importlib.util
import json

import pytest
from typer.testing import CliRunner

from kvsim.bench import app as bench
from kvsim.bench.browser import Watched
from kvsim.bench.measure import Row
from kvsim.cli import app

PAGES = bench.PAGES


@pytest.mark.browser
def test_pages_are_painted_ready_and_used_beside_a_page_of_streamlit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "PAGES", PAGES[1:2])
    rows = list(bench.pages_table(loads=1, acts=2))
    assert [row.name for row in rows] == [
        "playground: first paint",
        "playground: ready",
        "playground: an act",
    ]
    assert all(row.seconds > 0 and row.reference and row.reference > 0 for row in rows)
    assert {row.against for row in rows} == {"a page with a button"}
    assert rows[0].seconds <= rows[1].seconds  # nothing is ready before something is painted


def test_the_pages_of_the_table() -> None:
    assert [(asked.name, asked.what) for asked in PAGES] == [
        ("replay", "a step"), ("playground", "an act"), ("lessons", "a prediction and on"),
        ("compare", "a step"), ("attention", "another row"), ("memory", "a setting"),
    ]  # fmt: skip


def invoke(*line: str):
    return CliRunner().invoke(app, ["bench", "app", *line])


def test_without_a_browser_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    done = invoke()
    assert done.exit_code == 2
    assert "no browser found: install chromium, or name one in CHROMIUM" in " ".join(done.output.split())


@pytest.mark.browser
def test_without_streamlit_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name == "streamlit" else real(name, *a)
    )
    done = invoke("--users", "0")
    assert done.exit_code == 2
    assert "the app needs streamlit: pip install 'kvsim[app]'" in " ".join(done.output.split())


def test_the_rows_are_told_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.bench.app.pages_table", lambda: iter([Row("replay: a step", 0.5, "x", 0.25)]))
    told = json.loads(invoke("--users", "0", "--json").stdout)
    assert (told["bench"], told["users"], told["told"]) == ("app", 0, [])
    assert told["rows"][0]["ratio"] == 2.0


@pytest.mark.browser
@pytest.mark.parametrize("asked", [PAGES[0], *PAGES[2:]], ids=lambda asked: asked.name)
def test_each_other_page_comes_and_answers_too(opened, url, asked: bench.Asked) -> None:
    """The last of this file: a process has one browser at a time."""
    page = Watched(opened, f"{url}/?page={asked.link}", asked.ready)
    try:
        assert 0 < page.painted <= page.ready
        assert all(page.act(asked.act, asked.seen) > 0 for _ in range(2))
    finally:
        page.close()
