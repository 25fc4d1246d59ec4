"""The kvsim app: ``streamlit run app/main.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # run from a checkout that is not installed
    sys.path.insert(0, str(ROOT))

from app import style, tidy  # noqa: E402
from app.views import (  # noqa: E402
    address,
    attention,
    compare,
    explanations,
    findings,
    lessons,
    memory,
    playground,
    replay,
    workload,
)

tidy.begin()
st.set_page_config(page_title="kvsim", page_icon=style.ICON, layout="wide")
st.html(style.CSS)
st.logo(style.ICON, size="medium")

PAGES = {
    "replay": st.Page(replay.show, title="Replay", url_path="replay", default=True),
    "playground": st.Page(playground.show, title="Playground", url_path="playground"),
    "lessons": st.Page(lessons.show, title="Lessons", url_path="lessons"),
    "compare": st.Page(compare.show, title="Compare", url_path="compare"),
    "attention": st.Page(attention.show, title="Attention", url_path="attention"),
    "memory": st.Page(memory.show, title="Memory", url_path="memory"),
    "workload": st.Page(workload.show, title="Workload", url_path="workload"),
    "findings": st.Page(findings.show, title="Findings", url_path="findings"),
    "explanations": st.Page(explanations.show, title="Explanations", url_path="explanations"),
}
st.session_state["pages"] = PAGES  # for links from one page to another

chosen = st.navigation(list(PAGES.values()), position="top")
asked = PAGES.get(address.named("page", PAGES, "page") or "", chosen)
if chosen is PAGES["replay"] and asked is not chosen:  # a link, which names its page and lands on the first
    st.switch_page(asked, query_params=st.query_params.to_dict())
chosen.run()
