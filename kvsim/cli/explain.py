"""``kvsim explain``: what a message of llama.cpp means."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from kvsim.cli.terminal import DIFFERENT, stderr, stdout
from kvsim.explain import EXPLANATIONS, Explanation, explain

LONGEST = 16 << 20
"""Bytes of stdin that are read."""


def explain_command(
    message: Annotated[
        list[str] | None,
        typer.Argument(metavar="MESSAGE", help="Words of the message; - reads them from stdin."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Explain a message: its cause, how to see it, what to do, and a recording that shows it.

    Without a message, list those that are known. Exit status 1: nothing similar is known.
    """
    if not message:
        _list(stdout())
        return
    text = _stdin() if message == ["-"] else " ".join(message)
    found = explain(text)
    if as_json:
        print(json.dumps([{"score": f.score, **asdict(f.explanation)} for f in found]))
    elif not found:
        stderr().print("no such message is known; without a message, kvsim explain lists those that are")
    elif found[0].exact:
        for entry in found:
            print_explanation(stdout(), entry.explanation)
    else:
        print_explanation(stdout(), found[0].explanation, "the most similar message")
        for other in found[1:]:
            stdout().print(Text(f"similar, too: {other.explanation.id}: {other.explanation.messages[0]}"))
    if not found:
        raise typer.Exit(DIFFERENT)


def _stdin() -> str:
    return typer.get_binary_stream("stdin").read(LONGEST).decode("utf-8", "replace")


def print_explanation(out: Console, entry: Explanation, heading: str = "") -> None:
    """One explanation as paragraphs."""
    title = Text(entry.id, style="bold").append(f"  {entry.messages[0]}", "not bold")
    out.print(title.append(f"  ({heading})") if heading else title)
    for name, text in (("Cause", entry.cause), ("To see", entry.see), ("To do", entry.remedy)):
        out.print(Text(f"{name}: ", style="bold").append(text, "not bold"))
    out.print(Text("Where: ", style="bold").append(entry.where, "not bold"))
    if entry.trace:
        out.print(
            Text("Shown by: ", style="bold").append(f"kvsim show {entry.trace} --at {entry.at}", "not bold")
        )
    out.print()


def _list(out: Console) -> None:
    width = max(len(entry.id) for entry in EXPLANATIONS)
    for entry in EXPLANATIONS:
        out.print(Text(f"{entry.id:<{width}}  {entry.messages[0]}"))
