"""What the commands share: where they write, how they fail, how cells are coloured."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from kvsim.trace.cellmap import MapCell

DIFFERENT, UNUSABLE = 1, 2
"""Exit status: something differs; input that cannot be used."""

LONG_RUN = 300_000
"""Bytes of input from which a progress bar is worth its line."""

LINE_EVERY = 10
"""Seconds between two lines of progress, where there is no terminal."""

# fill and the label that reads best on it, by sequence id modulo 12
SEQUENCE_STYLES = (
    *("white on #275abc", "#0b0e12 on #e6830c", "#0b0e12 on #2baa96", "white on #7a4d5d"),
    *("#0b0e12 on #f0e34c", "#0b0e12 on #7fdcfe", "white on #bb4d4c", "#0b0e12 on #a1c286"),
    *("#0b0e12 on #7f76cc", "#0b0e12 on #dfa1b5", "white on #526701", "#0b0e12 on #b395c8"),
)
EMPTY, SHARED, HEAD, MARKED = "dim", "reverse bold", "bold", "bold red"


def stdout() -> Console:
    """Text as it is: no markup, no guessing at numbers, no wrapping."""
    return Console(markup=False, highlight=False, soft_wrap=True, emoji=False)


def stderr() -> Console:
    return Console(stderr=True, markup=False, highlight=False, soft_wrap=True, emoji=False)


def fail(message: object) -> NoReturn:
    """One line on stderr, exit 2."""
    stderr().print(Text(str(message)))
    raise typer.Exit(UNUSABLE)


def keep_input(source: Path, target: Path) -> None:
    """Fail if what is to be written is the file that is read."""
    if os.path.exists(target) and os.path.exists(source) and os.path.samefile(target, source):
        fail(f"{target} is the file that is read: name another for what is written")


def check_writable(target: Path) -> None:
    """Fail now rather than after a long run, if a file cannot be written there."""
    if os.path.isdir(target):
        fail(f"{target} is a folder: name a file for what is written")
    if not os.path.isdir(target.parent):
        fail(f"{target}: there is no folder {target.parent}; make it first")
    if not os.access(target if os.path.exists(target) else target.parent, os.W_OK):
        fail(f"{target} may not be written: name another file")


def progress(total: int) -> Progress:
    """A bar on stderr, if that is a terminal and ``total`` bytes are many; use it in a ``with`` statement."""
    console = stderr()
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal or total < LONG_RUN,
        redirect_stdout=False,
        redirect_stderr=False,
    )


@contextmanager
def counted(
    what: str, total: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int], None]]:
    """To be told how many things are done out of ``total``: a bar on stderr, or, where that is no terminal, a
    line every :data:`LINE_EVERY` seconds."""
    console = stderr()
    if not console.is_terminal:
        tell = _line_now_and_then(console, clock)
        yield lambda done: tell(f"{what}: {done:,} of {total:,}")
        return
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def under_way(what: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[str], None]]:
    """As :func:`counted` where nobody knows how much there is to do: to be told in words how far it is."""
    console = stderr()
    if not console.is_terminal:
        tell = _line_now_and_then(console, clock)
        yield lambda text: tell(f"{what}: {text}")
        return
    with console.status(Text(what)) as status:
        yield lambda text: status.update(Text(f"{what}: {text}"))


def _line_now_and_then(out: Console, clock: Callable[[], float]) -> Callable[[str], None]:
    told = clock()

    def tell(line: str) -> None:
        nonlocal told
        if clock() - told >= LINE_EVERY:
            told = clock()
            out.print(Text(line))

    return tell


def beside(bar: Progress) -> Console:
    """Where results go while a bar runs: above it if they share its terminal, else to stdout."""
    return bar.console if sys.stdout.isatty() else stdout()


def find_traces(paths: Iterable[Path]) -> list[Path]:
    """The given files, and every trace in the given folders, in order. Fails if there is nothing."""
    found: list[Path] = []
    for path in paths:
        if not os.path.exists(path):  # Path.exists raises where a name is too long
            fail(f"{path}: no such file or folder")
        inside = [p for p in path.rglob("*") if p.name.endswith((".jsonl", ".jsonl.gz"))]
        if path.is_dir() and not inside:
            fail(f"{path}: holds no trace (.jsonl or .jsonl.gz)")
        found += sorted(inside) if path.is_dir() else [path]
    return found


def map_text(cells: Iterable[MapCell]) -> Text:
    """A row of a cell map in colour."""
    text = Text()
    for cell in cells:
        text.append(cell.before, MARKED if cell.before == "!" else HEAD)
        text.append(cell.glyph, _style(cell))
    return text


def _style(cell: MapCell) -> str:
    if not cell.seq:
        return EMPTY
    return SHARED if len(cell.seq) > 1 else SEQUENCE_STYLES[cell.seq[0] % len(SEQUENCE_STYLES)]


def table(rows: Iterable[tuple[str, ...]], left: int = 1) -> list[str]:
    """Rows as aligned lines: the first ``left`` columns to the left, numbers to the right."""
    rows = list(rows)
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))] if rows else []
    lines = []
    for row in rows:
        cells = [
            c.ljust(w) if k < left else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
