"""Playground: what if I do this?

The fields on the left set up a memory, the buttons do something to it, the list on the right is what was
done. The player shows the trace of that list, which kvsim's own memories have written.
"""

from __future__ import annotations

import hashlib
import html
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import streamlit as st

from app import component
from app.playground.files import Scene, scene_of_trace, trace_bytes
from app.playground.link import LONGEST_LINK, packed, unpacked
from app.playground.run import Run
from app.playground.scenarios import NAMES, scenario
from app.playground.script import scene_of_script, script
from app.playground.session import Play, Position
from app.playground.setup import MEMBERS, TYPES, Setup, cells_note
from app.recordings import tags
from app.views.playground_forms import acts
from kvsim.errors import KvsimError
from kvsim.models.known import KNOWN
from kvsim.player.page import page

MAX_IMPORT_MIB = 16
PROGRESS_AFTER = 1.0


CSS = (Path(__file__).parents[1] / "playground" / "page.css").read_text(encoding="utf-8")


def show() -> None:
    """The page."""
    st.html(f"<style>{CSS}</style>")
    play = _play()
    with st.container(key="source", horizontal=True, vertical_alignment="center"):
        _pick_scenario(play)
        facts = st.container(key="pg-facts")
        _undo_and_redo(play)
        _import_button(play)
        exports = st.container(key="pg-export", width="content")
        links = st.container(key="pg-link", width="content")
    if "pg file" in st.session_state:
        _card(play, *st.session_state["pg file"])
        return
    with st.container(key="pg-config"):
        _config(play)
    run = _run(play, facts)
    facts.html(_tags(play, run))
    with exports:
        _export_button(play, run)
    text = packed(play.now.setup, play.now.lines) if play.now.setup else ""
    too_long = not text or len(text) > LONGEST_LINK - 200
    _remember("" if too_long else text)
    with links:
        component.link(long=too_long)
    with st.container(key="pg-acts"):
        trial = acts(play, run)
    with st.container(key="pg-side"):
        _side(play, run)
    payload = run.payload()
    component.player(
        payload,
        key=hashlib.sha256(payload.encode()).hexdigest()[:16],
        at=_at(run),
        notes=run.notes,
        start=play.start,
        preview=trial.cells,
        page="playground",
        board=True,
    )


def _play() -> Play:
    """What this visitor plays with: from the session, else from the address, else a first scenario."""
    state = st.session_state
    if "pg play" not in state:
        state["pg play"] = Play(scenario(NAMES[0]))
        text = st.query_params.get("do", "")
        if text:
            try:
                state["pg play"] = Play(Position.of(*unpacked(text)))
            except KvsimError as error:
                state["pg note"] = str(error)
    play: Play = state["pg play"]
    return play


def open_position(setup: Setup, lines: list[str]) -> None:
    """Let the playground begin with these lines (for links from other pages)."""
    st.session_state["pg play"] = Play(Position.of(setup, lines))


def _remember(text: str) -> None:
    """What the address needs to come back here; the step is kept by the player."""
    wanted = {"page": "playground"} | ({"do": text} if text else {})
    for key, value in wanted.items():
        if st.query_params.get(key) != value:
            st.query_params[key] = value
    if not text:
        st.query_params.pop("do", None)


def _at(run: Run) -> int:
    """The step of the address, the last one if it says none."""
    raw = st.query_params.get("at", "")
    last = len(run.steps) - 1
    return min(int(raw), last) if raw.isascii() and raw.isdigit() and len(raw) < 9 else last


def _run(play: Play, slot: Any) -> Run:
    """The run; once it takes long, ``slot`` says how far it is. Any other act on the page cancels it."""
    begun, n = time.monotonic(), len(play.now.lines)

    def told(done: int) -> None:
        if time.monotonic() - begun > PROGRESS_AFTER:
            slot.html(f'<div class="kvs-quiet">performing, {done:,} of {n:,} lines</div>')

    return play.run(told)


# -- source bar ------------------------------------------------------------------------------------


