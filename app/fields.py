"""Fields of a configuration, as every page has them."""

from __future__ import annotations

import streamlit as st


def number(label: str, value: float, least: float, most: float, key: str, **more: object) -> float:
    """A whole number, or one with a point if ``value`` is one, from ``least`` to ``most``."""
    kind = type(value)
    return kind(
        st.number_input(label, kind(least), kind(most), kind(min(max(value, least), most)), key=key, **more)
    )


def either(label: str, off: str, on: str, value: bool, key: str) -> bool:
    """One of two, by its name; what was chosen last stays chosen."""
    chosen = st.segmented_control(label, (off, on), default=on if value else off, key=key, width="stretch")
    return value if chosen is None else chosen == on
