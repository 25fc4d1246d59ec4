"""What a visitor brings to the Replay page: a recording or a log, uploaded, pasted or named when the app was started.

It is kept for this visitor only. Long ones are read in parts: the player opens on the first and is extended.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import streamlit as st

from app import logs
from app.recordings import Opened, Opening
from app.views import replay_check
from kvsim.errors import TraceError
from kvsim.logs import Imported

MAX_UPLOAD_MIB = 400
"""2,000 operations on 8,192 cells, each with its picture, are 270 MiB, or 70 compressed."""

CAN_BE_OPENED = (
    f"recording (.jsonl, .jsonl.gz) of up to {MAX_UPLOAD_MIB} MiB, or a log of llama.cpp (.log, .txt, also .gz) "
    f"of up to {logs.MAX_TEXT >> 20} MiB of text"
)
"""Each kind of file, and how long it may be."""

FIRST_PART = 0.5  # seconds of reading until the player opens
GROWTH = 4  # each part that is shown has so many times the operations of the one before
PROGRESS_EVERY = 0.25
MAX_PASTED_MIB = 8

KEPT = ("upload", "opened", "opening", "imported", "log_context", "play_anyway", "pasted_too_much")
"""What the session keeps of an upload."""


def forget() -> None:
    """Nothing is uploaded any more."""
    replay_check.forget()
    for key in KEPT:
        st.session_state.pop(key, None)


def take(name: str, data: bytes) -> None:
    """Open this from now on."""
    forget()
    state = st.session_state
    state.upload = (name, data)
    state.n_uploads = state.get("n_uploads", 0) + 1
    state.scenario = None
    st.query_params.pop("at", None)


def take_given() -> None:
    """The file that ``kvsim app TRACE`` was called with, opened once as if it had been uploaded."""
    state, given = st.session_state, os.environ.get("KVSIM_TRACE")
    if given and "given" not in state:
        state.given = given
        take(Path(given).name, Path(given).read_bytes())


def open_button() -> None:
    """Uploading and pasting."""
    with st.popover("Open", icon=":material/upload:"):
        st.file_uploader(
            f"A {CAN_BE_OPENED}",
            type=["jsonl", "gz", "log", "txt"],
            key="file",
            max_upload_size=MAX_UPLOAD_MIB,
            on_change=_uploaded,
        )
        st.text_area(
            "Or paste a log",
            key="pasted",
            height=120,
            placeholder="find_slot: stream[0], n = 1, used = 64, ...",
            help="Of llama-server -lv 5 or any other program, with LLAMA_KV_CACHE_DEBUG=3 in its environment.",
        )
        st.button("Open what was pasted", on_click=_pasted)
        if st.session_state.get("pasted_too_much"):
            st.error(f"This is more than {MAX_PASTED_MIB} MiB: save it as a .log file and upload that.")


def _uploaded() -> None:
    file = st.session_state.get("file")
    if file is None:
        forget()
    else:
        take(file.name, file.getvalue())


def _pasted() -> None:
    data = st.session_state.get("pasted", "").encode()
    if len(data) > MAX_PASTED_MIB << 20:
        st.session_state.pasted_too_much = True
    elif data.strip():
        take("pasted.log", data)


# -- reading ----------------------------------------------------------------------------------


def opened() -> Opened | None:
    """The upload as far as it has been read; None where nothing of it can be played.

    Then ``st.session_state.opened`` is the error.
    """
    state = st.session_state
    if "opened" not in state:
        try:
            if "opening" not in state:
                state.opening = _begin(*state.upload)
            _advance(state.opening, FIRST_PART)
            if not state.opening.done:
                return state.opening.opened()
            state.opened = state.opening.opened()
        except TraceError as error:
            state.opened = error
        state.pop("opening", None)
    return state.opened if isinstance(state.opened, Opened) else None


def _begin(name: str, data: bytes) -> Opening:
    state = st.session_state
    if not logs.is_log(name, data):
        return Opening(data, name)
    if "imported" not in state:
        state.imported = logs.read_log(data, name)
    imported: Imported = state.imported
    if "log_context" not in state:
        state.log_context = imported.contexts.index(imported.main)
    return logs.LogOpening(imported.contexts[state.log_context], name)


def _advance(opening: Opening, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and opening.advance():
        pass


def choose_context() -> None:
    """Which context of a log is shown, if it has several."""
    imported: Imported | None = st.session_state.get("imported")
    if imported is None or len(imported.contexts) < 2:
        return
    st.selectbox(
        "Context of the log",
        range(len(imported.contexts)),
        st.session_state.get("log_context", 0),
        key="context",
        format_func=lambda i: f"context {i + 1}: {len(imported.contexts[i].searches):,} slot searches",
        width=240,
        label_visibility="collapsed",
        on_change=_another_context,
    )


def _another_context() -> None:
    state = st.session_state
    state.log_context = state.context
    for key in ("opened", "opening"):
        state.pop(key, None)
    st.query_params.pop("at", None)


def read_on(told: Any, act: Any) -> None:
    """Read the next part of what is being played; ``told`` says how far it is, ``act`` has a way to stop.

    Ends by running the page again. A click ends this run, too; the next one goes on where this one stopped.
    """
    opening: Opening = st.session_state.opening
    act.button("Stop reading", key="stop_reading", on_click=_stop)
    enough, shown = GROWTH * len(opening.packer.steps), 0.0
    while len(opening.packer.steps) < enough and opening.advance():
        now = time.monotonic()
        if now - shown > PROGRESS_EVERY:
            shown = now
            told.text(f"reading, {opening.share:.0%}: {len(opening.packer.steps):,} operations")
    st.rerun()


def _stop() -> None:
    """What has been read is enough."""
    state = st.session_state
    state.opened = state.opening.opened()
    state.pop("opening", None)
