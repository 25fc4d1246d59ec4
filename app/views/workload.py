"""Workload: will it fit, will it fail, what will it cost?

A stream of requests is served by a simulated server whose caches are kvsim's own. Several configurations stand
side by side; an interval of one is played; a plan looks for the smallest configuration that serves.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from app import component, style
from app.numbers import whole
from app.plain import plain
from app.task import Task
from app.views import workload_form, workload_plan
from app.views import workload_state as session
from app.views.workload_state import EVERY, NAMES, PLAN, SERVE, SIDE_BY_SIDE
from app.workload_page import drawing, figure, series
from app.workload_page.configuration import text_of_setup
from app.workload_page.source import UPLOAD, Source
from kvsim.workload.setup import Setup

FILE = Path(__file__).parents[1] / "workload_page" / "page.css"
AROUND = 0.2  # seconds played before and after a failed decode


@st.cache_resource
def _plots() -> Any:
    return component.element("kvsim_workload", "workload", "workload.css")


def show() -> None:
    """The page."""
    st.html(style.sheet(FILE))
    session.restore()
    state = st.session_state
    with st.container(key="configured"):
        left, right = st.columns(2)
        with left:
            asked = workload_form.source()
            setup, refused = workload_form.setup()
            state["workload-source"], state["workload-setup"] = asked, setup
            can = not refused and workload_form.readable(asked)
            if asked.kind == UPLOAD or "workload-gguf" in state:
                st.html(_note("Nobody else sees what you uploaded: a link opens without it."))
            with st.container(key="wl-go", horizontal=True, vertical_alignment="center"):
                st.button(
                    "Serve",
                    type="primary",
                    key="wl-serve",
                    on_click=session.serve,
                    args=(asked, setup),
                    disabled=not can,
                    width="stretch",
                    help="Simulates this configuration and puts it beside the others",
                )
                component.link()
        with right:
            if state.get("wl-view") is None:
                state["wl-view"] = state["workload-view"]
            state["workload-view"] = st.segmented_control(
                "View", (SERVE, PLAN), key="wl-view", label_visibility="collapsed", required=True
            )
            if state["workload-view"] == PLAN:
                workload_plan.show(asked, setup, can)
            else:
                _served()
    session.remember(asked, setup, workload_plan.query())


# -- what was served ---------------------------------------------------------------------------------


def _served() -> None:
    state = st.session_state
    setups: list[Setup] = state["workload-runs"]
    asked: Source = state["workload-served"]
    if not setups:
        _nothing(state["workload-source"], state["workload-setup"])
        return
    tasks = [session.task_of(session.job(asked, setup, "run")) for setup in setups]
    if any(not task.over for task in tasks):
        _waiting(tasks, NAMES)
    for name, task in zip(NAMES, tasks, strict=False):
        if task.state in ("failed", "cancelled"):
            st.error(f"{name}: {plain(task.error) or 'cancelled; what was served until then stays.'}")
            st.button("Try again", key=f"wl-again-{name}", on_click=session.again, args=(task,))
    told = [
        (name, setup, task.of_kind("account")[-1], task.of_kind("begin")[-1])
        for name, setup, task in zip(NAMES, setups, tasks, strict=False)
        if task.of_kind("account") and task.of_kind("begin")
    ]
    if told:
        _results(asked, told)


def _nothing(asked: Source, setup: Setup) -> None:
    with st.container(key="card"):
        st.html('<div class="kvs-ghost">' + "<i></i>" * 36 + "</div>")
        st.subheader("Serve a workload", anchor=False)
        n = f"{asked.requests:,} requests" if asked.requests else "all requests"
        st.text(
            "Choose requests and a server on the left. The simulation performs every decode on the caches that "
            "kvsim holds against llama.cpp, so it fails where they would."
        )
        st.button(f"Serve {n}", type="primary", key="wl-first", on_click=session.serve, args=(asked, setup),
                  disabled=not workload_form.readable(asked))  # fmt: skip


@st.fragment(run_every=EVERY)
def _waiting(tasks: list[Task], names: Sequence[str]) -> None:
    """How far they are, and a way to end them."""
    if all(task.over for task in tasks):
        st.rerun()
    with st.container(key="wl-waiting"):
        for name, task in zip(names, tasks, strict=False):
            if not task.over:
                st.progress(*_how_far(name, task))
        if st.button("Cancel", key="wl-cancel"):
            for task in tasks:
                task.cancel()
            st.rerun()


def _how_far(name: str, task: Task) -> tuple[float, str]:
    at = task.of_kind("at")
    if not at:
        return 0.0, f"{name}: waiting for a free place" if task.state == "waiting" else f"{name}: starting"
    last = at[-1]
    done = f"{last['done']:,} of {last['n']:,} requests, second {last['clock']:,.0f}"
    return min(1.0, last["done"] / max(1, last["n"])), f"{name}: {done}, {last['failed']:,} failed decodes"


def _results(asked: Source, told: list[tuple[str, Setup, dict[str, Any], dict[str, Any]]]) -> None:
    rows = [(name, setup, {**account, "bytes": begun["bytes"]}) for name, setup, account, begun in told]
    title = f"{asked.title(session.upload_name())}: {told[0][2]['totals']['requests']:,} requests"
    st.html(
        f'<div class="kvs-head">{html.escape(title)}</div><div class="kvw-wide">{drawing.comparison(rows)}</div>'
    )
    runs = [series.Run(name, account, begun["sizes"]) for name, _, account, begun in told]
    shown = _choice(runs)
    run = next((each for each in runs if each.name == shown), None)
    panels = series.panels(run) if run else series.beside(runs)
    if run:
        st.html(drawing.slot_colours(series.slots(panels)))
    _plot(panels, runs, run)
    with st.container(key="wl-below", horizontal=True, vertical_alignment="bottom"):
        if run is not None:
            _interval(run)
        _save(panels, title, run)
    if run is None:
        return
    setup = next(setup for name, setup, *_ in told if name == run.name)
    _played(asked, setup)
    one, two = st.columns(2, gap="medium")
    with one:
        st.html('<div class="kvs-head">Prompts</div>' + drawing.reasons(run.account))
    with two:
        st.html('<div class="kvs-head">Failed decodes<small>the first, with their four numbers</small></div>'
                + drawing.failures(run.account))  # fmt: skip


def _choice(runs: list[series.Run]) -> str:
    """Which one is shown in detail, or all side by side."""
    state = st.session_state
    names = [run.name for run in runs]
    if len(names) == 1:
        state["workload-shown"] = names[0]
        return names[0]
    options = [*names, SIDE_BY_SIDE]
    if state.get("wl-shown") not in options:
        state["wl-shown"] = state["workload-shown"] if state["workload-shown"] in options else SIDE_BY_SIDE
    with st.container(key="wl-choice", horizontal=True, vertical_alignment="center"):
        chosen = st.segmented_control(
            "Shown",
            options,
            key="wl-shown",
            label_visibility="collapsed",
            on_change=session.choose,
            args=(None,),
            required=True,
        )
        if chosen in names:
            st.button(
                f"Remove {chosen}", key="wl-remove", on_click=session.remove, args=(NAMES.index(chosen),)
            )
    state["workload-shown"] = chosen
    return chosen


def _plot(panels: list[series.Panel], runs: list[series.Run], run: series.Run | None) -> None:
    interval = st.session_state["workload-interval"] if run else None
    _plots()(
        data={
            "key": run.name if run else SIDE_BY_SIDE,
            "panels": json.dumps(panels, separators=(",", ":")),
            "end": run.seconds if run else max(each.seconds for each in runs),
            "brush": list(interval) if interval else None,
            "brushable": run is not None and "blocks" not in run.sizes,
        },
        key="wl-plot",
        height="content",
        on_brush_change=_brushed,
    )


def _brushed() -> None:
    """An interval was chosen in the plot."""
    brush = st.session_state["wl-plot"].brush
    if brush and brush["from"] < brush["to"]:
        session.choose((brush["from"], brush["to"]))


def _interval(run: series.Run) -> None:
    """The interval as numbers, and quick ways to one."""
    if "blocks" in run.sizes:
        st.html(_note("The paged policy has none of llama.cpp's cells to play."))
        return
    state = st.session_state
    state.setdefault("wl-from", (state["workload-interval"] or (0.0, 0.0))[0])
    state.setdefault("wl-to", (state["workload-interval"] or (0.0, 0.0))[1])
    for key, label in (("wl-from", "Play from, s"), ("wl-to", "to, s")):
        st.number_input(label, 0.0, 1e9, key=key, width=120, format="%.3f", on_change=_typed)
    if run.account["failures"]:
        first = run.account["failures"][0]["time"]
        st.button("Play the first failure", key="wl-first-failure", on_click=session.choose,
                  args=((max(0.0, first - AROUND), first + AROUND),))  # fmt: skip
    if state["workload-interval"]:
        st.button("Close the player", key="wl-close", on_click=session.choose, args=(None,))
    else:
        st.html(_note("Drag over the plots to play what happens there."))


def _typed() -> None:
    state = st.session_state
    start, end = state["wl-from"], state["wl-to"]
    state["workload-interval"] = (start, end) if start < end else None


def _save(panels: list[series.Panel], title: str, run: series.Run | None) -> None:
    with st.popover("Save", icon=":material/ios_share:"):
        for kind, mime in (("png", "image/png"), ("svg", "image/svg+xml")):
            st.download_button(
                f"The plots as {kind.upper()}", lambda kind=kind: figure.figure(panels, title, kind),
                f"workload.{kind}", mime, key=f"wl-save-{kind}", on_click="ignore", width="stretch",
            )  # fmt: skip
        if run is not None:
            st.download_button(
                "All counts as JSON", lambda: json.dumps(run.account), "workload.json", "application/json",
                key="wl-save-json", on_click="ignore", width="stretch",
            )  # fmt: skip


def _played(asked: Source, setup: Setup) -> None:
    """What was done in the interval, in the player."""
    interval = st.session_state["workload-interval"]
    if interval is None:
        return
    start, end = interval
    task = session.task_of(session.job(asked, setup, "record", **{"from": start, "to": end}))
    if not task.over:
        _waiting([task], ["Interval"])
        return
    if task.state != "done":
        st.error(plain(task.error) or "Cancelled.")
        st.button("Try again", key="wl-record-again", on_click=session.again, args=(task,))
        return
    trace = task.of_kind("trace")[0]
    cut = (
        ""
        if trace["until"] >= end
        else f", as many as are played at a time: up to second {trace['until']:,.3f}"
    )
    n = trace["n"] - 1  # the first is the picture at the beginning
    with st.container(key="wl-player-head", horizontal=True, vertical_alignment="center"):
        st.html(
            f'<div class="kvs-head">{n:,} operation{"s" if n != 1 else ""}'
            f"<small>from second {start:,.3f} on{cut}</small></div>"
        )
        st.download_button(
            "Save the trace", base64.b64decode(trace["data"]), "interval.jsonl.gz", "application/gzip",
            key="wl-save-trace", on_click="ignore",
        )  # fmt: skip
    at = whole(st.query_params.get("at", "")) or 0
    component.player(
        trace["payload"],
        key=f"{text_of_setup(setup)} {start} {end}",
        at=min(at, trace["n"] - 1),
        notes=dict(trace["notes"]),
        page="workload",
        height="640px",
    )


def _note(text: str) -> str:
    return f'<div class="kvw-state">{html.escape(text)}</div>'
