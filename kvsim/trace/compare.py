"""Comparing a recorded step with a computed one, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvsim.trace.read import Step


class Missing:
    """Stands for a value that one side does not have."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = Missing()


@dataclass(frozen=True)
class Difference:
    """One field on which two steps differ.

    ``path`` reads like ``after.caches.swa[0].cells[37]``: the number of a cell is its index in the
    cache. ``recorded`` and ``computed`` are the two values, :data:`MISSING` where a side has none.
    """

    path: str
    recorded: Any
    computed: Any

    def __str__(self) -> str:
        return f"{self.path}: recorded {_short(self.recorded)}, computed {_short(self.computed)}"


def compare_step(recorded: Step, computed: Step) -> list[Difference]:
    """Every field in which the two differ, in the order of the format; empty if they agree.

    Compared are the return value, the ubatches, the whole picture, and of ``extra`` (the size of a
    saved state, ...) what the computed step has. Raises ValueError if the steps are not of one operation.
    """
    if (recorded.i, recorded.op, recorded.args) != (computed.i, computed.op, computed.args):
        raise ValueError(
            f"step {recorded.i} ({recorded.op}) cannot be compared with step {computed.i} ({computed.op})"
        )
    extra = {key: recorded.extra.get(key, MISSING) for key in computed.extra}
    return [
        *_differences("ret", recorded.ret, computed.ret),
        *_differences("ubatches", recorded.ubatches, computed.ubatches),
        *_differences("after", recorded.after, computed.after),
        *_differences("extra", extra, computed.extra),
    ]


def _differences(path: str, a: Any, b: Any) -> Iterator[Difference]:
    if a == b:
        return
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            inner = f"{path}[{key}]" if key.isdigit() else f"{path}.{key}"
            yield from _differences(inner, a.get(key, MISSING), b.get(key, MISSING))
    elif isinstance(a, list) and isinstance(b, list) and path.endswith(".cells"):
        cells_a, cells_b = ({cell[0]: cell for cell in cells} for cells in (a, b))
        for index in sorted({*cells_a, *cells_b}):
            one, other = cells_a.get(index, MISSING), cells_b.get(index, MISSING)
            if one != other:
                yield Difference(f"{path}[{index}]", one, other)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _differences(f"{path}[{i}]", one, other)
    else:
        yield Difference(path, a, b)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
