"""The Workload page's plan: many configurations on one workload, by memory and what they do."""

from __future__ import annotations

import html
from math import prod
from typing import Any

import streamlit as st

from app.plain import plain
from app.task import Task
from app.views import workload_form
from app.views import workload_state as session
from app.workload_page import drawing
from app.workload_page.configuration import setup_of_text
from app.workload_page.source import Source, value_of
from kvsim.models.params import SwaType
from kvsim.workload.setup import Setup

MOST_TRIED = 48
CHOICES: dict[str, tuple[str, tuple[Any, ...], tuple[Any, ...]]] = {
    # name: (label, what can be chosen, what is at first)
    "n_ctx": ("Context", (4096, 8192, 16384, 32768, 65536, 131072), (8192, 16384, 32768)),
    "parallel": ("Slots", (1, 2, 4, 8, 16, 32), (4, 8)),
    "unified": ("Buffer", (True, False), (True, False)),
    "swa_full": ("Window cache", (False, True), (False,)),
    "types": ("K and V", ("f16", "q8_0", "q4_0"), ("f16",)),
    "checkpoints": ("Checkpoints", (0, 8, 32), (32,)),
}
WORDS = {"unified": ("streams", "unified"), "swa_full": ("window", "swa_full")}
LIMITS = {
    # name: (label, most, at first, of 1)
    "failed_decodes": ("Failed decodes, at most", 1_000_000.0, 0.0, 1.0),
    "unserved": ("Not served in full, %", 100.0, 0.0, 100.0),
    "reprocessed": ("Computed twice, %", 100.0, 100.0, 100.0),
    "first_token": ("First token, s (0: any)", 1e6, 0.0, 1.0),
    "bytes": ("Memory, GiB (0: any)", 1e5, 0.0, 2.0**-30),
}


def query() -> dict[str, str]:
    """What the address says of the plan: choices and limits that are not as at first."""
    state, told = st.session_state, {}
    for name, (_, _, first) in CHOICES.items():
        chosen = state.get("workload-choices", {}).get(name)
        if chosen is not None and tuple(chosen) != first:
            told[f"p_{name}"] = ",".join(str(int(v)) if isinstance(v, bool) else str(v) for v in chosen)
    for name, (_, _, first, _) in LIMITS.items():
        value = state.get("workload-limits", {}).get(name, first)
        if value != first:
            told[f"l_{name}"] = f"{value:g}"
    if "workload-plan" in state:
        told["go"] = "1"
    axis = state.get("workload-axis", "failed")
    return told if axis == "failed" else {**told, "axis": axis}


def show(asked: Source, base: Setup, can: bool) -> None:
    """Choices and limits, and what trying them all came to."""
    state = st.session_state
    _restore()
    with st.container(key="wl-choices"):
        choices = _choices(base)
    with st.container(key="wl-limits", horizontal=True, vertical_alignment="bottom"):
        limits = _limits()
    n = prod(len(values) for _, values in choices)
    job = session.job(asked, base, "search", choices=_packed(choices), limits=limits)
    wrong = (
        f"{n} combinations are more than the {MOST_TRIED} that are tried: choose fewer."
        if n > MOST_TRIED
        else ""
    )
    wrong = "Choose at least one of each." if n == 0 else wrong
    with st.container(key="wl-search", horizontal=True, vertical_alignment="center"):
        st.button(f"Try {n} configurations" if n > 1 else "Try it", type="primary", key="wl-try", on_click=_try,
                  args=(job,), disabled=bool(wrong) or not can)  # fmt: skip
        told = (
            wrong
            or "Each serves the requests on the left to their end; the rest of the server is as set there."
        )
        st.html(f'<div class="kvw-state">{told}</div>')
    if state.get("workload-go"):  # a link to a plan
        state["workload-go"] = False
        if not wrong and can:
            _try(job)
    if "workload-plan" in state:
        _result(session.task_of(state["workload-plan"]))


def _restore() -> None:
    state, asked = st.session_state, st.query_params
    if "workload-choices" in state:
        return
    state["workload-choices"], state["workload-limits"] = {}, {}
    for name, (_, known, first) in CHOICES.items():
        texts = {str(int(v)) if isinstance(v, bool) else str(v): v for v in known}
        found = [texts[part] for part in asked.get(f"p_{name}", "").split(",") if part in texts]
        state["workload-choices"][name] = found or list(first)
    for name, (_, most, first, _) in LIMITS.items():
        value = value_of(asked.get(f"l_{name}", ""), 0.0)
        state["workload-limits"][name] = first if value is None else min(value, most)
    state["workload-axis"] = asked.get("axis") if asked.get("axis") in drawing.AXES else "failed"
    state["workload-go"] = asked.get("go") == "1"


