"""A real browser for the app's tests, and the app to point it at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from playwright.sync_api import Browser, Page

from kvsim.bench.browser import browser
from kvsim.bench.served import served

__all__ = ["app", "browser", "new_page"]


def new_page(opened: Browser, errors: list[str], **options: object) -> Page:
    """A page of its own context that notes every script error in ``errors``."""
    options = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "no-preference", **options}
    page = opened.new_context(**options).new_page()
    page.set_default_timeout(90_000)  # a busy machine takes its time; nothing waits longer than it must
    page.on("pageerror", lambda error: errors.append(str(error)))
    return page


@contextlib.contextmanager
def app() -> Iterator[str]:
    """The app on a free port; gives its address."""
    with served() as one:
        yield one.url
