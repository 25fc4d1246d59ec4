"""The Replay page: what is chosen, remembered, refused, and what it says about it."""

from __future__ import annotations

import gc
import gzip
import json
import re
import tempfile
import tomllib
from pathlib import Path

import pytest
from opened_app import MAIN, opened
from streamlit.testing.v1 import AppTest

from app import component, recordings
from app.replaying import worker
from app.replaying.checking import UploadChecking
from app.replaying.reading import reading_of
from app.views import replay_upload
from kvsim.errors import TraceError

KV = "kv/llama-uni-c256-u16-s4-f16-03"


def verdict(at: AppTest) -> str:
    return " ".join(block.proto.body for block in at.get("html") if "kvs-verdict" in block.proto.body)


def test_the_app_opens_on_a_recording() -> None:
    at = opened()
    assert at.selectbox[0].value == KV
    assert "0 differences" in verdict(at)


def test_a_bundled_recording_is_read_and_checked_once_for_all_users() -> None:
    opened()
    before = reading_of(KV)
    assert "0 differences" in verdict(opened())
    assert reading_of(KV) is before
    assert before.checked.done == before.opened.n_steps == 85


def test_a_reading_that_was_ended_is_begun_again() -> None:
    name = "kv/llama-str-c1024-u64-s1-q8_0-02"
    reading = reading_of(name)
    reading.cancel()
    assert reading.wait(90)
    with pytest.raises(TraceError, match="the reading was ended"):
        _ = reading.opened
    assert "0 differences" in verdict(opened(scenario=name))
    assert reading_of(name) is not reading


def test_without_a_recording_the_page_offers_one() -> None:
    at = opened(scenario="")
    assert [s.value for s in at.subheader] == ["Open a recording"]
    assert "106 bundled recordings" in at.text[0].value
    next(b for b in at.button if b.label == "Play the first one").click().run()
    assert at.selectbox[0].value == recordings.bundled()[0]
    assert at.query_params["scenario"] == recordings.bundled()[0]


def test_a_link_restores_the_recording() -> None:
    at = opened(page="replay", scenario=KV, at="18")
    assert at.selectbox[0].value == KV
    assert at.query_params["at"] == "18"
    assert "0 differences" in verdict(at)


@pytest.mark.parametrize("scenario", ["../../etc/passwd", "kv/none", "<b>x</b>"])
def test_a_link_to_nothing_shows_the_choice(scenario: str) -> None:
    at = opened(scenario=scenario)
    assert at.selectbox[0].value is None
    assert [s.value for s in at.subheader] == ["Open a recording"]


@pytest.mark.parametrize("step", ["-3", "x", "999999", "9" * 5000, "٣"])
def test_a_step_that_is_none_is_taken_as_near_as_can_be(step: str) -> None:
    at = opened(scenario=KV, at=step)
    assert "0 differences" in verdict(at)


def upload(name: str, data: bytes) -> AppTest:
    at = AppTest.from_file(MAIN, default_timeout=90)
    at.session_state["upload"] = (name, data)
    at.session_state["scenario"] = None
    at.run()
    assert not at.exception
    return at


def text_of_trace() -> bytes:
    return gzip.decompress(Path(f"fixtures/traces/{KV}.jsonl.gz").read_bytes())


def test_a_cut_upload_says_where_and_what_can_be_played() -> None:
    whole = text_of_trace().splitlines(keepends=True)
    at = upload("my-run.jsonl", b"".join(whole[:47]) + whole[47][:60])
    assert [s.value for s in at.subheader] == ["This file is damaged"]
    assert at.text[0].value == "Lines 1–47 are whole: a header and 46 operations."
    assert at.code[0].value.startswith("my-run.jsonl:48: ")
    button = next(b for b in at.button if b.label == "Play the 46 whole operations")
    button.click().run()
    assert not at.subheader
    assert "0 differences" in verdict(at)


def test_an_upload_without_a_header_is_refused_in_one_line() -> None:
    at = upload("notes.jsonl", b'{"hello": "<img src=x>"}\n')
    assert [s.value for s in at.subheader] == ["This file cannot be played"]
    assert at.code[0].value.startswith("notes.jsonl:1: not a trace")
    assert "\n" not in at.code[0].value


def test_a_changed_recording_counts_its_differences() -> None:
    lines = text_of_trace().splitlines(keepends=True)
    lines[16] = lines[16].replace(b'"head":8', b'"head":9')
    at = upload("changed.jsonl", b"".join(lines))
    assert "✕ 1 difference, first at operation 15" in verdict(at)


def test_names_from_a_file_are_shown_as_text() -> None:
    data = text_of_trace().replace(b'"arch":"llama"', b'"arch":"<b>llama</b>"', 1)
    at = upload("x.jsonl", data)
    tags = next(block.proto.body for block in at.get("html") if "kvs-tags" in block.proto.body)
    assert "<b>" not in tags
    assert "&lt;b&gt;llama&lt;/b&gt;" in tags


