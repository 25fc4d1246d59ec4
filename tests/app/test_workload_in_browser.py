"""The Workload page in a browser: serving, brushing into the player, links, a damaged file, two sessions."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

TIGHT = "arch:gemma3-4b,n_ctx:4096,unified:1"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
GOOD = HEADER + "".join(f"2023-11-16 18:15:{i:02d}.00,{50 + i},9\n" for i in range(40))
DAMAGED = HEADER + "2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:45.00,9,9\n"


def _brush(page, start: float, end: float, whole: float) -> None:
    """Drag over the plots from one time to another, of ``whole`` seconds."""
    box = page.locator(".kvw canvas").bounding_box()
    left, width = box["x"] + 66, box["width"] - 96
    page.mouse.move(left + width * start / whole, box["y"] + 90)
    page.mouse.down()
    page.mouse.move(left + width * end / whole, box["y"] + 100, steps=5)
    page.mouse.up()


def test_an_interval_is_brushed_and_its_link_opens_it_again(visit) -> None:
    page = visit("?page=workload&requests=60")
    page.get_by_role("button", name="Serve 60 requests").click()
    canvas = page.locator(".kvw canvas")
    canvas.wait_for()
    page.locator(".st-key-wl-waiting").wait_for(state="detached")
    _brush(page, 14.0, 14.6, 30.6)
    page.locator(".kv-say").wait_for()
    page.wait_for_function("new URL(location.href).searchParams.has('from')")
    page.get_by_role("button", name="One step on").click()
    page.wait_for_function("new URL(location.href).searchParams.get('at') === '1'")
    said = page.locator(".kv-say").inner_text()
    page.reload()
    page.locator(".kv-say").wait_for()
    assert page.locator(".kv-say").inner_text() == said
    page.get_by_role("button", name="Close the player").click()
    page.locator(".kv-say").wait_for(state="detached")
    assert "from=" not in page.url


def test_the_keyboard_chooses_an_interval_too(visit) -> None:
    page = visit(f"?page=workload&requests=60&runs={TIGHT}")
    plots = page.locator(".kvw")
    plots.wait_for()
    plots.focus()
    for key in ("ArrowRight", "ArrowRight", "Shift+ArrowRight", "Enter"):
        plots.press(key)
    page.get_by_role("button", name="Close the player").wait_for()
    page.wait_for_function("new URL(location.href).searchParams.has('from')")


def _upload(page, text: str) -> None:
    page.locator("input[type=file]").first.set_input_files(
        {"name": "mine.csv", "mimeType": "text/csv", "buffer": text.encode()}
    )


def _own_file(page) -> None:
    box = page.get_by_role("combobox").first
    box.click()
    page.get_by_role("option", name="A file of yours").click()
    page.get_by_text("Azure CSV or Mooncake JSON lines").wait_for()


def test_a_damaged_file_names_its_line_and_a_good_one_is_served_for_one_session_only(visit) -> None:
    one, two = visit("?page=workload"), visit("?page=workload")
    _own_file(one)
    _upload(one, DAMAGED)
    one.get_by_text("mine.csv:3: comes 1.68 s before the line above it").wait_for()
    assert one.get_by_role("button", name="Serve", exact=True).is_disabled()
    one.get_by_role("button", name="Remove mine.csv").click()
    _upload(one, GOOD)
    one.get_by_text("40 requests over 39 s").wait_for()
    one.get_by_role("button", name="Serve", exact=True).click()
    one.get_by_text("40 of 40").wait_for()
    assert one.get_by_text("mine.csv: 40 requests").count() == 1
    _own_file(two)
    assert two.get_by_text("mine.csv").count() == 0
    assert two.get_by_role("button", name="Serve", exact=True).is_disabled()


def test_plots_are_saved_as_a_picture(visit, tmp_path) -> None:
    page = visit(f"?page=workload&requests=60&runs={TIGHT}")
    page.locator(".kvw canvas").wait_for()
    page.get_by_role("button", name="Save").first.click()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="The plots as SVG").click()
    waiting.value.save_as(tmp_path / "plots.svg")
    assert "Cells of base, by slot" in (tmp_path / "plots.svg").read_text()


def test_a_plan_shows_its_frontier_and_can_be_served(visit) -> None:
    page = visit("?page=workload&requests=60&view=plan&p_n_ctx=4096,16384&p_parallel=4&p_unified=1")
    page.get_by_role("button", name="Try 2 configurations").click()
    page.locator(".kvw-field i").first.wait_for()
    assert page.locator(".kvw-field i").count() == 2
    page.get_by_role("button", name="Serve the smallest").click()
    page.locator(".kvw canvas").wait_for()
    page.wait_for_function("new URL(location.href).searchParams.get('runs')?.includes('n_ctx:16384')")
