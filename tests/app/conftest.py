"""The app that all browser tests of a process share, and the browser that those of a file share."""

from __future__ import annotations

import pytest
from player_browser import Tabs, app, browser, pages, players, visits


@pytest.fixture(scope="session")
def url():
    with app() as address:
        yield address


@pytest.fixture(scope="module")
def opened():
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def tabs(opened):
    return Tabs(opened)


@pytest.fixture
def new_page(tabs):
    with pages(tabs) as new:
        yield new


@pytest.fixture
def visit(tabs, url):
    with visits(tabs, url) as go:
        yield go


@pytest.fixture
def show(tabs, tmp_path):
    with players(tabs, tmp_path) as go:
        yield go
