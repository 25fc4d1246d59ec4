"""Replay opens logs of llama.cpp: what plays, what is said of messages and levels, what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app import logs
from app.views import replay_upload
from kvsim.errors import TraceError
from kvsim.explain import explanation_by_id
from kvsim.logs import import_log
from kvsim.player.payload import pack
from kvsim.trace import Header

ROOT = Path(__file__).resolve().parents[2]
KV = ROOT / "fixtures/traces/kv/llama-uni-c256-u16-s4-f16-03.jsonl.gz"


def log_of(name: str) -> bytes:
    return gzip.decompress((ROOT / f"fixtures/logs/{name}.log.gz").read_bytes())


def upload(name: str, data: bytes) -> AppTest:
    at = AppTest.from_file(ROOT / "app" / "main.py", default_timeout=90)
    at.session_state["upload"] = (name, data)
    at.session_state["scenario"] = None
    at.run()
    assert not at.exception
    return at


def verdict(at: AppTest) -> str:
    return " ".join(block.proto.body for block in at.get("html") if "kvs-verdict" in block.proto.body)


def steps_of(at: AppTest) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = json.loads(at.session_state["opened"].payload)["steps"]
    return steps


# -- what plays -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "n_steps", "shows"),
    [
        ("gemma3-debug1", 38, "log: counts and positions, no cells"),
        ("gemma3-debug2", 38, "log: cells of the window cache only"),
        ("gemma3-debug3", 38, "log: all cells"),
        ("jamba-debug3", 4, "log: all cells"),
    ],
)
def test_a_log_plays_and_the_page_says_what_its_level_shows(name: str, n_steps: int, shows: str) -> None:
    at = upload(f"{name}.log", log_of(name))
    assert at.session_state["opened"].n_steps == n_steps
    assert f">{shows}<" in verdict(at)
    assert "nothing to replay" in verdict(at)


def test_a_compressed_log_and_a_text_file_are_logs_too() -> None:
    whole = upload("server.log", log_of("llama-debug3"))
    for name, data in (
        ("server.log.gz", gzip.compress(log_of("llama-debug3"), mtime=0)),
        ("SERVER.TXT", log_of("llama-debug3")),
    ):
        assert steps_of(upload(name, data)) == steps_of(whole)


def test_a_recording_is_one_whatever_its_name() -> None:
    at = upload("pasted.log", gzip.decompress(KV.read_bytes()))
    assert "✓ 0 differences" in verdict(at)


def test_a_recording_of_the_tester_says_what_it_found() -> None:
    header, *lines = gzip.decompress(KV.read_bytes()).splitlines()
    line = json.loads(header)
    found = {"subject": "mine", "verdict": "differs", "operation": "seq_rm(seq=0)", "what": "kv: 1 < 2"}
    line["config"]["failure"] = found
    said = verdict(upload("failure.jsonl", b"\n".join([json.dumps(line).encode(), *lines])))
    assert "✓ 0 differences" in said
    assert 'title="seq_rm(seq=0): kv: 1 &lt; 2">✕ mine differs at seq_rm</div>' in said


def test_messages_are_marked_and_explained_where_they_stand() -> None:
    steps = steps_of(upload("server.log", log_of("llama-debug3")))
    said = {step["i"]: step for step in steps if "means" in step}
    assert [(i, step["bad"]) for i, step in said.items()] == [(12, True), (13, True), (21, True), (22, True)]
    entry = explanation_by_id("no-slot")
    assert said[12]["say"] == "The log says: “decode: failed to find a memory slot for batch of size 200”."
    assert said[12]["means"] == {"cause": entry.cause, "see": entry.see, "remedy": entry.remedy}


def test_the_other_context_of_a_log_can_be_chosen() -> None:
    """A draft model's context: the page opens on the one that was searched most."""
    draft = b"\n".join(line for line in log_of("llama-12-debug3").splitlines()[:60])
    at = upload("two.log", draft + b"\n" + log_of("llama-debug3"))
    chosen = at.selectbox(key="context")
    assert [option.partition(":")[0] for option in chosen.options] == ["context 1", "context 2"]
    assert chosen.value == 1
    before = at.session_state["opened"].n_steps
    chosen.set_value(0).run()
    assert not at.exception
    assert at.session_state["opened"].n_steps != before
    assert at.session_state["log_context"] == 0


# -- pasting ----------------------------------------------------------------------------------


def paste(text: str) -> AppTest:
    at = AppTest.from_file(ROOT / "app" / "main.py", default_timeout=90)
    at.query_params["scenario"] = ""
    at.run()
    at.text_area(key="pasted").set_value(text)
    next(b for b in at.button if b.label == "Open what was pasted").click().run()
    assert not at.exception
    return at


def test_a_pasted_log_plays() -> None:
    at = paste(log_of("llama-debug3").decode())
    assert at.session_state["opened"].n_steps == 24
    assert "log: all cells" in verdict(at)


def test_nothing_pasted_opens_nothing() -> None:
    at = paste(" \n ")
    assert "upload" not in at.session_state
    assert [s.value for s in at.subheader] == ["Open a recording"]


def test_too_much_pasted_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_upload, "MAX_PASTED_MIB", 0)
    at = paste("find_slot: stream[0]")
    assert [e.value for e in at.error] == ["This is more than 0 MiB: save it as a .log file and upload that."]
    assert "upload" not in at.session_state


# -- what is refused --------------------------------------------------------------------------

