"""A model from a GGUF header that the user uploads: pages that ask for an architecture offer it."""

from __future__ import annotations

import tempfile
from typing import Any

import streamlit as st

from app.plain import plain
from kvsim.errors import ModelError
from kvsim.models.gguf_header import read_model
from kvsim.models.params import ModelParams

MAX_UPLOAD_MIB = 64


def header(page: str) -> ModelParams | None:
    """The button to upload one, and what was read from it; None without one that can be used.

    ``page`` tells the widgets of different pages apart.
    """
    with st.popover("Read a GGUF header", icon=":material/upload:", width="stretch"):
        st.file_uploader(
            f"A model file, up to {MAX_UPLOAD_MIB} MiB",
            key=f"{page}-file",
            max_upload_size=MAX_UPLOAD_MIB,
            on_change=uploaded,
            args=(page,),
            help="Only the header is read. Larger files: kvsim memory --gguf FILE reads them where they lie.",
        )
    found = st.session_state.get(f"{page}-gguf")
    if found is None:
        return None
    file_name, model = found
    if isinstance(model, ModelError):
        st.error(f"{plain(f'{file_name}: {model}')}. The model above is used meanwhile.")
        return None
    st.text(f"{file_name}: {model.arch}, {model.n_layer} layers")
    return model


def forget(page: str) -> None:
    """Another model was chosen."""
    st.session_state.pop(f"{page}-gguf", None)


def uploaded(page: str) -> None:
    """Read the header now and keep the model, not the file."""
    state = st.session_state
    file = state.get(f"{page}-file")
    forget(page)
    if file is None:
        return
    with tempfile.NamedTemporaryFile(suffix=".gguf") as copy:
        copy.write(file.getvalue())
        copy.flush()
        try:
            found: Any = read_model(copy.name)
        except ModelError as error:
            found = ModelError(str(error).replace(f"{copy.name}: ", ""))
    state[f"{page}-gguf"] = (file.name, found)
