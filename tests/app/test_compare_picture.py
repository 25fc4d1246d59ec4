"""The Compare page's picture in a browser, on two sides that differ where the test makes them differ."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from kvsim.player.bundle import bundle, stylesheet
from kvsim.player.payload import pack
from kvsim.trace import read_trace

pytestmark = pytest.mark.browser

HYBRID = "hybrid/qwen35-uni-c512-u32-s4-q8_0-rs2-09"
DSV4 = "dsv4/deepseek4-uni-c1024-u32-s1-q8_0-rs2-05"

RED = """at => { const c = document.querySelectorAll(".kvc-side .kv-compressor")[at];
  const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
  let n = 0;
  for (let i = 0; i < d.length; i += 4) if (d[i] === 0xbd && d[i + 1] === 0x22 && d[i + 2] === 0x19) n++;
  return n; }"""


def payload_of(name: str) -> dict:
    trace = read_trace(f"fixtures/traces/{name}.jsonl.gz")
    return pack(trace.header, trace, name)


def show(new_page, tmp_path: Path, reference: dict, subject: dict, at: int, **more: object):
    """The picture of two payloads at one operation."""
    n = len(reference["steps"])
    comparison = {
        "name": "subject",
        "lanes": [{"name": "kvsim", "what": "reference", "marks": "a" * n}],
        "reference": reference,
        "subject": subject,
        "differs": {},
        "hazards": {},
        "kinds": [],
        "ended": None,
        "end": "",
        **more,
    }
    data = json.dumps({"key": "1", "comparison": json.dumps(comparison), "at": at}).replace("<", "\\u003c")
    script = bundle("compare").replace("export default ", "window.show = ")
    file = tmp_path / "compare.html"
    file.write_text(
        f"<!doctype html><meta charset=utf-8><style>{stylesheet('compare.css')}</style><body>"
        f'<div class="kv-host"></div><script type="application/json" id="data">{data}</script>'
        f'<script type="module">{script}\nwindow.show({{ parentElement: document.body, '
        'data: JSON.parse(document.getElementById("data").textContent) });</script>'
    )
    page = new_page()
    page.goto(file.as_uri())
    page.locator(".kvc .kv-say", has_text=".").wait_for()
    return page


def last_state(payload: dict, at: int) -> dict:
    """The recurrent record that holds at this operation, made one of its own."""
    record = next(s["rec"] for s in reversed(payload["steps"][: at + 1]) if "rec" in s)
    payload["steps"][at]["rec"] = record = copy.deepcopy(record)
    return record


def test_recurrent_cards_of_both_sides_stand_beside_each_other_and_differences_are_red(
    new_page, tmp_path
) -> None:
    """The subject's state of seq 3, in cell 1, is not rolled back; those of the others agree."""
    reference, at = payload_of(HYBRID), 58
    subject = copy.deepcopy(reference)
    record = last_state(subject, at)
    assert record["rs_idx"][3] == 2
    record["rs_idx"][3] = 0
    page = show(new_page, tmp_path, reference, subject, at)
    sides = page.locator(".kvc-side", has=page.locator(".kv-cards"))
    assert [sides.nth(k).locator(".kv-card").count() for k in (0, 1)] == [4, 4]
    for k, plane in ((0, "plane 2"), (1, "plane 0")):
        marked = sides.nth(k).locator(".kvc-apart-card")
        assert marked.count() == 1
        assert "cell 1" in marked.inner_text()
        assert marked.locator(".kv-plane-read").inner_text().startswith(plane)
        assert marked.locator(".kv-plane.kvc-apart-text").count() == 3


def test_equal_cards_are_not_marked(new_page, tmp_path) -> None:
    reference = payload_of(HYBRID)
    page = show(new_page, tmp_path, reference, copy.deepcopy(reference), 58)
    assert page.locator(".kv-card").count() == 8
    assert page.locator(".kvc-apart-card, .kvc-apart-text").count() == 0


def test_rings_and_pooled_rows_are_drawn_and_differences_are_red(new_page, tmp_path) -> None:
    reference, at = payload_of(DSV4), 72
    same = show(new_page, tmp_path, reference, copy.deepcopy(reference), at)
    assert same.locator(".kvc-side .kv-compressor").count() == 2
    assert [same.evaluate(RED, k) for k in (0, 1)] == [0, 0]
    subject = copy.deepcopy(reference)
    (seq, low, high), *_ = subject["steps"][at]["pos"]
    subject["steps"][at]["pos"] = [[seq, low, high - 5]]
    page = show(new_page, tmp_path, reference, subject, at)
    assert min(page.evaluate(RED, k) for k in (0, 1)) > 100


def test_long_names_end_in_dots_and_are_told_in_full(new_page, tmp_path) -> None:
    reference = payload_of(HYBRID)
    name = "a-fault-with-a-name-so-long-that-no-heading-has-the-room-for-it"
    page = show(new_page, tmp_path, reference, copy.deepcopy(reference), 58, name=name)
    title = page.locator(".kvc-grids .kvc-side .kv-lane-name").nth(1)
    assert title.get_attribute("title") == f"{name}, attn"
    inside = "e => [e.getBoundingClientRect().right, e.parentElement.getBoundingClientRect().right]"
    right, edge = title.evaluate(inside)
    assert right < edge
