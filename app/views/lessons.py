"""Lessons: do I understand it?

Each step says where we stand, asks for a prediction, and then lets kvsim perform the operation: the answer
is read from the trace, never stored.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import streamlit as st

from app import component
from app.lessons.course import LESSONS
from app.lessons.lesson import Ask, Cells, Choice, Lesson, Number, cells_of, correct, spans
from app.lessons.progress import Progress
from app.numbers import whole
from app.views import address, playground

CSS = (Path(__file__).parents[1] / "lessons" / "page.css").read_text(encoding="utf-8")
HEIGHT = "clamp(330px, calc(100vh - 408px), 460px)"
NOT_SAID = "not said"


def show() -> None:
    """The page."""
    st.html(f"<style>{CSS}</style>")
    _restore()
    state = st.session_state
    lesson = next(each for each in LESSONS if each.key == state["ls lesson"])
    n = min(state["ls step"], len(lesson.steps) - 1)
    progress: Progress = state["ls progress"]
    shown = n in progress.done.get(lesson.key, set())
    with st.container(key="side-list"):
        _list(lesson, progress)
    with st.container(key="ls-main"):
        _step(lesson, n, shown, progress)
    with st.container(key="ls-bar", horizontal=True, vertical_alignment="center"):
        _bar(lesson, n, shown, progress)
    _remember(lesson, n, progress)


# -- state -----------------------------------------------------------------------------------------


def _restore() -> None:
    """Begin where the session stands, else where the address says."""
    state, query = st.session_state, st.query_params
    if "ls lesson" in state:
        return
    keys = [lesson.key for lesson in LESSONS]
    state["ls lesson"] = address.named("lesson", keys, "lesson") or keys[0]
    state["ls step"] = max(0, (whole(query.get("step", ""), 3) or 1) - 1)
    state["ls progress"] = Progress.of_text(query.get("done", ""))
    state["ls given"] = {}


def _remember(lesson: Lesson, n: int, progress: Progress) -> None:
    wanted = {"page": "lessons", "lesson": lesson.key, "step": str(n + 1)}
    text = progress.text()
    if text:
        wanted["done"] = text
    for key, value in wanted.items():
        if st.query_params.get(key) != value:
            st.query_params[key] = value
    st.query_params.pop("at", None)


def _go(key: str, n: int) -> None:
    st.session_state["ls lesson"] = key
    st.session_state["ls step"] = n
    st.session_state.pop("ls played", None)


# -- the list --------------------------------------------------------------------------------------


def _list(lesson: Lesson, progress: Progress) -> None:
    st.html(
        f'<div class="kvs-list-head">Lessons<small>{progress.n_complete} of {len(LESSONS)} done</small></div>'
    )
    for number, each in enumerate(LESSONS, 1):
        sign = "✓" if progress.complete(each.key) else str(number)
        st.button(
            f"{sign:\u2007>2}\u2002{each.title}",
            key=f"ls go {each.key}",
            type="primary" if each is lesson else "secondary",
            width="stretch",
            on_click=_go,
            args=(each.key, _first_open(each, progress)),
        )


def _first_open(lesson: Lesson, progress: Progress) -> int:
    done = progress.done.get(lesson.key, set())
    return next((n for n in range(len(lesson.steps)) if n not in done), 0)


# -- one step --------------------------------------------------------------------------------------


def _step(lesson: Lesson, n: int, shown: bool, progress: Progress) -> None:
    step = lesson.steps[n]
    with st.container(key="ls-head", horizontal=True, vertical_alignment="center"):
        st.html(
            f'<h1 class="kvs-lesson-title">{html.escape(lesson.title)}'
            f"<small>step {n + 1} of {len(lesson.steps)}</small></h1>"
        )
        if st.button("Open in the playground", key="ls open"):
            lines = lesson.lines_after(n) if shown else lesson.lines_before(n)
            playground.open_position(lesson.setup, lines)
            st.switch_page(st.session_state["pages"]["playground"])
    st.html(f'<p class="kvs-lesson-text">{html.escape(step.text)}</p>')
    right = lesson.right(n)
    picked = _picture(lesson, n, shown, right)
    card, rules = st.columns([2.6, 1], gap="medium")
    with card, st.container(key="ls-ask"):
        st.html(f'<p class="kvs-question">{html.escape(step.ask.question)}</p>')
        if given := lesson.performed[n].given:
            st.html(f'<p class="kvs-hint kvs-given">{html.escape(given)}</p>')
        if isinstance(step.ask, Cells) and not shown:
            st.html(
                '<p class="kvs-hint">Click the cells in the picture, in any order. You have placed '
                f"{len(picked)} of {len(right)}.</p>"
            )
        if shown:
            _outcome(lesson, n, right)
        else:
            _question(lesson, n, right, picked)
    with rules:
        _rules(lesson, progress)


def _picture(lesson: Lesson, n: int, shown: bool, right: Any) -> list[list[int]]:
    """The player; returns the cells that were picked in it for this step."""
    performed = lesson.performed[n]
    run = performed.shown if shown else performed.asked
    key = f"{lesson.key} {n} {run.key}"
    asks_cells = isinstance(lesson.steps[n].ask, Cells) and not shown
    plays = shown and st.session_state.get("ls played") == (lesson.key, n)
    result = component.player(
        run.payload,
        key=key,
        at=run.last,
        notes=run.notes,
        start=run.start if plays else None,
        page="lessons",
        plain=True,
        height=HEIGHT,
        picks=len(right) if asks_cells else 0,
    )
    picked = (result or {}).get("picked") or {}
    return picked["cells"] if picked.get("key") == key else []


def _question(lesson: Lesson, n: int, right: Any, picked: list[list[int]]) -> None:
    """The fields of a prediction, Check and Show me."""
    ask = lesson.steps[n].ask
    with st.container(horizontal=True, vertical_alignment="bottom", key="ls-answer"):
        given = _given(ask, f"ls answer {lesson.key} {n}", right, picked)
        st.button("Check", type="primary", disabled=given is None, on_click=_check, args=(lesson, n, given))
        st.button("Show me", type="tertiary", on_click=_check, args=(lesson, n, NOT_SAID))
    typed = st.session_state.get(f"ls answer {lesson.key} {n}")
    if given is None and isinstance(typed, str) and typed.strip():
        st.html(f'<p class="kvs-hint">{html.escape(_missing(ask, typed, right))}</p>')


def _given(ask: Ask, key: str, right: Any, picked: list[list[int]]) -> Any:
    """What was answered so far, None if nothing that can be checked."""
    if isinstance(ask, Number):
        text = st.text_input(
            "Your number",
            key=key,
            width=140,
            placeholder="a number",
            max_chars=6,
            label_visibility="collapsed",
        )
        return int(text) if re.fullmatch(r"-?\d+", text.strip(), re.ASCII) else None
    if isinstance(ask, Choice):
        chosen = st.radio("Your answer", ask.options, index=None, key=key, label_visibility="collapsed")
        return None if chosen is None else ask.options.index(chosen)
    lanes = sorted({lane for lane, _ in right})
    one_lane = len(lanes) == 1
    typed = ""
    if one_lane:
        typed = st.text_input(
            "Cells", key=key, width=200, placeholder="or type them: 0–5, 9", max_chars=80,
            label_visibility="collapsed",
        )  # fmt: skip
    cells = cells_of(typed, lanes) if typed else picked
    return cells if cells and len(cells) == len(right) else None


def _missing(ask: Ask, typed: str, right: Any) -> str:
    """Why what was typed cannot be checked."""
    if isinstance(ask, Number):
        return "This is no whole number."
    cells = cells_of(typed, sorted({lane for lane, _ in right}))
    if cells is None:
        return "These are no cells: type numbers and runs of them, 0–5, 9."
    return f"You typed {len(cells)} of {len(right)} cells."


def _check(lesson: Lesson, n: int, given: Any) -> None:
    state = st.session_state
    state["ls given"][lesson.key, n] = given
    state["ls progress"].finish(lesson.key, n)
    state["ls played"] = (lesson.key, n)


def _outcome(lesson: Lesson, n: int, right: Any) -> None:
    """Whether the prediction was right, what happened, and why."""
    step = lesson.steps[n]
    given = st.session_state["ls given"].get((lesson.key, n), NOT_SAID)
    told = html.escape(step.ask.told(right))
    if given == NOT_SAID:
        st.html(f'<p class="kvs-answer">{told}</p>')
    elif correct(step.ask, given, right):
        st.html(f'<p class="kvs-answer kvs-good">✓ As you said: {told}</p>')
    else:
        said = html.escape(_said(step.ask, given))
        st.html(f'<p class="kvs-answer kvs-bad">✕ You said {said}. It is {told}</p>')
    st.html(f'<p class="kvs-why-text">{html.escape(step.why)}</p>')
    error = lesson.performed[n].moment.error
    if error:
        st.html(f'<p class="kvs-hint">kvsim says: {html.escape(error)}</p>')


def _said(ask: Ask, given: Any) -> str:
    if isinstance(ask, Choice):
        return f"“{ask.options[given]}”"
    return spans(sorted(cell for _, cell in given)) if isinstance(ask, Cells) else f"{given:,}"


def _rules(lesson: Lesson, progress: Progress) -> None:
    done = progress.done.get(lesson.key, set())
    rules = [step.rule for n, step in enumerate(lesson.steps) if n in done and step.rule]
    if rules:
        items = "".join(f"<li>{html.escape(rule)}</li>" for rule in rules)
        st.html(f'<h3 class="kvs-rules-head">The rules so far</h3><ol class="kvs-rules">{items}</ol>')


# -- the step bar ----------------------------------------------------------------------------------


def _bar(lesson: Lesson, n: int, shown: bool, progress: Progress) -> None:
    st.button("Back", icon=":material/chevron_left:", disabled=n == 0, on_click=_go, args=(lesson.key, n - 1))
    done = progress.done.get(lesson.key, set())
    dashes = "".join(
        f'<i class="{"kvs-now" if i == n and i not in done else "kvs-done" if i in done else ""}"></i>'
        for i in range(len(lesson.steps))
    )
    st.html(f'<div class="kvs-dashes" aria-hidden="true">{dashes}</div>')
    place = LESSONS.index(lesson)
    last = n == len(lesson.steps) - 1
    following = LESSONS[place + 1] if place + 1 < len(LESSONS) else None
    if not last:
        st.button(
            "Next", icon=":material/chevron_right:", icon_position="right", disabled=not shown, on_click=_go,
            args=(lesson.key, n + 1),
        )  # fmt: skip
    elif following:
        st.button(
            f"Next lesson: {following.title}", icon=":material/chevron_right:", icon_position="right",
            disabled=not shown, on_click=_go, args=(following.key, _first_open(following, progress)),
        )  # fmt: skip
    if not shown:
        st.html('<p class="kvs-hint">after the prediction</p>')
