"""The player as a Streamlit element."""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvsim.player.bundle import bundle, stylesheet


def element(name: str, entry: str, *styles: str) -> Any:
    """A Streamlit element of the player's modules, begun in ``entry``; ``styles`` are further CSS files."""
    css, script = stylesheet(*styles), bundle(entry)
    return st.components.v2.component(name, html='<div class="kv-host"></div>', css=css, js=script)


@st.cache_resource
def _component() -> Any:
    return element("kvsim_player", "streamlit")


@st.cache_resource
def _link_component() -> Any:
    return element("kvsim_link", "link")


def player(
    payload: str,
    key: str,
    at: int = 0,
    notes: dict[int, dict[str, Any]] | None = None,
    *,
    start: int | None = None,
    preview: list[tuple[int, list[int]]] | None = None,
    page: str = "replay",
    picks: int = 0,
    **options: Any,
) -> Any:
    """Show ``payload`` (JSON text of :mod:`kvsim.player.payload`), opened at step ``at``.

    ``key`` names the recording: the player starts anew when it changes, and then plays from step ``start``
    if that is given. ``notes`` may come later: per step, what a replay has to say
    (:func:`kvsim.player.notes.note_of`). ``preview`` outlines cells by lane. ``page`` tells the players of
    different pages apart. ``options`` are those of the player's ``mount``. With ``picks``, how many cells
    may be picked, the result has them as ``picked``, under ``cells``, for the recording ``key``.
    """
    told = {str(i): note for i, note in (notes or {}).items()}
    options = {"height": "calc(100vh - 88px)", "picks": picks, **options}
    data = {"payload": payload, "key": key, "at": at, "from": start, "notes": told, "preview": preview,
            "options": options}  # fmt: skip
    return _component()(data=data, key=f"player {page}", height="content", on_picked_change=lambda: None)


def link(long: bool = False) -> None:
    """A button that copies the page's address, step included; ``long``: it would not hold all there is."""
    _link_component()(data={"label": "Link", "long": long}, key="link", width="content")
