"""Every page in a browser, for two users at once, with damaged files, and by its timeline: what the pages' own browser
tests leave open.

| page | act | scrub | link | export | damaged upload | two sessions |
| --- | --- | --- | --- | --- | --- | --- |
| Replay (app_in_browser) | there | here | there | there | there | there |
| Playground (playground_in_browser) | there | here | there | there | there | here |
| Lessons (playground_in_browser) | there | here | here | opens in the playground | takes none | here |
| Compare (compare_page) | there | there | there | here | here | here |
| Attention (attention_page) | there | there | there | has none | here | here |
| Memory (memory_page) | there | has none | there | has none | here | here |
"""

from __future__ import annotations

from pathlib import Path

import pytest

from app.playground.link import packed
from app.playground.setup import Setup
from kvsim.models.tiny import write_tiny
from kvsim.trace import read_trace

pytestmark = pytest.mark.browser

KV = "kv/llama-uni-c256-u16-s4-f16-03"
FAULT = "contiguous-slots"
PLAYGROUND = f"?page=playground&do={packed(Setup('llama', cells=64), ['prompt 0 8', 'decode 0 x6'])}"
LONG = 120_000
"""Milliseconds for what a process of its own works out."""


def at_rest(page) -> None:
    page.locator('[data-test-script-state="notRunning"]').wait_for()


# -- the timeline ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "n_steps", "to"), [(f"?page=replay&scenario={KV}&at=3", 85, 60), (f"{PLAYGROUND}&at=1", 8, 5)]
)
def test_the_timeline_scrubs_and_the_address_follows(visit, link: str, n_steps: int, to: int) -> None:
    page = visit(link)
    page.locator(".kv-say").wait_for()
    at_rest(page)
    box = page.locator(".kv-timeline").bounding_box()
    place = box["x"] + 8 + (to + 0.5) * min(28, (box["width"] - 16) / n_steps)
    page.mouse.move(box["x"] + 40, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(place, box["y"] + 30)
    page.mouse.up()
    page.locator(".kv-number", has_text=str(to)).wait_for()
    page.wait_for_function(f"new URL(location.href).searchParams.get('at') === '{to}'")
    page.reload()
    page.locator(".kv-number", has_text=str(to)).wait_for()


def test_a_lesson_steps_back_and_its_link_keeps_the_progress(visit) -> None:
    page = visit("?page=lessons&lesson=sharing&step=2&done=0.1")
    page.locator(".kvs-question", has_text="Which cells do the two tokens take?").wait_for()
    page.get_by_role("button", name="Show me").click()
    page.locator(".kvs-answer", has_text="8–9").wait_for()
    page.locator(".kv-say", has_text="Position 8 of seq 0 and position 8 of seq 1").wait_for()
    page.locator(".kv").press("Home")  # it may still be playing: where it is led, it stays
    page.locator(".kv-say", has_text="A fresh memory").wait_for()
    page.wait_for_function(
        "new URL(location.href).searchParams.get('done') === '0.3.0.0.0.0.0.0.0.0.0.0.0.0'"
    )
    other = visit(page.url.split("/", 3)[3])
    other.locator(".kvs-lesson-title", has_text="Sharing a prompt").wait_for()
    other.locator(".kvs-answer", has_text="8–9").wait_for()
    assert other.locator(".kvs-rules li").all_inner_texts() == [
        "Sharing adds an owner, not a cell.",
        "What is decoded after sharing is private.",
    ]


# -- two users ---------------------------------------------------------------------------------------


def test_two_playgrounds_are_two(visit) -> None:
    one, two = visit(PLAYGROUND), visit(PLAYGROUND)
    for page in (one, two):
        page.locator(".kvs-ops > *").nth(1).wait_for()
        at_rest(page)
    one.get_by_role("button", name="Apply").click()
    one.locator(".kvs-ops > *").nth(2).wait_for()
    two.get_by_role("button", name="Apply").click()
    two.locator(".kvs-ops > *").nth(2).wait_for()
    at_rest(two)
    for page in (one, two):
        assert page.locator(".kvs-ops > *").count() == 3


def test_two_learners_have_their_own_progress(visit) -> None:
    one, two = visit("?page=lessons&lesson=dsa&step=5"), visit("?page=lessons&lesson=dsa&step=5")
    for page in (one, two):
        page.locator(".kvs-given", has_text="cell 0: 0.59, 1: 0.61").wait_for()
        at_rest(page)
    one.get_by_placeholder("or type them: 0–5, 9").fill("0-1, 3-4, 12, 14, 16, 20")
    one.get_by_placeholder("or type them: 0–5, 9").press("Enter")
    one.get_by_role("button", name="Check").click()
    one.locator(".kvs-answer.kvs-good", has_text="As you said: 0–1, 3–4, 12, 14, 16 and 20").wait_for()
    two.get_by_role("button", name="Next").wait_for()
    assert two.locator(".kvs-answer").count() == 0


def test_a_model_file_is_its_users_own_and_a_damaged_one_is_told(visit, tmp_path: Path) -> None:
    write_tiny("llama", tmp_path / "mine.gguf")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "mine.gguf").read_bytes()[:200])
    link = f"?page=attention&scenario={KV}&at=18"
    one, two = visit(link), visit(link)
    one.locator(".kva .kv-say").wait_for()
    one.get_by_role("button", name="Model").click()
    one.locator("input[type=file]").set_input_files(tmp_path / "cut.gguf")
    one.locator("[data-testid=stAlert]", has_text="cut.gguf").wait_for()
    assert one.locator(".kvs-verdict", has_text="as recorded").count() == 1
    one.locator("input[type=file]").set_input_files(tmp_path / "mine.gguf")
    one.locator(".kvs-verdict", has_text="model mine.gguf").wait_for()
    two.locator(".kvs-verdict", has_text="as recorded").wait_for()
    two.reload()
    two.locator(".kvs-verdict", has_text="as recorded").wait_for()