NO_SEARCH = "no context and no slot search in the log: run llama.cpp with LLAMA_KV_CACHE_DEBUG=3"


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("empty.log", b"", f"empty.log: {NO_SEARCH}"),
        ("shopping.txt", b"bread\nmilk\n", f"shopping.txt: {NO_SEARCH}"),
        ("photo.log", b"\xff\xd8\xff\xe0\0\x10JFIF", "photo.log: this is no text: it has bytes that are 0"),
        ("cut.log.gz", gzip.compress(b"hello\n" * 999, mtime=0)[:30], "cut.log.gz: the gzip stream is damaged"),
        ("huge.log", b"find_slot: stream[0], n = 1, used = 1, head = 1, size = 99999999999, n_swa = 0",
         "99999999999, must be an integer from 1 to 16777216"),
    ],
)  # fmt: skip
def test_what_is_no_log_is_refused_in_one_line(name: str, data: bytes, told: str) -> None:
    at = upload(name, data)
    assert at.subheader[0].value in ("This file cannot be played", "This log cannot be played")
    assert len(at.subheader) == 1
    assert told in at.code[0].value
    assert "\n" not in at.code[0].value
    assert any(b.label == "Play the first bundled one" for b in at.button)


def test_a_log_that_is_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_TEXT", 2 << 20)
    line = b"slot update_slots: all slots are idle\n"
    with pytest.raises(TraceError, match=r"long\.log: the log is longer than 2 MiB: cut out the part"):
        logs.read_log(line * (1 + (2 << 20) // len(line)), "long.log")
    with pytest.raises(TraceError, match="longer than 2 MiB"):  # compressed, and without an end of line
        logs.read_log(gzip.compress(b"x" * (3 << 20)), "long.log.gz")


def test_a_log_that_ends_within_a_print_plays_to_there() -> None:
    text = log_of("llama-debug3")
    at = upload("cut.log", text[: text.rindex(b"find_slot: stream[0], n =") + 200])
    assert at.session_state["opened"].n_steps == 24


def test_messages_without_a_slot_search_are_explained_all_the_same() -> None:
    line = "srv  decode: <img src=x> failed to find a memory slot for batch of size 512"
    at = upload("server.log", f"hello\n{line}\n{line}\n".encode())
    assert [s.value for s in at.subheader] == ["This log cannot be played", "What its messages mean"]
    assert at.code[1].value == f"line 2: {' '.join(line.split())}  (2 times)"
    entry = explanation_by_id("no-slot")
    told = [t.value for t in at.text]
    assert told[-3:] == [f"Cause: {entry.cause}", f"To see it: {entry.see}", f"What to do: {entry.remedy}"]


def test_a_message_of_an_unknown_kind_is_played_without_a_meaning() -> None:
    imported = import_log(log_of("llama-debug3").decode().splitlines())
    header, steps = imported.main.header(), list(imported.main.steps())
    steps[12].args["explanation"] = "of-a-newer-kvsim"
    step = pack(Header.from_json(header.to_json()), steps)["steps"][12]
    assert "means" not in step
    assert step["say"] == "The log says: “decode: failed to find a memory slot for batch of size 200”."


# -- in a browser -----------------------------------------------------------------------------


@pytest.mark.browser
def test_a_log_in_the_browser(visit) -> None:
    """Uploaded, its messages found with a key and explained; pasted, with markup that stays text."""
    page = visit("?scenario=")
    page.get_by_text("Open a recording").wait_for()
    page.get_by_test_id("stPopoverButton").click()
    page.locator("input[type=file]").set_input_files(
        {"name": "server.log", "mimeType": "text/plain", "buffer": log_of("gemma3-debug1")}
    )
    page.locator(".kv-say", has_text="A log of llama.cpp").wait_for()
    page.get_by_text("log: counts and positions, no cells").wait_for()
    page.keyboard.press("Escape")
    page.locator(".kv").press("]")
    page.locator(".kv-say", has_text="purging positions [0, 7] of sequence 0").wait_for()
    assert page.locator(".kv-number").inner_text() == "22"
    meaning = page.locator(".kv-inspector .kv-meaning").inner_text()
    entry = explanation_by_id("purged")
    assert meaning.split("\n\n") == [
        f"Cause: {entry.cause}", f"To see it: {entry.see}", f"What to do: {entry.remedy}",
    ]  # fmt: skip
    lane = page.locator(".kv-lane").first
    assert lane.get_attribute("class").split()[-1] == "kv-unseen"
    assert "the log does not show which cells" in lane.inner_text()
    assert page.locator(".kv-rulers").get_attribute("aria-label") == "seq 0: 0–159; seq 1: 0–71"

    page.get_by_test_id("stPopoverButton").click()
    evil = (
        "decode: failed to find a memory slot for batch of size 9 <img src=x onerror=alert(1)><b>bold</b>\n"
    )
    page.get_by_role("textbox", name="Or paste a log").fill(log_of("llama-debug3").decode() + evil)
    page.get_by_role("button", name="Open what was pasted").click()
    page.locator(".kv-say", has_text="kv with 256 cells").wait_for()
    page.keyboard.press("Escape")
    page.locator(".kv").press("[")
    page.locator(".kv").press("End")
    page.locator(".kv-say", has_text="<img src=x onerror=alert(1)><b>bold</b>").wait_for()
    assert page.locator(".kv img, .kv-say b").count() == 0
