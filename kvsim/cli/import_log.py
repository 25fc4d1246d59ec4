"""``kvsim import-log``: the log of a real llama.cpp as a trace that can be shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from kvsim.cli.explain import print_explanation
from kvsim.cli.terminal import fail, keep_input, stdout
from kvsim.errors import TraceError
from kvsim.explain import Explanation
from kvsim.logs import Imported, LoggedContext, import_log, log_text
from kvsim.trace import TraceWriter

STDIN = Path("-")


def import_log_command(
    log: Annotated[Path, typer.Argument(help="The output of llama-server, llama-cli, ...; - reads stdin.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The trace; else the log's name with .jsonl.gz.")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Which context, if the log has several; else the one searched most."),
    ] = None,
) -> None:
    """Turn the debug output of llama.cpp's slot search into a trace, and explain the messages in the log.

    Run llama.cpp with LLAMA_KV_CACHE_DEBUG=1 (counts and positions), 2 (and the cells of window caches) or 3
    (all cells) in its environment, and its debug output on (llama-server -lv 5). Other lines, dates, colours
    and names of services may stand in between. kvsim show, render and app open the trace.
    """
    target = output or Path("log.jsonl.gz" if log == STDIN else f"{log.stem}.jsonl.gz")
    keep_input(log, target)
    try:
        imported = _read(log)
        for entry, text in _by_explanation(imported).items():
            stdout().print(Text(text))
            print_explanation(stdout(), entry)
        chosen = _choose(imported, context)
        header = chosen.header(log.name)
    except TraceError as error:
        fail(f"{log}: {error}")
    except OSError as error:
        fail(f"{log}: {error.strerror}")
    try:
        with TraceWriter(target, header) as writer:
            for step in chosen.steps():
                writer.write(step)
    except OSError as error:
        fail(f"{target}: {error.strerror}")
    _print_contexts(stdout(), imported, chosen)
    stdout().print(Text(f"{target}: {len(chosen.seen) + 1:,} steps; kvsim show {target} --at N"))


def _read(log: Path) -> Imported:
    if log == STDIN:
        return import_log(log_text(typer.get_binary_stream("stdin")))
    with open(log, "rb") as file:
        return import_log(log_text(file))


def _by_explanation(imported: Imported) -> dict[Explanation, str]:
    """Each explanation once, with the message it was first met by and how often."""
    found: dict[Explanation, list[int]] = {}
    texts: dict[Explanation, str] = {}
    for message in imported.messages:
        found.setdefault(message.explanation, []).append(message.line)
        texts.setdefault(message.explanation, message.text)
    return {entry: f"line {lines[0]:,}: {texts[entry]}{_more(len(lines))}" for entry, lines in found.items()}


def _more(n: int) -> str:
    return f"  ({n:,} times)" if n > 1 else ""


def _choose(imported: Imported, number: int | None) -> LoggedContext:
    if number is None:
        return imported.main
    if number > len(imported.contexts):
        raise TraceError(f"there is no context {number}; the log has {len(imported.contexts)}")
    return imported.contexts[number - 1]


def _print_contexts(out: Console, imported: Imported, chosen: LoggedContext) -> None:
    for i, context in enumerate(imported.contexts, 1):
        searches = context.searches
        whole = sum(search.cells() is not None for search in searches)
        mark = "" if context is chosen else "  (not in the trace; --context chooses)"
        kind = context.facts.memory or "unknown kind"
        out.print(
            Text(f"context {i}, {kind}: {len(searches):,} searches printed, {whole:,} with all cells{mark}")
        )
