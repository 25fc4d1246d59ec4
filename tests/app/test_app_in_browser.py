"""The app in a browser: choosing, links, uploads whole and damaged, themes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

KV = "kv/llama-uni-c256-u16-s4-f16-03"
FILE = Path(f"fixtures/traces/{KV}.jsonl.gz")


def test_a_link_opens_the_step_and_the_address_follows(visit) -> None:
    page = visit(f"?page=replay&scenario={KV}&at=16")
    page.locator(".kv-say").wait_for()
    assert page.locator(".kv-number").inner_text() == "16"
    page.get_by_text("0 differences").wait_for()
    page.get_by_role("button", name="One step on").click()
    page.wait_for_function("new URL(location.href).searchParams.get('at') === '17'")
    page.reload()
    page.locator(".kv-say").wait_for()
    assert page.locator(".kv-number").inner_text() == "17"


def test_the_app_opens_on_a_recording(visit) -> None:
    page = visit()
    page.locator(".kv-say").wait_for()
    page.get_by_text("0 differences").wait_for()


def test_an_empty_page_plays_a_recording_with_one_click(visit) -> None:
    page = visit("?scenario=")
    page.get_by_role("button", name="Play the first one").click()
    page.locator(".kv-say").wait_for()
    assert page.locator(".kv-say").inner_text().startswith("A fresh memory: 256 cells in kv")
    page.wait_for_function("new URL(location.href).searchParams.get('scenario')?.startsWith('kv/')")


def _upload(page, name: str, data: bytes) -> None:
    page.get_by_test_id("stPopoverButton").click()
    page.locator("input[type=file]").set_input_files(
        {"name": name, "mimeType": "application/gzip", "buffer": data}
    )


def test_an_upload_is_played_and_checked(visit) -> None:
    page = visit("?scenario=")
    page.get_by_text("Open a recording").wait_for()
    _upload(page, "mine.jsonl.gz", FILE.read_bytes())
    page.locator(".kv-say").wait_for()
    page.get_by_text("0 differences").wait_for()
    assert "scenario" not in page.url


def test_a_damaged_upload_names_the_line_and_plays_the_rest(visit) -> None:
    whole = gzip.decompress(FILE.read_bytes()).splitlines(keepends=True)
    page = visit("?scenario=")
    page.get_by_text("Open a recording").wait_for()
    _upload(page, "cut.jsonl", b"".join(whole[:20]) + whole[20][:99])
    page.get_by_text("This file is damaged").wait_for()
    page.get_by_text("cut.jsonl:21: ").wait_for()
    page.get_by_role("button", name="Play the 19 whole operations").click()
    page.locator(".kv-say").wait_for()
    assert page.locator(".kv-count").inner_text() == "0 of 18"


def test_two_sessions_do_not_see_each_others_uploads(visit) -> None:
    one, two = visit("?scenario="), visit("?scenario=")
    one.get_by_text("Open a recording").wait_for()
    _upload(one, "mine.jsonl.gz", FILE.read_bytes())
    one.locator(".kv-say").wait_for()
    two.reload()
    two.get_by_text("Open a recording").wait_for()
    assert two.locator(".kv-say").count() == 0


@pytest.mark.parametrize(("scheme", "ground"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(18, 22, 27)")])
def test_the_player_takes_streamlits_theme(visit, scheme: str, ground: str) -> None:
    page = visit(f"?scenario={KV}", color_scheme=scheme)
    page.locator(".kv-say").wait_for()
    page.wait_for_function("g => getComputedStyle(document.body).colorScheme !== g", arg="")
    assert page.locator(".kv").evaluate("e => getComputedStyle(e).backgroundColor") == ground


def test_another_recording_replaces_the_player(visit) -> None:
    page = visit(f"?scenario={KV}&at=5")
    page.locator(".kv-say").wait_for()
    box = page.get_by_role("combobox").first
    box.click()
    box.fill("gemma3n-str")
    page.get_by_role("option").first.click()
    page.locator(".kv-say", has_text="A fresh memory: 512 cells in base, 512 cells in swa").wait_for()
    assert page.locator(".kv").count() == 1
    assert page.locator(".kv-number").inner_text() == "0"


def test_an_export_plays_without_the_app(visit, tmp_path) -> None:
    page = visit(f"?scenario={KV}&at=16")
    page.get_by_text("0 differences").wait_for()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Export").click()
    file = tmp_path / waiting.value.suggested_filename
    assert file.name == "llama-uni-c256-u16-s4-f16-03.html"
    waiting.value.save_as(file)
    alone = visit("_stcore/health")
    requests: list[str] = []
    alone.on("request", lambda request: requests.append(request.url))
    alone.goto(file.as_uri())
    alone.locator(".kv-say", has_text="Positions 8–42 of seq 2 roll back by 8").wait_for()
    assert requests == [file.as_uri()]  # nothing else is fetched


def test_a_hazard_is_told_once_the_replay_met_it(visit) -> None:
    """Operation 23 shifts positions of cells that another sequence shares."""
    page = visit("?scenario=kv/llama-h32-uni-c1024-u16-s4-f16-07&at=23")
    note = page.locator(".kv-inspector .kv-hazard")
    note.wait_for()
    assert note.inner_text().startswith("▲ Hazard: shift moves other owners")
    assert "consistent would be" in note.inner_text()
    page.locator(".kv-mark", has_text="▲ hazard").wait_for()


PAGES = {
    "replay": ".kv-say",
    "playground": ".kv-say",
    "lessons": ".kv-say",
    "compare": ".kvc .kv-say",
    "attention": ".kva .kv-say",
    "memory": ".kvm-bars",
}


@pytest.mark.parametrize("name", PAGES)
def test_no_page_scrolls_sideways_from_700_pixels_on(visit, name: str) -> None:
    page = visit(f"?page={name}", width=700, height=900)
    page.locator(PAGES[name]).first.wait_for()
    main = page.get_by_test_id("stMain")
    for width in (700, 850, 1000, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(
            "w => document.querySelector('[data-testid=stMain]').clientWidth === w", arg=width
        )
        page.evaluate("() => new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))")
        assert main.evaluate("e => e.scrollWidth") == width
