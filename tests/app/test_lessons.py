"""The lessons: every step asks something kvsim answers, checking, progress, and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.lessons.course import LESSONS
from app.lessons.lesson import Cells, Choice, Lesson, LessonStep, Number, cells_of, correct
from app.lessons.progress import Progress
from app.playground.run import Run

MAIN = Path(__file__).resolve().parents[2] / "app" / "main.py"
STEPS = [(lesson, n) for lesson in LESSONS for n in range(len(lesson.steps))]

RIGHT: dict[str, list[Any]] = {
    # worked out by hand from the rules each lesson states; cells as numbers, choices by index
    "allocation": [[0, 1, 2, 3, 4, 5], 14, 8, [8, 9, 10, 11, 14, 15]],
    "sharing": [8, [8, 9], 1, 4],
    "streams": [[0, 1, 2, 3], 3, 6, [6, 6]],
    "ubatches": [3, 4, 1, 3],
    "failure": [1, 8, 2, [4, 5, 6, 7, *range(24, 32)]],
    "window": [8, [20, 0], 4, 8],
    "shift": [8, 12, 16, [5, 6, 7, 8, 9, 10, 11]],
    "defragmentation": [6, 3, 2, [0, 1, 2]],
    "states": [[8, 9, 10, *range(16, 23)], 10, 0, 10],
    "recurrent": [1, 1, 1, 2],
    "speculation": [9, 1, 0, 2],
    "dsa": [[0, 1, 2, 3, 4, 5], [2, 3, 10], 8, 8, [0, 1, 3, 4, 12, 14, 16, 20]],
    "msa": [3, [4, 5, 6], 3],
    "compressors": [2, 3, 1, 2],
}


def test_there_are_at_least_twelve_in_the_order_of_the_family() -> None:
    assert [lesson.key for lesson in LESSONS] == list(RIGHT)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.key)
def test_answers_are_what_the_rules_give(lesson: Lesson) -> None:
    found = []
    for n, step in enumerate(lesson.steps):
        right = lesson.right(n)
        found.append([cell for _, cell in right] if isinstance(step.ask, Cells) else right)
    assert found == RIGHT[lesson.key]


def test_answers_follow_the_trace_and_are_not_stored() -> None:
    """The same questions on another memory have other answers."""
    for lesson, other in ((LESSONS[3], "ubatch=5"), (LESSONS[5], "window=5")):
        changed = Lesson("x", "x", f"{lesson.memory} {other}", lesson.steps)
        assert changed.right(0) != lesson.right(0)


@pytest.mark.parametrize(("lesson", "n"), STEPS, ids=lambda part: getattr(part, "key", part))
def test_a_step_stands_on_those_before_it(lesson: Lesson, n: int) -> None:
    before, after = lesson.lines_before(n), lesson.lines_after(n)
    assert after[: len(before)] == before
    run = Run(lesson.setup.header)
    run.perform(after)
    assert run.error is None
    assert len(run.steps) <= 60  # short
    if n + 1 < len(lesson.steps):
        assert lesson.lines_before(n + 1)[: len(after)] == after


def test_a_line_that_would_end_llama_cpp_is_asked_about_and_leaves_no_trace() -> None:
    streams = LESSONS[2]
    assert "between streams only whole sequences can be copied" in streams.performed[1].moment.error
    assert streams.lines_after(1) == streams.lines_before(1)


@pytest.mark.parametrize(("lesson", "n"), STEPS, ids=lambda part: getattr(part, "key", part))
def test_texts_are_plain(lesson: Lesson, n: int) -> None:
    step = lesson.steps[n]
    for text in (step.text, step.why, step.ask.question):
        assert text[0].isupper() or text[0].isdigit() or text.startswith("seq_")
        assert not set(text) & set("!<>")
        assert len(text) < 420
    assert step.ask.question.endswith(("?", "newest."))
    assert not set(lesson.performed[n].given) & set("<>&")
    if isinstance(step.ask, Choice):
        assert 0 <= lesson.right(n) < len(step.ask.options)


def test_what_the_indexer_reads_follows_from_the_scores_it_tells() -> None:
    """The 8 highest of the scores as they are written on the page, of cells that the token may see."""
    dsa = next(lesson for lesson in LESSONS if lesson.key == "dsa")
    scores = dsa.performed[4].given.removeprefix("cell ").split(", ")
    told = dict(part.split(":\u00a0") for part in scores)
    best = sorted(told, key=lambda cell: float(told[cell]), reverse=True)
    assert float(told[best[7]]) > float(told[best[8]])  # no tie as written
    assert sorted(map(int, best[:8])) == [cell for _, cell in dsa.right(4)]
    others = {6, 7, 8, 9}  # of seq 1
    assert not others & {int(cell) for cell in told}


def test_a_step_is_performed_once_for_all_learners() -> None:
    performed = LESSONS[0].performed[1]
    assert performed.moment is LESSONS[0].performed[1].moment
    assert performed.shown is LESSONS[0].performed[1].shown
    assert performed.shown.payload != performed.asked.payload


# -- checking --------------------------------------------------------------------------------------


def test_cells_may_be_given_in_any_order() -> None:
    ask = Cells("?", lambda _: [])
    assert correct(ask, [[0, 2], [0, 1]], [[0, 1], [0, 2]])
    assert not correct(ask, [[0, 2], [0, 3]], [[0, 1], [0, 2]])
    assert not correct(ask, [[1, 1], [0, 2]], [[0, 1], [0, 2]])
    assert correct(Number("?", len), 3, 3)
    assert not correct(Number("?", len), 2, 3)


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("0-5", [0, 1, 2, 3, 4, 5]),
        ("8–9, 12", [8, 9, 12]),
        ("3", [3]),
        ("", None),
        ("x", None),
        ("1..4", None),
        ("-1", None),
    ],
)
def test_cells_can_be_typed(text: str, cells: list[int] | None) -> None:
    assert cells_of(text, [0]) == (None if cells is None else [[0, cell] for cell in cells])


def test_a_long_list_of_cells_stays_short() -> None:
    assert len(cells_of("0-999999,0-999999", [0]) or []) <= 1024


# -- progress --------------------------------------------------------------------------------------


def test_progress_goes_through_an_address() -> None:
    progress = Progress()
    for n in range(4):
        progress.finish("allocation", n)
    progress.finish("compressors", 2)
    again = Progress.of_text(progress.text())
    assert again == progress
    assert (again.n_complete, again.complete("allocation"), again.complete("compressors")) == (1, True, False)


@pytest.mark.parametrize("text", ["", "zzzzzz", "-1.é", "....", "f" * 4000, "<b>.1"])
def test_progress_that_cannot_be_is_left_out(text: str) -> None:
    assert all(steps <= {0, 1, 2, 3} for steps in Progress.of_text(text).done.values())


# -- the page --------------------------------------------------------------------------------------


def start(**query: str) -> AppTest:
    at = AppTest.from_file(MAIN, default_timeout=90)
    for key, value in {"page": "lessons", **query}.items():
        at.query_params[key] = value
    at.run()
    assert not at.exception
    return at


def button(at: AppTest, label: str) -> Any:
    return next(b for b in at.button if b.label == label)


def shown(at: AppTest) -> str:
    return " ".join(block.proto.body for block in at.get("html"))


def test_a_right_prediction_is_confirmed_and_kept() -> None:
    at = start()
    assert button(at, "Check").disabled
    at.text_input[0].set_value("0-5").run()
    button(at, "Check").click().run()
    assert "✓ As you said: 0–5" in shown(at)
    assert "Start at the head and take empty cells, in order." in shown(at)
    assert at.query_params["done"] == "1.0.0.0.0.0.0.0.0.0.0.0.0.0"
    button(at, "Next").click().run()
    assert at.query_params["step"] == "2"


def test_a_wrong_prediction_is_put_right() -> None:
    at = start(lesson="allocation", step="2")
    at.text_input[0].set_value("13").run()
    button(at, "Check").click().run()
    assert "✕ You said 13. It is 14" in shown(at)


@pytest.mark.parametrize("text", ["--5", "-", "²", "5-", "1e3"])
def test_what_is_no_number_cannot_be_checked(text: str) -> None:
    lesson, n = next(
        (lesson, n)
        for lesson in LESSONS
        for n, step in enumerate(lesson.steps, 1)
        if isinstance(step.ask, Number)
    )
    at = start(lesson=lesson.key, step=str(n))
    at.text_input[0].set_value(text).run()
    assert not at.exception
    assert button(at, "Check").disabled


def test_a_choice_is_checked() -> None:
    at = start(lesson="streams", step="2")
    at.radio[0].set_value("llama.cpp ends its process.").run()
    button(at, "Check").click().run()
    assert "✓ As you said: llama.cpp ends its process." in shown(at)
    assert "kvsim says: seq_cp(0, 1, 0, 3)" in shown(at)


def test_the_next_step_waits_for_the_prediction() -> None:
    at = start(lesson="window")
    assert button(at, "Next").disabled
    button(at, "Show me").click().run()
    assert "As you said" not in shown(at)
    assert not button(at, "Next").disabled


def test_a_link_restores_lesson_step_and_progress() -> None:
    at = start(lesson="sharing", step="4", done="f.7")
    assert "Sharing a prompt<small>step 4 of 4</small>" in shown(at)
    assert "1 of 14 done" in shown(at)
    button(at, "Show me").click().run()
    assert "2 of 14 done" in shown(at)
    button(at, "Next lesson: Streams").click().run()
    assert at.query_params["lesson"] == "streams"


@pytest.mark.parametrize("query", [{"lesson": "<b>"}, {"step": "99"}, {"step": "-1"}, {"done": "%%"}])
def test_a_link_that_cannot_be_begins_at_the_beginning(query: dict[str, str]) -> None:
    at = start(**query)
    assert "Allocation and the head" in shown(at)


def test_a_step_opens_in_the_playground() -> None:
    at = start(lesson="shift", step="2", done="0.0.0.0.0.0.3")
    button(at, "Open in the playground").click().run()
    assert not at.exception
    play = at.session_state["pg play"]
    assert play.now.lines == ("prompt 0 24", "remove 0 4 12", "shift 0 12 end -8")
    assert play.now.setup.cells == 32


def test_a_lesson_can_be_written_with_any_act() -> None:
    step = LessonStep(
        "T", Number("N?", lambda m: m.last.ret), '{"op":"seq_rm","args":{"seq":0,"p0":0,"p1":2}}', "W"
    )
    assert Lesson("k", "T", "memory llama cells=32", (step,)).right(0) == 1


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("0-3", "You typed 4 of 6 cells."),
        ("0-7", "You typed 8 of 6 cells."),
        ("some", "These are no cells"),
        ("0-5", ""),
    ],
)
def test_of_a_typed_answer_what_is_missing_is_told(typed: str, told: str) -> None:
    at = AppTest.from_file(MAIN, default_timeout=90)
    at.query_params["page"] = "lessons"
    at.run()
    at.text_input(key="ls answer allocation 0").set_value(typed).run()
    hints = [block.proto.body for block in at.get("html") if "kvs-hint" in block.proto.body]
    missing = [hint for hint in hints if "You typed" in hint or "These are no" in hint]
    assert len(missing) == bool(told)
    assert all(told in hint for hint in missing)
    assert next(b for b in at.button if b.label == "Check").disabled == bool(told)