def test_a_header_is_its_users_own_and_a_damaged_one_is_told(visit, tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + bytes(40))
    write_tiny("gemma3", tmp_path / "mine.gguf")
    one, two = visit("?page=memory"), visit("?page=memory")
    for page in (one, two):
        page.locator(".kvm-total b").wait_for()
        at_rest(page)
    total = two.locator(".kvm-total b").inner_text()
    one.get_by_text("Read a GGUF header").click()
    one.locator("input[type=file]").set_input_files(tmp_path / "cut.gguf")
    one.locator("[data-testid=stAlert]", has_text="cut.gguf").wait_for()
    one.locator("input[type=file]").set_input_files(tmp_path / "mine.gguf")
    one.get_by_text("mine.gguf: gemma3, 2 layers").wait_for()
    two.get_by_label("Sequences").fill("2")
    two.get_by_label("Sequences").press("Enter")
    two.wait_for_function("new URL(location.href).searchParams.get('n_seq_max') === '2'")
    assert two.get_by_text("mine.gguf").count() == 0
    assert two.locator(".kvm-total b").inner_text() != ""
    assert one.locator(".kvm-total b").inner_text() != total


def test_a_comparison_of_an_upload_is_its_users_own_and_a_damaged_one_is_told(visit) -> None:
    one, two = visit("?page=compare"), visit("?page=compare")
    for page in (one, two):
        page.get_by_test_id("stPopoverButton").wait_for()
        at_rest(page)
    one.get_by_test_id("stPopoverButton").click()
    bad = {"name": "bad.jsonl", "mimeType": "text/plain", "buffer": b'{"kvtrace": "<b>"}\n'}
    one.locator("input[type=file]").set_input_files(bad)
    one.get_by_text("This cannot be compared").wait_for(timeout=LONG)
    assert "bad.jsonl:1: " in one.locator(".st-key-card").inner_text()
    two.locator(".kvc .kv-say").wait_for(timeout=LONG)
    assert two.get_by_text("bad.jsonl").count() == 0


def test_the_way_to_a_fault_is_saved_as_a_trace(visit, tmp_path: Path) -> None:
    page = visit(f"?page=compare&mutant={FAULT}")
    page.get_by_role("button", name="Run", exact=True).click()
    save = page.get_by_role("button", name="Save the trace")
    save.wait_for(timeout=LONG)
    with page.expect_download() as waiting:
        save.click()
    assert waiting.value.suggested_filename == f"{FAULT}.jsonl.gz"
    waiting.value.save_as(tmp_path / "shortest.jsonl.gz")
    steps = list(read_trace(tmp_path / "shortest.jsonl.gz"))
    listed = page.locator(".kvc-ops li").count()
    assert len(steps) == listed + 1  # and the beginning
