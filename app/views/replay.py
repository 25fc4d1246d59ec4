"""Replay: what did this recording do?

A bundled recording or an upload is packed once and played in the browser. Beside it our own reference
replays the same operations; the number of fields in which the two differ is the verdict. A bundled recording is
read and checked once for all users, in a process of its own.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import time
from pathlib import Path
from typing import Any

import streamlit as st

from app import component, recordings
from app.check import Check, check
from app.recordings import MAX_UPLOAD_MIB, Opened, Opening
from app.replaying.reading import reading_of
from kvsim.errors import TraceError
from kvsim.player.page import page

PROGRESS_AFTER = 1.0  # seconds until a check shows how far it is
PROGRESS_EVERY = 0.25
LOOKS_EVERY = 0.1

OPENS_WITH = "kv/llama-uni-c256-u16-s4-f16-03"
"""The recording a newcomer sees first: small, with sharing, a shift and save and restore."""


def _bundled(name: str) -> Opened:
    reading = reading_of(name)
    while not reading.wait(LOOKS_EVERY):
        _ = st.session_state.get("scenario")  # lets Streamlit end this run after a click
    checks = st.session_state.setdefault("checks", {})
    if reading.wait_checked(0):
        checks[_key(reading.opened)] = reading.checked
    return reading.opened


def show() -> None:
    """The page."""
    state = st.session_state
    _open_given()
    bar = st.container(key="source", horizontal=True, vertical_alignment="center")
    card = st.empty()
    with bar:
        name = _pick()
    opened = _upload(card) if state.get("upload") else _bundled(name) if name else None
    with bar:
        verdict = _facts(opened) if opened else None
        _open_button()
        if opened:
            _export_button(opened)
            component.link()
    if opened is None:
        _nothing_opened(card)
        return
    if opened.error and not state.get("play_anyway"):
        _damaged(opened, card)
        return
    card.empty()
    _remember(opened)
    checked = state.get("checks", {}).get(_key(opened))
    component.player(
        opened.payload, key=_key(opened), at=_at(opened), notes=checked.notes if checked else None
    )
    _check(opened, verdict)


# -- choosing ---------------------------------------------------------------------------------


def _pick() -> str | None:
    names = recordings.bundled()
    if "scenario" not in st.session_state:
        wanted = st.query_params.get("scenario", OPENS_WITH)
        st.session_state.scenario = wanted if wanted in names else None
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
    for key in ("upload", "opened", "opening", "play_anyway"):
        st.session_state.pop(key, None)
    st.query_params.pop("at", None)


def _open_given() -> None:
    """The file that ``kvsim app TRACE`` was called with, opened once as if it had been uploaded."""
    state, given = st.session_state, os.environ.get("KVSIM_TRACE")
    if given and "given" not in state:
        state.given = given
        state.upload = (Path(given).name, Path(given).read_bytes())


def _open_button() -> None:
    with st.popover("Open", icon=":material/upload:"):
        st.file_uploader(
            f"A recording, .jsonl or .jsonl.gz, up to {MAX_UPLOAD_MIB} MiB",
            type=["jsonl", "gz"],
            key="file",
            max_upload_size=MAX_UPLOAD_MIB,
            on_change=_uploaded,
        )


def _uploaded() -> None:
    """Keep the upload for this user only."""
    state = st.session_state
    file = state.get("file")
    for key in ("upload", "opened", "opening", "play_anyway"):
        state.pop(key, None)
    if file is not None:
        state.upload = (file.name, file.getvalue())
        state.scenario = None
        st.query_params.pop("at", None)


def _upload(card: Any) -> Opened | None:
    """The uploaded recording, read once. Where nothing can be played, says why and returns None."""
    state = st.session_state
    name, data = state.upload
    if "opened" not in state:
        try:
            if "opening" not in state:
                state.opening = Opening(data, name)
            _read(state.opening, card)
            state.opened = state.opening.opened()
        except TraceError as error:
            state.opened = error
        state.pop("opening", None)
    return state.opened if isinstance(state.opened, Opened) else None


def _read(opening: Opening, card: Any) -> None:
    """Read on to the end, or until the user wants to see what is ready. Shows progress after a second.

    A click ends this run of the script; the next one goes on where this one stopped.
    """
    start, told, slot = time.monotonic(), 0.0, None
    while not st.session_state.get("show_ready") and opening.advance():
        now = time.monotonic()
        if now - start < PROGRESS_AFTER or now - told < PROGRESS_EVERY:
            continue
        told = now
        if slot is None:
            with card.container(key="card"):
                st.subheader(f"Reading {opening.name}", anchor=False)
                slot = st.empty()
                st.button("Show what is ready", key="show_ready")
        left = (now - start) * (1 - opening.share) / max(opening.share, 0.01)
        done = f"{len(opening.packer.steps):,} operations, about {left:,.0f} s left"
        slot.progress(opening.share, text=done)


def _remember(opened: Opened) -> None:
    """What the address needs to come back here; an upload stays with its session."""
    wanted = {"page": "replay"} | ({} if st.session_state.get("upload") else {"scenario": opened.name})
    for key, value in wanted.items():
        if st.query_params.get(key) != value:
            st.query_params[key] = value
    if st.session_state.get("upload"):
        st.query_params.pop("scenario", None)


def _at(opened: Opened) -> int:
    raw = st.query_params.get("at", "0")
    return min(int(raw), opened.n_steps - 1) if raw.isascii() and raw.isdigit() else 0


def _key(opened: Opened) -> str:
    return f"{opened.name} {hashlib.sha256(opened.payload.encode()).hexdigest()[:16]}"


# -- what is shown of it ----------------------------------------------------------------------


def _facts(opened: Opened) -> Any:
    """What the data is, as quiet tags, and a place for the verdict, which is returned."""
    spans = "".join(f"<span>{html.escape(tag)}</span>" for tag in recordings.tags(opened.header))
    st.html(f'<div class="kvs-tags">{spans}</div>')
    return st.empty()


def _export_button(opened: Opened) -> None:
    at = _at(opened)
    checked = st.session_state.get("checks", {}).get(_key(opened))
    notes = checked.notes if checked else None
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
            st.subheader("This file cannot be played", anchor=False)
            st.text(f"{_where_damaged(error)} Nothing before it is a whole operation.")
            st.code(str(error), language=None, wrap_lines=True)
            st.button("Play the first bundled one", type="primary", on_click=_play_first)
            return
        st.html('<div class="kvs-ghost">' + "<i></i>" * 54 + "</div>")
        st.subheader("Open a recording", anchor=False)
        n = len(recordings.bundled())
        st.text(
            f"Choose one of {n} bundled recordings, or open a .jsonl or .jsonl.gz file, "
            f"up to {MAX_UPLOAD_MIB} MiB."
        )
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


def _where_damaged(error: TraceError) -> str:
    return f"Line {error.line:,} cannot be read." if error.line else "It cannot be read."


# -- the verdict ------------------------------------------------------------------------------


def _check(opened: Opened, slot: Any) -> None:
    """Replay with kvsim; tell in ``slot`` in how many fields it differs, and the player what it noted."""
    results: dict[str, Check] = st.session_state.setdefault("checks", {})
    key = _key(opened)
    if key not in results:
        results[key] = _run(opened, slot)
        if results[key].notes:
            st.rerun()
    slot.html(_told(results[key]))


def _run(opened: Opened, slot: Any) -> Check:
    """The whole check; once it takes long, ``slot`` says how far it is."""
    upload = st.session_state.get("upload")
    if upload:
        checks = check(recordings.trace_of(upload[1], opened.name), opened.n_steps)
    else:
        checks = reading_of(opened.name).checks()
    result, start, told = Check(), time.monotonic(), 0.0
    for result in checks:
        _ = st.session_state.get("scenario")  # lets Streamlit end this run after a click
        now = time.monotonic()
        if now - start > PROGRESS_AFTER and now - told > PROGRESS_EVERY:
            told = now
            slot.html(_verdict("quiet", f"checking, {result.done:,} of {opened.n_steps:,}"))
    return result


def _told(result: Check) -> str:
    if result.error:
        return _verdict("quiet", "not replayed", result.error)
    n = result.differences
    if n:
        text = f"✕ {n:,} difference{'s' if n != 1 else ''}, first at operation {result.first}"
        return _verdict("bad", text)
    return _verdict("good", "✓ 0 differences", "kvsim replays every operation as recorded")


def _verdict(kind: str, text: str, title: str = "") -> str:
    return f'<div class="kvs-verdict kvs-{kind}" title="{html.escape(title)}">{html.escape(text)}</div>'
