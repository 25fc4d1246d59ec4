"""A model from a GGUF header that the user uploads: pages that ask for an architecture offer it."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.plain import plain
from app.uploaded_gguf import on_disk
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
    with on_disk(file) as path:
        try:
            found: Any = read_model(path)
        except ModelError as error:
            found = ModelError(str(error).replace(f"{path}: ", ""))
    state[f"{page}-gguf"] = (file.name, found)
