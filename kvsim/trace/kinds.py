"""The kinds of value the format knows, and checking records against tables of them."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from kvsim.errors import TraceError

INT32 = (-(2**31), 2**31 - 1)
_LONGEST_TEXT = 200


@dataclass(frozen=True)
class Kind:
    """A kind of value: the words for it, and whether a value is one."""

    wants: str
    test: Callable[[Any], bool]

    def check(self, value: Any, where: str) -> None:
        """Raise TraceError naming ``where`` if ``value`` is not of this kind."""
        if not self.test(value):
            raise TraceError(f"{where} is {reprlib.repr(value)}, must be {self.wants}")


def integer(low: int, high: int) -> Kind:
    return Kind(f"an integer from {low} to {high}", lambda v: type(v) is int and low <= v <= high)


def integers(low: int, high: int) -> Kind:
    """A list of integers, checked without a Python loop."""
    return Kind(
        f"a list of integers from {low} to {high}", lambda v: type(v) is list and all_within(v, low, high)
    )


def integer_lists(low: int, high: int) -> Kind:
    """A list of lists of integers, checked without a Python loop."""

    def test(value: Any) -> bool:
        if type(value) is not list or not set(map(type, value)) <= {list}:
            return False
        return all_within(list(chain.from_iterable(value)), low, high)

    return Kind(f"a list of lists of integers from {low} to {high}", test)


def all_within(values: Collection[Any], low: int, high: int) -> bool:
    """Whether all values are integers (bool is not) in the closed range."""
    return set(map(type, values)) <= {int} and (not values or (low <= min(values) and max(values) <= high))


def one_of(*values: Any) -> Kind:
    """One of a few constants; True and 1 are different ones."""
    wants = "one of " + ", ".join(map(repr, values))
    return Kind(wants, lambda v: any(type(v) is type(w) and v == w for w in values))


def or_null(kind: Kind) -> Kind:
    return Kind(f"{kind.wants}, or null", lambda v: v is None or kind.test(v))


NULL = one_of(None)
BOOL = Kind("true or false", lambda v: type(v) is bool)
NUMBER = Kind("a number", lambda v: type(v) in (int, float))
COUNT = integer(0, INT32[1])
INT = integer(*INT32)
INTS = integers(*INT32)
INT_LISTS = integer_lists(*INT32)
LIST = Kind("a list", lambda v: isinstance(v, list))
RECORD = Kind("an object", lambda v: type(v) is dict)
TEXT = Kind(
    f"printable text of at most {_LONGEST_TEXT} characters",
    lambda v: type(v) is str and len(v) <= _LONGEST_TEXT and v.isprintable(),
)

Table = Mapping[str, Kind]


def check_record(record: Any, table: Table, where: str, optional: Table | None = None) -> None:
    """Check that ``record`` has the keys of ``table`` with values of their kinds.

    The keys of ``optional`` may be missing.
    """
    RECORD.check(record, where)
    for key, kind in table.items():
        if key not in record:
            raise TraceError(f"{where} has no {key!r}")
        kind.check(record[key], f"{where}.{key}")
    for key, kind in (optional or {}).items():
        if key in record:
            kind.check(record[key], f"{where}.{key}")


def check_keys(record: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuse a key that is not among the ``known``."""
    for key in record:
        if key not in known:
            raise TraceError(f"{where} has an unknown key {reprlib.repr(key)}")


def check_names(record: Any, names: Collection[str], where: str) -> None:
    """Check that ``record`` has exactly these keys, in any order."""
    RECORD.check(record, where)
    if record.keys() != set(names):
        found = ", ".join(reprlib.repr(key) for key in record) or "nothing"
        raise TraceError(f"{where} has {found}, must have {', '.join(names) or 'nothing'}")
