"""Findings: what goes wrong in llama.cpp, and how to see it.

Every hazard with what happens, what would be consistent, what a caller can do, and its minimal trace in the player.
"""

from __future__ import annotations

import html

import streamlit as st

from app import component, traces
from kvsim.hazard_table import Hazard
from kvsim.hazards import HAZARDS, KINDS


def show() -> None:
    """The page."""
    state = st.session_state
    if "finding" not in state:
        wanted = st.query_params.get("hazard", "")
        state["finding"] = wanted if wanted in HAZARDS else next(iter(HAZARDS))
    hazard = HAZARDS[state["finding"]]
    traces.remember("findings", hazard=hazard.id)
    with st.container(key="side-list"):
        _list(hazard)
    with st.container(key="beside-list"):
        _told(hazard)
        traces.play(hazard.trace, "findings")


def _go(name: str) -> None:
    st.session_state["finding"] = name
    st.query_params.pop("at", None)


def _list(chosen: Hazard) -> None:
    st.html(f'<div class="kvs-list-head">Findings<small>{len(HAZARDS)} hazards</small></div>')
    for kind in KINDS:
        st.html(f'<div class="kvs-list-group">{html.escape(kind.capitalize())}</div>')
        for hazard in HAZARDS.values():
            if hazard.kind == kind:
                st.button(
                    _title(hazard),
                    key=f"finding {hazard.id}",
                    type="primary" if hazard is chosen else "secondary",
                    width="stretch",
                    on_click=_go,
                    args=(hazard.id,),
                )


def _title(hazard: Hazard) -> str:
    return hazard.id.replace("-", " ")


def _told(hazard: Hazard) -> None:
    with st.container(key="told-head", horizontal=True, vertical_alignment="center"):
        title = _title(hazard).capitalize()
        st.html(
            f'<h1 class="kvs-title">{html.escape(title)}<small>{html.escape(KINDS[hazard.kind])}</small></h1>'
        )
        component.link()
        traces.save(hazard.trace)
    st.html(traces.tags(hazard.memories, code=hazard.where))
    told = {
        "What happens": hazard.happens,
        "Consistent would be": hazard.instead,
        "What to do": hazard.remedy,
    }
    st.html(traces.columns(told))
