"""Readers of public request traces: the Azure LLM inference trace of 2023 (CSV) and Mooncake's (JSON lines).

Both are read as a stream, gzip or not, told by their content. What is damaged, or not in the order of time,
is refused with its line.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, BinaryIO, NoReturn

from kvsim.workload.request import FIRST_ANSWER, MAX_TOKENS, FreshTokens, Request, WorkloadError, joined

AZURE_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
MOONCAKE_KEYS = {"timestamp", "input_length", "output_length", "hash_ids"}
MOONCAKE_BLOCK = 512
"""Tokens that one hash id stands for."""

MAX_LINE = 1 << 20
MAX_BLOCK_ID = FIRST_ANSWER // MOONCAKE_BLOCK - 1


@dataclass(frozen=True)
class Summary:
    """A workload as a whole: how many requests and tokens over how many seconds."""

    n_requests: int
    n_prompt: int
    n_answer: int
    seconds: float


class Workload:
    """A file of requests. Iterating reads it anew and holds one line at a time; ``most`` stops early.

    Raises WorkloadError with file and line where it cannot be used; :meth:`summary` reads all, so that a
    damaged file is known before anything is simulated.
    """

    def __init__(self, path: str | os.PathLike[str], most: int | None = None) -> None:
        self.path = os.fspath(path)
        self.most = most

    def __iter__(self) -> Iterator[Request]:
        if self.most == 0:
            return
        for request in self._all():
            yield request
            if self.most is not None and request.id + 1 >= self.most:
                return

    def summary(self) -> Summary:
        """Read everything once."""
        n = n_prompt = n_answer = 0
        seconds = 0.0
        for request in self:
            n += 1
            n_prompt += request.n_prompt
            n_answer += request.n_answer
            seconds = request.arrival
        return Summary(n, n_prompt, n_answer, seconds)

    def _all(self) -> Iterator[Request]:
        lines = _lines(self.path)
        number, first = next(lines, (0, ""))
        if not number:
            raise WorkloadError("the file is empty", self.path)
        place = _Place(self.path, number)
        if first.lstrip().startswith("{"):
            requests = _mooncake(place, first, lines)
        elif [name.strip() for name in first.split(",")] == AZURE_COLUMNS:
            requests = _azure(place, lines)
        else:
            place.fail(
                f"neither an Azure trace (its first line is {','.join(AZURE_COLUMNS)}) nor a Mooncake trace "
                f"(each line an object with {', '.join(sorted(MOONCAKE_KEYS))})"
            )
        first_time = last = None
        for time, make in requests:
            if first_time is None or last is None:
                first_time = last = time
            if time < last:
                place.fail(f"comes {last - time:.6g} s before the line above it: sort the file by time")
            last = time
            yield make(time - first_time)


@dataclass
class _Place:
    """Where the reader is; ``number`` goes along."""

    path: str
    number: int

    def fail(self, reason: str) -> NoReturn:
        raise WorkloadError(reason, self.path, self.number)


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    number = 0
    try:
        with open(path, "rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file: BinaryIO = gzip.GzipFile(fileobj=raw) if zipped else raw  # type: ignore[assignment]
            while line := file.readline(MAX_LINE):
                number += 1
                if len(line) == MAX_LINE:
                    raise WorkloadError(f"a line of {MAX_LINE} bytes or more", path, number)
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if text:
                    yield number, text
    except UnicodeDecodeError:
        raise WorkloadError("not text in UTF-8", path, number) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise WorkloadError(f"the compressed file is damaged ({error})", path, number + 1) from None
    except OSError as error:
        raise WorkloadError(f"cannot be opened: {error.strerror}", path) from None
    except ValueError as error:  # a name with a zero byte
        raise WorkloadError(f"cannot be opened: {error}", path) from None


Timed = tuple[float, Callable[[float], Request]]
"""The time a line states, in seconds, and what makes its request once the arrival is known."""


def _azure(place: _Place, lines: Iterator[tuple[int, str]]) -> Iterator[Timed]:
    """Nothing is known of the text, so no two requests share a token."""
    prompts, answers = FreshTokens(), FreshTokens(FIRST_ANSWER)
    epoch: datetime | None = None
    for i, (number, line) in enumerate(lines):
        place.number = number
        try:
            fields = next(csv.reader([line]))
        except csv.Error as error:
            place.fail(f"cannot be read as CSV: {error}")
        if len(fields) != len(AZURE_COLUMNS):
            place.fail(f"has {len(fields)} fields, not the {len(AZURE_COLUMNS)} of {','.join(AZURE_COLUMNS)}")
        try:
            time = datetime.fromisoformat(fields[0])
        except ValueError:
            place.fail(f"TIMESTAMP {fields[0][:40]!r} is not a time such as 2023-11-16 18:15:46.680590")
        if epoch is None:
            epoch = time
        if (time.tzinfo is None) != (epoch.tzinfo is None):
            place.fail("TIMESTAMP has a time zone in some lines and none in others")
        n_prompt = _count(place, AZURE_COLUMNS[1], fields[1])
        n_answer = _count(place, AZURE_COLUMNS[2], fields[2])
        prompt, answer = prompts.take(n_prompt), answers.take(n_answer)
        yield (time - epoch).total_seconds(), partial(_request, i, (prompt,), answer)


def _request(i: int, prompt: tuple[range, ...], answer: range, arrival: float) -> Request:
    return Request(i, arrival, prompt, answer)


def _count(place: _Place, name: str, text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 8 and int(text) <= MAX_TOKENS):
        place.fail(f"{name} {text[:40]!r} is not a number of tokens (0 to {MAX_TOKENS})")
    return int(text)


def _mooncake(place: _Place, first: str, lines: Iterator[tuple[int, str]]) -> Iterator[Timed]:
    """Prompts with equal hash ids begin with the same blocks."""
    answers = FreshTokens(FIRST_ANSWER)
    i, line = 0, first
    while True:
        time, prompt, n_answer = _mooncake_line(place, line)
        answer = answers.take(n_answer)
        yield time, partial(_request, i, prompt, answer)
        place.number, line = next(lines, (0, ""))
        if not line:
            return
        i += 1


def _mooncake_line(place: _Place, line: str) -> tuple[float, tuple[range, ...], int]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        place.fail(f"not a JSON object: {error}")
    if not isinstance(record, dict) or not set(record) >= MOONCAKE_KEYS:
        place.fail(f"not an object with {', '.join(sorted(MOONCAKE_KEYS))}")
    time, ids = record["timestamp"], record["hash_ids"]
    if type(time) not in (int, float) or not 0 <= time < 1e15:
        place.fail(f"timestamp {time!r:.40} is not a time in milliseconds")
    n_prompt, n_answer = (_number(place, name, record[name]) for name in ("input_length", "output_length"))
    n_blocks = -(-n_prompt // MOONCAKE_BLOCK)
    if not isinstance(ids, list) or len(ids) != n_blocks:
        has = f"{len(ids)} hash ids" if isinstance(ids, list) else f"hash_ids of type {type(ids).__name__}"
        place.fail(f"has {has}; {n_prompt} tokens are {n_blocks} blocks of {MOONCAKE_BLOCK}")
    for block in ids:
        if type(block) is not int or not 0 <= block <= MAX_BLOCK_ID:
            place.fail(f"hash id {block!r:.40} is not a number from 0 to {MAX_BLOCK_ID}")
    return time / 1000, joined(_blocks(ids, n_prompt)), n_answer


def _number(place: _Place, name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        place.fail(f"{name} {value!r:.40} is not a number of tokens (0 to {MAX_TOKENS})")
    return value


def _blocks(ids: list[int], n_prompt: int) -> Iterator[range]:
    """The tokens of each block; the last one may be partly filled."""
    for k, block in enumerate(ids):
        start = block * MOONCAKE_BLOCK
        yield range(start, start + min(MOONCAKE_BLOCK, n_prompt - k * MOONCAKE_BLOCK))