def _pick_scenario(play: Play) -> None:
    st.selectbox(
        "Scenario",
        NAMES,
        index=None,
        key=f"pg scenario {play.n_set}",
        placeholder="Begin with a scenario",
        label_visibility="collapsed",
        width=250,
        on_change=_take_scenario,
        args=(play, f"pg scenario {play.n_set}"),
    )


def _take_scenario(play: Play, key: str) -> None:
    name = st.session_state.get(key)
    if name in NAMES:
        play.take(scenario(name))
        _from_the_end()


def _from_the_end() -> None:
    """Show what is new: the step of the address was one of the old list."""
    st.query_params.pop("at", None)


def _tags(play: Play, run: Run) -> str:
    note = st.session_state.pop("pg note", "")
    if note:
        return f'<div class="kvs-verdict kvs-bad">{html.escape(note)}</div>'
    spans = "".join(f"<span>{html.escape(tag)}</span>" for tag in tags(run.header))
    return f'<div class="kvs-tags">{spans}</div>'


def _undo_and_redo(play: Play) -> None:
    for name, do, there in (("Undo", play.undo, play.past), ("Redo", play.redo, play.future)):
        st.button(
            name, icon=f":material/{name.lower()}:", disabled=not there, on_click=_step_back, args=(do,),
            key=f"pg {name}",
        )  # fmt: skip


def _step_back(do: Any) -> None:
    do()
    _from_the_end()


def _export_button(play: Play, run: Run) -> None:
    with st.popover("Export", icon=":material/ios_share:"):
        st.download_button(
            "Trace (.jsonl.gz)", lambda: trace_bytes(run.header, run.steps), "playground.jsonl.gz",
            "application/gzip", on_click="ignore", width="stretch",
        )  # fmt: skip
        if play.now.setup:
            made = script(play.now.setup, run.steps)
            st.download_button(
                "Python script (.py)", made, "playground.py", "text/x-python", on_click="ignore",
                width="stretch",
            )  # fmt: skip
        st.download_button(
            "Page with this player (.html)", lambda: page(json.loads(run.payload()), at=_at(run)).encode(),
            "playground.html", "text/html", on_click="ignore", width="stretch",
        )  # fmt: skip


def _import_button(play: Play) -> None:
    with st.popover("Import", icon=":material/upload:"):
        st.file_uploader(
            "A trace (.jsonl, .jsonl.gz) or a script the playground wrote (.py), up to "
            f"{MAX_IMPORT_MIB} MiB. It is read, never executed.",
            type=["jsonl", "gz", "py"],
            key=f"pg upload {play.n_set}",
            max_upload_size=MAX_IMPORT_MIB,
            on_change=_uploaded,
            args=(play, f"pg upload {play.n_set}"),
        )


def _uploaded(play: Play, key: str) -> None:
    file = st.session_state.get(key)
    if file is not None:
        import_file(play, file.name, file.getvalue())


def import_file(play: Play, name: str, data: bytes) -> None:
    """Take over a file; a damaged one is told first, with what can still be done."""
    state = st.session_state
    state.pop("pg file", None)
    try:
        if name.endswith(".py"):
            scene = scene_of_script(data.decode("utf-8", "replace"), name)
        else:
            scene = scene_of_trace(data, name)
    except KvsimError as error:
        state["pg file"] = (None, str(error))
        return
    if scene.error:
        state["pg file"] = (scene, scene.error)
        return
    _take_scene(play, scene)


def _take_scene(play: Play, scene: Scene) -> None:
    st.session_state.pop("pg file", None)
    play.take(Position(scene.setup, scene.header, tuple(scene.lines)))
    _from_the_end()


def _card(play: Play, scene: Scene | None, error: str) -> None:
    """What is wrong with an imported file."""
    with st.container(key="card"):
        if scene is None:
            st.subheader("This file cannot be used", anchor=False)
            st.text("The playground stays as it was.")
        else:
            st.subheader("This file is damaged", anchor=False)
            n = len(scene.lines)
            st.text(f"A memory and {n:,} operation{'s' * (n != 1)} of it are whole.")
        st.code(error, language=None, wrap_lines=True)
        with st.container(horizontal=True):
            if scene:
                n = len(scene.lines)
                st.button(
                    f"Play the {n:,} whole operation{'s' * (n != 1)}", type="primary", on_click=_take_scene,
                    args=(play, scene),
                )  # fmt: skip
            st.button("Back to the playground", on_click=lambda: st.session_state.pop("pg file", None))


