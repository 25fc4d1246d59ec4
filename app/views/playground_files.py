"""Files of the playground: exporting a run, importing a trace or a script, telling what is damaged."""

from __future__ import annotations

import json

import streamlit as st

from app.playground.files import Scene, scene_of_trace, trace_bytes
from app.playground.run import Run
from app.playground.script import scene_of_script, script
from app.playground.session import Play, Position
from app.views.playground_address import from_the_end, step_of
from kvsim.errors import KvsimError
from kvsim.player.page import page

MAX_IMPORT_MIB = 16


def export_button(play: Play, run: Run) -> None:
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
            "Page with this player (.html)", lambda: _page(run), "playground.html", "text/html",
            on_click="ignore", width="stretch",
        )  # fmt: skip


def import_button(play: Play) -> None:
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
    from_the_end()


def card(play: Play, scene: Scene | None, error: str) -> None:
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


def _page(run: Run) -> bytes:
    """The run in a player of its own, with the hazards it met."""
    return page(json.loads(run.payload()), at=step_of(run), notes=run.notes).encode()
