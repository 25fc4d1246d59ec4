"""Parsing the lines of a recording, where most cells of a picture stand as in the picture before.

A recording tells whole pictures, so nearly all of a line repeats the last one. :class:`LineParser` gives what
``json`` gives, but parses of every list of cells only what changed and takes the rest, the same objects, from
the line before. That is several times faster for large caches, and equal cells can be told by identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from json import JSONDecodeError, JSONDecoder
from operator import is_
from typing import Any

import numpy as np

_OPEN, _CLOSE, _BETWEEN = b'"cells":[[', b"]]}", b"],["
_MARK = "\\u0000"
"""How a list of cells is marked in the text that is left; a line that holds it is parsed as a whole."""

Cells = list[Any]


class LineParser:
    """Parses one line after the other; ``options`` are those of :class:`json.JSONDecoder`."""

    def __init__(self, **options: Any) -> None:
        self._plain = JSONDecoder(**options)
        self._marked = JSONDecoder(**options, object_hook=self._fill)
        self._last: list[tuple[bytes, Cells]] = []
        self._lists: list[Cells] = []

    def parse(self, line: bytes) -> Any:
        """The value of a line. Raises what ``json`` raises for it."""
        spans = _spans(line)
        if not spans or _MARK.encode() in line:
            return self._plain.decode(line.decode("utf-8"))
        texts = [line[a:b] for a, b in spans]
        try:
            return self._with_cells(line, spans, texts)
        except (JSONDecodeError, UnicodeDecodeError):
            self._last = []
            return self._plain.decode(line.decode("utf-8"))

    def _with_cells(self, line: bytes, spans: list[tuple[int, int]], texts: list[bytes]) -> Any:
        known = self._last if len(self._last) == len(texts) else [(b"", [])] * len(texts)
        decode = self._plain.decode
        self._lists = [
            _cells(old, cells, text, decode) for (old, cells), text in zip(known, texts, strict=True)
        ]
        rest = []
        at = 0
        for k, (a, b) in enumerate(spans):
            rest += [line[at : a - 1], f'"{_MARK}{k}"'.encode()]
            at = b + 1
        value = self._marked.decode(b"".join([*rest, line[at:]]).decode("utf-8"))
        whole = all(_one_each(text, cells) for text, cells in zip(texts, self._lists, strict=True))
        self._last = list(zip(texts, self._lists, strict=True)) if whole else []
        return value

    def _fill(self, record: dict[str, Any]) -> dict[str, Any]:
        mark = record.get("cells")
        if type(mark) is str and mark.startswith("\0"):
            record["cells"] = self._lists[int(mark[1:])]
        return record


def common_ends(old: Cells, new: Cells) -> tuple[int, int]:
    """How many cells two lists share at the start, and after that at the end: the same objects."""
    n = min(len(old), len(new))
    start = _same(old, new)
    return start, min(n - start, _same(reversed(old), reversed(new)))


def _same(old: Iterable[Any], new: Iterable[Any]) -> int:
    same = list(map(is_, old, new))
    return same.index(False) if False in same else len(same)


def _spans(line: bytes) -> list[tuple[int, int]]:
    """Where the insides of the lists of cells stand: from the first cell's bracket to the last one's."""
    found = []
    start = line.find(_OPEN)
    while start >= 0:
        a = start + len(_OPEN) - 1
        end = line.find(_CLOSE, a)
        if end < 0:
            return []
        found.append((a, end + 1))
        start = line.find(_OPEN, end)
    return found


def _cells(old: bytes, cells: Cells, text: bytes, decode: Callable[[str], Any]) -> Cells:
    """The cells of ``text``; those it has in common with ``old`` at both ends are taken from ``cells``."""
    if old == text:
        return cells
    # The text in common, cut back to whole cells: the first cell that differs starts after `head`.
    common = _common(old, text)
    cut = text.rfind(_BETWEEN, 0, common)
    head = cut + 2 if cut >= 0 else 0
    most = min(len(old), len(text)) - head
    tail = _common(old[len(old) - most :][::-1], text[len(text) - most :][::-1])
    cut = text.find(_BETWEEN, len(text) - tail) if tail else -1
    stop = cut + 1 if cut >= 0 else len(text)
    first = text.count(_BETWEEN, 0, head + 1) if head else 0
    last = text.count(_BETWEEN, stop - 1) if stop < len(text) else 0
    middle = text[head:stop]
    return [
        *cells[:first],
        *decode(f"[{middle.decode('utf-8')}]"),
        *(cells[len(cells) - last :] if last else []),
    ]


def _common(one: bytes, two: bytes) -> int:
    """How many bytes the two have in common before they part."""
    n = min(len(one), len(two))
    if n == 0 or one[:n] == two[:n]:
        return n
    return int(np.argmax(np.frombuffer(one, np.uint8, n) != np.frombuffer(two, np.uint8, n)))


def _one_each(text: bytes, cells: Cells) -> bool:
    """Whether every separator in the text stands between two cells, none inside one."""
    return text.count(_BETWEEN) + 1 == len(cells)
