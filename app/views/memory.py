"""Memory: what does it cost?

The bytes of a configuration by part, exactly as llama.cpp sizes them, beside what one change would make of
them; and how full the memory of a recording was, in how many pieces its free cells lay.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from app import component, fields, header_upload, recordings, style
from app.memory_page import drawing
from app.memory_page.costs import Cost, alternatives, cost, explanation, in_words, kind_of, summary
from app.memory_page.occupancy import History, history
from app.memory_page.setting import LIMITS, MODELS, TYPES, Setting, model_of
from app.plain import plain
from app.views import address
from kvsim.models.context_params import ROLLBACK_ARCHS
from kvsim.models.params import ModelParams, SwaType

FILE = Path(__file__).parents[1] / "memory_page" / "page.css"
FIRST_TRACES = {"iswa": "iswa/gemma3-swa20-uni-c512"}  # else the first of its kind


@st.cache_data(max_entries=24, show_spinner=False)
def _history(name: str) -> History:
    trace = recordings.trace_of(recordings.path_of(name), name)
    return history(trace.header, trace)


def show() -> None:
    """The page."""
    st.html(style.sheet(FILE))
    with st.container(key="configured"):
        left, right = st.columns(2)
        with left:
            setting, model = _configure()
        with right:
            if model is not None:
                _costs(model, setting)


# -- the configuration -------------------------------------------------------------------------


def _configure() -> tuple[Setting, ModelParams | None]:
    state = st.session_state
    if "memory" not in state:
        address.named("model", MODELS, "model")
        state.memory = Setting.from_query(st.query_params)
    old: Setting = state.memory
    st.html('<div class="kvs-side">Model</div>')
    model_name, model = _model(old)
    st.html('<div class="kvs-side">Context</div>')
    new = _context(model_name, old, model) if model else old
    state.memory = new
    _remember(new)
    component.link()
    return new, model


def _model(old: Setting) -> tuple[str, ModelParams | None]:
    name = st.selectbox(
        "Architecture",
        MODELS,
        MODELS.index(old.model),
        key="memory-model",
        on_change=header_upload.forget,
        args=("memory",),
    )
    return name, header_upload.header("memory") or model_of(name)


def _context(name: str, old: Setting, model: ModelParams) -> Setting:
    n_ctx = _number("n_ctx", old.n_ctx, "Context, tokens", least=1)
    one, two = st.columns(2)
    with one:
        n_seq_max = _number("n_seq_max", old.n_seq_max, "Sequences", least=1)
    with two:
        n_ubatch = _number("n_ubatch", old.n_ubatch, "Ubatch", least=1)
    with one:
        type_k = st.selectbox("K type", TYPES, TYPES.index(old.type_k), key="memory-type_k")
    with two:
        type_v = st.selectbox("V type", TYPES, TYPES.index(old.type_v), key="memory-type_v")
    streams, swa_full, n_rs_seq = old.streams, old.swa_full, old.n_rs_seq
    if n_seq_max > 1:
        streams = fields.either("Buffer", "unified", "streams", streams, "memory-streams")
    if model.swa_type is not SwaType.NONE:
        swa_full = fields.either("Window cache", "window", "swa_full", swa_full, "memory-swa_full")
    if model.arch in ROLLBACK_ARCHS:
        n_rs_seq = _number("n_rs_seq", n_rs_seq, "Rollback snapshots", least=0)
    return Setting(name, n_ctx, n_seq_max, n_ubatch, type_k, type_v, streams, swa_full, n_rs_seq)


def _number(name: str, value: int, label: str, least: int) -> int:
    return int(fields.number(label, value, least, LIMITS[name], f"memory-{name}"))


def _remember(setting: Setting) -> None:
    wanted = {"page": "memory", **setting.to_query()}
    if "trace" in st.query_params:
        wanted["trace"] = st.query_params["trace"]
    if st.query_params.to_dict() != wanted:
        st.query_params.from_dict(wanted)


# -- what it costs -----------------------------------------------------------------------------


def _costs(model: ModelParams, setting: Setting) -> None:
    own = cost(model, setting)
    if own.refusal:
        st.error(f"llama.cpp refuses this: {plain(own.refusal)}")
        return
    others = list(alternatives(model, setting))
    words = f"{own.total:,} bytes: {summary(model)}"
    st.html(f'<div class="kvm-total"><b>{in_words(own.total)}</b><span>{words}</span></div>')
    st.html(drawing.bars(own, others))
    left, right = st.columns(2, gap="medium")
    with left:
        _by_part(model, setting, own)
    with right:
        _over_a_trace(kind_of(model, setting))


def _by_part(model: ModelParams, setting: Setting, own: Cost) -> None:
    st.html(_head("By part", "as configured; without weights and compute buffers"))
    st.html(drawing.table(own.parts))
    notes = " ".join(explanation(model, setting))
    st.html(f'<div class="kvs-note">{notes}</div>')


def _over_a_trace(kind: str) -> None:
    st.html(
        _head("Occupancy over a recording", "strong: used; faint: free in pieces; blank: longest free run")
    )
    names = recordings.bundled()
    asked = address.named("trace", names, "recording")
    usual = FIRST_TRACES.get(kind, f"{kind}/")
    first = asked or next((n for n in names if n.startswith(usual)), names[0])
    name = st.selectbox(
        "Recording", names, names.index(first), key=f"memory-trace-{kind}", label_visibility="collapsed"
    )
    if name != first:
        st.query_params["trace"] = name
    st.html(drawing.curves(_history(name), name))


def _head(title: str, more: str) -> str:
    return f'<div class="kvs-head">{title}<small>{more}</small></div>'
