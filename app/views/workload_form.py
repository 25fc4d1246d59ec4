"""The left side of the Workload page: which requests, which model, context, policy and device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from app import fields, header_upload
from app.plain import plain
from app.task import Task
from app.views.workload_state import EVERY, job, keep_upload, task_of, values_of
from app.workload_page.configuration import FIRST, MODELS, MOST, TYPES, HeaderSetup
from app.workload_page.source import LEAST, MADE_UP, TITLES, UPLOAD, Source
from app.workload_page.source import MOST as MOST_OF_SOURCE
from kvsim.errors import KvsimError
from kvsim.models.params import ModelParams, SwaType
from kvsim.workload.setup import Setup

MAX_UPLOAD_MIB = 16


def source() -> Source:
    """Which requests are served."""
    old: Source = st.session_state["workload-source"]
    st.html('<div class="kvs-side">Requests</div>')
    kind = fields.choice("Workload", list(TITLES), old.kind, "wl-kind", format_func=TITLES.__getitem__)
    if kind == UPLOAD:
        _upload()
    many = "How many" if kind == MADE_UP else "How many; 0: all of them"
    new = replace(old, kind=kind, requests=_of_source("requests", old, many))
    if kind == MADE_UP:
        new = replace(new, fitted=False, requests=max(1, new.requests))
    else:
        new = replace(new, fitted=fields.either("Taken", "as recorded", "fitted", old.fitted, "wl-fitted"))
    if kind == MADE_UP or new.fitted:
        with st.popover("Conversations", width="stretch"):
            new = _conversations(new, kind == MADE_UP)
    return new


def _conversations(old: Source, by_hand: bool) -> Source:
    asked = {
        "turns": "Turns of a conversation, mean",
        "think": "Seconds between turns",
        "system": "Shared system prompt, tokens",
        "seed": "Seed",
    }
    if by_hand:
        asked |= {
            "rate": "Requests a second",
            "user": "What a user says, median tokens",
            "answer": "An answer, median tokens",
            "spread": "Spread of both (sigma of the logarithm)",
            "burstiness": "Burstiness: 1 as chance has it",
        }
    return replace(old, **{name: _of_source(name, old, label) for name, label in asked.items()})


def _of_source(name: str, old: Source, label: str) -> Any:
    least = LEAST.get(name, 0)
    return fields.number(label, getattr(old, name), least, MOST_OF_SOURCE[name], f"wl-source-{name}")


def _upload() -> None:
    """The file, kept for this user only, and what it has, or the line that is wrong."""
    state = st.session_state
    st.file_uploader(
        f"Azure CSV or Mooncake JSON lines, plain or .gz, up to {MAX_UPLOAD_MIB} MiB",
        type=["csv", "jsonl", "gz"],
        key="wl-file",
        max_upload_size=MAX_UPLOAD_MIB,
        on_change=_uploaded,
    )
    task: Task | None = state.get("workload-read")
    if task is None:
        return
    if not task.over:
        _reading(task)
        return
    found = task.of_kind("summary")
    if found:
        st.html(f'<div class="kvw-state">{found[0]["n"]:,} requests over {found[0]["seconds"]:,.0f} s</div>')
    elif task.state == "failed":
        st.error(f"This file cannot be used: {plain(task.error)}")


def _uploaded() -> None:
    state = st.session_state
    file = state.get("wl-file")
    for key in ("workload-upload", "workload-read"):
        state.pop(key, None)
    if file is not None:
        keep_upload(file.name, file.getvalue())
        state["workload-read"] = task_of(job(Source(UPLOAD, requests=0), FIRST, "read"))


@st.fragment(run_every=EVERY)
def _reading(task: Task) -> None:
    if task.over:
        st.rerun()
    st.html('<div class="kvw-state">Reading the file</div>')


def readable(asked: Source) -> bool:
    """Whether there is a file to serve, if one is asked for."""
    task: Task | None = st.session_state.get("workload-read")
    return asked.kind != UPLOAD or (task is not None and task.state == "done")


# -- the server ----------------------------------------------------------------------------------


def setup() -> tuple[Setup, str]:
    """The configuration, and why it cannot be; "" if it can."""
    old: Setup = st.session_state["workload-setup"]
    st.html('<div class="kvs-side">Model</div>')
    arch = fields.choice(
        "Architecture", MODELS, old.arch, "wl-arch", on_change=header_upload.forget, args=("workload",)
    )
    header = header_upload.header("workload")
    st.html('<div class="kvs-side">Context and server</div>')
    new = _context(Setup(**{**values_of(old), "arch": arch}), header)
    new = _device(new, header)
    try:
        new.config()
        new.cost()
        new.memory_bytes()
    except KvsimError as error:
        st.error(f"llama.cpp or the server refuses this: {plain(str(error))}")
        return new, str(error)
    return new, ""


def _context(old: Setup, header: ModelParams | None) -> Setup:
    new = old
    if header is not None:
        new = HeaderSetup(**{**values_of(old), "arch": f"{header.arch} (from a header)"}, header=header)
    n_ctx = _number("n_ctx", new, "Context, tokens", least=256)
    one, two = st.columns(2)
    with one:
        parallel = _number("parallel", new, "Slots", least=1)
        type_k = fields.choice("K type", TYPES, new.type_k, "wl-type_k")
    with two:
        n_ubatch = _number("n_ubatch", new, "Ubatch", least=1)
        type_v = fields.choice("V type", TYPES, new.type_v, "wl-type_v")
    unified = not fields.either("Buffer", "unified", "streams", not new.unified, "wl-streams")
    swa_full = False
    if new.model().swa_type is not SwaType.NONE:
        swa_full = fields.either("Window cache", "window", "swa_full", new.swa_full, "wl-swa_full")
    paged = fields.either("Policy", "slots", "paged", new.policy == "paged", "wl-policy")
    with st.popover("Server settings", width="stretch"):
        new = replace(
            new,
            n_batch=_number("n_batch", new, "Batch, tokens", least=1),
            ctx_shift=st.toggle("Context shift", new.ctx_shift, key="wl-ctx_shift"),
            n_keep=_number("n_keep", new, "Tokens kept by a shift"),
            cache_reuse=_number("cache_reuse", new, "Shortest chunk to reuse; 0: none"),
            checkpoints=_number("checkpoints", new, "Checkpoints of a slot"),
            similarity=_number("similarity", new, "Part of a prompt a slot must hold"),
        )
    return replace(
        new, n_ctx=n_ctx, parallel=parallel, n_ubatch=n_ubatch, type_k=type_k, type_v=type_v, unified=unified,
        swa_full=swa_full, policy="paged" if paged else "slots",
    )  # fmt: skip


def _device(old: Setup, header: ModelParams | None) -> Setup:
    """Weights and device in the units people say; a header does not say how many parameters there are."""
    with st.popover("Device", width="stretch"):
        scaled = {
            "bandwidth": ("Memory bandwidth, GB/s", 1e9, 1.0, 1e6),
            "rate": ("Rate, TFLOP/s", 1e12, 0.1, 1e6),
            "overhead": ("Each ubatch in any case, ms", 1e-3, 0.0, 1e4),
            "weight_bytes": ("Bytes per parameter", 1.0, 0.1, 16.0),
        }
        if header is not None:
            scaled["n_params"] = ("Parameters, billions", 1e9, 0.01, 1e5)
        found = {}
        for name, (label, unit, least, most) in scaled.items():
            value = 8e9 if name == "n_params" and not old.n_params else getattr(old, name)
            found[name] = unit * fields.number(label, float(f"{value / unit:.6g}"), least, most, f"wl-{name}")
        st.html('<div class="kvw-state">Times are a model: bytes moved, operations, a fixed part. Compare them; '
                "do not believe them.</div>")  # fmt: skip
    return replace(old, **found) if header is not None else replace(old, **found, n_params=0.0)


def _number(name: str, setup: Setup, label: str, least: float = 0) -> Any:
    return fields.number(label, getattr(setup, name), least, MOST[name], f"wl-{name}")


def fill(setup: Setup) -> None:
    """Put a configuration of a plan into the fields."""
    state = st.session_state
    state["workload-setup"] = setup
    for name in ("arch", "n_ctx", "parallel", "type_k", "type_v", "checkpoints"):
        state[f"wl-{name}"] = getattr(setup, name)
    state["wl-streams"] = "unified" if setup.unified else "streams"
    state["wl-swa_full"] = "swa_full" if setup.swa_full else "window"
