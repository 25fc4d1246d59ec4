"""The playground and the lessons in a browser: acting, undo, links, files, picking cells."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path

import pytest
from player_browser import visits

from app.playground.link import packed
from app.playground.setup import Setup
from kvsim.trace import compare_step, read_trace, replay

pytestmark = pytest.mark.browser

SETUP = Setup(cells=64)
LINES = ["prompt 0 6", "prompt 1 8"]
LINK = f"?page=playground&do={packed(SETUP, LINES)}"


@pytest.fixture
def visit(tabs, url):
    with visits(tabs, url, ".kv-say") as go:
        yield go


def count(page, text: str) -> None:
    """The player stands there, and the page has come to rest."""
    page.locator(".kv-count", has_text=text).wait_for()
    rest(page)


def rest(page) -> None:
    page.locator('[data-test-script-state="notRunning"]').wait_for()


def tells(page, text: str) -> None:
    """The text is there, once or, while the page replaces what is stale, twice."""
    page.get_by_text(text).first.wait_for()


def remove(page, first: str) -> None:
    page.locator(".st-key-act-Remove button").click()
    field = page.locator(".st-key-remove-from input")
    field.fill(first)
    field.press("Enter")


def test_acting_animates_what_is_new_and_undo_takes_it_back(visit) -> None:
    page = visit(LINK)
    count(page, "2 of 2")
    remove(page, "2")
    page.get_by_text("frees 4 cells").wait_for()
    before = page.url
    page.get_by_role("button", name="Apply").click()
    page.locator(".kv-say", has_text="Positions 2–5 of seq 0 are removed: 4 cells freed, 2–5.").wait_for()
    count(page, "3 of 3")
    page.wait_for_function("u => location.href !== u", arg=before)
    page.get_by_role("button", name="Undo").click()
    count(page, "2 of 2")
    page.get_by_role("button", name="Redo").click()
    count(page, "3 of 3")


def test_several_new_steps_are_played_one_after_the_other(visit) -> None:
    page = visit(LINK)
    page.locator(".st-key-act-Decode button").click()
    field = page.get_by_label("Times", exact=True)
    field.fill("4")
    field.press("Enter")
    page.get_by_text("writes cells 14–17").wait_for()
    page.locator(".kv").evaluate(  # every number it shows from now on, for however short a time
        """player => {
          window.shown = [];
          new MutationObserver(() => {
            const number = player.querySelector(".kv-number").textContent;
            if (number !== window.shown.at(-1)) window.shown.push(number);
          }).observe(player, { childList: true, subtree: true });
        }"""
    )
    page.get_by_role("button", name="Apply").click()
    page.wait_for_function("window.shown.at(-1) === '6'")
    assert page.evaluate("window.shown") == ["2", "3", "4", "5", "6"]


def test_a_line_of_the_list_leads_the_player_to_its_first_step(visit) -> None:
    page = visit(f"?page=playground&do={packed(SETUP, [*LINES, 'decode 0 x3', 'remove 1'])}")
    count(page, "6 of 6")
    lines = page.locator(".kvs-ops button")
    lines.nth(3).and_(page.locator("[aria-current=step]")).wait_for()
    lines.nth(2).click()
    count(page, "3 of 6")
    lines.nth(2).and_(page.locator("[aria-current=step]")).wait_for()
    assert page.locator("[aria-current=step]").count() == 1
    page.wait_for_function("new URL(location.href).searchParams.get('at') === '3'")
    page.get_by_role("button", name="One step on").click()
    page.get_by_role("button", name="One step on").click()
    lines.nth(2).and_(
        page.locator("[aria-current=step]")
    ).wait_for()  # step 5 is the third token of the same line
    lines.first.press("Enter")
    count(page, "1 of 6")


def test_on_a_narrow_page_fields_acts_player_and_operations_stand_below_each_other(visit) -> None:
    page = visit(LINK, width=800, height=900)
    count(page, "2 of 2")
    parts = [".st-key-pg-config", ".st-key-pg-acts", ".kv", ".st-key-pg-side"]
    boxes = [page.locator(part).first.bounding_box() for part in parts]
    for above, below in pairwise(boxes):
        assert above["y"] + above["height"] <= below["y"] + 1
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 801 for box in boxes)
    apply = page.get_by_role("button", name="Apply").bounding_box()
    assert apply["x"] + apply["width"] <= 800
    page.get_by_role("button", name="Apply").click()
    count(page, "3 of 3")


def test_a_link_restores_memory_operations_and_step(visit) -> None:
    page = visit(LINK)
    page.get_by_role("button", name="One step back").click()
    page.wait_for_function("new URL(location.href).searchParams.get('at') === '1'")
    other = visit(page.url.split("/", 3)[3])
    count(other, "1 of 2")
    assert other.locator(".kvs-ops li").count() == 2
    assert other.get_by_label("Cells", exact=True).input_value() == "64"


def test_a_list_too_long_for_a_link_says_so(visit) -> None:
    page = visit(f"?page=playground&do={packed(SETUP, [])}")
    page.get_by_text("text", exact=True).click()
    field = page.get_by_label("One act a line")
    field.fill("\n".join(f"prompt {n % 4} {n * n % 37 + 1} at {n * 7919 % 10007}" for n in range(390)))
    field.press("Control+Enter")
    page.get_by_text("It and what follows are not done").or_(
        page.locator(".kv-count", has_text="390")
    ).wait_for()
    page.wait_for_function("!new URL(location.href).searchParams.has('do')")
    page.get_by_role("button", name="Link").click()
    page.get_by_text("Too long for a link: use Export").wait_for()


def test_an_exported_trace_replays_and_comes_back(visit, tmp_path: Path) -> None:
    page = visit(LINK)
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Trace (.jsonl.gz)").click()
    file = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(file)
    trace = read_trace(file)
    assert [len(compare_step(a, b)) for a, b in zip(trace, replay(trace), strict=True)] == [0, 0, 0]
    other = visit("?page=playground")
    upload(other, file.name, file.read_bytes())
    other.locator(".kvs-ops li").nth(1).get_by_text("seq 1, 8 tokens").wait_for()
    count(other, "2 of 2")
    assert other.url.split("do=")[1].split("&")[0] == packed(SETUP, LINES)


def upload(page, name: str, data: bytes) -> None:
    rest(
        page
    )  # a run of the page under way would put a new field in the place of the one that takes the file
    page.get_by_role("button", name="Import").click()
    files = page.locator("input[type=file]")
    files.wait_for(state="attached")
    files.set_input_files({"name": name, "mimeType": "application/octet-stream", "buffer": data})


def test_a_damaged_file_names_the_line_and_leaves_the_choice(visit) -> None:
    whole = Path("fixtures/traces/kv/llama-uni-c256-u16-s4-f16-03.jsonl.gz").read_bytes()
    lines = gzip.decompress(whole).splitlines(keepends=True)
    page = visit(LINK)
    upload(page, "cut.jsonl", b"".join(lines[:6]) + lines[6][:80])
    tells(page, "This file is damaged")
    tells(page, "cut.jsonl:7: ")
    rest(page)
    page.get_by_role("button", name="Play the 4 whole operations").click()
    tells(page, "recorded by llama.cpp b11434")
    count(page, "4 of 4")
    page.get_by_role("button", name="Undo").click()
    count(page, "2 of 2")


def test_cells_are_picked_in_the_picture_and_checked(visit) -> None:
    page = visit("?page=lessons")
    page.get_by_text("You have placed 0 of 6.").wait_for()
    grid = page.locator(".kv-grid").first
    box = grid.bounding_box()
    size = box["width"] / 16
    for cell in (0, 1, 2, 3, 4, 7, 7, 5):  # the second 7 takes the first back
        grid.click(position={"x": size * (cell + 0.5), "y": size / 2})
    page.get_by_text("You have placed 6 of 6.").wait_for()
    page.get_by_role("button", name="Check").click()
    page.get_by_text("✓ As you said: 0–5").wait_for()
    page.locator(".kv-say", has_text="Positions 0–5 of seq 0 go to cells 0–5.").wait_for()
    page.wait_for_function("new URL(location.href).searchParams.get('done')?.startsWith('1.')")
    page.reload()
    page.get_by_text("The search starts at the head").wait_for()


def test_a_lesson_opens_in_the_playground(visit) -> None:
    page = visit("?page=lessons&lesson=defragmentation&step=1")
    page.get_by_role("button", name="Show me").click()
    page.locator(".kv-say", has_text="6 cells move from the end into the holes").wait_for()
    page.get_by_role("button", name="Open in the playground").click()
    page.locator(".kvs-ops li").nth(7).get_by_text("classic").wait_for()
    count(page, "8 of 8")


@pytest.mark.parametrize(("scheme", "ink"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(18, 22, 27)")])
def test_the_chosen_act_can_be_read_in_both_themes(visit, scheme: str, ink: str) -> None:
    page = visit(LINK, color_scheme=scheme)
    chosen = page.locator(".st-key-act-Prompt button")
    assert chosen.evaluate("e => getComputedStyle(e).color") == ink
