"""A whole log: its contexts as traces, and the messages in it that have an explanation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kvsim.explain import Explanation, explanation_in
from kvsim.logs.caches import CacheNames, context_of
from kvsim.logs.facts import Facts, FactsReader
from kvsim.logs.header import log_header
from kvsim.logs.lines import clean_lines
from kvsim.logs.searches import Search, SearchReader
from kvsim.trace import Header, Step

LONGEST = 1000
"""Characters of a message that a trace keeps."""


@dataclass(frozen=True)
class Message:
    """A message in the log, and what it means. ``line`` is where it begins."""

    line: int
    text: str
    explanation: Explanation


@dataclass
class LoggedContext:
    """One context of the log: what is known of it, and what was seen, in the order of the log.

    ``seen`` has the searches of this context and all messages from its making on, for messages don't say
    which context they are of.
    """

    facts: Facts
    seen: list[Search | Message] = field(default_factory=list)

    @property
    def searches(self) -> list[Search]:
        return [seen for seen in self.seen if isinstance(seen, Search)]

    def header(self, name: str = "") -> Header:
        """The header of its trace. Raises TraceError if there is nothing to show."""
        return log_header(self.facts, self.searches, name)

    def steps(self) -> Iterator[Step]:
        """The steps of its trace: the picture grows with each search, messages stand between."""
        yield from _Pictures(self.header(), bool(self.facts.line)).steps(self.seen)


@dataclass
class Imported:
    """What was found in a log of ``n_lines`` lines."""

    contexts: list[LoggedContext]
    messages: list[Message]
    n_lines: int

    @property
    def main(self) -> LoggedContext:
        """The context that most searches are of; of equals the first."""
        return max(self.contexts, key=lambda context: len(context.searches))


def import_log(log: Iterable[str]) -> Imported:
    """Read a log, line by line. It may begin anywhere, and have anything between llama.cpp's lines."""
    reader = _LogReader()
    number = 0
    for number, line in clean_lines(log):
        reader.feed(number, line)
    reader.end()
    if not reader.contexts:
        reader.contexts.append(LoggedContext(Facts()))
    for message in reader.messages:
        for context in reader.contexts:
            if message.line >= context.facts.line:
                context.seen.append(message)
    for context in reader.contexts:
        context.seen.sort(key=lambda seen: seen.line)
    return Imported(reader.contexts, reader.messages, number)


class _LogReader:
    """Sorts lines into facts, searches and messages."""

    def __init__(self) -> None:
        self.contexts: list[LoggedContext] = []
        self.messages: list[Message] = []
        self._facts, self._searches = FactsReader(), SearchReader()
        self._last: list[dict[tuple[int, int], Search]] = []
        self._open: tuple[int, int] | None = None

    def feed(self, number: int, line: str) -> None:
        belongs, complete = self._searches.feed(number, line)
        self._add(complete)
        if belongs:
            return
        self._facts.feed(number, line)
        for facts in self._facts.contexts[len(self.contexts) :]:
            self._add(self._searches.end())
            self._new(facts)
        self._message(number, line)

    def end(self) -> None:
        self._add(self._searches.end())

    def _new(self, facts: Facts) -> None:
        self.contexts.append(LoggedContext(facts))
        self._last.append({})

    def _add(self, search: Search | None) -> None:
        if search is None:
            return
        if not self.contexts:
            self._facts.contexts.append(Facts())
            self._new(self._facts.contexts[0])
        i = context_of(search, [context.facts for context in self.contexts], self._last)
        self.contexts[i].seen.append(search)
        self._last[i][search.stream, search.n_swa] = search

    def _message(self, number: int, line: str) -> None:
        """A message; indented lines that follow at once continue it, and the last of them knows best."""
        entry = explanation_in(line)
        if entry is None:
            return
        self._add(self._searches.end())
        text = " ".join("".join(c if c.isprintable() else " " for c in line).split())
        if self._open is not None and number == self._open[1] + 1 and line.startswith(" "):
            before = self.messages[-1]
            self.messages[-1] = Message(before.line, f"{before.text} {text}"[:LONGEST], entry)
            self._open = (before.line, number)
        else:
            self.messages.append(Message(number, text[:LONGEST], entry))
            self._open = (number, number)


class _Pictures:
    """The picture of a memory as it becomes known, search by search."""

    def __init__(self, header: Header, from_start: bool) -> None:
        self.header = header
        self._names = CacheNames(header.memory)
        empty: dict[str, Any] = {"head": 0, "used": 0, "has_shift": False, "cells": []}
        self._caches = {name: [empty] * cache["n_stream"] for name, cache in header.caches.items()}
        # a context that was just made is empty, until one of its caches shows cells; of an older one nothing is known
        self._unseen = {} if from_start else {name: list(range(len(s))) for name, s in self._caches.items()}
        self._printed: set[tuple[str, int]] = set()
        self._pos: dict[str, list[int]] = {str(seq): [-1, -1] for seq in range(header.n_seq_max)}
        self._positions_of = "swa" if "swa" in self._caches else next(iter(self._caches))

    def steps(self, seen: Iterable[Search | Message]) -> Iterator[Step]:
        yield Step(0, "init", {}, None, None, self._after())
        for i, item in enumerate(seen, 1):
            if isinstance(item, Message):
                args = {"line": item.line, "text": item.text, "explanation": item.explanation.id}
                yield Step(i, "said", args, None, None, self._after())
            else:
                name = self._look(item)
                args = {"line": item.line, "cache": name, "stream": item.stream}
                yield Step(i, "seen", args, None, None, self._after())

    def _look(self, search: Search) -> str:
        name = self._names.name(search)
        cells = search.cells()
        listed = [[i, pos, list(owners or ()), 0, -1, 0, 0] for i, pos, owners in cells or ()]
        stream = {"head": search.head, "used": search.used, "has_shift": False, "cells": listed}
        streams = list(self._caches[name])
        streams[search.stream] = stream
        self._caches = {**self._caches, name: streams}
        self._printed.add((name, search.stream))
        self._know(name, search.stream, cells is not None or not search.used)
        if search.used:  # what fills one cache fills the others too
            for other, streams in self._caches.items():
                if search.stream < len(streams) and (other, search.stream) not in self._printed:
                    self._know(other, search.stream, False)
        if name == self._positions_of:
            self._place(search)
        return name

    def _know(self, name: str, stream: int, known: bool) -> None:
        """Note whether the cells of this stream are known now."""
        unseen = {*self._unseen.get(name, ())} - {stream} if known else {*self._unseen.get(name, ()), stream}
        self._unseen = {**self._unseen, name: sorted(unseen)}

    def _place(self, search: Search) -> None:
        """Note the ranges of the sequences in this stream: all of them if there is one stream only."""
        n_stream = len(self._caches[self._positions_of])
        mine = {seq: [-1, -1] for seq in self._pos if n_stream == 1 or int(seq) == search.stream}
        spans = {str(seq): list(span) for seq, span in search.spans.items() if str(seq) in self._pos}
        self._pos = {**self._pos, **mine, **spans}

    def _after(self) -> dict[str, Any]:
        unseen = {name: streams for name, streams in self._unseen.items() if streams}
        after = {"caches": self._caches, "recurrent": None, "pos": self._pos}
        return {**after, "unseen": unseen} if unseen else after