def _choices(base: Setup) -> list[tuple[str, list[Any]]]:
    kept: dict[str, list[Any]] = st.session_state["workload-choices"]
    shown = [name for name in CHOICES if name != "swa_full" or base.model().swa_type is not SwaType.NONE]
    chosen = []
    columns = [*st.columns(3), *st.columns(3)]
    for name, column in zip(shown, columns, strict=False):
        label, known, _ = CHOICES[name]
        words = WORDS.get(name)
        with column:
            kept[name] = st.multiselect(
                label, known, kept[name], key=f"wl-p-{name}",
                format_func=lambda v, words=words: words[v] if words else f"{v:,}" if isinstance(v, int) else v,
            )  # fmt: skip
        chosen.append((name, kept[name]))
    return chosen


def _limits() -> dict[str, float]:
    """In the units of :class:`kvsim.workload.plan.Limits`."""
    kept: dict[str, float] = st.session_state["workload-limits"]
    for name, (label, most, _, _) in LIMITS.items():
        kept[name] = st.number_input(label, 0.0, most, kept[name], key=f"wl-l-{name}", format="%g", width=176)
    found = {name: kept[name] / unit for name, (_, _, _, unit) in LIMITS.items()}
    return {name: value for name, value in found.items() if value or name not in ("first_token", "bytes")}


def _packed(choices: list[tuple[str, list[Any]]]) -> list[Any]:
    """As the worker takes them: names, and for each its values."""
    return [
        (("type_k", "type_v"), [[value, value] for value in values])
        if name == "types"
        else ((name,), [[v] for v in values])
        for name, values in choices
    ]


def _try(job: dict[str, Any]) -> None:
    st.session_state["workload-plan"] = job


def _result(task: Task) -> None:
    if not task.over:
        _trying(task)
        return
    if task.state == "failed":
        st.error(plain(task.error))
        st.button("Try again", key="wl-plan-again", on_click=session.again, args=(task,))
    tried, plan = task.of_kind("tried"), task.of_kind("plan")
    if not tried:
        return
    best = plan[0]["best"] if plan else None
    st.html(f'<div class="kvw-verdict">{_verdict(tried, plan[0] if plan else None)}</div>')
    setup = setup_of_text(best) if best else None
    with st.container(key="wl-plan-head", horizontal=True, vertical_alignment="center"):
        axes = list(drawing.AXES)
        axis = st.segmented_control(
            "Over memory", axes, default=st.session_state["workload-axis"], key="wl-axis",
            format_func=lambda name: drawing.AXES[name][0], label_visibility="collapsed",
        )  # fmt: skip
        st.session_state["workload-axis"] = axis or st.session_state["workload-axis"]
        if setup is not None:
            st.button("Serve the smallest", key="wl-use", on_click=_use, args=(setup,))
    st.html(drawing.scatter(tried, st.session_state["workload-axis"], best))
    st.html(
        '<div class="kvs-note">Green: within the limits; red rings: not. The dashed line is the frontier: nothing '
        f"that is as small does better.</div>{drawing.plan_table(tried, best)}"
    )


def _verdict(tried: list[dict[str, Any]], plan: dict[str, Any] | None) -> str:
    if plan is None:
        return "Cancelled; what was tried stays."
    binding = " and ".join(drawing.LIMITS[name] for name in plan["binding"])
    if plan["best"] is None:
        return f"<b>Nothing serves it within the limits.</b> In the way: {html.escape(binding)}."
    setup = setup_of_text(plan["best"])
    size = next(t["bytes"] for t in tried if t["setup"] == plan["best"])
    what = drawing.short(setup) if setup else html.escape(plan["best"])
    why = (
        f"What binds: {binding}; the next smaller ones break it."
        if binding
        else "It is the smallest there is to try."
    )
    return f"<b>{what}</b> serves it with {drawing.size(size)}. {why}"


@st.fragment(run_every=session.EVERY)
def _trying(task: Task) -> None:
    if task.over:
        st.rerun()
    begun, tried = task.of_kind("begin"), task.of_kind("tried")
    n = begun[0]["n"] if begun else 0
    told = f"{len(tried)} of {n} configurations tried" if n else "starting"
    st.progress(len(tried) / n if n else 0.0, told)
    if st.button("Cancel", key="wl-plan-cancel"):
        task.cancel()
        st.rerun()


def _use(setup: Setup) -> None:
    """Serve what the plan found."""
    state = st.session_state
    workload_form.fill(setup)
    state["workload-view"] = state["wl-view"] = session.SERVE
    session.serve(state["workload-source"], setup)
