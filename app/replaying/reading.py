"""A bundled recording being read and then held against our own reference, once for all users."""

from __future__ import annotations

import threading
from functools import cached_property
from pathlib import Path

from app.recordings import Opened, path_of
from app.replaying.checking import Checking
from kvsim.errors import TraceError
from kvsim.trace import Header


class Reading(Checking):
    """Begins at once. What has been found comes later and stays."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__({"job": "replay", "name": name, "path": str(path)}, "app.replaying.worker")

    def wait(self, seconds: float) -> bool:
        """Wait until it has been read, at most so long; whether it has."""
        return self._task.hear(("opened",), seconds)

    @cached_property
    def opened(self) -> Opened:
        """The recording, once it has been read. Raises TraceError if that was ended before."""
        told = self._task.of_kind("opened")
        if not told:
            raise TraceError(self._task.error or "the reading was ended", self.name)
        one = told[0]
        return Opened(
            self.name,
            Header.from_json(one["header"]),
            one["payload"],
            one["n_steps"],
            one["error"],
            telling=one["telling"],
        )


_readings: dict[str, Reading] = {}
_begins = threading.Lock()


def reading_of(name: str) -> Reading:
    """The reading of a bundled recording, the same for all users; begun if nobody has opened it yet."""
    with _begins:
        if name not in _readings or _readings[name].failed:
            _readings[name] = Reading(name, path_of(name))
        return _readings[name]
