"""A worker that is ended in the middle of a message, as by a system that is out of memory."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from typing import Any

from app.worker import Tell, serve


def die(job: dict[str, Any], tell: Tell) -> None:
    left, path = tempfile.mkstemp()
    os.close(left)
    tell("wrote", path=path)
    sys.stdout.write('{"kind": "never')
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve({"die": die})
