"""A recording being held against our own reference, beside the server."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from app.check import Check
from app.task import Task

LONGEST = 900.0
"""Seconds a recording may take, reading and checking together."""


class Checking:
    """Begins at once. What has been found comes later and stays."""

    def __init__(self, job: dict[str, Any], module: str) -> None:
        self.name = job["name"]
        self._task = Task(job, module, LONGEST)

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

    @property
    def so_far(self) -> Check:
        """What has been found up to now, without notes."""
        told = self._task.of_kind("compared")
        return Check(told[-1]["done"], told[-1]["differences"], told[-1]["first"]) if told else Check()

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
            yield self.so_far
        yield self.checked


class UploadChecking(Checking):
    """Of the first ``n_steps`` operations of an upload, which is in a file of its own for as long."""

    def __init__(self, name: str, data: bytes, n_steps: int) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="kvsim-")  # noqa: SIM115 - it goes with this object
        self._file.write(data)
        self._file.flush()
        job = {"job": "check", "name": name, "path": self._file.name, "n_steps": n_steps}
        super().__init__(job, "app.replaying.checker")
        weakref.finalize(self, self._task.cancel)  # when the session is over
