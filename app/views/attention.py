"""Attention: what may this token read?

One decode of a recording is performed on a memory with rows and a network: a probe with random weights, or a
model file. For a block of it the page shows which cells each row may see, by cell and by position, what an
indexer leaves of them, which compressed rows stand beside them, and how much each weighs.
"""

from __future__ import annotations

import html
import json
import time
from pathlib import Path
from typing import Any

import streamlit as st

from app import component, recordings, style
from app.attention.picture import Place, pack, places, selective
from app.attention.walk import Moment, Walk
from app.numbers import whole
from app.plain import plain
from app.uploaded_gguf import on_disk
from app.views import address
from kvsim.errors import KvsimError
from kvsim.models.network import load_network
from kvsim.narrate.calls import call

FILE = Path(__file__).parents[1] / "attention" / "page.css"
MAX_UPLOAD_MIB = 64
PROGRESS_AFTER = 1.0
FIRST = "kv/llama-uni-c256-u16-s4-f16-03"
FIRST_AT = 18
MODES = ("mask", "scores", "indexer")


@st.cache_resource
def _component() -> Any:
    return component.element("kvsim_attention", "attention", "attention.css")


@st.cache_data(max_entries=64, show_spinner=False)
def _decodes(name: str) -> dict[int, int]:
    """The operations that decoded something, and how many tokens."""
    trace = recordings.trace_of(recordings.path_of(name), name)
    return {s.i: len(s.args["seq"]) for s in trace if s.op == "decode" and s.ret == 0}


def show() -> None:
    """The page."""
    st.html(style.sheet(FILE))
    with st.container(key="source", horizontal=True, vertical_alignment="center"):
        name = _recording()
        decodes = _decodes(name)
        at = _operation(name, decodes)
        try:
            walk = _walk(name)
            with st.container(key="attention-progress", width="content"):
                slot = st.empty()
            moment = _moment(walk, at, slot)
        except KvsimError as error:
            _file_button()
            st.error(plain(str(error)))
            return
        place = _place(moment)
        head = _head(walk, moment, place) if place else None
        mode = _mode(walk)
        _verdict(moment)
        _file_button()
        component.link()
    if place is None:
        st.text("No block of this model attends to cells in this decode: its memory is recurrent.")
        return
    picture = pack(walk.trace.header, walk.context.model, moment, place, head)
    row = st.query_params.get("row", "")
    _component()(
        data={
            "key": f"{name} {at} {place}",
            "picture": json.dumps(picture, separators=(",", ":")),
            "call": call(moment.step),
            "at": at,
            "ubatch": place.ubatch + 1,
            "mode": mode,
            "heads": "mean of all heads" if head is None else f"head {head}",
            "row": whole(row),
        },
        key="attention",
        height="content",
    )


# -- what is looked at -------------------------------------------------------------------------


def _recording() -> str:
    names = recordings.bundled()
    first = address.named("scenario", names, "recording") or FIRST
    name: str = st.selectbox(
        "Recording",
        names,
        names.index(first),
        key="attention-scenario",
        width=312,
        label_visibility="collapsed",
        on_change=_another,
    )
    return name


def _another() -> None:
    for name in ("at", "u", "layer", "stream", "row"):
        st.query_params.pop(name, None)
    for key in ("attention-at", "attention-u", "attention-layer", "attention-stream", "attention-head"):
        st.session_state.pop(key, None)


def _operation(name: str, sizes: dict[int, int]) -> int:
    asked, decodes = st.query_params.get("at", ""), list(sizes)
    longest = FIRST_AT if name == FIRST else max(decodes, key=lambda i: (sizes[i], i))
    wanted = whole(asked)
    near = longest if wanted is None else wanted
    first = min(decodes, key=lambda i: abs(i - near))
    at: int = st.selectbox(
        "Operation",
        decodes,
        decodes.index(first),
        key="attention-at",
        format_func=lambda i: f"operation {i}",
        width=138,
        label_visibility="collapsed",
    )
    _remember(scenario=name, at=at)
    return at


def _place(moment: Moment) -> Place | None:
    """Ubatch, block and stream, each chosen where there are several."""
    found = places(moment)
    if not found:
        return None
    ubatch = _one_of("u", "ubatch", sorted({p.ubatch for p in found}), lambda u: f"ubatch {u + 1}")
    found = [p for p in found if p.ubatch == ubatch]
    blocks = sorted({p.il for p in found}, key=lambda il: (il not in selective(moment), il))
    il = _one_of("layer", "block", blocks, lambda il: f"block {il}")
    found = [p for p in found if p.il == il]
    stream = _one_of("stream", "stream", sorted({p.stream for p in found}), lambda s: f"stream {s}")
    return next(p for p in found if p.stream == stream)


