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
from numpy.typing import NDArray

_OPEN, _CLOSE, _BETWEEN = b'"cells":[[', b"]]}", b"],["
_MARK = "\\u0000"
"""How a list of cells is marked in the text that is left; a line that holds it is parsed as a whole."""

Cells = list[Any]


class SharedCells(list[Any]):
    """A list of cells that knows how many it shares with the list before: the same objects at both ends."""

    __slots__ = ("before", "itself", "start", "stop")

    def __init__(
        self, cells: Iterable[Any], before: SharedCells | None = None, start: int = 0, stop: int = 0
    ):
        super().__init__(cells)
        self.itself = object()  # stands for this list in the next one, which must not keep it alive
        self.before = before.itself if before is not None else None
        self.start, self.stop = start, stop


class LineParser:
    """Parses one line after the other; ``options`` are those of :class:`json.JSONDecoder`."""

    def __init__(self, **options: Any) -> None:
        self._plain = JSONDecoder(**options)
        self._marked = JSONDecoder(**options, object_hook=self._fill)
        self._last: list[_Known | None] = []
        self._lists: list[Cells] = []

    def parse(self, line: bytes) -> Any:
        """The value of a line. Raises what ``json`` raises for it."""
        spans = _spans(line)
        if not spans or _MARK.encode() in line:
            return self._plain.decode(line.decode("utf-8"))
        try:
            return self._with_cells(line, spans)
        except (JSONDecodeError, UnicodeDecodeError):
            self._last = []
            return self._plain.decode(line.decode("utf-8"))

    def _with_cells(self, line: bytes, spans: list[tuple[int, int]]) -> Any:
        known = self._last if len(self._last) == len(spans) else [None] * len(spans)
        decode = self._plain.decode
        found = [_known(old, line[a:b], decode) for old, (a, b) in zip(known, spans, strict=True)]
        self._lists = [new.cells for new in found]
        rest = []
        at = 0
        for k, (a, b) in enumerate(spans):
            rest += [line[at : a - 1], f'"{_MARK}{k}"'.encode()]
            at = b + 1
        value = self._marked.decode(b"".join([*rest, line[at:]]).decode("utf-8"))
        self._last = [new if new.is_plain else None for new in found]
        return value

    def _fill(self, record: dict[str, Any]) -> dict[str, Any]:
        mark = record.get("cells")
        if type(mark) is str and mark.startswith("\0"):
            record["cells"] = self._lists[int(mark[1:])]
        return record


class _Known:
    """The text of a list of cells, and the list. ``is_plain``: every ``],[`` in it stands between two cells."""

    def __init__(self, text: bytes, cells: SharedCells, is_plain: bool) -> None:
        self.text, self.cells, self.is_plain = text, cells, is_plain


def common_ends(old: Cells, new: Cells) -> tuple[int, int]:
    """How many cells two lists share at the start, and after that at the end: the same objects."""
    if old is new:
        return len(new), 0
    if isinstance(old, SharedCells) and isinstance(new, SharedCells) and new.before is old.itself:
        return new.start, new.stop
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


def _known(old: _Known | None, text: bytes, decode: Callable[[str], Any]) -> _Known:
    """The cells of ``text``; those it has in common with ``old`` at both ends are the same objects."""
    if old is None:
        cells = decode(f"[{text.decode('utf-8')}]")
        return _Known(text, SharedCells(cells), _is_plain(text, cells))
    if old.text == text:
        return old
    head, tail = _common_text(old.text, text)
    middle = text[head : len(text) - tail]
    n_middle_before = old.text.count(_BETWEEN, head, len(old.text) - tail) + 1
    # every separator of the old text stands between two cells: count them on the shorter side
    if head <= tail:
        start = text.count(_BETWEEN, 0, head + 1)
        stop = len(old.cells) - start - n_middle_before
    else:
        stop = text.count(_BETWEEN, len(text) - tail - 1)
        start = len(old.cells) - stop - n_middle_before
    changed = decode(f"[{middle.decode('utf-8')}]")
    cells = SharedCells(old.cells[:start], old.cells, start, stop)
    cells += changed
    cells += old.cells[len(old.cells) - stop :]
    return _Known(text, cells, _is_plain(middle, changed))


def _common_text(old: bytes, new: bytes) -> tuple[int, int]:
    """How many bytes of two different texts are the same at both ends, cut back to whole cells.

    The first part ends before a cell's bracket, the second begins with the comma after another's.
    """
    n = min(len(old), len(new))
    differ = np.frombuffer(old, np.uint8, n) != np.frombuffer(new, np.uint8, n)
    first = _first(differ)
    cut = new.rfind(_BETWEEN, 0, first)
    head = cut + 2 if cut >= 0 else 0
    most = n - head
    differ = np.frombuffer(old, np.uint8, most, len(old) - most) != np.frombuffer(
        new, np.uint8, most, len(new) - most
    )
    same = _first(differ[::-1])
    cut = new.find(_BETWEEN, len(new) - same) if same else -1
    return head, len(new) - cut - 1 if cut >= 0 else 0


def _first(flags: NDArray[np.bool_]) -> int:
    """The first that is set; how many there are, if none is."""
    at = int(flags.argmax()) if flags.size else 0
    return at if flags.size and flags[at] else flags.size


def _is_plain(text: bytes, cells: Cells) -> bool:
    """Whether every separator in the text stands between two of its cells, none inside one.

    Without strings and blanks, what stands between two lists is a separator; so there are no others if there
    are as many as that.
    """
    return (
        text.count(_BETWEEN) + 1 == len(cells)
        and set(map(type, cells)) == {list}
        and not any(byte in text for byte in (b'"', b" ", b"\t", b"\r"))
    )
