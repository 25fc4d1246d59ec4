"""What one visitor plays with: a memory, lines, what was before them, and the run they give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.playground.run import Run
from app.playground.setup import Setup
from kvsim.trace import Header

MOST_PAST = 200


@dataclass(frozen=True)
class Position:
    """Where play stands: the memory and the lines. ``setup`` is None for the memory of a foreign trace."""

    setup: Setup | None
    header: Header
    lines: tuple[str, ...] = ()

    @classmethod
    def of(cls, setup: Setup, lines: Sequence[str] = ()) -> Position:
        return cls(setup, setup.header, tuple(lines))


@dataclass
class Play:
    """``now`` and what can be gone back and forward to. ``start`` is the last step of the run before the last
    change, from which what is new is played; None where there is nothing to play from. ``n_set`` counts
    changes that did not come from the fields of the page, so that the fields can follow."""

    now: Position
    past: list[Position] = field(default_factory=list)
    future: list[Position] = field(default_factory=list)
    start: int | None = None
    n_set: int = 0
    _run: Run | None = None

    # -- changing ------------------------------------------------------------------------------

    def change(self, to: Position) -> None:
        """Go on to another position; it can be undone."""
        if to == self.now:
            return
        self.past = [*self.past[-MOST_PAST:], self.now]
        self.future = []
        self._go(to)

    def act(self, line: str) -> None:
        """Add a line after those that are there."""
        self.set_lines([*self.now.lines, line])

    def set_lines(self, lines: Sequence[str]) -> None:
        self.change(Position(self.now.setup, self.now.header, tuple(lines)))

    def set_setup(self, setup: Setup) -> None:
        """Another memory, the same lines."""
        self.change(Position.of(setup, self.now.lines))

    def undo(self) -> None:
        if self.past:
            self.future = [*self.future, self.now]
            self.n_set += 1
            self._go(self.past.pop())

    def redo(self) -> None:
        if self.future:
            self.past = [*self.past, self.now]
            self.n_set += 1
            self._go(self.future.pop())

    def take(self, to: Position) -> None:
        """A scenario or a file: everything at once, from the fields on."""
        self.n_set += 1
        self.change(to)

    def _go(self, to: Position) -> None:
        longer = to.header == self.now.header and to.lines[: len(self.now.lines)] == self.now.lines
        grows = longer and len(to.lines) > len(self.now.lines) and self._run is not None
        self.start = len(self._run.steps) - 1 if grows and self._run else None
        self.now = to

    # -- the run -------------------------------------------------------------------------------

    def run(self, told: Callable[[int], None] = lambda _: None) -> Run:
        """The run of the position; only what is new is performed."""
        run, lines = self._run, list(self.now.lines)
        done = [] if run is None else run.lines
        if run is None or run.header != self.now.header or run.error or done != lines[: len(done)]:
            run, done = Run(self.now.header, self.now.header.model), []
        self._run = None  # a run that is interrupted, by a click on the page, is not gone on with
        run.perform(lines[len(done) :], told)
        self._run = run
        return run
