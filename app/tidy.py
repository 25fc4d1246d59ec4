"""Freeing what closed sessions leave behind, away from the acts of those who are still there.

Streamlit would collect all garbage after every act (``postScriptGC`` in ``.streamlit/config.toml``), which takes
longer than the act and holds up everyone.
"""

from __future__ import annotations

import gc
import threading
import time

import streamlit as st

EVERY = 30.0
"""Seconds between two collections: a closed session's uploads are gone that much later at most."""


@st.cache_resource
def begin() -> threading.Thread:
    """Begin to tidy up, once for the whole server."""
    thread = threading.Thread(target=_tidy, daemon=True, name="tidy")
    thread.start()
    return thread


def _tidy() -> None:
    while True:
        time.sleep(EVERY)
        gc.collect()
