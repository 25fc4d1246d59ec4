"""Fields of a configuration, as every page has them.

``value`` is what a field begins with; once the session holds something under ``key``, that counts, so that a page may
fill in its fields by setting keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st


def number(label: str, value: float, least: float, most: float, key: str) -> float:
    """A whole number, or one with a point if ``value`` is one, from ``least`` to ``most``."""
    kind = type(value)
    begins = "min" if key in st.session_state else kind(min(max(value, least), most))
    return kind(st.number_input(label, kind(least), kind(most), begins, key=key))


def either(label: str, off: str, on: str, value: bool, key: str) -> bool:
    """One of two, by its name; what was chosen last stays chosen."""
    begins = None if key in st.session_state else on if value else off
    chosen = st.segmented_control(label, (off, on), default=begins, key=key, width="stretch")
    return value if chosen is None else chosen == on


def choice(label: str, options: Sequence[str], value: str, key: str, **more: Any) -> str:
    """One of several; ``value`` need not be one of them, then it is the first."""
    begins = options.index(value) if value in options and key not in st.session_state else 0
    return st.selectbox(label, options, begins, key=key, **more)
