"""What each kind of user does, and the answer that must be theirs: worked out here, without the app's server.

User ``n`` asks for what no other user of its kind asks for, so an answer that is somebody else's is seen.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from html import escape

from app.lessons.course import LESSONS
from app.lessons.lesson import Lesson
from app.load.session import Answered, Page, Session
from app.memory_page.costs import cost
from app.memory_page.setting import MODELS, Setting, model_of
from app.playground.files import trace_bytes
from app.playground.link import packed
from app.playground.run import Run
from app.playground.setup import Setup
from app.recordings import bundled, open_recording, path_of
from kvsim.testing.mutants import MUTANTS

Act = tuple[str, Callable[[], Awaitable[None]]]
"""``open`` or ``act``, and what to wait for."""

Kind = Callable[[Session, int, int], AsyncIterator[Act]]
"""The acts of a user: a session, the user's number, how many acts after opening the page."""


@cache
def _payload_of(name: str) -> str:
    return open_recording(path_of(name), name).payload


async def reader(session: Session, n: int, acts: int) -> AsyncIterator[Act]:
    """Replay: opens one bundled recording after the other, each with its verdict."""
    names = bundled()
    mine = [names[(7 * n + 3 * i) % len(names)] for i in range(acts + 1)]

    def played(name: str) -> Answered:
        wanted = _payload_of(name)
        return lambda p: p.shown.get("payload") == wanted and "✓ 0 differences" in p.text

    first = played(mine[0])
    yield "open", lambda: session.open(f"page=replay&scenario={mine[0]}", first)
    for name in mine[1:]:
        its = played(name)
        yield "act", lambda name=name, its=its: session.choose("Recording", name, its)


def upload_name(n: int, i: int) -> str:
    """What user ``n`` calls the file of upload ``i``."""
    return f"user-{n}-{i}.jsonl.gz"


async def uploader(session: Session, n: int, acts: int) -> AsyncIterator[Act]:
    """Replay: uploads recordings of their own."""
    yield "open", lambda: session.open("page=replay&scenario=", lambda p: "Open a recording" in p.text)
    for i in range(acts):
        run = Run(Setup("llama", cells=64, sequences=2).header, f"user {n}")
        run.perform([f"prompt 0 {n % 40 + 1}", f"prompt 1 {i + 1}"])
        name = upload_name(n, i)
        wanted = open_recording(trace_bytes(run.header, run.steps), name).payload

        def played(p: Page, wanted: str = wanted) -> bool:
            return p.shown.get("payload") == wanted and "✓ 0 differences" in p.text

        data = trace_bytes(run.header, run.steps)
        yield (
            "act",
            lambda name=name, data=data, played=played: session.upload("A recording", name, data, played),
        )


async def player(session: Session, n: int, acts: int) -> AsyncIterator[Act]:
    """Playground: prompts of a length of their own, one after the other."""
    setup, lines = Setup("llama", cells=256), [f"prompt 0 {n + 1}"]
    wanted = Run(setup.header, setup.header.model)
    wanted.perform(lines)

    def played(p: Page) -> bool:
        return not p.running and p.shown.get("payload") == wanted.payload()

    yield "open", lambda: session.open(f"page=playground&do={packed(setup, lines)}", played)
    for i in range(acts):
        tokens = str((n + i) % 5 + 1)
        await session.type("Tokens", tokens, lambda p: not p.running)
        wanted.perform([f"prompt 0 {tokens}"])
        yield "act", lambda: session.click("Apply", played)


async def learner(session: Session, n: int, acts: int) -> AsyncIterator[Act]:
    """Lessons: has the steps of a lesson shown, and goes on."""
    place = n % len(LESSONS)
    yield "open", lambda: session.open(f"page=lessons&lesson={LESSONS[place].key}", _asked(LESSONS[place], 0))
    step = 0
    for _ in range(acts):
        lesson = LESSONS[place]
        yield "act", lambda lesson=lesson, step=step: session.click("Show me", _told(lesson, step))
        if step + 1 < len(lesson.steps):
            step, button = step + 1, "Next"
        elif place + 1 < len(LESSONS):
            place, step = place + 1, 0
            button = f"Next lesson: {LESSONS[place].title}"
        else:
            return
        await session.click(button, _asked(LESSONS[place], step))


