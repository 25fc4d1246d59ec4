"""Reading typed fields from a JSON record, with errors that say where and what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvsim.errors import TraceError

MAX_WIDTH = 2**24
"""No row, head count or layer size in a header is larger than this; more is damage, not a model."""


class Record:
    """A JSON object and where it stands (``config.hparams.layers[3]``)."""

    def __init__(self, data: object, where: str) -> None:
        if not isinstance(data, Mapping):
            raise TraceError(f"{where} must be an object, not {type(data).__name__}")
        self.data = data
        self.where = where

    def _get(self, key: str, default: object) -> object:
        value = self.data.get(key, default)
        if value is None:
            raise TraceError(f"{self.where}.{key} is missing")
        return value

    def fail(self, key: str, reason: str) -> TraceError:
        return TraceError(f"{self.where}.{key} {reason}")

    def integer(self, key: str, lo: int = 0, hi: int = MAX_WIDTH, default: int | None = None) -> int:
        """An integer in [lo, hi]."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, f"must be an integer, not {value!r}")
        if not lo <= value <= hi:
            raise self.fail(key, f"= {value} is out of range [{lo}, {hi}]")
        return value

    def number(self, key: str) -> float:
        """A finite number."""
        value = self._get(key, None)
        if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
            raise self.fail(key, f"must be a number, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """true or false (0 and 1 stand for them too)."""
        value = self._get(key, default)
        if not isinstance(value, int) or value not in (0, 1):
            raise self.fail(key, f"must be true or false, not {value!r}")
        return bool(value)

    def text(self, key: str) -> str:
        value = self._get(key, None)
        if not isinstance(value, str):
            raise self.fail(key, f"must be a string, not {value!r}")
        return value

    def items(self, key: str) -> list[Any]:
        value = self._get(key, None)
        if not isinstance(value, list):
            raise self.fail(key, f"must be a list, not {type(value).__name__}")
        return value

    def record(self, key: str) -> Record:
        return Record(self._get(key, None), f"{self.where}.{key}")

    def records(self, key: str) -> Iterator[Record]:
        for i, item in enumerate(self.items(key)):
            yield Record(item, f"{self.where}.{key}[{i}]")

    def must_equal(self, key: str, expected: object, why: str) -> None:
        """A redundant field agrees with what the others say; absent is fine."""
        value = self.data.get(key, expected)
        if value != expected:
            raise self.fail(key, f"= {value!r} contradicts {why}, which gives {expected!r}")
