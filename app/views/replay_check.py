"""The verdict of the Replay page: kvsim performs the recorded operations, too, and what differs is counted.

It goes on beside the page while the recording is played, tells what it has found so far, and can be stopped.
"""

from __future__ import annotations

import html
import time
from typing import Any

import streamlit as st

from app.check import Check
from app.recordings import Opened
from app.replaying.checking import Checking, UploadChecking
from app.replaying.reading import reading_of
from kvsim.narrate.verdicts import failed

PROGRESS_AFTER = 1.0  # seconds until a comparison shows how far it is
PROGRESS_EVERY = 0.25


def begin(opened: Opened) -> None:
    """Begin to compare, if that has not begun."""
    state = st.session_state
    if state.get("upload") and "checking" not in state:
        state.checking = UploadChecking(opened.name, state.upload[1], opened.n_steps)


def forget() -> None:
    """The upload is not wanted any more."""
    checking: Checking | None = st.session_state.pop("checking", None)
    if checking is not None:
        checking.cancel()


def notes_of(opened: Opened) -> dict[int, Any] | None:
    """What the comparison has to say about steps; None before it is through."""
    checking = _checking(opened)
    return checking.checked.notes if checking and checking.wait_checked(0) else None


def tell(opened: Opened, told: Any, act: Any) -> None:
    """Compare to the end; ``told`` says what was found so far, ``act`` has a way to stop and to begin again."""
    checking = _checking(opened)
    assert checking is not None
    begun, shown = time.monotonic(), 0.0
    for result in checking.checks():
        _ = st.session_state.get("scenario")  # lets Streamlit end this run after a click
        now = time.monotonic()
        if now - begun > PROGRESS_AFTER and now - shown > PROGRESS_EVERY and not checking.wait_checked(0):
            if not shown and st.session_state.get("upload"):  # what is bundled is compared for all users
                act.button("Stop comparing", key="stop_comparing", on_click=checking.cancel)
            shown = now
            told.text(_under_way("comparing", result, opened))  # HTML would be blank for a moment each time
    if checking.failed and st.session_state.get("upload"):
        told.text(_under_way("stopped", checking.so_far, opened))
        act.button("Compare again", key="compare_again", on_click=forget)
        return
    act.empty()
    told.html(_verdict(checking.checked, opened) + _failure(opened))


def _failure(opened: Opened) -> str:
    """What the tester found at the end, if it saved the recording."""
    found = opened.header.failure
    if found is None:
        return ""
    op = found["operation"].partition("(")[0]
    return tag(
        "bad",
        f"✕ {failed(found['subject'], found['verdict'])} at {op}",
        f"{found['operation']}: {found['what']}",
    )


def _checking(opened: Opened) -> Checking | None:
    state = st.session_state
    if state.get("upload"):
        found: Checking | None = state.get("checking")
        return found
    return reading_of(opened.name)


def _under_way(doing: str, result: Check, opened: Opened) -> str:
    return f"{doing}, {result.done:,} of {opened.n_steps:,} operations: {_differences(result)}"


def _verdict(result: Check, opened: Opened) -> str:
    if result.error:
        return tag("quiet", "not replayed", result.error)
    if result.differences:
        return tag("bad", f"✕ {_differences(result)}")
    read = "" if opened.whole else f" in the {opened.n_steps:,} operations that were read"
    return tag("good", f"✓ {_differences(result)}{read}", "kvsim replays every operation as recorded")


def _differences(result: Check) -> str:
    n = result.differences
    first = f", first at operation {result.first}" if n else ""
    return f"{n:,} difference{'s' if n != 1 else ''}{first}"


def tag(kind: str, text: str, title: str = "") -> str:
    """A verdict as HTML; ``kind`` is good, bad or quiet."""
    return f'<div class="kvs-verdict kvs-{kind}" title="{html.escape(title)}">{html.escape(text)}</div>'
