"""Where someone leads the player it stays, and keys act on it afterwards, whatever had the focus."""

from __future__ import annotations

import pytest

from kvsim.player.payload import pack
from kvsim.trace import read_trace

pytestmark = pytest.mark.browser

NAME = "iswa/gemma3-swa20-uni-c512-u64-s8-q8_0-05"
WIDE = 1700
"""Pixels, enough for the list of operations."""

PLAY = """() => { const p = kvsim.player;
  p.select({ lane: 0, cell: 0 }); p._run = () => {}; p.go(40); p.play(); p.go(41, { animate: true }); }"""
"""It plays, and step 41 is on its way; the next frame is left to the test."""

FRAME = "() => { if (kvsim.player.playing) kvsim.player._playOn(performance.now()); }"

AT = "kvsim.player.at"


@pytest.fixture(scope="module")
def payload() -> dict:
    trace = read_trace(f"fixtures/traces/{NAME}.jsonl.gz")
    return pack(trace.header, trace, NAME)


def press(*keys: str, on: str = ".kv"):
    def act(page) -> None:
        page.locator(on).first.focus()
        for key in keys:
            page.keyboard.press(key)

    return act


def click(where: str, **at: object):
    return lambda page: page.locator(where).first.click(**at)


@pytest.mark.parametrize(
    ("lead", "to"),
    [
        pytest.param(press("Home"), 0, id="home"),
        pytest.param(press("End"), 96, id="end"),
        pytest.param(press("ArrowRight"), 42, id="right"),
        pytest.param(press("ArrowLeft"), 40, id="left"),
        pytest.param(press("]"), 60, id="next failure"),
        pytest.param(press("["), 30, id="failure before"),
        pytest.param(press("g", "7", "Enter"), 7, id="number"),
        pytest.param(press("Home", on=".kv-grid"), 0, id="key in a grid"),
        pytest.param(click("[aria-label='First step']"), 0, id="first"),
        pytest.param(click("[aria-label='One step back']"), 40, id="back"),
        pytest.param(click("[aria-label='One step on']"), 42, id="on"),
        pytest.param(click("[aria-label='Last step']"), 96, id="last"),
        pytest.param(click("[data-step='44']"), 44, id="operation"),
        pytest.param(click(".kv-history button"), 1, id="history of a cell"),
        pytest.param(click(".kv-timeline", position={"x": 9, "y": 30}), 0, id="timeline"),
    ],
)
def test_a_playing_player_stays_where_it_is_led(show, payload, lead, to: int) -> None:
    page = show(payload, width=WIDE)
    page.evaluate(PLAY)
    lead(page)
    page.evaluate(FRAME)
    assert page.evaluate(AT) == to
    assert page.get_by_role("button", name="Play", exact=True).count() == 1


@pytest.mark.parametrize("where", ["[data-step='16']", ".kv-history button"])
def test_keys_act_after_a_click_on_what_is_then_drawn_anew(show, payload, where: str) -> None:
    page = show(payload, 18, width=WIDE)
    page.evaluate("kvsim.player.select({ lane: 0, cell: 0 })")
    page.locator(where).first.click()
    before = page.evaluate(AT)
    assert before != 18
    page.keyboard.press("ArrowRight")
    assert page.evaluate(AT) == before + 1


@pytest.mark.parametrize("focused", [".kv-grid", "[aria-label='One step on']", ".kv"])
def test_keys_go_on_acting_when_more_of_the_recording_comes(show, payload, focused: str) -> None:
    page = show({**payload, "steps": payload["steps"][:10]}, 5)
    page.locator(focused).first.focus()
    page.evaluate("whole => kvsim.extend(whole)", payload)
    page.keyboard.press("End")
    assert page.evaluate(AT) == 96


def test_a_player_takes_no_focus_that_is_elsewhere(show, payload) -> None:
    page = show({**payload, "steps": payload["steps"][:10]}, 5)
    page.evaluate("document.activeElement.blur()")
    page.evaluate("whole => kvsim.extend(whole)", payload)
    assert page.evaluate("document.activeElement === document.body")
