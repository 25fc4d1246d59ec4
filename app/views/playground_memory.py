"""The fields of the playground's memory, with what kvsim has against them beside each."""

from __future__ import annotations

import html
from dataclasses import replace
from typing import Any

import streamlit as st

from app.playground.scenarios import NAMES, scenario
from app.playground.session import Play
from app.playground.setup import MEMBERS, TYPES, Setup, cells_note
from app.views.playground_address import from_the_end
from kvsim.models.known import KNOWN


def config(play: Play) -> None:
    """The fields of the memory; what cannot be is said below its field, and the last good value stays."""
    st.html('<h3 class="kvs-head">Memory</h3>')
    setup = play.now.setup
    if setup is None:
        _foreign(play)
        return
    n = play.n_set
    wanted = _fields(setup, n)
    if wanted == st.session_state.get(f"pg wanted {n}", setup):
        return
    st.session_state[f"pg wanted {n}"] = wanted
    made, errors = setup.changed(wanted)
    if made != setup:
        play.set_setup(made)
        from_the_end()
    if made != replace(wanted, **{name: getattr(made, name) for name in errors}):
        play.n_set += 1  # the model changed other fields with it
    st.session_state[f"pg errors {play.n_set}"] = errors
    st.rerun()


def _foreign(play: Play) -> None:
    header = play.now.header
    st.text(f"{header.model}, recorded by {header.source}. Its memory is as the file says.")
    st.button("Use a memory of the table", on_click=lambda: play.take(scenario(NAMES[0])))


def _fields(setup: Setup, n: int) -> Setup:
    members = list(MEMBERS)
    member = st.selectbox(
        "Family member", members, index=members.index(setup.model) if setup.model in members else None,
        format_func=MEMBERS.get, key=f"pg {n} member {setup.model}", placeholder="one of the table",
    )  # fmt: skip
    known = st.selectbox(
        "or a model of the table", list(KNOWN), index=list(KNOWN).index(setup.model) if setup.model in KNOWN
        else None, key=f"pg {n} known {setup.model}", placeholder="choose…",
    )  # fmt: skip
    model = next((m for m in (known, member) if m and m != setup.model), setup.model)
    _error("model", setup, n)
    a, b = st.columns(2, gap="xsmall")
    cells = _count(a, "Cells", setup.cells, f"pg {n} cells")
    ubatch = _count(b, "Ubatch", setup.ubatch, f"pg {n} ubatch")
    _error("cells", setup, n, cells_note(setup, setup.header))
    _error("ubatch", setup, n)
    a, b = st.columns(2, gap="xsmall")
    sequences = _count(a, "Sequences", setup.sequences, f"pg {n} sequences")
    snapshots = _count(b, "Snapshots", setup.snapshots, f"pg {n} snapshots")
    _error("sequences", setup, n)
    _error("snapshots", setup, n)
    buffer = st.segmented_control(
        "Buffer", ["unified", "streams"], default="unified" if setup.unified else "streams", required=True,
        key=f"pg {n} buffer", width="stretch",
    )  # fmt: skip
    _error("unified", setup, n)
    a, b = st.columns(2, gap="xsmall")
    type_k = a.selectbox("K type", TYPES, TYPES.index(setup.type_k), key=f"pg {n} k")
    type_v = b.selectbox("V type", TYPES, TYPES.index(setup.type_v), key=f"pg {n} v")
    _error("type_k", setup, n)
    _error("type_v", setup, n)
    a, b = st.columns(2, gap="xsmall")
    window = _count(a, "Window, 0: own", setup.window, f"pg {n} window")
    with b:
        st.html('<span class="kvs-label">Its cache</span>')
        full = st.toggle("full size", setup.full_window, key=f"pg {n} full")
    _error("window", setup, n)
    _error("full_window", setup, n)
    return replace(
        setup, model=model, cells=cells, ubatch=ubatch, sequences=sequences, snapshots=snapshots,
        unified=buffer == "unified", type_k=type_k, type_v=type_v, window=window, full_window=full,
    )  # fmt: skip


def _count(column: Any, label: str, value: int, key: str) -> int:
    typed = column.number_input(label, value=value, step=1, key=key)
    return value if typed is None else int(typed)


def _error(name: str, setup: Setup, n: int, note: str = "") -> None:
    """What is wrong with a field, and what is used meanwhile; else a note, if there is one."""
    error = st.session_state.get(f"pg errors {n}", {}).get(name)
    if error:
        used = getattr(setup, name)
        used = {True: "yes", False: "no"}.get(used, used) if isinstance(used, bool) else used
        st.html(f'<p class="kvs-error">{html.escape(error)}. Still using {html.escape(str(used))}.</p>')
    elif note:
        st.html(f'<p class="kvs-note">{html.escape(note)}</p>')
