"""Performing acts on the real memory, and what came of each: steps of a trace, hazards, refusals."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from app.playground.acts import Act, ActError
from app.playground.lines import MOST_LINES, parse
from kvsim.changes import Picture, PictureReader, changed_cells
from kvsim.context import Context
from kvsim.errors import KvsimError
from kvsim.events import Recorder
from kvsim.narrate.calls import verdict
from kvsim.narrate.words import cells as cells_words
from kvsim.narrate.words import count
from kvsim.ops import Op
from kvsim.player.notes import Note, note_of
from kvsim.player.payload import Packer
from kvsim.replay import Replayer, context_of
from kvsim.trace import Header, Step

MOST_STEPS = 600
"""Most operations of one run, so that many can play at a time."""


@dataclass(frozen=True)
class Done:
    """What one line did: its act, and its steps, ``first`` to before ``end``."""

    text: str
    act: Act
    first: int
    end: int


@dataclass(frozen=True)
class Trial:
    """What an act would do: in words, and the cells it would change by lane. ``error``: why it cannot."""

    text: str = ""
    cells: list[tuple[int, list[int]]] = field(default_factory=list)
    error: str = ""


class Live:
    """A memory that operations are performed on, one step of a trace each."""

    def __init__(self, header: Header) -> None:
        self.replayer = Replayer(context_of(header))
        self.recorder = Recorder()
        self.context.observe(self.recorder)
        self.n_steps = 0
        self.n_saved = 0

    @property
    def context(self) -> Context:
        return self.replayer.context

    def step(self, op: Op) -> Step:
        """Perform one operation. Raises KvsimError, and nothing has changed."""
        step = self.replayer.step(self.n_steps, op.op, op.args)
        self.n_steps += 1
        self.n_saved += op.op in ("state_get", "state_seq_get")
        return step

    def steps(self, act: Act) -> Iterator[Step]:
        """Perform an act: its operations one by one, each answer told to it."""
        ops = act.ops(self)
        with suppress(StopIteration):
            op = next(ops)
            while True:
                step = self.step(op)
                yield step
                op = ops.send(step.ret)


class Run:
    """A memory and the lines performed on it so far. Nothing is ever undone: a shorter list is a new run."""

    def __init__(self, header: Header, name: str = "") -> None:
        self.header = header
        self.live = Live(header)
        self.packer = Packer(header, name)
        self.steps: list[Step] = []
        self.notes: dict[int, Note] = {}
        self.done: list[Done] = []
        self.error: tuple[int, str] | None = None
        self._add(self.live.step(Op("init")))

    @property
    def lines(self) -> list[str]:
        return [done.text for done in self.done]

    def perform(self, lines: Sequence[str], told: Callable[[int], None] = lambda _: None) -> None:
        """Perform the lines one after the other; ``told`` hears after every operation how many are done. If it
        raises, a line may be half done, and the run is of no more use.

        A line that cannot be understood or done, because it would end llama.cpp or asks for what is not
        there, leaves its number and the reason in ``error``; it and those after it are not done.
        """
        for i, line in enumerate(lines):
            try:
                self._line(line, lambda i=i: told(i))
            except KvsimError as error:
                self.error = len(self.done), str(error)
                return
            told(i + 1)

    def _line(self, line: str, told: Callable[[], None]) -> None:
        act, first = parse(line), len(self.steps)
        if len(self.done) >= MOST_LINES:
            raise ActError(f"there are {MOST_LINES} lines already; export, and go on in Python")
        for step in self.live.steps(act):
            self._add(step)
            told()
            if len(self.steps) > MOST_STEPS:
                raise ActError(f"more than {MOST_STEPS} operations; export, and go on in Python")
        self.done.append(Done(line, act, first, len(self.steps)))

    def _add(self, step: Step) -> None:
        note = note_of(self.live.recorder.take())
        if note:
            self.notes[step.i] = note
        self.steps.append(step)
        self.packer.add(step)

    def payload(self) -> str:
        """What the player takes (:mod:`kvsim.player.payload`)."""
        return json.dumps(self.packer.payload(), separators=(",", ":"))

    def trial(self, act: Act) -> Trial:
        """What the act would do now, tried on a copy of the memory."""
        other, answer, after = copy.deepcopy(self.live), "", self.steps[-1].after
        try:
            for step in other.steps(act):
                after = step.after
                said, failed = verdict(step)
                answer = said if failed and not answer else answer
        except KvsimError as error:
            return Trial(error=str(error))
        reader = PictureReader(self.header)
        return _compared(reader.read(self.steps[-1].after), reader.read(after), answer)


def _compared(before: Picture, after: Picture, answer: str) -> Trial:
    """The difference of two pictures in a few words, with a failing answer first."""
    found: list[tuple[int, list[int]]] = []
    told: dict[str, str] = {}
    for k, (old, new) in enumerate(zip(before.lanes, after.lanes, strict=True)):
        changed = changed_cells(old, new)
        if changed.size:
            found.append((k, changed.tolist()))
            empty, filled = old.owners[changed] == 0, new.owners[changed] != 0
            freed, written, kept = changed[~filled], changed[empty & filled], changed[~empty & filled]
            parts = [f"frees {count(freed.size, 'cell')}"] if freed.size else []
            parts += [f"writes {cells_words(written)}"] if written.size else []
            parts += [f"changes {count(kept.size, 'cell')}"] if kept.size else []
            told.setdefault(", ".join(parts), new.spec.cache)
    words = list(told) if len(told) < 2 else [f"{text} of {name}" for text, name in told.items()]
    if not words:
        words = ["changes no cell" if before.recurrent == after.recurrent else "changes a recurrent state"]
    return Trial("; ".join([f"answers {answer}", *words] if answer else words[:2]), found)
