"""Explanations: what does this message of llama.cpp mean?

A pasted message, or lines of a log, with its cause, how to see it, what to do, and a recording that shows it.
"""

from __future__ import annotations

import html

import streamlit as st

from app import component, traces
from app.views import address
from kvsim.explain import EXPLANATIONS, Explanation, Found, explain, explanation_by_id

LONGEST = 20_000  # characters that can be pasted
IN_ADDRESS = 1_500  # that an address keeps
IDS = [entry.id for entry in EXPLANATIONS]


def show() -> None:
    """The page."""
    _restore()
    state = st.session_state
    with st.container(key="side-list"):
        _list()
    with st.container(key="beside-list"):
        found = _asked()
        entry = explanation_by_id(state["explained"]) if state["explained"] else None
        if len(found) > 1 or (found and not found[0].exact):
            _matches(found, entry)
        if entry:
            _told(entry)
    _remember()


def _restore() -> None:
    state, query = st.session_state, st.query_params
    if "explained" in state:
        if "explain-text" not in state:  # widgets of other pages are forgotten meanwhile
            state["explain-text"] = state["explain-kept"]
        return
    state["explain-text"] = state["explain-kept"] = query.get("message", "")[:LONGEST]
    wanted = address.named("id", IDS, "message")
    found = explain(state["explain-kept"]) if state["explain-kept"].strip() else []
    first = found[0].explanation.id if found else "" if state["explain-kept"].strip() else IDS[0]
    state["explained"] = wanted or first


def _remember() -> None:
    state = st.session_state
    wanted = {"id": state["explained"]} if state["explained"] else {}
    text = state["explain-kept"].strip()
    if text and len(text) <= IN_ADDRESS:
        wanted["message"] = text
    traces.remember("explanations", **wanted)


def _list() -> None:
    st.html(f'<div class="kvs-list-head">Messages<small>{len(IDS)} explained</small></div>')
    for entry in EXPLANATIONS:
        st.button(
            entry.id.replace("-", " "),
            key=f"explanation {entry.id}",
            type="primary" if entry.id == st.session_state["explained"] else "secondary",
            width="stretch",
            on_click=_go,
            args=(entry.id, True),
        )


def _go(name: str, from_list: bool) -> None:
    st.session_state["explained"] = name
    st.query_params.pop("at", None)
    if from_list:
        st.session_state["explain-text"] = st.session_state["explain-kept"] = ""


# -- a message -------------------------------------------------------------------------------------


def _asked() -> list[Found]:
    """What was pasted, and what it may mean."""
    with st.container(key="explain-ask", horizontal=True, vertical_alignment="bottom"):
        st.text_area(
            "A message of llama.cpp, or lines of a log",
            key="explain-text",
            height=96,
            max_chars=LONGEST,
            placeholder="decode: failed to find a memory slot for batch of size 512",
            on_change=_explain,
        )
        st.button("Explain", key="explain-go", type="primary", on_click=_explain)
        component.link(long=len(st.session_state["explain-kept"]) > IN_ADDRESS)
    text = st.session_state["explain-kept"]
    found = explain(text) if text.strip() else []
    if text.strip() and not found:
        st.error("No such message is known. Those on the left are; words of one are enough, misspelt or not.")
    return found


def _explain() -> None:
    state = st.session_state
    state["explain-kept"] = state["explain-text"]
    found = explain(state["explain-kept"]) if state["explain-kept"].strip() else []
    state["explained"] = found[0].explanation.id if found else ""
    st.query_params.pop("at", None)


def _matches(found: list[Found], chosen: Explanation | None) -> None:
    """How sure it is; and the others, to look at."""
    said = "In what you pasted" if found[0].exact else "Not as llama.cpp writes it; most similar"
    with st.container(key="explain-found", horizontal=True, vertical_alignment="center"):
        st.html(f'<div class="kvs-note">{said}:</div>')
        for each in found:
            entry = each.explanation
            st.button(
                entry.id.replace("-", " "),
                key=f"found {entry.id}",
                type="primary" if entry is chosen else "secondary",
                on_click=_go,
                args=(entry.id, False),
            )


def _told(entry: Explanation) -> None:
    with st.container(key="told-head", horizontal=True, vertical_alignment="center"):
        kind = "something was refused or lost" if entry.failed else "a notice"
        title = entry.id.replace("-", " ").capitalize()
        st.html(f'<h1 class="kvs-title">{html.escape(title)}<small>{kind}</small></h1>')
        if entry.trace:
            traces.save(entry.trace)
    lines = "".join(f"<code>{html.escape(message)}</code>" for message in entry.messages)
    st.html(f'<div class="kvs-messages">{lines}</div>{traces.tags(code=entry.where)}')
    st.html(traces.columns({"Cause": entry.cause, "How to see it": entry.see, "What to do": entry.remedy}))
    if entry.trace:
        traces.play(entry.trace, "explanations", entry.at)
    else:
        st.html(
            '<div class="kvs-note">No recording can show it: the process ends, or there is no context yet.</div>'
        )
