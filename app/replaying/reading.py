"""A bundled recording being read and then held against our own reference, once for all users."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from app.check import Check
from app.compare.task import Task
from app.recordings import Opened, path_of
from kvsim.errors import TraceError
from kvsim.trace import Header

LONGEST = 900.0
"""Seconds a recording may take, reading and checking together."""


class Reading:
    """Begins at once. What has been found comes later and stays."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        job = {"job": "replay", "name": name, "path": str(path)}
        self._task = Task(job, "app.replaying.worker", LONGEST)

    def wait(self, seconds: float) -> bool:
        """Wait until it has been read, at most so long; whether it has."""
        return self._task.hear(("opened",), seconds)

    def wait_checked(self, seconds: float) -> bool:
        """Wait until it has been checked, at most so long; whether it has."""
        return self._task.hear(("checked",), seconds)

    def cancel(self) -> None:
        """It is not wanted any more."""
        self._task.cancel()

    @property
    def failed(self) -> bool:
        """Whether it was ended before it was through."""
        return self._task.state in ("failed", "cancelled")

    @cached_property
    def opened(self) -> Opened:
        """The recording, once it has been read. Raises TraceError if that was ended before."""
        told = self._task.of_kind("opened")
        if not told:
            raise TraceError(self._task.error or "the reading was ended", self.name)
        one = told[0]
        return Opened(
            self.name, Header.from_json(one["header"]), one["payload"], one["n_steps"], one["error"]
        )

    @cached_property
    def checked(self) -> Check:
        """What the check came to, once it is over."""
        told = self._task.of_kind("checked")
        if not told:
            return Check(error=self._task.error or "the check was ended")
        one = told[0]
        return Check(one["done"], one["differences"], one["first"], dict(one["notes"]), one["error"])

    def checks(self) -> Iterator[Check]:
        """How far the check has come, ten times a second, and at last what it came to."""
        while not self.wait_checked(0.1):
            told = self._task.of_kind("compared")
            yield Check(done=told[-1]["done"] if told else 0)
        yield self.checked


_readings: dict[str, Reading] = {}
_begins = threading.Lock()


def reading_of(name: str) -> Reading:
    """The reading of a bundled recording, the same for all users; begun if nobody has opened it yet."""
    with _begins:
        if name not in _readings or _readings[name].failed:
            _readings[name] = Reading(name, path_of(name))
        return _readings[name]
