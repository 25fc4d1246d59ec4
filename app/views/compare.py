"""Compare: where do they part, and why?

The recording, the reference, the ledger and, where they are installed, the engine and llama.cpp perform one trace
beside a reference with a planted fault. A campaign finds such a fault by itself and shrinks the way to it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import streamlit as st

from app import component, recordings, style
from app.compare import result
from app.compare.lanes import BESIDE
from app.plain import plain
from app.playground.files import scene_of_trace, trace_bytes
from app.task import Task, Waiter
from app.views import address, playground
from kvsim.errors import KvsimError, TraceError
from kvsim.testing.mutants import MUTANTS
from kvsim.trace import read_trace

FILE = Path(__file__).parents[1] / "compare" / "page.css"
FIRST = "kv/llama-uni-c256-u16-s4-f16-03"
FIRST_SUBJECT = "contiguous-slots"
LANES = {"engine": "engine (torch)", "llamacpp": "llama.cpp (live)"}  # that may be the subject

ABOUT = "Random operations on a reference with a planted fault, until it parts."
MAX_UPLOAD_MIB = 8  # every operation of it is held in memory
KEPT = 8  # comparisons that a session keeps
SHARED = 16  # comparisons of bundled recordings that are kept for all users
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
            _campaign()
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
        _remember(scenario=name)
    _remember(subject=subject)
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


def _remember(**values: Any) -> None:
    for name, value in {"page": "compare", **values}.items():
        if st.query_params.get(name) != str(value):
            st.query_params[name] = str(value)


# -- the comparison ----------------------------------------------------------------------------


_comparisons: dict[str, Task] = {}
"""Of bundled recordings, the same for all users."""
_begins = threading.Lock()


def _comparison(case: Case, take: Any) -> None:
    state = st.session_state
    tasks: dict[str, Task] = state.setdefault("compare-tasks", {})
    me = _me()
    if case.key not in tasks:
        for key in list(tasks)[: max(0, len(tasks) - KEPT + 1)]:
            tasks.pop(key).leave(me)
        tasks[case.key] = _begun(case, me)
    task = tasks[case.key]
    if state.get("compare-left") == case.key or task.state in ("cancelled", "failed"):
        with st.container(key="card"):
            st.subheader("This cannot be compared" if task.state == "failed" else "Cancelled", anchor=False)
            st.text(task.error or "The comparison was ended before it was through.")
            st.button("Compare again", type="primary", on_click=_again, args=(case,))
    elif not task.over:
        for key in [key for key, other in tasks.items() if key != case.key and not other.over]:
            tasks.pop(key).leave(me)
        _waiting(task, case)
    else:
        _shown(case, task)
        with take:
            _taken(case, result.first_difference(task))


def _me() -> Waiter:
    """This session, among those that wait for the same."""
    me: Waiter = st.session_state.setdefault("compare-me", Waiter())
    return me


def _begun(case: Case, me: Waiter) -> Task:
    """The comparison, begun unless another user has done so."""
    with _begins:
        task = _comparisons.get(case.key) if case.bundled else None
        if task is None or not task.join(me):
            task = Task(_job(case))
            task.join(me)
            if case.bundled:
                over = [key for key, other in _comparisons.items() if other.over]
                for key in over[: max(0, len(_comparisons) - SHARED + 1)]:
                    del _comparisons[key]
                _comparisons[case.key] = task
        return task


def _leave(task: Task, case: Case) -> None:
    task.leave(_me())
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
            "at": int(at) if at.isascii() and at.isdigit() and len(at) < 9 else None,
        },
        key="compare",
        height="content",
    )


def _taken(case: Case, first: int | None) -> None:
    """What leads to the first difference, to go on with: in the playground, or as a trace."""
    if first is None:
        return
    told = f"operations 0–{first}, up to the first difference"
    _open_in_playground("compare-play", f"Begin the playground with {told}", lambda: _cut(case, first))
    name = f"{case.name.replace('/', '-').removesuffix('.gz').removesuffix('.jsonl')}-0-{first}.jsonl.gz"
    st.download_button(
        "Save as a trace", lambda: _cut(case, first), name, "application/gzip", key="compare-save",
        on_click="ignore", help=f"A trace of {told}",
    )  # fmt: skip


def _cut(case: Case, last: int) -> bytes:
    """The trace up to operation ``last``, itself included."""
    trace = read_trace(case.data, name=case.name)
    return trace_bytes(trace.header, islice(trace, last + 1))


def _open_in_playground(key: str, told: str, data: Callable[[], bytes]) -> None:
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


# -- the campaign ------------------------------------------------------------------------------


def _campaign() -> None:
    state = st.session_state
    st.html('<div class="kvc-side">Campaign</div>')
    st.html(
        '<div class="kvc-told">Random operations on a reference with a planted fault, until it parts.</div>'
    )
    names = list(MUTANTS)
    first = address.named("mutant", names, "fault") or FIRST_SUBJECT
    mutant = st.selectbox(
        "Fault",
        names,
        names.index(first),
        key="compare-mutant",
        format_func=lambda name: name.replace("-", " "),
    )
    seed_asked = st.query_params.get("seed", "")
    seed = st.number_input(
        "Seed",
        0,
        2**31 - 1,
        min(int(seed_asked), 2**31 - 1)
        if seed_asked.isascii() and seed_asked.isdigit() and len(seed_asked) < 12
        else 1,
        key="compare-seed",
    )
    st.html(f'<div class="kvc-told">{html.escape(MUTANTS[mutant].what)}</div>')
    _remember(mutant=mutant, seed=seed)
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
    task.join(_me())
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
    _open_in_playground("compare-hunted", told, lambda: case.data)
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
