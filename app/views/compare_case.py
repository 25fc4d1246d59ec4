"""What the comparison and the campaign of the Compare page share: a case, who waits, the address, the way on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from app.plain import plain
from app.playground.files import scene_of_trace
from app.task import Waiter
from app.views import playground
from kvsim.errors import KvsimError

FIRST_SUBJECT = "contiguous-slots"
EVERY = 0.4  # seconds between two looks at what a job has told


@dataclass(frozen=True)
class Case:
    """A trace and a subject. ``shrunk``: the trace is a campaign's; ``bundled``: anybody may ask for it."""

    name: str
    data: bytes
    subject: str
    shrunk: bool = False
    bundled: bool = False

    @property
    def key(self) -> str:
        return f"{self.name} {self.subject} {hashlib.sha256(self.data).hexdigest()[:16]}"


def me() -> Waiter:
    """This session, among those that wait for the same."""
    found: Waiter = st.session_state.setdefault("compare-me", Waiter())
    return found


def remember(**values: Any) -> None:
    for name, value in {"page": "compare", **values}.items():
        if st.query_params.get(name) != str(value):
            st.query_params[name] = str(value)


def open_in_playground(key: str, told: str, data: Callable[[], bytes]) -> None:
    """A button that performs the operations of a trace in the playground, on memories of kvsim."""
    if not st.button("Open in the playground", key=key, help=told):
        return
    try:
        scene = scene_of_trace(data(), "this trace")
    except KvsimError as error:
        st.error(plain(str(error)))
        return
    playground.open_scene(scene)
    st.switch_page(st.session_state["pages"]["playground"])
