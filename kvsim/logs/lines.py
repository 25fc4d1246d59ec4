"""The lines of a log without what terminals, servers and collectors put around llama.cpp's text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

LONGEST = 4096
"""Characters of a line that are looked at: those of llama.cpp have some hundred, and searching longer ones for
every message takes too long."""

MOST_PREFIXES = 12

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*\x07")
_DATE = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_PREFIXES = (
    re.compile(r"[\w.-]+\s*\|(?: |$)"),  # docker compose: the name of the service
    re.compile(rf"\[?{_DATE}\]?(?: |$)"),
    re.compile(r"(?:\S+ )?[\w.-]+(?:\[\d+\])?: (?=.*find_slot: stream\[)"),  # host and process
    re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w./-]+(?:\[\d+\])?:(?: |$)"),  # syslog
    re.compile(r"\S+ [\w./-]+\[\d+\]:(?: |$)"),  # journal: host and process after its date
    re.compile(r"\d+\.\d\d\.\d{3}\.\d{3}(?: |$)"),  # llama.cpp's own clock
    re.compile(r"[DIWE](?: |$)"),  # and its level
)


def clean_lines(log: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines of a log with their numbers, counted from 1, without colours, dates, levels and names.

    A line of llama.cpp's JSON log gives the lines of its message. Of longer lines the beginning is left.
    """
    for number, raw in enumerate(log, 1):
        line = _ESCAPES.sub("", raw).rstrip("\r\n").replace("\r", "")
        line = _without_prefixes(line)
        if line.startswith('{"') and (message := _json_message(line)) is not None:
            for part in message.split("\n"):
                yield number, part[:LONGEST]
        else:
            yield number, line[:LONGEST]


def _without_prefixes(line: str) -> str:
    for _ in range(MOST_PREFIXES):
        before = line
        for prefix in _PREFIXES:
            if match := prefix.match(line):
                line = line[match.end() :]
        if line == before:
            break
    return line


def _json_message(line: str) -> str | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    message = record.get("msg")
    return message.removesuffix("\n") if isinstance(message, str) else None
