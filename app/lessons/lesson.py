"""A lesson: a memory, and steps that each ask for a prediction before they are performed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from app.playground.run import Run
from app.playground.setup import Setup
from kvsim.changes import Picture, PictureReader
from kvsim.player.notes import Note
from kvsim.trace import Header, Step


@dataclass(frozen=True)
class Moment:
    """What one step of a lesson did: the trace before it (``earlier``), its own operations, the picture before
    and after.

    ``error`` is why its line could not be performed, because llama.cpp would end.
    """

    header: Header
    earlier: list[Step]
    steps: list[Step]
    before: Picture
    after: Picture
    error: str = ""

    @property
    def last(self) -> Step:
        return self.steps[-1]


@dataclass(frozen=True)
class Played:
    """What the player gets: the packed run, its notes, the last step before the lines of the lesson's step, and
    the last step of all."""

    payload: str
    notes: dict[int, Note]
    start: int
    last: int

    @cached_property
    def key(self) -> str:
        return hashlib.sha256(self.payload.encode()).hexdigest()[:12]


Answer = Callable[[Moment], Any]
"""Reads the right answer from what kvsim did."""


@dataclass(frozen=True)
class Cells:
    """Pick cells of a cache, in order. ``answer`` gives them as [lane, cell] pairs."""

    question: str
    answer: Answer

    def right(self, moment: Moment) -> list[list[int]]:
        return [list(pair) for pair in self.answer(moment)]

    def told(self, right: list[list[int]]) -> str:
        return spans([cell for _, cell in right])


@dataclass(frozen=True)
class Number:
    """A number."""

    question: str
    answer: Answer

    def right(self, moment: Moment) -> int:
        return int(self.answer(moment))

    def told(self, right: int) -> str:
        return f"{right:,}"


@dataclass(frozen=True)
class Choice:
    """One of a few sentences. ``answer`` gives the index of the one that holds."""

    question: str
    options: tuple[str, ...]
    answer: Answer

    def right(self, moment: Moment) -> int:
        return int(self.answer(moment))

    def told(self, right: int) -> str:
        return self.options[right]


Ask = Cells | Number | Choice


@dataclass(frozen=True)
class LessonStep:
    """``text`` says where we stand; ``line`` is the act that is asked about and then performed, after the
    lines ``first``, which are shown before. ``why`` is said afterwards; ``rule`` is what is added to the
    rules so far. ``given`` computes what a prediction needs to know beside the picture."""

    text: str
    ask: Ask
    line: str
    why: str
    first: tuple[str, ...] = ()
    rule: str = ""
    given: Callable[[Moment], str] | None = None


@dataclass(frozen=True)
class Lesson:
    """``key`` names it in addresses."""

    key: str
    title: str
    memory: str
    steps: tuple[LessonStep, ...] = field(default=())

    @cached_property
    def setup(self) -> Setup:
        return Setup.of_line(self.memory)

    def lines_before(self, n: int) -> list[str]:
        """What has been performed when step ``n`` asks."""
        done = [line for step in self.steps[:n] for line in (*step.first, step.line)]
        return [line for line in [*done, *self.steps[n].first] if line not in self._ending]

    def lines_after(self, n: int) -> list[str]:
        """What has been performed when step ``n`` is shown."""
        line = self.steps[n].line
        return self.lines_before(n) + ([] if line in self._ending else [line])

    @cached_property
    def _ending(self) -> frozenset[str]:
        """Lines that would end llama.cpp: they are asked about, but leave no trace."""
        run = Run(self.setup.header)
        ending = set()
        for step in self.steps:
            for line in (*step.first, step.line):
                run.perform([line])
                if run.error:
                    ending.add(line)
                    run.error = None
        return frozenset(ending)

    @cached_property
    def performed(self) -> tuple[Performed, ...]:
        """Every step as kvsim performs it: the same for every learner, so done once."""
        return tuple(Performed(self, n) for n in range(len(self.steps)))

    def right(self, n: int) -> Any:
        """The right answer of step ``n``."""
        return self.performed[n].right


@dataclass(frozen=True)
class Performed:
    """What kvsim makes of step ``n``, each part worked out when it is first wanted."""

    lesson: Lesson
    n: int

    @cached_property
    def moment(self) -> Moment:
        """The step in the trace."""
        header = self.lesson.setup.header
        run = Run(header)
        run.perform(self.lesson.lines_before(self.n))
        first = len(run.steps)
        run.perform([self.step.line])
        error = run.error[1] if run.error else ""
        reader = PictureReader(header)
        before, after = (reader.read(run.steps[k].after) for k in (first - 1, -1))
        return Moment(header, run.steps[:first], run.steps[first:], before, after, error)

    @property
    def step(self) -> LessonStep:
        return self.lesson.steps[self.n]

    @cached_property
    def right(self) -> Any:
        """The right answer."""
        return self.step.ask.right(self.moment)

    @cached_property
    def given(self) -> str:
        """What is told beside the picture, "" if nothing."""
        return self.step.given(self.moment) if self.step.given else ""

    @cached_property
    def asked(self) -> Played:
        """The picture before the line of the step is performed."""
        return self._played([])

    @cached_property
    def shown(self) -> Played:
        """The picture after it."""
        return self._played(self.lesson.lines_after(self.n)[len(self.lesson.lines_before(self.n)) :])

    def _played(self, lines: list[str]) -> Played:
        run = Run(self.lesson.setup.header, self.lesson.title)
        run.perform(self.lesson.lines_before(self.n))
        start = len(run.steps) - 1
        run.perform(lines)
        return Played(run.payload(), run.notes, start, len(run.steps) - 1)


# -- checking --------------------------------------------------------------------------------------


def correct(ask: Ask, given: Any, right: Any) -> bool:
    """Whether an answer is right; cells may be given in any order."""
    if isinstance(ask, Cells):
        return sorted(map(list, given)) == sorted(right)
    return bool(given == right)


_SPANS = re.compile(r"\d{1,6}( ?[-–] ?\d{1,6})?")


def cells_of(text: str, lanes: Sequence[int]) -> list[list[int]] | None:
    """Cells typed as ``0-5, 9``, in the lane that is asked about; None if it is no list of cells."""
    found: list[list[int]] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        if not _SPANS.fullmatch(part) or len(found) > 512:
            return None
        low, _, high = part.replace("–", "-").partition("-")
        found += [[lane, cell] for lane in lanes for cell in range(int(low), int(high or low) + 1)][:512]
    return found or None


def spans(cells: Sequence[int]) -> str:
    """Cells in order, runs written as one: ``8–11 and 14``."""
    from kvsim.narrate.words import ranges

    return ranges(list(cells), most=12)
