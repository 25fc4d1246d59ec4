"""What an address names. Where there is no such thing, a line says so, and the page opens as it does without."""

from __future__ import annotations

from collections.abc import Container

import streamlit as st

from app.plain import plain

LONGEST = 80
"""Characters of a name that are told; an address may hold anything."""


def named(key: str, names: Container[str], kind: str) -> str | None:
    """What the address names under ``key``: one of ``names``, else None; an unknown name is told, once a session.

    ``kind`` is what it should have been: ``recording``.
    """
    name = st.query_params.get(key, "")
    if name and name not in names:
        tell_unknown(kind, name)
    return name if name in names else None


def tell_unknown(kind: str, name: str) -> None:
    """Say that there is no ``kind`` called ``name``, once a session."""
    told: set[tuple[str, str]] = st.session_state.setdefault("told unknown", set())
    if (kind, name) in told:
        return
    told.add((kind, name))
    shown = name if len(name) <= LONGEST else f"{name[:LONGEST]}…"
    st.toast(plain(f"No {kind} called {' '.join(shown.split())}"), icon=":material/link_off:", duration=20)
