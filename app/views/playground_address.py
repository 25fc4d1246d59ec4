"""What the address of the playground keeps: the packed lines and the step."""

from __future__ import annotations

import streamlit as st

from app.numbers import whole
from app.playground.run import Run


def remember(text: str) -> None:
    """What the address needs to come back here; the step is kept by the player."""
    wanted = {"page": "playground"} | ({"do": text} if text else {})
    for key, value in wanted.items():
        if st.query_params.get(key) != value:
            st.query_params[key] = value
    if not text:
        st.query_params.pop("do", None)


def step_of(run: Run) -> int:
    """The step of the address, the last one if it says none."""
    asked, last = whole(st.query_params.get("at", "")), len(run.steps) - 1
    return last if asked is None else min(asked, last)


def from_the_end() -> None:
    """Show what is new: the step of the address was one of the old list."""
    st.query_params.pop("at", None)
