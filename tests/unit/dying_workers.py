"""Jobs that kill the process they run in; a module of few imports, since every worker imports it."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def die_once(item: str) -> int:
    """Kill the worker the first time; the file remembers."""
    marker = Path(item)
    if marker.suffix == ".kill" and not marker.exists():
        marker.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return len(item)


def die(item: str) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def wrong(item: str) -> int:
    raise ValueError(f"no {item}")
