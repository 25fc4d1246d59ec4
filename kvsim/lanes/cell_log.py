"""What llama.cpp's slot search prints (``LLAMA_KV_CACHE_DEBUG=3``), as records.

Before each search, per stream of the ubatch: a line of counts, the owner of every cell (a digit, ``M`` for
several, ``.`` for none), the position of every cell in five columns, and each sequence's range::

    find_slot: stream[0], n =    10, used =    10, head =    10, size =   512, n_swa =     0
    MMMM000000......
    0    1    2    3    4    5    6    7    8    9    .    .    .    .    .    .

Upstream: ``src/llama-kv-cache.cpp: find_slot``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kvsim.errors import TraceError

_COUNTS = re.compile(
    r"^.*?find_slot: stream\[(\d+)\], n = +(\d+), used = +(\d+), head = +(\d+), size = +(\d+), "
    r"n_swa = +(\d+)$"
)
POS_WIDTH, POS_PER_LINE = 5, 64

SEVERAL = -1
"""The owner of a cell that several sequences share."""


@dataclass
class StreamLog:
    """One stream of one cache, just before a slot was searched."""

    stream: int
    n: int
    used: int
    head: int
    size: int
    n_swa: int
    owners: str = ""
    positions: list[str] = field(default_factory=list)

    def cells(self) -> dict[int, tuple[int, int]] | None:
        """Index -> (position, owner) of the cells that are not empty.

        None if the cells were not printed, or owners with two digits make them ambiguous. Raises TraceError
        if the print is cut short.
        """
        if not self.positions:
            return None
        if len(self.positions) != self.size:
            raise TraceError(f"the slot search printed {len(self.positions)} positions of {self.size} cells")
        if len(self.owners) != self.size:
            return None
        numbers = {"M": SEVERAL}
        return {
            i: (int(pos), numbers[owner] if owner in numbers else int(owner))
            for i, (pos, owner) in enumerate(zip(self.positions, self.owners, strict=True))
            if pos != "."
        }


def read_cell_log(text: str) -> list[StreamLog]:
    """The searches in ``text``, in order; lines that belong to none are passed over."""
    found: list[StreamLog] = []
    for raw in text.split("\n"):
        counts = _COUNTS.match(raw)
        line = raw.removesuffix(" *")
        if counts:
            stream, n, used, head, size, n_swa = map(int, counts.groups())
            found.append(StreamLog(stream, n, used, head, size, n_swa))
        elif not found or not line or len(found[-1].positions) == found[-1].size:
            continue
        elif (
            len(found[-1].owners) < found[-1].size
            and not found[-1].positions
            and re.fullmatch(r"[.M\d]+", line)
        ):
            found[-1].owners += line
        elif re.fullmatch(r"[-.\d ]+", line):
            width = min(len(line), POS_WIDTH * POS_PER_LINE)
            columns = range(0, width, POS_WIDTH)
            found[-1].positions += [line[at : at + POS_WIDTH].strip() for at in columns]
    return found
