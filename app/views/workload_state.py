"""What a session of the Workload page holds: requests, configuration, runs, jobs; and what its address says."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
from dataclasses import fields
from typing import Any

import streamlit as st

from app.task import Task, Waiter
from app.views import address
from app.workload_page.configuration import FIRST, HeaderSetup, setup_of_text, text_of_setup
from app.workload_page.source import TITLES, UPLOAD, Source, value_of
from kvsim.workload.setup import Setup

NAMES = "ABCD"
"""Of the runs that stand side by side."""

SIDE_BY_SIDE = "Side by side"
SERVE, PLAN = "Serve", "Plan"
MODULE = "app.workload_page.worker"
LONGEST = 900.0  # seconds that a job may take
KEPT = 16  # jobs that a session keeps
EVERY = 0.4  # seconds between two looks at what a job has told


def restore() -> None:
    """Begin where the session stands, else where the address says."""
    state, query = st.session_state, st.query_params
    if "workload-source" in state:
        return
    address.named("kind", TITLES, "workload")
    asked = Source.from_query(query)
    texts = [text for text in query.get("runs", "").split("~") if text]
    runs = [setup for setup in map(setup_of_text, texts) if setup is not None][: len(NAMES)]
    for text in (*texts, query.get("set", "")):
        if text and setup_of_text(text) is None:
            address.tell_unknown("configuration", text)
    state["workload-source"] = state["workload-served"] = asked
    state["workload-setup"] = setup_of_text(query.get("set", "")) or (runs[-1] if runs else FIRST)
    state["workload-runs"] = runs
    state["workload-tasks"] = {}
    state["workload-view"] = PLAN if query.get("view") == "plan" else SERVE
    state["workload-shown"] = query.get("show", "")
    start, end = (value_of(query.get(name, ""), 0.0) for name in ("from", "to"))
    state["workload-interval"] = (
        (start, end) if start is not None and end is not None and start < end else None
    )


def remember(asked: Source, setup: Setup, plan: dict[str, str]) -> None:
    """What the address needs to come back here; an upload stays with its session."""
    state = st.session_state
    wanted = {"page": "workload", **asked.to_query()}
    runs = state["workload-runs"] if asked == state["workload-served"] else []
    text = text_of_setup(setup)
    if setup != (runs[-1] if runs else FIRST) and setup_of_text(text) is not None:
        wanted["set"] = text
    if runs:
        wanted["runs"] = "~".join(text_of_setup(run) for run in runs)
        if state["workload-shown"] not in ("", NAMES[0]):
            wanted["show"] = state["workload-shown"]
        if state["workload-interval"]:
            start, end = state["workload-interval"]
            wanted |= {"from": f"{start:.6g}", "to": f"{end:.6g}"}
    if state["workload-view"] == PLAN:
        wanted |= {"view": "plan", **plan}
    if "from" in wanted and "at" in st.query_params:
        wanted["at"] = st.query_params["at"]
    if st.query_params.to_dict() != wanted:
        st.query_params.from_dict(wanted)


def serve(asked: Source, setup: Setup) -> None:
    """Put a configuration beside the others; another workload begins anew."""
    state = st.session_state
    runs: list[Setup] = state["workload-runs"] if asked == state["workload-served"] else []
    if setup not in runs:
        runs = [*runs, setup][-len(NAMES) :]
    show(NAMES[runs.index(setup)])
    state["workload-runs"], state["workload-served"] = runs, asked


def remove(index: int) -> None:
    """Take one of the runs away."""
    state = st.session_state
    state["workload-runs"] = [run for i, run in enumerate(state["workload-runs"]) if i != index]
    show("")


def show(name: str) -> None:
    """Look at one of the runs."""
    st.session_state["workload-shown"] = st.session_state["wl-shown"] = name or SIDE_BY_SIDE
    choose(None)


def choose(interval: tuple[float, float] | None) -> None:
    """Play an interval, or none."""
    state = st.session_state
    state["workload-interval"] = interval
    state["wl-from"], state["wl-to"] = interval or (0.0, 0.0)
    st.query_params.pop("at", None)


# -- jobs --------------------------------------------------------------------------------------------


def keep_upload(name: str, data: bytes) -> None:
    """A file of requests, for this user only."""
    digest = hashlib.sha256(data).hexdigest()
    st.session_state["workload-upload"] = {
        "name": name,
        "data": base64.b64encode(data).decode(),
        "digest": digest,
    }


def upload_name() -> str:
    """What the user calls the file; "" without one."""
    return st.session_state.get("workload-upload", {}).get("name", "")


def values_of(setup: Setup) -> dict[str, Any]:
    return {f.name: getattr(setup, f.name) for f in fields(Setup)}


def job(asked: Source, setup: Setup, name: str, **more: Any) -> dict[str, Any]:
    """A job for the worker; the file comes with :func:`task_of`."""
    made: dict[str, Any] = {"job": name, "source": vars(asked), "setup": values_of(setup), **more}
    if asked.kind == UPLOAD:
        made["upload"] = st.session_state.get("workload-upload", {}).get("digest")
    if isinstance(setup, HeaderSetup):
        made["header"] = base64.b64encode(pickle.dumps(setup.header)).decode()
    return made


def task_of(job: dict[str, Any]) -> Task:
    """The job, begun if it has not been; of many the oldest are ended."""
    tasks: dict[str, Task] = st.session_state["workload-tasks"]
    key = json.dumps(job, sort_keys=True)
    if key not in tasks:
        for old in list(tasks)[: max(0, len(tasks) - KEPT + 1)]:
            tasks.pop(old).cancel()
        file = st.session_state.get("workload-upload") if "upload" in job else None
        more = {"name": file["name"], "data": file["data"]} if file else {}
        tasks[key] = Task({**job, **more}, MODULE, LONGEST)
        tasks[key].join(st.session_state.setdefault("workload-me", Waiter()))  # it ends with the session
    return tasks[key]


def again(task: Task) -> None:
    """Do a job once more."""
    tasks: dict[str, Task] = st.session_state["workload-tasks"]
    for key in [key for key, other in tasks.items() if other is task]:
        del tasks[key]
