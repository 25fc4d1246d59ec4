"""The player as a Streamlit element."""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvsim.player.bundle import bundle, stylesheet


@st.cache_resource
def _component() -> Any:
    return st.components.v2.component(
        "kvsim_player", html='<div class="kv-host"></div>', css=stylesheet(), js=bundle("streamlit")
    )


@st.cache_resource
def _link_component() -> Any:
    return st.components.v2.component(
        "kvsim_link", html='<div class="kv-host"></div>', css=stylesheet(), js=bundle("link")
    )


def player(
    payload: str,
    key: str,
    at: int = 0,
    notes: dict[int, dict[str, Any]] | None = None,
    height: str = "calc(100vh - 88px)",
) -> None:
    """Show ``payload`` (JSON text of :mod:`kvsim.player.payload`), opened at step ``at``.

    ``key`` names the recording: the player starts anew when it changes. ``notes`` may come later: per step,
    what a replay has to say (:func:`kvsim.player.notes.note_of`).
    """
    told = {str(i): note for i, note in (notes or {}).items()}
    data = {"payload": payload, "key": key, "at": at, "notes": told, "height": height}
    _component()(data=data, key="player", height="content")


def link() -> None:
    """A button that copies the page's address, step included."""
    _link_component()(data={"label": "Link"}, key="link", width="content")
