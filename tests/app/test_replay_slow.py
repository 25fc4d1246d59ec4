"""Replay while a recording is still being read and compared, in a browser."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from held import FOLDER
from player_browser import visits

from kvsim.bench.served import served

pytestmark = pytest.mark.browser

KV = Path("fixtures/traces/kv/llama-uni-c256-u16-s4-f16-03.jsonl.gz")
PROGRESS = ".st-key-source [data-testid=stText]"


@pytest.fixture(scope="module")
def held(tmp_path_factory) -> Path:
    """Reading and comparing go slowly while files of these names are in it."""
    return tmp_path_factory.mktemp("held")


@pytest.fixture(scope="module")
def url(held):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(held))
        with served(Path("tests/app/slow_app.py").resolve()) as app:
            yield app.url


@pytest.fixture
def uploaded(tabs, url, held):
    """A page on which the recording has just been chosen."""
    for what in ("reading", "comparing"):
        (held / what).touch()
    with visits(tabs, url) as visit:
        page = visit("?scenario=")
        page.get_by_text("Open a recording").wait_for()
        page.get_by_test_id("stPopoverButton").click()
        data = gzip.decompress(KV.read_bytes())
        page.locator("input[type=file]").set_input_files(
            {"name": "mine.jsonl", "mimeType": "application/jsonl", "buffer": data}
        )
        page.locator(".kv-say").wait_for()
        page.keyboard.press("Escape")
        yield page


def last_step(page) -> int:
    return int(page.locator(".kv-count").inner_text().rpartition(" ")[2].replace(",", ""))


def test_the_player_stands_before_all_is_read_and_keeps_its_step(uploaded, held) -> None:
    page = uploaded
    page.locator(PROGRESS, has_text="reading, ").wait_for()
    first = last_step(page)
    assert 0 <= first < 84
    page.locator(".kv").press("ArrowRight")
    page.locator(".kv-number", has_text=re.compile(r"^1$")).wait_for()
    (held / "reading").unlink()
    page.locator(".kv-count", has_text="of 84").wait_for()
    assert page.locator(".kv-number").inner_text() == "1"
    page.locator(PROGRESS, has_text=re.compile(r"comparing, \d+ of 85 operations: 0 differences")).wait_for()
    (held / "comparing").unlink()
    page.locator(".kvs-verdict", has_text="✓ 0 differences").wait_for()
    assert page.get_by_role("button", name="Stop comparing").count() == 0


def test_reading_and_comparing_can_be_stopped(uploaded, held) -> None:
    page = uploaded
    page.get_by_role("button", name="Stop reading").click()
    comparing = re.compile(r"comparing, \d+ of (\d+) operations: 0 differences")
    progress = page.locator(PROGRESS, has_text=comparing)
    read = int(comparing.search(progress.inner_text())[1])
    assert read < 85
    page.locator(".kv-count", has_text=re.compile(rf" of {read - 1}$")).wait_for()
    for _ in range(2):  # twice: a button that was clicked once must not be in the way of the next
        page.get_by_role("button", name="Stop comparing").click()
        page.locator(PROGRESS, has_text=re.compile(rf"stopped, \d+ of {read} operations")).wait_for()
        page.get_by_role("button", name="Compare again").click()
    (held / "comparing").unlink()
    told = f"✓ 0 differences in the {read} operations that were read"
    page.locator(".kvs-verdict", has_text=told).wait_for()
