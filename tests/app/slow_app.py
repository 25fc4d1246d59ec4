"""The app, reading and comparing uploads as slowly as a test wants: a script for ``streamlit run``."""

from __future__ import annotations

import runpy
from pathlib import Path

from app.recordings import Opening
from app.replaying import checking
from app.views import replay_check
from tests.app.held import dawdle

PER_OPERATION = 0.25
"""Seconds, long enough for a test on a busy machine to act before all is read."""


class SlowTask(checking.Task):
    def __init__(self, job: dict, module: str, longest: float) -> None:
        slow = module if module == "app.replaying.worker" else "tests.app.slow_checker"
        super().__init__(job, slow, longest)


def slow_advance(self: Opening) -> bool:
    dawdle("reading", PER_OPERATION)
    return Opening.quick_advance(self)


if not hasattr(Opening, "quick_advance"):  # Streamlit runs this script again and again
    Opening.quick_advance, Opening.advance = Opening.advance, slow_advance
    checking.Task = SlowTask
    replay_check.PROGRESS_AFTER = 0.0

runpy.run_path(str(Path(__file__).parents[2] / "app" / "main.py"), run_name="__main__")