def _one_of(name: str, label: str, values: list[int], told: Any) -> int:
    if len(values) == 1:
        return values[0]
    asked = st.query_params.get(name, "")
    first = [str(value) for value in values].index(asked) if asked in map(str, values) else 0
    key = f"attention-{name}"
    if st.session_state.get(key) not in (None, *values):
        del st.session_state[key]
    chosen: int = st.selectbox(
        label, values, first, key=key, format_func=told, width=104, label_visibility="collapsed"
    )
    _remember(**{name: chosen})
    return chosen


def _head(walk: Walk, moment: Moment, place: Place) -> int | None:
    read = next(s.read for s in moment.seen if Place(s.ubatch, s.read.il, s.read.stream) == place)
    choices = [None, *range(read.q.shape[1])]
    if st.session_state.get("attention-head") not in choices:
        st.session_state.pop("attention-head", None)
    return st.selectbox(
        "Head",
        choices,
        key="attention-head",
        format_func=lambda h: "all heads" if h is None else f"head {h}",
        width=120,
        label_visibility="collapsed",
    )


def _mode(walk: Walk) -> str:
    modes = MODES if walk.context.model.indexer_n_head else MODES[:2]
    asked = st.query_params.get("mode")
    first = asked if asked in modes else modes[0]
    mode = st.segmented_control(
        "Show", modes, default=first, key="attention-mode", label_visibility="collapsed"
    )
    _remember(mode=mode or first)
    return mode or first


def _remember(**values: Any) -> None:
    for name, value in {"page": "attention", **values}.items():
        if st.query_params.get(name) != str(value):
            st.query_params[name] = str(value)


# -- the recording, performed ------------------------------------------------------------------


def _walk(name: str) -> Walk:
    """This session's walk through the recording; another recording or model begins a new one."""
    state = st.session_state
    network = state.get("attention-network")
    key = (name, network and network[0])
    if state.get("attention-walk", (None,))[0] != key:
        trace = recordings.trace_of(recordings.path_of(name), name)
        state["attention-walk"] = (key, Walk(trace, network and network[1]))
        state.pop("attention-moment", None)
    walk: Walk = state["attention-walk"][1]
    return walk


def _moment(walk: Walk, at: int, slot: Any) -> Moment:
    """The operation; once that takes long, ``slot`` says how far it is. A click ends this run of the script, and
    the next one goes on where this one stopped."""
    state, begun = st.session_state, time.monotonic()

    def told(done: int) -> None:
        if time.monotonic() - begun > PROGRESS_AFTER:
            slot.html(f'<div class="kvs-verdict kvs-quiet">performing, {done:,} of {at + 1:,}</div>')

    if state.get("attention-moment", (None,))[0] != at:
        state["attention-moment"] = (at, walk.at(at, told))
        slot.empty()
    moment: Moment = state["attention-moment"][1]
    return moment


def _verdict(moment: Moment) -> None:
    loaded = st.session_state.get("attention-network")
    if loaded:
        text, kind = f"model {loaded[0]}", "quiet"
    elif moment.differences:
        text, kind = f"✕ {moment.differences} fields differ", "bad"
    else:
        text, kind = "✓ as recorded", "good"
    st.html(f'<div class="kvs-verdict kvs-{kind}">{html.escape(text)}</div>')


def _file_button() -> None:
    with st.popover("Model", icon=":material/upload:"):
        st.text("Rows and scores come from a probe with random weights, or from a model file.")
        st.file_uploader(
            f"A GGUF file, up to {MAX_UPLOAD_MIB} MiB",
            key="attention-file",
            max_upload_size=MAX_UPLOAD_MIB,
            on_change=_uploaded,
        )
        if "attention-refused" in st.session_state:
            st.error(plain(st.session_state["attention-refused"]))


def _uploaded() -> None:
    """Load the file for this user; what cannot be used is told, and the probe stays."""
    state = st.session_state
    file = state.get("attention-file")
    for key in ("attention-network", "attention-refused"):
        state.pop(key, None)
    if file is None:
        return
    with on_disk(file) as path:
        try:
            state["attention-network"] = (file.name, load_network(path))
        except KvsimError as error:
            state["attention-refused"] = str(error).replace(f"{path}: ", f"{file.name}: ")