def test_the_server_takes_what_the_page_offers_to_take() -> None:
    settings = tomllib.loads((MAIN.parent / ".streamlit" / "config.toml").read_text())
    assert settings["server"]["maxUploadSize"] == replay_upload.MAX_UPLOAD_MIB


def test_only_bundled_names_lead_to_files() -> None:
    with pytest.raises(KeyError):
        recordings.path_of("../README")


def test_damage_in_the_first_operation_is_an_error() -> None:
    first = text_of_trace().splitlines(keepends=True)[0]
    with pytest.raises(TraceError, match=r"x\.jsonl:2"):
        recordings.open_recording(first + b"{", "x.jsonl")


@pytest.fixture
def slow_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that shows what it has after one operation, as it does with a recording that takes long."""
    monkeypatch.setattr(replay_upload, "_advance", lambda opening, seconds: opening.advance())


def payloads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What the player is given, run by run: its key and how many operations."""
    given: list[tuple[str, int]] = []
    monkeypatch.setattr(
        component, "player", lambda payload, key, **_: given.append((key, len(json.loads(payload)["steps"])))
    )
    return given


@pytest.mark.usefixtures("slow_reading")
def test_a_long_recording_is_played_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part is shown, then parts that are four times as long, all for the same player."""
    given = payloads(monkeypatch)
    at = upload("long.jsonl", text_of_trace())
    assert [n for _, n in given][:4] == [1, 5, 21, 85]
    assert {n for _, n in given[3:]} == {85}
    assert len({key for key, _ in given}) == 1
    assert "✓ 0 differences" in verdict(at)
    assert "operations that were read" not in verdict(at)


def test_reading_can_be_stopped_and_what_was_read_is_played_and_checked() -> None:
    """The click comes while the file is read."""
    opening = recordings.Opening(text_of_trace(), "long.jsonl")
    for _ in range(12):
        opening.advance()
    at = AppTest.from_file(MAIN, default_timeout=90)
    at.session_state["upload"] = ("long.jsonl", text_of_trace())
    at.session_state["scenario"] = None
    at.session_state["opened"] = opening.opened()
    at.run()
    assert not at.exception
    assert "✓ 0 differences in the 12 operations that were read" in verdict(at)


@pytest.mark.usefixtures("slow_reading")
def test_damage_that_is_found_later_is_told_then() -> None:
    whole = text_of_trace().splitlines(keepends=True)
    at = upload("my-run.jsonl", b"".join(whole[:47]) + whole[47][:60])
    assert [s.value for s in at.subheader] == ["This file is damaged"]
    assert at.text[0].value == "Lines 1–47 are whole: a header and 46 operations."


def test_a_comparison_that_was_stopped_can_be_made_again() -> None:
    at = upload("mine.jsonl", text_of_trace())
    checking = UploadChecking("mine.jsonl", text_of_trace(), 85)
    checking.cancel()
    at.session_state["checking"] = checking
    at.run()
    assert re.fullmatch(r"stopped, \d+ of 85 operations: 0 differences", at.text[0].value)
    next(b for b in at.button if b.label == "Compare again").click().run()
    assert "✓ 0 differences" in verdict(at)


def test_differences_are_told_as_they_are_found() -> None:
    lines = text_of_trace().splitlines(keepends=True)
    lines[16] = lines[16].replace(b'"head":8', b'"head":9')
    told: list[dict] = []
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        file.write(b"".join(lines))
        file.flush()
        job = {"name": "mine.jsonl", "path": file.name, "n_steps": 40}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "EVERY", 0.0)
            worker.checking(job, lambda kind, **found: told.append({"kind": kind, **found}))
    so_far = [(one["done"], one["differences"], one["first"]) for one in told if one["kind"] == "compared"]
    assert so_far == [(n, int(n > 15), 15 if n > 15 else None) for n in range(1, 41)]
    assert told[-1]["kind"] == "checked"
    assert (told[-1]["done"], told[-1]["differences"], told[-1]["first"]) == (40, 1, 15)


def test_the_file_of_an_upload_goes_with_its_comparison() -> None:
    checking = UploadChecking("mine.jsonl", text_of_trace(), 85)
    path = Path(checking._file.name)
    assert checking.wait_checked(90)
    assert (checking.checked.done, checking.checked.differences) == (85, 0)
    assert path.stat().st_mode & 0o077 == 0
    del checking
    gc.collect()
    assert not path.exists()


def test_reading_tells_how_far_it_is() -> None:
    opening = recordings.Opening(text_of_trace(), "long.jsonl")
    shares = []
    while opening.advance():
        shares.append(opening.share)
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.5
    assert opening.share == 1.0
    assert opening.opened().n_steps == 85
