"""Compare: where do they part, and why?

The recording, the reference, the ledger and, where they are installed, the engine and llama.cpp perform one trace
beside a reference with a planted fault. A campaign finds such a fault by itself and shrinks the way to it.
"""

from __future__ import annotations

import base64
import html
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import streamlit as st

from app import component, recordings, style
from app.compare import result
from app.compare.lanes import BESIDE
from app.numbers import whole
from app.playground.files import trace_bytes
from app.task import Task, Waiter
from app.views import address, compare_campaign
from app.views.compare_case import EVERY, FIRST_SUBJECT, Case, me, open_in_playground, remember
from kvsim.errors import TraceError
from kvsim.testing.mutants import MUTANTS
from kvsim.trace import read_trace

FILE = Path(__file__).parents[1] / "compare" / "page.css"
FIRST = "kv/llama-uni-c256-u16-s4-f16-03"
LANES = {"engine": "engine (torch)", "llamacpp": "llama.cpp (live)"}  # that may be the subject

MAX_UPLOAD_MIB = 8  # every operation of it is held in memory
KEPT = 8  # comparisons that a session keeps
SHARED = 16  # comparisons of bundled recordings that are kept for all users


@st.cache_resource
def _component() -> Any:
    return component.element("kvsim_compare", "compare", "compare.css")


def show() -> None:
    """The page."""
    st.html(style.sheet(FILE))
    bar = st.container(key="source", horizontal=True, vertical_alignment="center")
    with st.container(key="compare-page"):
        left, right = st.columns(2)
        with right:
            compare_campaign.show()
        with bar:
            case = _case()
            take = st.container(key="compare-take", horizontal=True, width="content", gap="small")
            component.link()
        with left:
            _comparison(case, take)


# -- what is compared --------------------------------------------------------------------------


def _case() -> Case:
    state = st.session_state
    if "compare-shrunk" in state:
        shrunk: Case = state["compare-shrunk"]
        st.html(f'<div class="kvs-tags"><span>{html.escape(shrunk.name)}</span></div>')
        st.button("Back to the recordings", key="compare-back", on_click=_back)
        return shrunk
    upload = state.get("compare-upload")
    name, data = upload if upload else _recording()
    if upload:
        st.html(f'<div class="kvs-tags"><span>{html.escape(name)}</span></div>')
    subject = _subject(_subjects(_memory(data, name)))
    if upload:
        st.button("Back to the recordings", key="compare-back", on_click=_back)
        st.query_params.pop("scenario", None)
    else:
        st.html('<div class="kvs-tags"></div>')
        _open_button()
        remember(scenario=name)
    remember(subject=subject)
    return Case(name, data, subject, bundled=not upload)


def _recording() -> tuple[str, bytes]:
    names = recordings.bundled()
    first = address.named("scenario", names, "recording") or FIRST
    name = st.selectbox(
        "Recording",
        names,
        names.index(first),
        key="compare-scenario",
        width=300,
        label_visibility="collapsed",
        on_change=_forget_step,
    )
    return name, recordings.path_of(name).read_bytes()


def _subject(subjects: list[str]) -> str:
    if st.session_state.get("compare-subject") not in subjects:
        st.session_state.pop("compare-subject", None)
    asked = address.named("subject", {*MUTANTS, *LANES}, "fault or lane")  # of any member of the family
    first = asked if asked in subjects else FIRST_SUBJECT if FIRST_SUBJECT in subjects else subjects[0]
    subject: str = st.selectbox(
        "Subject",
        subjects,
        subjects.index(first),
        key="compare-subject",
        width=260,
        format_func=_title,
        label_visibility="collapsed",
        on_change=_forget_step,
    )
    return subject


def _open_button() -> None:
    with st.popover("Open", icon=":material/upload:"):
        st.file_uploader(
            f"A recording, .jsonl or .jsonl.gz, up to {MAX_UPLOAD_MIB} MiB",
            type=["jsonl", "gz"],
            key="compare-file",
            max_upload_size=MAX_UPLOAD_MIB,
            on_change=_uploaded,
        )


def _uploaded() -> None:
    """Keep the upload for this user only."""
    file = st.session_state.get("compare-file")
    if file is not None:
        st.session_state["compare-upload"] = (file.name, file.getvalue())
        _forget_step()


def _memory(data: bytes, name: str) -> str:
    """Which member of the family a recording is of; of one that cannot be read, the comparison tells more."""
    try:
        return read_trace(data, name=name).header.memory
    except TraceError:
        return "kv"


def _subjects(memory: str) -> list[str]:
    """The engine, llama.cpp, and the faults that this member of the family can have."""
    return [
        *(m.id for m in MUTANTS.values() if memory in m.memories),
        *(lane for lane in LANES if lane in BESIDE),
    ]


