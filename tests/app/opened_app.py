"""The app without a browser, at an address."""

from __future__ import annotations

from pathlib import Path

from streamlit.testing.v1 import AppTest

MAIN = Path(__file__).resolve().parents[2] / "app" / "main.py"


def opened(**query: str) -> AppTest:
    """The app as it stands after it was opened with these parameters, without an exception."""
    at = AppTest.from_file(MAIN, default_timeout=90)
    for key, value in query.items():
        at.query_params[key] = value
    at.run()
    assert not at.exception
    return at