def _asked(lesson: Lesson, step: int) -> Answered:
    question = escape(lesson.steps[step].ask.question)
    return lambda p: not p.running and question in p.text


def _told(lesson: Lesson, step: int) -> Answered:
    ask = lesson.steps[step].ask
    told = f'<p class="kvs-answer">{escape(ask.told(lesson.right(step)))}</p>'
    return lambda p: not p.running and told in p.text


async def planner(session: Session, n: int, acts: int) -> AsyncIterator[Act]:
    """Memory: tries lengths of context of their own."""
    model = MODELS[n % 8]

    def counted(n_ctx: int) -> Answered:
        total = cost(model_of(model), Setting(model, n_ctx)).total
        return lambda p: not p.running and f"{total:,} bytes" in p.text

    first = 4096 + 256 * n
    yield "open", lambda: session.open(f"page=memory&model={model}&n_ctx={first}", counted(first))
    for i in range(1, acts + 1):
        n_ctx = first + 65536 * i
        yield "act", lambda n_ctx=n_ctx: session.type("Context, tokens", n_ctx, counted(n_ctx))


async def watcher(session: Session, n: int, acts: int) -> AsyncIterator[Act]:
    """Attention: looks at decode after decode of a recording."""
    names = [name for name in bundled() if name.startswith(("kv/", "iswa/", "dsa/"))]
    name = names[(5 * n) % len(names)]

    def seen(at: int) -> Answered:
        return lambda p: any_seen(p) and p.shown["key"].startswith(f"{name} {at} ")

    def any_seen(p: Page) -> bool:
        return not p.running and p.shown.get("key", "").startswith(f"{name} ") and "as recorded" in p.text

    yield "open", lambda: session.open(f"page=attention&scenario={name}", any_seen)
    decodes = list(session.page.widget("selectbox", "Operation").options)
    for i in range(acts):
        chosen = decodes[(n + 2 * i) % len(decodes)]
        at = int(chosen.split()[1])
        yield "act", lambda chosen=chosen, at=at: session.choose("Operation", chosen, seen(at))


async def comparer(session: Session, n: int, acts: int) -> AsyncIterator[Act]:
    """Compare: begins comparisons; the answer that counts is what the page tells at once, the result may take if
    nobody has asked for it before."""
    subjects = [m.id for m in MUTANTS.values() if "kv" in m.memories]
    first = subjects[n % len(subjects)]

    def begun(p: Page) -> bool:
        return "Comparing" in p.text

    def compared(subject: str) -> Answered:
        def there(p: Page) -> bool:
            told = not begun(p) and p.shown.get("comparison")
            return bool(told) and json.loads(told)["name"] == subject

        return there

    def answered(subject: str) -> Answered:
        there = compared(subject)
        return lambda p: begun(p) or there(p)

    yield "open", lambda: session.open(f"page=compare&subject={first}", answered(first))
    await session.until(compared(first))
    for i in range(1, acts + 1):
        subject = subjects[(n + i) % len(subjects)]
        title = f"fault: {subject.replace('-', ' ')}"
        its = answered(subject)
        yield "act", lambda title=title, its=its: session.choose("Subject", title, its)
        await session.until(compared(subject))


KINDS: dict[str, Kind] = {
    "replay": reader,
    "uploads": uploader,
    "playground": player,
    "lessons": learner,
    "memory": planner,
    "attention": watcher,
    "compare": comparer,
}

SHARES = (
    *("playground", "replay", "lessons", "playground", "memory", "uploads", "playground", "attention"),
    *("lessons", "replay", "playground", "memory", "playground", "lessons", "compare"),
)
"""Who comes: the kind of user ``n`` is ``SHARES[n % 15]``."""
