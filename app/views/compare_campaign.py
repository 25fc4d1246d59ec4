"""The campaign of the Compare page: random operations find a planted fault, and the way to it is shrunk."""

from __future__ import annotations

import base64
import html
from itertools import pairwise
from typing import Any

import streamlit as st

from app.numbers import whole
from app.plain import plain
from app.task import Task
from app.views import address
from app.views.compare_case import EVERY, FIRST_SUBJECT, Case, me, open_in_playground, remember
from kvsim.testing.mutants import MUTANTS

ABOUT = "Random operations on a reference with a planted fault, until it parts."


def show() -> None:
    """The side of the page that hunts for a planted fault."""
    state = st.session_state
    st.html('<div class="kvc-side">Campaign</div>')
    st.html(f'<div class="kvc-told">{ABOUT}</div>')
    names = list(MUTANTS)
    first = address.named("mutant", names, "fault") or FIRST_SUBJECT
    mutant = st.selectbox(
        "Fault",
        names,
        names.index(first),
        key="compare-mutant",
        format_func=lambda name: name.replace("-", " "),
    )
    asked = whole(st.query_params.get("seed", ""), 11)
    seed = st.number_input(
        "Seed",
        0,
        2**31 - 1,
        1 if asked is None else min(asked, 2**31 - 1),
        key="compare-seed",
    )
    st.html(f'<div class="kvc-told">{html.escape(MUTANTS[mutant].what)}</div>')
    remember(mutant=mutant, seed=seed)
    job = {"job": "campaign", "mutant": mutant, "seed": seed}
    task: Task | None = state.get("compare-campaign")
    if task is None and st.query_params.get("shrunk") == "1":
        task = _run(job)
    if task is not None and not task.over:
        _hunting(task)
        return
    st.button("Run", key="compare-run", type="primary", on_click=_run, args=(job,))
    if task is not None:
        _hunted(task)


def _run(job: dict[str, Any]) -> Task:
    task = st.session_state["compare-campaign"] = Task(job)
    task.join(me())
    return task


@st.fragment(run_every=EVERY)
def _hunting(task: Task) -> None:
    if task.over:
        st.rerun()
    st.html(_rounds(task) + _facts(task))
    st.button("Cancel", key="compare-stop", on_click=task.cancel)


def _hunted(task: Task) -> None:
    """What the campaign came to."""
    st.html(_rounds(task) + _facts(task))
    shortest = task.of_kind("shortest")
    if task.state == "failed":
        st.error(plain(task.error))
    if not shortest:
        return
    listed = "".join(f"<li>{html.escape(op)}</li>" for op in shortest[0]["ops"])
    st.html(f'<ol class="kvc-ops">{listed}</ol>')
    case = _shrunk_case(task)
    if st.query_params.get("shrunk") == "1" and "compare-shrunk" not in st.session_state:
        _look(case)
    st.button("Look at it here", key="compare-look", on_click=_look, args=(case,))
    told = "Begin the playground with these operations; there the reference performs them, without the fault"
    open_in_playground("compare-hunted", told, lambda: case.data)
    st.download_button(
        "Save the trace", case.data, f"{task.job['mutant']}.jsonl.gz", "application/gzip", on_click="ignore"
    )


def _shrunk_case(task: Task) -> Case:
    mutant, seed = task.job["mutant"], task.job["seed"]
    data = base64.b64decode(task.of_kind("shortest")[0]["trace"])
    return Case(f"shortest way to {mutant}, seed {seed}", data, mutant, shrunk=True)


def _look(case: Case) -> None:
    st.session_state["compare-shrunk"] = case
    st.query_params["shrunk"] = "1"
    st.query_params.pop("at", None)


def _rounds(task: Task) -> str:
    """A bar for each round of operations; the last one is red if it found the fault. "" of fewer than two."""
    done = [0, *(m["ops"] for m in task.of_kind("round"))]
    sizes = [b - a for a, b in pairwise(done)][-48:]
    found = task.of_kind("found")
    bars = [f'<i style="height:{min(100, max(6, size))}%"></i>' for size in sizes]
    if found:
        last = found[0]["ops"] - done[-1]
        bars.append(f'<i class="kvc-hit" style="height:{min(100, max(10, last))}%"></i>')
    if len(bars) < 2:
        return ""  # one bar compares nothing
    return f'<div class="kvc-rounds" role="img" aria-label="rounds of operations">{"".join(bars)}</div>'


def _facts(task: Task) -> str:
    """Found, where, shrunk, and how to repeat it."""
    facts = []
    found, rounds = task.of_kind("found"), task.of_kind("round")
    if found:
        one = found[0]
        facts.append(("found", f"after {one['ops']:,} operations, on {one['where']}"))
        facts.append(
            (
                "by",
                "what each sequence should hold"
                if one["verdict"] == "ledger"
                else "comparing with the reference",
            )
        )
        lengths = [one["length"], *(m["length"] for m in task.of_kind("shrunk"))]
        facts.append(("shrunk", " → ".join(map(str, lengths[:1] + lengths[1:][-5:]))))
        facts.append(("repeat", f"<code>kvsim museum {task.job['mutant']} --seed {task.job['seed']}</code>"))
    elif task.of_kind("missed"):
        facts.append(("found", "not within the limit of operations"))
    elif rounds:
        facts.append(("so far", f"{rounds[-1]['ops']:,} operations, now on {rounds[-1]['where']}"))
    if task.state == "cancelled":
        facts.append(("", "cancelled; what was found stays"))
    rows = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts)
    return f'<dl class="kvc-facts">{rows}</dl>'
