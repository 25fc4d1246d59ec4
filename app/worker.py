"""The side of a job that works: what runs long runs in a process of its own, which takes one job as a line of
JSON on stdin and tells what it finds, line by line as JSON, on stdout. The page's side is
:class:`app.task.Task`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from kvsim.errors import KvsimError

Tell = Callable[..., None]


def serve(jobs: Mapping[str, Callable[[dict[str, Any], Tell], None]]) -> None:
    """Do the one job that is asked for, by its name under ``job``; an error of ours is told, not raised.

    It gives way to the server, whose pages answer meanwhile.
    """
    if hasattr(os, "nice"):
        os.nice(5)
    job = json.loads(sys.stdin.readline())
    try:
        jobs[job["job"]](job, _tell)
    except KvsimError as error:
        _tell("error", text=str(error))


def _tell(kind: str, **found: Any) -> None:
    sys.stdout.write(json.dumps({"kind": kind, **found}, separators=(",", ":")) + "\n")
    sys.stdout.flush()
