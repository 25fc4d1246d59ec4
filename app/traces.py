"""The traces that findings and explanations name, read and replayed once for all users, in the player."""

from __future__ import annotations

import html
import threading
from pathlib import Path

import streamlit as st

from app import component
from app.numbers import whole
from app.replaying.reading import Reading, reading_of
from kvsim.errors import TraceError

ROOT = Path(__file__).resolve().parents[1]
RECORDINGS = "fixtures/traces/"
LOOKS_EVERY = 0.1
HEIGHT = "calc(100vh - 290px)"
"""Leaves room for a title and a few lines above."""

_readings: dict[str, Reading] = {}
_begins = threading.Lock()


def reading(trace: str) -> Reading:
    """The reading of a trace of the project, by its path from the root; begun if nobody has opened it yet."""
    if trace.startswith(RECORDINGS):
        return reading_of(trace.removeprefix(RECORDINGS).removesuffix(".jsonl.gz"))
    with _begins:
        if trace not in _readings or _readings[trace].failed:
            _readings[trace] = Reading(Path(trace).name.removesuffix(".jsonl.gz"), ROOT / trace)
        return _readings[trace]


def play(trace: str, page: str, at: int | None = None) -> None:
    """The player of a trace, at the step of the address, else at ``at``; None: at the last.

    What the replay has to say about steps is added once it is known.
    """
    found = reading(trace)
    while not found.wait(LOOKS_EVERY):
        _let_end()
    try:
        opened = found.opened
    except TraceError as error:
        st.error(f"{trace} cannot be played: {error}")
        return
    told = found.wait_checked(0)
    last = opened.n_steps - 1
    asked = whole(st.query_params.get("at", ""))
    step = asked if asked is not None else last if at is None else at
    component.player(
        opened.payload,
        key=trace,
        at=min(step, last),
        notes=found.checked.notes if told else None,
        page=page,
        height=HEIGHT,
    )
    if told:
        return
    while not found.wait_checked(LOOKS_EVERY):
        _let_end()
    if found.checked.notes:
        st.rerun()  # the player takes them, too


def _let_end() -> None:
    """Lets Streamlit end this run of the script after a click."""
    _ = st.session_state.get("pages")


def save(trace: str) -> None:
    """A button that saves a trace."""
    path = ROOT / trace
    st.download_button(
        "Save the trace",
        path.read_bytes(),
        path.name,
        "application/gzip",
        key="save-trace",
        on_click="ignore",
    )


def remember(page: str, **wanted: str) -> None:
    """Keep in the address what the page needs to come back here, and the player's step."""
    found = {"page": page, **wanted}
    if "at" in st.query_params:
        found["at"] = st.query_params["at"]
    if st.query_params.to_dict() != found:
        st.query_params.from_dict(found)


def tags(*texts: str, code: str) -> str:
    """What it is about, as quiet tags, and the place in llama.cpp's source."""
    spans = "".join(f"<span>{html.escape(text)}</span>" for text in texts)
    return f'<div class="kvs-tags">{spans}<span><code>{html.escape(code)}</code></span></div>'


def columns(told: dict[str, str]) -> str:
    """Paragraphs beside one another, each under its heading."""
    parts = (
        f"<div><b>{html.escape(name)}</b><p>{html.escape(text)}</p></div>" for name, text in told.items()
    )
    return f'<div class="kvs-columns">{"".join(parts)}</div>'
