"""Playground: what if I do this?

The fields on the left set up a memory, the buttons do something to it, the list on the right is what was
done. The player shows the trace of that list, which kvsim's own memories have written.
"""

from __future__ import annotations

import hashlib
import html
import time
from pathlib import Path
from typing import Any

import streamlit as st

from app import component
from app.playground.files import Scene
from app.playground.link import LONGEST_LINK, packed, unpacked
from app.playground.run import Done, Run
from app.playground.scenarios import NAMES, scenario
from app.playground.script import script
from app.playground.session import Play, Position
from app.playground.setup import Setup
from app.recordings import tags
from app.views.playground_address import from_the_end, remember, step_of
from app.views.playground_files import card, export_button, import_button
from app.views.playground_forms import acts
from app.views.playground_memory import config
from kvsim.errors import KvsimError

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
        import_button(play)
        exports = st.container(key="pg-export", width="content")
        links = st.container(key="pg-link", width="content")
    if "pg file" in st.session_state:
        card(play, *st.session_state["pg file"])
        return
    with st.container(key="pg-config"):
        config(play)
    run = _run(play, facts)
    facts.html(_tags(play, run))
    with exports:
        export_button(play, run)
    text = packed(play.now.setup, play.now.lines) if play.now.setup else ""
    too_long = not text or len(text) > LONGEST_LINK - 200
    remember("" if too_long else text)
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
        at=step_of(run),
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


def open_scene(scene: Scene) -> None:
    """The same for what was done in a file or found by another page."""
    st.session_state.pop("pg file", None)
    st.session_state["pg play"] = Play(Position(scene.setup, scene.header, tuple(scene.lines)))


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
        from_the_end()


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
    from_the_end()


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
        shown = (
            f'<span class="kvs-n">{number}</span><b>{html.escape(verb)}</b>'
            f"<span>{html.escape(words)}</span><span>{marks}</span>"
        )
        rows.append(f'<li class="{state}">{_op(run.done[i] if i < len(run.done) else None, shown)}</li>')
        if error:
            rows.append(f'<li class="kvs-why">{html.escape(error[1])}</li>')
    if not rows:
        return '<p class="kvs-note">Nothing was done yet. Choose an act above the cells, then Apply.</p>'
    return f'<ol class="kvs-ops">{"".join(rows)}</ol>'


def _op(done: Done | None, shown: str) -> str:
    """A line of the list; where it was done, a button that leads the player to its first step."""
    if done is None or done.first == done.end:
        return f'<div class="kvs-op">{shown}</div>'
    return f'<button type="button" class="kvs-op" data-kv-steps="{done.first} {done.end}">{shown}</button>'


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
    from_the_end()


def _as_python(play: Play, run: Run) -> None:
    if play.now.setup is None:
        st.html('<p class="kvs-note">A script is written for memories of the table only.</p>')
        return
    st.code(script(play.now.setup, run.steps), language="python", height=430)
