"""The Findings and Explanations pages: everything in the tables is shown, with a trace that shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from player_browser import PATIENCE_MS
from playwright.sync_api import expect
from streamlit.testing.v1 import AppTest

from app import traces
from kvsim.explain import EXPLANATIONS
from kvsim.hazards import HAZARDS
from kvsim.lanes.finding_table import FINDINGS, UNCONFIRMED

MAIN = Path(__file__).resolve().parents[2] / "app" / "main.py"


def start(page: str, **query: str) -> AppTest:
    at = AppTest.from_file(MAIN, default_timeout=120)
    at.query_params["page"] = page
    for key, value in query.items():
        at.query_params[key] = value
    at.run()
    assert not at.exception
    return at


def shown(at: AppTest) -> str:
    return " ".join(block.proto.body for block in at.get("html") if "<style>" not in block.proto.body)


def chosen(at: AppTest) -> list[str]:
    return [b.label for b in at.button if b.proto.type == "primary"]


# -- findings ----------------------------------------------------------------------------------------


def test_every_hazard_is_in_the_list() -> None:
    at = start("findings")
    assert {b.key for b in at.button} == {f"finding {name}" for name in HAZARDS}
    assert at.query_params["hazard"] == next(iter(HAZARDS))


def test_a_link_restores_the_hazard_and_its_trace_is_explained_by_the_replay() -> None:
    at = start("findings", hazard="half-restored")
    hazard = HAZARDS["half-restored"]
    for text in (hazard.happens, hazard.instead, hazard.remedy, "Half restored"):
        assert text.split(":")[0] in shown(at)
    assert chosen(at) == ["●\u2002half restored"]
    found = traces.reading(hazard.trace)
    assert found.wait_checked(120)
    assert found.checked.differences == 0
    met = [h["title"] for note in found.checked.notes.values() for h in note.get("hazards", [])]
    assert "half restored" in met


def test_choosing_another_forgets_the_step() -> None:
    at = start("findings", hazard="half-restored", at="1")
    at.button(key="finding heads-exchanged").click().run()
    assert not at.exception
    assert at.query_params["hazard"] == "heads-exchanged"
    assert "at" not in at.query_params


@pytest.mark.parametrize("hazard", ["../../etc/passwd", "<b>", ""])
def test_a_link_to_no_hazard_shows_the_first(hazard: str) -> None:
    assert chosen(start("findings", hazard=hazard)) == ["●\u2002shift moves other owners"]


def test_what_was_seen_in_the_library_is_told_with_its_operations() -> None:
    at = start("findings", hazard="shift-moves-other-owners")
    assert "55 of 59 seen live" in shown(at)
    assert "seen in llama.cpp b11549 and b11063" in shown(at)
    assert at.expander[0].label == "What was done to the library: 2 operations on a tiny llama"
    ops, showed = (block.value for block in at.expander[0].markdown)
    assert "seq_add(seq=0, p0=-1, p1=-1, delta=2)" in ops
    assert showed == "- `pos 1` is `[2, 4]`; consistent would be `[0, 2]`."


def test_every_hazard_was_seen_or_says_why_not() -> None:
    assert {f.hazard for f in FINDINGS} | UNCONFIRMED.keys() == HAZARDS.keys()
    at = start("findings", hazard="stale-rollback-kept")
    assert chosen(at) == ["○\u2002stale rollback kept"]
    assert "Not seen in the library itself: Nothing shows a pending rollback" in shown(at)
    assert not at.expander
    assert "no longer in" in shown(start("findings", hazard="rollback-moves-other-owners"))


# -- explanations ------------------------------------------------------------------------------------


def test_a_pasted_message_is_explained_with_its_trace() -> None:
    at = start("explanations", message="W decode: failed to find a memory slot for batch of size 512")
    assert (at.query_params["id"], chosen(at)[-1]) == ("no-slot", "Explain")
    assert "llama_decode returned 1." in shown(at)
    assert "The cache is 3 cells short" in traces.reading(at_trace("no-slot")).opened.payload


def at_trace(name: str) -> str:
    return next(e.trace for e in EXPLANATIONS if e.id == name)


def test_lines_of_a_log_bring_every_message_in_them() -> None:
    log = "x\nslot: failed to restore kv cache\nE foo\nquantized V cache requires flash_attn to be enabled\n"
    at = start("explanations")
    at.text_area(key="explain-text").set_value(log).run()
    assert [b.label for b in at.button if (b.key or "").startswith("found ")] == [
        "restore failed", "quantised v needs flash",
    ]  # fmt: skip
    at.button(key="found quantised-v-needs-flash").click().run()
    assert "No recording can show it" in shown(at)
    assert at.query_params["id"] == "quantised-v-needs-flash"
    assert at.query_params["message"] == log.strip()


def test_words_misspelt_are_said_to_be_similar_and_nonsense_to_be_unknown() -> None:
    assert "Not as llama.cpp writes it" in shown(start("explanations", message="memry slot not found"))
    at = start("explanations", message="the quick brown fox")
    assert "No such message is known" in at.error[0].value
    assert not at.get("download_button")


def test_every_message_is_in_the_list_and_can_be_looked_at() -> None:
    at = start("explanations", id="shift-mrope-asserts")
    listed = [b.key for b in at.button if (b.key or "").startswith("explanation ")]
    assert listed == [f"explanation {e.id}" for e in EXPLANATIONS]
    assert "only supported for n_pos_per_embd() == 1" in shown(at)
    at.button(key="explanation context-rounded").click().run()
    assert at.query_params["id"] == "context-rounded"


def test_what_is_pasted_is_shown_as_text() -> None:
    at = start("explanations", message="<img src=x onerror=alert(1)> failed to restore kv cache")
    assert "<img" not in shown(at)


@pytest.mark.browser
def test_findings_and_explanations_in_a_browser(visit, url) -> None:
    page = visit("?page=findings&hazard=shift-moves-other-owners")
    page.locator(".kv-stage-hazards .kv-hazard").wait_for()
    page.get_by_role("button", name="One step back").click()
    page.wait_for_function("new URL(location.href).searchParams.get('at') === '1'")
    page.reload()
    page.locator(".kv-number", has_text="1").wait_for()
    page.get_by_role("button", name="heads exchanged", exact=False).click()
    page.get_by_role("heading", name="Heads exchanged").wait_for()
    page.wait_for_function("new URL(location.href).searchParams.get('hazard') === 'heads-exchanged'")
    page.goto(f"{url}/?page=explanations")
    box = page.get_by_label("A message of llama.cpp, or lines of a log")
    box.fill("common_init: n_ctx is not divisible by n_seq_max - rounding down to 512")
    page.get_by_role("button", name="Explain").click()
    page.get_by_role("heading", name="Context rounded").wait_for()
    page.locator(".kv-say").wait_for()
    page.wait_for_function("new URL(location.href).searchParams.get('id') === 'context-rounded'")
    page.reload()
    page.get_by_role("heading", name="Context rounded").wait_for()
    expect(box).to_have_value(re.compile("^common_init: n_ctx is not divisible"), timeout=PATIENCE_MS)