# -- memory ----------------------------------------------------------------------------------------


def _config(play: Play) -> None:
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
        _from_the_end()
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


# -- operations ------------------------------------------------------------------------------------


def _side(play: Play, run: Run) -> None:
    with st.container(horizontal=True, vertical_alignment="center", key="pg-side-head"):
        st.html('<h3 class="kvs-head">Operations</h3>')
        form = st.segmented_control(
            "As", ["list", "text", "Python"], default="list", required=True, key="pg as",
            label_visibility="collapsed",
        )  # fmt: skip
    if form == "text":
        _as_text(play, run)
    elif form == "Python":
        _as_python(play, run)
    else:
        st.html(_as_list(play, run))


def _as_list(play: Play, run: Run) -> str:
    rows = []
    for i, line in enumerate(play.now.lines):
        error = run.error if run.error and run.error[0] == i else None
        marks = ""
        if i < len(run.done):
            done = run.done[i]
            verb, words = done.act.verb, done.act.words()
            steps = range(done.first, done.end)
            if any(run.notes.get(s, {}).get("hazards") for s in steps):
                marks = '<b class="kvs-hazard" title="hazard">▲</b>'
            if any(run.packer.steps[s]["bad"] for s in steps):
                marks += '<b class="kvs-bad" title="refused or failed">✕</b>'
            number = str(done.first) if done.end == done.first + 1 else f"{done.first}–{done.end - 1}"
        else:
            verb, _, words = line[:60].partition(" ")
            number = "–"
        state = "kvs-bad" if error else "" if i < len(run.done) else "kvs-quiet"
        rows.append(
            f'<li class="{state}"><span class="kvs-n">{number}</span><b>{html.escape(verb)}</b>'
            f"<span>{html.escape(words)}</span><span>{marks}</span></li>"
        )
        if error:
            rows.append(f'<li class="kvs-why">{html.escape(error[1])}</li>')
    if not rows:
        return '<p class="kvs-note">Nothing was done yet. Choose an act above the cells, then Apply.</p>'
    return f'<ol class="kvs-ops">{"".join(rows)}</ol>'


def _as_text(play: Play, run: Run) -> None:
    key = f"pg text {hashlib.sha256(chr(10).join(play.now.lines).encode()).hexdigest()[:12]}"
    st.text_area(
        "One act a line", "\n".join(play.now.lines), key=key, height=240, label_visibility="collapsed",
        on_change=_typed, args=(play, key),
    )  # fmt: skip
    if run.error:
        line, why = run.error
        shown = html.escape(play.now.lines[line][:80])
        st.html(
            f'<p class="kvs-error"><b>Line {line + 1}</b> <code>{shown}</code><br>{html.escape(why)}. '
            "It and what follows are not done.</p>"
        )
    st.html(
        '<p class="kvs-note">Ctrl+Enter takes the text over. <code>prompt 0 18</code>, '
        "<code>decode 0 1 x6</code>, <code>decode 0*3 1*2</code>, <code>share 0 1</code>, "
        "<code>remove 0 18 end</code>, <code>keep 0</code>, <code>shift 0 8 end -8</code>, "
        "<code>divide 0 start end 2</code>, <code>clear</code>, <code>save 0</code>, "
        "<code>restore 1 from 0</code>, <code>defragment classic</code>, <code>speculate 0 4 2</code>, "
        "<code>prompt 0 20 abort 2</code>, or an operation of the trace format as JSON. An end is not "
        "included: <code>remove 0 4 8</code> frees 4–7.</p>"
    )


def _typed(play: Play, key: str) -> None:
    text = st.session_state.get(key) or ""
    play.set_lines([line.strip() for line in text.splitlines() if line.strip()])
    _from_the_end()


def _as_python(play: Play, run: Run) -> None:
    if play.now.setup is None:
        st.html('<p class="kvs-note">A script is written for memories of the table only.</p>')
        return
    st.code(script(play.now.setup, run.steps), language="python", height=430)
