"""What an address names: a name that nothing has is told, and the page opens all the same; and at which step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from opened_app import opened

from app import logs, recordings
from app.views import replay_upload

ROOT = Path(__file__).resolve().parents[2]
KV = "kv/llama-uni-c256-u16-s4-f16-03"


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"page": "nonsense"}, "No page called nonsense"),
        ({"scenario": "nonsense"}, "No recording called nonsense"),
        ({"page": "lessons", "lesson": "nonsense"}, "No lesson called nonsense"),
        ({"page": "compare", "scenario": "nonsense"}, "No recording called nonsense"),
        ({"page": "compare", "subject": "nonsense"}, "No fault or lane called nonsense"),
        ({"page": "compare", "mutant": "nonsense"}, "No fault called nonsense"),
        ({"page": "attention", "scenario": "nonsense"}, "No recording called nonsense"),
        ({"page": "memory", "model": "nonsense"}, "No model called nonsense"),
        ({"page": "memory", "trace": "nonsense"}, "No recording called nonsense"),
        ({"page": "workload", "kind": "nonsense"}, "No workload called nonsense"),
        ({"page": "workload", "set": "nonsense"}, "No configuration called nonsense"),
        ({"page": "workload", "runs": "nonsense"}, "No configuration called nonsense"),
        ({"page": "findings", "hazard": "nonsense"}, "No finding called nonsense"),
        ({"page": "explanations", "id": "nonsense"}, "No message called nonsense"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_an_unknown_name_is_told_once(query: dict[str, str], told: str) -> None:
    at = opened(**query)
    assert [toast.value for toast in at.toast] == [told]
    at.query_params.update(query)
    assert not at.run().toast


def test_the_name_is_told_as_text_and_not_without_end() -> None:
    [toast] = opened(page="**bold** :red[x] " + "x" * 500).toast
    assert toast.value == "No page called \\*\\*bold\\*\\* \\:red\\[x\\] " + "x" * 63 + "…"


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"page": "replay", "scenario": KV},
        {
            "page": "compare",
            "scenario": KV,
            "subject": "window-part-not-evicted",
        },  # a fault of another kind of memory
        {"page": "lessons", "lesson": "sharing"},
        {"page": "workload", "kind": "mooncake"},
    ],
    ids=lambda query: query.get("page", "none"),
)
def test_of_known_names_nothing_is_told(query: dict[str, str]) -> None:
    assert not opened(**query).toast


# -- the step --------------------------------------------------------------------------------------


def test_a_recording_opens_where_it_first_holds_the_most_sequences_of_its_beginning() -> None:
    found = recordings.open_recording(recordings.path_of(KV), KV)
    steps = list(recordings.trace_of(recordings.path_of(KV), KV))
    held = [sum(last >= 0 for _, last in step.after["pos"].values()) for step in steps]
    assert held[:5] == [0, 1, 2, 2, 4]
    assert found.telling == 4
    for name in recordings.bundled()[::15]:
        assert 0 < recordings.open_recording(recordings.path_of(name), name).telling < recordings.EARLY


@pytest.mark.parametrize(("asked", "step"), [(None, 4), ("0", 0), ("18", 18), ("x", 0)])
def test_a_link_without_a_step_opens_at_the_telling_one(asked: str | None, step: int, monkeypatch) -> None:
    seen = []
    monkeypatch.setattr("app.component.player", lambda *_, at, **__: seen.append(at))
    opened(page="replay", scenario=KV, **({} if asked is None else {"at": asked}))
    assert set(seen) == {step}


# -- limits ----------------------------------------------------------------------------------------


def test_every_place_says_how_long_a_recording_and_a_log_may_be() -> None:
    recording, log = replay_upload.MAX_UPLOAD_MIB, logs.MAX_TEXT >> 20
    [card] = [text.value for text in opened(scenario="").text if "bundled recordings" in text.value]
    places = [
        card,
        replay_upload.CAN_BE_OPENED,
        *((ROOT / "docs" / p).read_text() for p in ("app.md", "logs.md")),
    ]
    for place in places:
        assert set(re.findall(r"(\d+) MiB of text", place)) == {str(log)}
        assert f"{recording} MiB" in place
    assert f"up to {replay_upload.MAX_PASTED_MIB} MiB" in places[-1]
