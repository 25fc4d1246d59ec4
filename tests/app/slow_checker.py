"""As ``app.replaying.checker``, slowly."""

from __future__ import annotations

from collections.abc import Iterator

from app.check import Check, check
from app.replaying import worker
from app.worker import serve
from kvsim.trace import Trace
from tests.app.held import dawdle

SECONDS = 120.0
"""For all operations together, however many they are."""


def slow_check(trace: Trace, n_steps: int) -> Iterator[Check]:
    for result in check(trace, n_steps):
        dawdle("comparing", SECONDS / n_steps)
        yield result


if __name__ == "__main__":
    worker.check = slow_check
    serve({"check": worker.checking})
