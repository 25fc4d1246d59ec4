"""The app's pages in a real browser: first paint, being ready, and an act, each beside a page of Streamlit's own.

That page has a line of text and a button, and nothing else: what it takes is what Streamlit and the browser take.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kvsim.bench.browser import Watched, browser
from kvsim.bench.measure import Row
from kvsim.bench.served import served

AGAINST = "a page with a button"
LOADS, ACTS = 5, 9

PLAIN = """
import streamlit as st
st.session_state.setdefault("n", 0)
st.session_state.n += st.button("more")
st.text(f"pressed {st.session_state.n}")
"""

RECORDING = "kv/llama-uni-c256-u16-s4-f16-03"


@dataclass(frozen=True)
class Asked:
    """A page by its link; ``ready`` is there once it can be used. ``act`` does something (its name is ``what``),
    after which the element ``seen`` says something else."""

    name: str
    link: str
    ready: str
    what: str
    act: Callable[[Any], None]
    seen: str


def _press(key: str, where: str) -> Callable[[Any], None]:
    return lambda page: page.locator(where).first.press(key)


def _click(role: str, *names: str) -> Callable[[Any], None]:
    """Click the first of these that can be clicked: they take turns. A name is how the label begins."""
    any_of_them = re.compile(f"^({'|'.join(names)})")

    def act(page: Any) -> None:
        page.get_by_role(role, name=any_of_them).first.wait_for()  # a page is ready before all of it is there
        each = [page.get_by_role(role, name=re.compile(f"^{name}")) for name in names]
        there = (one.first for one in each if one.count())
        next(one for one in there if one.get_attribute("aria-checked") != "true").click()

    return act


PAGES = (
    Asked(
        "replay", f"replay&scenario={RECORDING}&at=16", ".kv-say", "a step", _press("ArrowRight", ".kv"),
        ".kv-number",
    ),
    Asked("playground", "playground", ".kv-say", "an act", _click("button", "Apply"), ".st-key-pg-side"),
    Asked(
        "lessons", "lessons&lesson=allocation", ".kv-say", "a prediction and on", _click("button", "Show me", "Next"),
        ".st-key-ls-ask",
    ),
    Asked(
        "compare", f"compare&scenario={RECORDING}", ".kvc .kv-say", "a step", _press("ArrowRight", ".kvc"),
        ".kvc .kv-number",
    ),
    Asked(
        "attention", f"attention&scenario={RECORDING}&at=18&row=1", ".kva .kv-say", "another row",
        _press("ArrowDown", ".kva"), ".kva .kv-say",
    ),
    Asked(
        "memory", "memory&model=gemma3-12b", ".kvm-total", "a setting", _click("radio", "swa_full", "window"),
        ".kvm-total",
    ),
)  # fmt: skip


def pages_table(loads: int = LOADS, acts: int = ACTS) -> Iterator[Row]:
    """Three rows a page, as they are measured. Raises KvsimError without streamlit, playwright or a browser."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "plain.py"
        script.write_text(PLAIN, encoding="utf-8")
        with browser() as opened, served() as app, served(script) as other:
            plain = Asked(
                "plain", "", "[data-testid=stButton]", "", _click("button", "more"), "[data-testid=stText]"
            )
            for asked in PAGES:
                yield from page_rows(
                    opened, f"{app.url}/?page={asked.link}", asked, other.url, plain, loads, acts
                )


def page_rows(
    opened: Any, url: str, asked: Asked, plain_url: str, plain: Asked, loads: int, acts: int
) -> Iterator[Row]:
    """The rows of one page; both pages are loaded and used in turns."""
    Watched(opened, url, asked.ready).close()  # the server reads and computes what it keeps
    pairs = []
    for _ in range(loads):
        pair = Watched(opened, url, asked.ready), Watched(opened, plain_url, plain.ready)
        pairs.append([(each.painted, each.ready) for each in pair])
        for each in pair:
            each.close()
    for i, what in enumerate(("first paint", "ready")):
        ours, theirs = (median(pair[side][i] for pair in pairs) for side in (0, 1))
        yield Row(f"{asked.name}: {what}", ours, AGAINST, theirs)
    ours_page, plain_page = Watched(opened, url, asked.ready), Watched(opened, plain_url, plain.ready)
    took = [
        (ours_page.act(asked.act, asked.seen), plain_page.act(plain.act, plain.seen)) for _ in range(acts)
    ]
    ours_page.close()
    plain_page.close()
    yield Row(f"{asked.name}: {asked.what}", median(a for a, _ in took), AGAINST, median(b for _, b in took))
