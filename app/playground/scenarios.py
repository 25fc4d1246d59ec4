"""A few beginnings for the playground."""

from __future__ import annotations

from app.playground.session import Position
from app.playground.setup import Setup

_TEXTS: dict[str, str] = {
    "two chats, one prompt": """memory llama
        prompt 0 18
        share 0 1
        prompt 1 9
        decode 0 1 x6
        prompt 2 11
        remove 1 24 28
        decode 0 2""",
    "an empty memory": "memory llama",
    "a full cache": """memory llama cells=64
        prompt 0 30
        prompt 1 22
        remove 0 4 12
        prompt 2 24""",
    "a window that forgets": """memory gemma3 cells=64 ubatch=8 window=16
        prompt 0 24
        prompt 1 12
        decode 0 1 x4
        remove 1 10 end""",
    "a context shift": """memory llama cells=64
        prompt 0 40
        remove 0 4 20
        shift 0 20 end -16
        decode 0 x2""",
    "holes to defragment": """memory llama cells=96
        prompt 0 12
        prompt 1 12
        decode 0 1 x8
        remove 0
        defragment classic
        decode 1""",
    "a state with snapshots": """memory lfm2 cells=64 snapshots=2
        prompt 0 20
        speculate 0 2 1
        speculate 0 4 1
        remove 0 18 end""",
    "streams": """memory llama cells=64 sequences=3 unified=no
        prompt 0 20
        share 0 1
        decode 0 1 x3
        prompt 2 9""",
    "compressors of DeepSeek-V4": """memory deepseek4 cells=512 ubatch=64 sequences=2
        prompt 0 150
        decode 0 x6
        prompt 1 40""",
}


def scenario(name: str) -> Position:
    """The position of one of :data:`NAMES`."""
    first, *lines = (line.strip() for line in _TEXTS[name].splitlines())
    return Position.of(Setup.of_line(first), lines)


NAMES = tuple(_TEXTS)
