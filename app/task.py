"""Work that takes long, in a process of its own: what it has told so far, and a way to end it.

A thread of the server that computes would hold up every other user; a process beside it does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
AT_ONCE = 2
"""Jobs of one kind of worker that run at a time, of all sessions together; more wait for their turn."""

LONGEST = 180.0
"""Seconds after which a job is ended."""

_turns: defaultdict[str, threading.BoundedSemaphore] = defaultdict(
    lambda: threading.BoundedSemaphore(AT_ONCE)
)


class Waiter:
    """Who waits for tasks: a session keeps one for as long as it is open."""


class Task:
    """Starts a job in a process of its own, which runs ``module`` for at most ``longest`` seconds. ``told`` grows
    while it runs; ``state`` is ``waiting``, ``running``, ``done``, ``cancelled`` or ``failed`` (then ``error``
    says why). The ``trace`` of a job, which may be large, is not kept once it is sent; files that the process
    leaves behind are deleted, however it ends."""

    def __init__(
        self, job: dict[str, Any], module: str = "app.compare.worker", longest: float = LONGEST
    ) -> None:
        self.job = job
        self.module = module
        self.longest = longest
        self.told: list[dict[str, Any]] = []
        self.state = "waiting"
        self.error = ""
        self._wanted_by: weakref.WeakSet[Waiter] = weakref.WeakSet()
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.RLock()  # a waiter may be freed, and leave, wherever memory is asked for
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        return self.state not in ("waiting", "running")

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """What was told of one kind, in order."""
        return [message for message in list(self.told) if message["kind"] == kind]

    def hear(self, kinds: Collection[str], seconds: float) -> bool:
        """Wait until one of these kinds was told or it is over, at most so long; whether that came."""

        def heard() -> bool:
            return self.over or any(message["kind"] in kinds for message in self.told)

        with self._news:
            return self._news.wait_for(heard, seconds)

    def say(self, line: str) -> None:
        """A word to the process while it runs; one that is over does not hear it."""
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                process.stdin.write(f"{line}\n")
                process.stdin.flush()

    def join(self, who: Waiter) -> bool:
        """``who`` wants it too, until it leaves or is no more; False if it has been ended, or failed."""
        with self._lock:
            if self.state in ("cancelled", "failed"):
                return False
            self._wanted_by.add(who)
        weakref.finalize(who, _waiter_is_gone, weakref.ref(self))
        return True

    def leave(self, who: Waiter) -> None:
        """``who`` does not want it any more; if nobody else does, it ends."""
        with self._lock:
            self._wanted_by.discard(who)
        self._end("cancelled", unless_wanted=True)

    def cancel(self) -> None:
        """End it; what it has told stays."""
        self._end("cancelled")

    def wait(self, seconds: float) -> None:
        """Wait until it is over, at most so long."""
        self._thread.join(seconds)

    def _end(self, state: str, error: str = "", unless_wanted: bool = False) -> None:
        with self._lock:
            if unless_wanted and list(self._wanted_by):  # its length may count one that is no more
                return
            if not self.over:
                self.error, self.state = error, state
            if self._process is not None and self._process.poll() is None:
                self._process.kill()
        self._tell()

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()

    def _run(self) -> None:
        with _turns[self.module], tempfile.TemporaryDirectory("-job", ignore_cleanup_errors=True) as folder:
            with self._lock:
                if self.over:
                    return
                self.state = "running"
                self._process = _start(self.module, folder)
            too_long = f"it took longer than {self.longest:.0f} s"
            limit = threading.Timer(self.longest, self._end, ["failed", too_long])
            limit.start()
            try:
                self._listen(self._process)
            finally:
                limit.cancel()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.say(json.dumps(self.job))
        self.job.pop("trace", None)
        for line in process.stdout:
            if not line.endswith("\n"):
                break  # it was ended in the middle of a message
            message = json.loads(line)
            if message["kind"] == "error":
                self.error = message["text"]
            if message.pop("instead", False):  # of what was told of its kind before
                self.told = [other for other in self.told if other["kind"] != message["kind"]]
            self.told.append(message)
            self._tell()
        status = process.wait()
        with contextlib.suppress(OSError):
            process.stdin.close()
        if status and not self.error:
            how = f"it was ended by signal {-status}" if status < 0 else f"it ended with {status}"
        else:
            how = self.error
        self._end("failed" if how else "done", how)


def _waiter_is_gone(task: weakref.ref[Task]) -> None:
    left = task()
    if left is not None:
        left._end("cancelled", unless_wanted=True)


def _start(module: str, folder: str) -> subprocess.Popen[str]:
    """Run ``module``, whose temporary files go to ``folder``."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(paths),
        "TMPDIR": folder,
    }
    command = [sys.executable, "-m", module]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env, cwd=ROOT)
