"""Replay: what did this recording do?

A bundled recording, an upload or a log of llama.cpp is packed and played in the browser. Beside it our own
reference replays the same operations; the number of fields in which the two differ is the verdict.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import streamlit as st

from app import component, recordings
from app.numbers import whole
from app.recordings import Opened
from app.replaying.reading import reading_of
from app.views import address, replay_check, replay_upload
from app.views.replay_upload import CAN_BE_OPENED
from kvsim.errors import TraceError
from kvsim.explain import Explanation
from kvsim.logs import Imported
from kvsim.player.page import page

LOOKS_EVERY = 0.1

OPENS_WITH = "kv/llama-uni-c256-u16-s4-f16-03"
"""The recording a newcomer sees first: small, with sharing, a shift and save and restore."""

NOT_REPLAYED = "A log tells what llama.cpp had, not what was done: there is nothing to replay and compare."


def _bundled(name: str) -> Opened:
    reading = reading_of(name)
    while not reading.wait(LOOKS_EVERY):
        _ = st.session_state.get("scenario")  # lets Streamlit end this run after a click
    return reading.opened


def show() -> None:
    """The page."""
    state = st.session_state
    replay_upload.take_given()
    bar = st.container(key="source", horizontal=True, vertical_alignment="center")
    card = st.empty()
    with bar:
        name = _pick()
    opened = replay_upload.opened() if state.get("upload") else _bundled(name) if name else None
    with bar:
        replay_upload.choose_context()
        told, act = _facts(opened) if opened else (None, None)
        replay_upload.open_button()
        if opened:
            _export_button(opened)
            component.link()
    if opened is None:
        _nothing_opened(card)
    elif opened.error and not state.get("play_anyway"):
        _damaged(opened, card)
    else:
        card.empty()
        _play(opened, told, act)


def _play(opened: Opened, told: Any, act: Any) -> None:
    """The player, then what there is to wait for: the rest of the recording, or the comparison."""
    _remember(opened)
    notes = replay_check.notes_of(opened)
    component.player(opened.payload, key=_key(opened), at=_at(opened), notes=notes)
    if "opening" in st.session_state:
        replay_upload.read_on(told, act)
    elif "log" in opened.header.config:
        told.html(replay_check.tag("quiet", f"log: {opened.shows}" if opened.shows else "log", NOT_REPLAYED))
    else:
        replay_check.begin(opened)
        replay_check.tell(opened, told, act)
        if notes is None and replay_check.notes_of(opened):
            st.rerun()  # the player takes them, too


# -- choosing ---------------------------------------------------------------------------------


def _pick() -> str | None:
    names = recordings.bundled()
    if "scenario" not in st.session_state:
        wanted = address.named("scenario", names, "recording")
        st.session_state.scenario = wanted if "scenario" in st.query_params else OPENS_WITH
    return st.selectbox(
        "Recording",
        names,
        key="scenario",
        placeholder="Choose a recording"
        if not st.session_state.get("upload")
        else st.session_state.upload[0],
        width=372,
        label_visibility="collapsed",
        on_change=_picked,
    )


def _picked() -> None:
    """What is chosen here is seen from its beginning."""
    replay_upload.forget()
    st.query_params["at"] = "0"


def _remember(opened: Opened) -> None:
    """What the address needs to come back here; an upload stays with its session."""
    wanted = {"page": "replay"} | ({} if st.session_state.get("upload") else {"scenario": opened.name})
    for key, value in wanted.items():
        if st.query_params.get(key) != value:
            st.query_params[key] = value
    if st.session_state.get("upload"):
        st.query_params.pop("scenario", None)


def _at(opened: Opened) -> int:
    if "at" not in st.query_params:
        if opened.header.failure is not None:
            return opened.n_steps - 1  # where it failed
        return 0 if st.session_state.get("upload") else opened.telling
    return min(whole(st.query_params["at"]) or 0, opened.n_steps - 1)


def _key(opened: Opened) -> str:
    """What the player tells recordings apart by; an upload that is read on stays the same."""
    state = st.session_state
    if not state.get("upload"):
        return opened.name
    return f"{opened.name} {state.get('n_uploads', 0)} {state.get('log_context', '')}"


# -- what is shown of it ----------------------------------------------------------------------


def _facts(opened: Opened) -> tuple[Any, Any]:
    """What the data is, as quiet tags; returns places for the verdict and for what can be done about it."""
    spans = "".join(f"<span>{html.escape(tag)}</span>" for tag in recordings.tags(opened.header))
    st.html(f'<div class="kvs-tags">{spans}</div>')
    return st.empty(), st.empty()


def _export_button(opened: Opened) -> None:
    at, notes = _at(opened), replay_check.notes_of(opened)
    st.download_button(
        "Export",
        data=lambda: page(json.loads(opened.payload), at=at, notes=notes).encode(),
        file_name=f"{Path(opened.name).name.split('.')[0]}.html",
        mime="text/html",
        icon=":material/ios_share:",
        help="One HTML file with this player, opens without a network",
        on_click="ignore",
    )


def _nothing_opened(card: Any) -> None:
    error = st.session_state.get("opened")
    with card.container(key="card"):
        if isinstance(error, TraceError):
            imported: Imported | None = st.session_state.get("imported")
            st.subheader(f"This {'log' if imported else 'file'} cannot be played", anchor=False)
            if error.line:
                st.text(f"Line {error.line:,} cannot be read. Nothing before it is a whole operation.")
            st.code(str(error), language=None, wrap_lines=True)
            st.button("Play the first bundled one", type="primary", on_click=_play_first)
            if imported and imported.messages:
                _messages(imported)
            return
        st.html('<div class="kvs-ghost">' + "<i></i>" * 54 + "</div>")
        st.subheader("Open a recording", anchor=False)
        n = len(recordings.bundled())
        st.text(f"Choose one of {n} bundled recordings, or bring a {CAN_BE_OPENED}.")
        st.button("Play the first one", type="primary", on_click=_play_first)


def _play_first() -> None:
    _picked()
    st.session_state.scenario = recordings.bundled()[0]


def _damaged(opened: Opened, card: Any) -> None:
    whole = opened.n_steps
    with card.container(key="card"):
        st.subheader("This file is damaged", anchor=False)
        st.text(
            f"Lines 1–{whole + 1} are whole: a header and {whole:,} operation{'s' if whole != 1 else ''}."
        )
        st.code(opened.error or "", language=None, wrap_lines=True)
        st.button(
            f"Play the {whole:,} whole operation{'s' if whole != 1 else ''}",
            type="primary",
            on_click=lambda: st.session_state.update(play_anyway=True),
        )


def _messages(imported: Imported) -> None:
    """What a log without a slot search still has: its messages, each with its meaning."""
    st.subheader("What its messages mean", anchor=False)
    found: dict[Explanation, list[str]] = {}
    for message in imported.messages:
        found.setdefault(message.explanation, []).append(f"line {message.line:,}: {message.text}")
    for entry, texts in found.items():
        times = f"  ({len(texts):,} times)" if len(texts) > 1 else ""
        st.code(texts[0] + times, language=None, wrap_lines=True)
        for label, text in (("Cause", entry.cause), ("To see it", entry.see), ("What to do", entry.remedy)):
            st.text(f"{label}: {text}")
