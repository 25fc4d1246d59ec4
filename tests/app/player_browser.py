"""A real browser for the app's tests, and the app to point it at."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from kvsim.bench.browser import PATIENCE_MS, browser
from kvsim.bench.served import served
from kvsim.player.page import page as page_of

__all__ = ["PATIENCE_MS", "app", "browser", "new_page"]


def new_page(opened: Browser, errors: list[str], **options: object) -> Page:
    """A page of its own context that notes every script error in ``errors``."""
    options = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "no-preference", **options}
    page = opened.new_context(**options).new_page()
    page.set_default_timeout(PATIENCE_MS)  # a busy machine takes its time; nothing waits longer than it must
    page.on("pageerror", lambda error: errors.append(str(error)))
    return page


@contextlib.contextmanager
def visits(opened: Browser, url: str, wait: str = "") -> Iterator[Callable[..., Page]]:
    """Opens pages of the app at ``url``, each for a user of its own, and waits for the element ``wait``.

    At the end they are closed, and no script may have failed on them.
    """
    errors: list[str] = []
    pages: list[Page] = []

    def go(query: str = "", **options: object) -> Page:
        page = new_page(opened, errors, **options)
        pages.append(page)
        page.goto(f"{url}/{query}")
        if wait:
            page.locator(wait).first.wait_for()
        return page

    yield go
    for page in pages:
        page.context.close()
    assert errors == []


@contextlib.contextmanager
def players(opened: Browser, folder: Path) -> Iterator[Callable[..., Page]]:
    """Opens packed recordings in players on pages of their own, which it writes into ``folder``.

    At the end they are closed, and no script may have failed on them.
    """
    errors: list[str] = []
    pages: list[Page] = []

    def go(payload: dict[str, Any], at: int = 0, theme: str = "light", **options: object) -> Page:
        file = folder / f"{len(pages)}.html"
        file.write_text(page_of(payload, at, theme))
        page = new_page(opened, errors, **options)
        pages.append(page)
        page.goto(file.as_uri())
        page.locator(".kv-say", has_text=".").wait_for()
        return page

    yield go
    for page in pages:
        page.context.close()
    assert errors == []


@contextlib.contextmanager
def app() -> Iterator[str]:
    """The app on a free port; gives its address."""
    with served() as one:
        yield one.url
