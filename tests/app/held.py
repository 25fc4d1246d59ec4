"""What a test holds up: reading or comparing goes slowly for as long as a file of that name is there."""

from __future__ import annotations

import os
import time
from pathlib import Path

FOLDER = "KVSIM_TEST_HELD"
"""The variable that names the folder of these files, in the app and in the processes it starts."""


def dawdle(what: str, seconds: float) -> None:
    """Do nothing for so long, or until the test lets go."""
    held, end = Path(os.environ[FOLDER]) / what, time.monotonic() + seconds
    while held.exists() and time.monotonic() < end:
        time.sleep(0.01)
