"""Replay: what did this recording do?"""

from __future__ import annotations

import html
from typing import Any

import streamlit as st

from app import component, recordings
from app.recordings import Opened
from app.standalone import page
from kvsim.errors import TraceError


@st.cache_data(max_entries=24, show_spinner=False)
def _bundled(name: str) -> Opened:
    return recordings.open_recording(recordings.path_of(name), name)


def show() -> None:
    """The page."""
    names = recordings.bundled()
    wanted = st.query_params.get("scenario")
    if "scenario" not in st.session_state:
        st.session_state.scenario = wanted if wanted in names else None
    with st.container(key="source", horizontal=True, vertical_alignment="center"):
        name = st.selectbox("Recording", names, key="scenario", placeholder="Choose a recording", width=330)
    if not name:
        return
    opened = _bundled(name)
    st.query_params["page"] = "replay"
    st.query_params["scenario"] = name
    component.player(opened.payload, key=name, at=_at(opened))


def _at(opened: Opened) -> int:
    raw = st.query_params.get("at", "0")
    return min(int(raw), opened.n_steps - 1) if raw.isdigit() else 0