def _title(subject: str) -> str:
    return LANES.get(subject, f"fault: {subject.replace('-', ' ')}")


def _forget_step() -> None:
    st.query_params.pop("at", None)


def _back() -> None:
    for key in ("compare-shrunk", "compare-upload"):
        st.session_state.pop(key, None)
    for name in ("at", "shrunk"):
        st.query_params.pop(name, None)


# -- the comparison ----------------------------------------------------------------------------


_comparisons: dict[str, Task] = {}
"""Of bundled recordings, the same for all users."""
_begins = threading.Lock()


def _comparison(case: Case, take: Any) -> None:
    state = st.session_state
    tasks: dict[str, Task] = state.setdefault("compare-tasks", {})
    mine = me()
    if case.key not in tasks:
        for key in list(tasks)[: max(0, len(tasks) - KEPT + 1)]:
            tasks.pop(key).leave(mine)
        tasks[case.key] = _begun(case, mine)
    task = tasks[case.key]
    if state.get("compare-left") == case.key or task.state in ("cancelled", "failed"):
        with st.container(key="card"):
            st.subheader("This cannot be compared" if task.state == "failed" else "Cancelled", anchor=False)
            st.text(task.error or "The comparison was ended before it was through.")
            st.button("Compare again", type="primary", on_click=_again, args=(case,))
    elif not task.over:
        for key in [key for key, other in tasks.items() if key != case.key and not other.over]:
            tasks.pop(key).leave(mine)
        _waiting(task, case)
    else:
        _shown(case, task)
        with take:
            _taken(case, result.first_difference(task))


def _begun(case: Case, mine: Waiter) -> Task:
    """The comparison, begun unless another user has done so."""
    with _begins:
        task = _comparisons.get(case.key) if case.bundled else None
        if task is None or not task.join(mine):
            task = Task(_job(case))
            task.join(mine)
            if case.bundled:
                over = [key for key, other in _comparisons.items() if other.over]
                for key in over[: max(0, len(_comparisons) - SHARED + 1)]:
                    del _comparisons[key]
                _comparisons[case.key] = task
        return task


def _leave(task: Task, case: Case) -> None:
    task.leave(me())
    st.session_state["compare-left"] = case.key


def _again(case: Case) -> None:
    st.session_state["compare-tasks"].pop(case.key, None)
    st.session_state.pop("compare-left", None)


def _job(case: Case) -> dict[str, Any]:
    trace = base64.b64encode(case.data).decode()
    return {"job": "compare", "trace": trace, "name": case.name, "subject": case.subject}


@st.fragment(run_every=EVERY)
def _waiting(task: Task, case: Case) -> None:
    """How far it is, and a way to end it."""
    if task.over:
        st.rerun()
    begun = task.of_kind("begin")
    with st.container(key="card"):
        st.subheader("Comparing", anchor=False)
        if begun:
            n_lanes = len(begun[0]["lanes"])
            total = begun[0]["operations"] * n_lanes
            done = len(task.of_kind("mark"))
            told = f"{done:,} of {total:,} operations of {n_lanes} lanes"
            st.progress(min(1.0, done / total), told)
        else:
            st.progress(0.0, "waiting for a free place" if task.state == "waiting" else "starting")
        st.button("Cancel", key="compare-cancel", on_click=_leave, args=(task, case))


def _shown(case: Case, task: Task) -> None:
    source = "llama.cpp" if not case.shrunk else "kvsim"
    name = case.subject
    at = st.query_params.get("at", "")
    _component()(
        data={
            "key": case.key,
            "comparison": result.comparison(task, name, source),
            "at": whole(at),
        },
        key="compare",
        height="content",
    )


def _taken(case: Case, first: int | None) -> None:
    """What leads to the first difference, to go on with: in the playground, or as a trace."""
    if first is None:
        return
    told = f"operations 0–{first}, up to the first difference"
    open_in_playground("compare-play", f"Begin the playground with {told}", lambda: _cut(case, first))
    name = f"{case.name.replace('/', '-').removesuffix('.gz').removesuffix('.jsonl')}-0-{first}.jsonl.gz"
    st.download_button(
        "Save as a trace", lambda: _cut(case, first), name, "application/gzip", key="compare-save",
        on_click="ignore", help=f"A trace of {told}",
    )  # fmt: skip


def _cut(case: Case, last: int) -> bytes:
    """The trace up to operation ``last``, itself included."""
    trace = read_trace(case.data, name=case.name)
    return trace_bytes(trace.header, islice(trace, last + 1))
