"""A real browser to measure pages in: finding one, and what it says about a page."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE_MS = 300_000

FIND = """
const find = (selector, root = document) => {
  const here = root.querySelector(selector);
  if (here) return here;
  for (const each of root.querySelectorAll('*')) {
    const inside = each.shadowRoot && find(selector, each.shadowRoot);
    if (inside) return inside;
  }
  return null;
};"""
"""Finds an element in the page or in an element's own tree, where a component keeps what it draws."""

THERE = f"(selector) => {{ {FIND} return find(selector) ? performance.now() : 0; }}"
CHANGED = f"""([selector, before]) => {{ {FIND}
  const found = find(selector);
  return found && found.innerText !== before ? performance.now() : 0;
}}"""
TEXT = f"(selector) => {{ {FIND} const found = find(selector); return found ? found.innerText : null; }}"
PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
IDLE = "() => document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'"
BEGIN = """
window.acted = 0;
for (const kind of ['pointerdown', 'keydown'])
  addEventListener(kind, () => { window.acted ||= performance.now(); }, true);
"""


def find_browser() -> str:
    """The path of an installed browser. Raises KvsimError with what to do if there is none."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        raise KvsimError(
            f"no browser found: install chromium, or name one in CHROMIUM (looked for {', '.join(NAMES)})"
        )
    return found


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A browser of playwright. Raises KvsimError without playwright or without a browser."""
    path = find_browser()
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError as error:
        raise KvsimError("driving a browser needs playwright: pip install 'kvsim[test]'") from error
    if not Path(path).exists():
        raise KvsimError(f"{path}: no such browser")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=ARGS)
        yield opened
        opened.close()


class Watched:
    """A page in a context of its own, with an empty cache, whose clock begins with its first request."""

    def __init__(self, opened: Any, url: str, ready: str) -> None:
        """Go to ``url``; it is ready once an element ``ready`` is there to be seen."""
        self._context = opened.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
        self._context.set_default_timeout(PATIENCE_MS)
        self.page = self._context.new_page()
        self.page.add_init_script(BEGIN)
        self.page.goto(url)
        there = self._seconds(THERE, ready)
        painted = self.page.wait_for_function(PAINTED, polling="raf").json_value()
        self.painted = float(painted) / 1000
        self.ready = max(there, self.painted)  # an element can be there a moment before anything is drawn
        """Seconds until something was drawn, and until the page was ready."""

    def act(self, act: Any, seen: str) -> float:
        """Seconds from the first press of a key or button in ``act`` to the frame in which ``seen`` says
        something else than before."""
        self.page.wait_for_function(IDLE)
        before = self.page.evaluate(TEXT, seen)
        self.page.evaluate("window.acted = 0")
        act(self.page)
        changed = self._seconds(CHANGED, [seen, before])
        return changed - float(self.page.evaluate("window.acted")) / 1000

    def close(self) -> None:
        self._context.close()

    def _seconds(self, script: str, given: Any) -> float:
        return float(self.page.wait_for_function(script, arg=given, polling="raf").json_value()) / 1000
