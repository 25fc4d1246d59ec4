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

__all__ = ["Tabs", "app", "browser", "pages", "players", "visits"]

OpenPage = Callable[..., Page]


class Tabs:
    """Pages of a browser, each in a context of its own, as for users with a browser each.

    A closed one is emptied and opened again: it has a process and the app's scripts, for which a new one takes twice
    the processor time that the test takes. ``errors`` are those of scripts on any of them.
    """

    def __init__(self, opened: Browser) -> None:
        self.errors: list[str] = []
        self._browser = opened
        self._free: list[Page] = []

    def open(
        self,
        width: int = 1280,
        height: int = 800,
        color_scheme: str = "light",
        reduced_motion: str = "no-preference",
        offline: bool = False,
    ) -> Page:
        page = self._free.pop() if self._free else self._new()
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=color_scheme, reduced_motion=reduced_motion)
        page.context.set_offline(offline)
        return page

    def close(self, page: Page) -> None:
        if page.url.startswith("http"):
            page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
        page.goto("about:blank")
        page.context.clear_cookies()
        self._free.append(page)

    def _new(self) -> Page:
        page = self._browser.new_context().new_page()
        # a busy machine takes its time; nothing waits longer than it must
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        return page


@contextlib.contextmanager
def pages(tabs: Tabs) -> Iterator[OpenPage]:
    """Opens empty pages. At the end they are closed, and no script may have failed on them."""
    opened: list[Page] = []

    def new(**options: Any) -> Page:
        opened.append(tabs.open(**options))
        return opened[-1]

    yield new
    for page in opened:
        tabs.close(page)
    errors, tabs.errors[:] = tabs.errors[:], []
    assert errors == []


@contextlib.contextmanager
def visits(tabs: Tabs, url: str, wait: str = "") -> Iterator[OpenPage]:
    """Opens pages of the app at ``url``, each for a user of its own, and waits for the element ``wait``."""
    with pages(tabs) as new:

        def go(query: str = "", **options: Any) -> Page:
            page = new(**options)
            page.goto(f"{url}/{query}")
            if wait:
                page.locator(wait).first.wait_for()
            return page

        yield go


@contextlib.contextmanager
def players(tabs: Tabs, folder: Path) -> Iterator[OpenPage]:
    """Opens packed recordings in players on pages of their own, which it writes into ``folder``."""
    with pages(tabs) as new:
        n = 0

        def go(payload: dict[str, Any], at: int = 0, theme: str = "light", **options: Any) -> Page:
            nonlocal n
            n += 1
            file = folder / f"player-{n}.html"
            file.write_text(page_of(payload, at, theme))
            page = new(**options)
            page.goto(file.as_uri())
            page.locator(".kv-say", has_text=".").wait_for()
            return page

        yield go


@contextlib.contextmanager
def app() -> Iterator[str]:
    """The app on a free port; gives its address."""
    with served() as one:
        yield one.url
