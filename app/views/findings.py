"""Findings: what goes wrong in llama.cpp, and how to see it.

Every hazard with what happens, what would be consistent, what a caller can do, whether it was seen in the library
itself and how, and its minimal trace in the player.
"""

from __future__ import annotations

import html

import streamlit as st

from app import component, traces
from app.views import address
from kvsim.hazard_table import Hazard
from kvsim.hazards import HAZARDS, KINDS
from kvsim.lanes.finding_page import section
from kvsim.lanes.finding_table import FINDINGS, UNCONFIRMED

TRIED = slice(3, 5)  # of a section's blocks: the operations, and what they showed
SEEN = {finding.hazard: finding for finding in FINDINGS}


def show() -> None:
    """The page."""
    state = st.session_state
    if "finding" not in state:
        state["finding"] = address.named("hazard", HAZARDS, "finding") or next(iter(HAZARDS))
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
    told = f"{len(SEEN)} of {len(HAZARDS)} seen live"
    st.html(f'<div class="kvs-list-head">Findings<small>{told}</small></div>')
    for kind in KINDS:
        st.html(f'<div class="kvs-list-group">{html.escape(kind.capitalize())}</div>')
        for hazard in HAZARDS.values():
            if hazard.kind == kind:
                sign = "●" if hazard.id in SEEN else "○"
                st.button(
                    f"{sign}\u2002{_title(hazard)}",
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
    seen = SEEN.get(hazard.id)
    live = f"● seen in llama.cpp {' and '.join(seen.seen)}" if seen else "○ not seen in the library"
    gone = f"no longer in {', '.join(seen.gone)}" if seen and seen.gone else ""
    st.html(traces.tags(*filter(None, (live, gone, hazard.memories)), code=hazard.where))
    told = {
        "What happens": hazard.happens,
        "Consistent would be": hazard.instead,
        "What to do": hazard.remedy,
    }
    st.html(traces.columns(told))
    if seen is None:
        st.html(
            f'<div class="kvs-note">Not seen in the library itself: {html.escape(UNCONFIRMED[hazard.id])}</div>'
        )
        return
    with st.expander(f"What was done to the library: {len(seen.ops)} operations on a tiny {seen.model}"):
        for block in list(section(seen))[TRIED]:
            st.markdown(block)
