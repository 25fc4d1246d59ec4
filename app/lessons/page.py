"""The lessons as a page of the documentation: the same texts, the same computed answers, and a picture of how each
lesson ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from app.lessons.course import LESSONS
from app.lessons.lesson import Choice, Lesson
from app.playground.files import trace_bytes
from app.playground.run import Run
from kvsim.render import Wanted
from kvsim.render.still import still
from kvsim.trace import read_trace

HEAD = """# Lessons

{n} lessons, in the order of the family. Every step asks for a prediction; think first, then open the answer. The
answers are not written down anywhere: kvsim performs the operation, and the answer is read from the trace. In the
app (`kvsim app`, *Lessons*) you answer by clicking cells, every step is animated, and any step opens in the
playground.
"""


def write_page(folder: Path) -> None:
    """Write ``lessons.md`` and its pictures, ``lessons/<key>.svg``, into ``folder``."""
    pictures = folder / "lessons"
    pictures.mkdir(exist_ok=True)
    for lesson in LESSONS:
        (pictures / f"{lesson.key}.svg").write_bytes(picture(lesson))
    (folder / "lessons.md").write_text("\n".join(page()), encoding="utf-8")


def page() -> Iterator[str]:
    """The page, a block of Markdown at a time."""
    yield HEAD.format(n=len(LESSONS))
    for number, lesson in enumerate(LESSONS, 1):
        yield from section(number, lesson)


def section(number: int, lesson: Lesson) -> Iterator[str]:
    """One lesson."""
    yield f"## {number}. {lesson.title}\n"
    yield f"`{lesson.memory}`, in the app `?page=lessons&lesson={lesson.key}`\n"
    for n, step in enumerate(lesson.steps):
        performed = lesson.performed[n]
        yield f"**Step {n + 1}.** {step.text}\n"
        yield f"**{step.ask.question}**\n"
        if performed.given:
            yield f"{performed.given}\n"
        if isinstance(step.ask, Choice):
            yield "".join(f"- {option}\n" for option in step.ask.options)
        told = step.ask.told(performed.right)
        error = performed.moment.error
        yield f"<details><summary>Answer</summary>\n\n**{told}**{'' if told.endswith('.') else '.'} {step.why}\n"
        if error:
            yield f"kvsim says: {error}.\n"
        yield "</details>\n"
    rules = [step.rule for step in lesson.steps if step.rule]
    yield "The rules:\n"
    yield "".join(f"{i}. {rule}\n" for i, rule in enumerate(rules, 1))
    yield f"![{lesson.title}: the cells after the last step](lessons/{lesson.key}.svg)\n"


def picture(lesson: Lesson) -> bytes:
    """How a lesson ends, as SVG."""
    run = Run(lesson.setup.header, lesson.title)
    run.perform(lesson.lines_after(len(lesson.steps) - 1))
    trace = read_trace(trace_bytes(run.header, run.steps), name=lesson.key)
    return still(trace, Wanted(last=len(run.steps) - 1, width=900), "svg")
