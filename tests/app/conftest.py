"""The app that all browser tests of a process share, and the browser that those of a file share."""

from __future__ import annotations

import pytest
from player_browser import app, browser, players, visits


@pytest.fixture(scope="session")
def url():
    with app() as address:
        yield address


@pytest.fixture(scope="module")
def opened():
    with browser() as one:
        yield one


@pytest.fixture
def visit(opened, url):
    with visits(opened, url) as go:
        yield go


@pytest.fixture
def show(opened, tmp_path):
    with players(opened, tmp_path) as go:
        yield go
