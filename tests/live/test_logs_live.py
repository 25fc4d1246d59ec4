"""The logs of fixtures/logs are what the installed llama.cpp prints."""

from __future__ import annotations

import gzip

import pytest
from capture_logs import captured, log_name
from live_lane import model_file, needs_library
from log_sessions import LOGS, SESSIONS

from kvsim.lanes.session import CELLS_DEBUG
from kvsim.logs import import_log

pytestmark = needs_library


def searches(text: str) -> list[object]:
    [context] = import_log(text.splitlines()).contexts
    return [(s.stream, s.head, s.used, s.size, s.n_swa, s.spans, s.cells()) for s in context.searches]


def messages(text: str) -> list[tuple[str, str]]:
    return [(m.explanation.id, m.text) for m in import_log(text.splitlines()).messages]


@pytest.mark.parametrize(("name", "level"), [("llama", 3), ("gemma3", 1), ("gemma3", 2), ("dots3note", 3)])
def test_a_session_prints_again_what_was_captured(name: str, level: int, monkeypatch) -> None:
    monkeypatch.setenv(CELLS_DEBUG, "0")  # put back afterwards what the session sets
    session = SESSIONS[name]
    kept = gzip.decompress((LOGS / log_name(name, level)).read_bytes()).decode()
    again = captured(session, model_file(session.model), level)
    assert searches(again) == searches(kept)
    assert messages(again) == messages(kept)
