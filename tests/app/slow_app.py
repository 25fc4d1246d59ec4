"""The app, reading and comparing uploads so slowly that a test can watch: a script for ``streamlit run``."""

from __future__ import annotations

import runpy
import time
from pathlib import Path

from app.recordings import Opening
from app.replaying import checking
from app.views import replay_check

PER_OPERATION = 0.05


class SlowTask(checking.Task):
    def __init__(self, job: dict, module: str, longest: float) -> None:
        slow = module if module == "app.replaying.worker" else "tests.app.slow_checker"
        super().__init__(job, slow, longest)


def slow_advance(self: Opening) -> bool:
    time.sleep(PER_OPERATION)
    return Opening.quick_advance(self)


if not hasattr(Opening, "quick_advance"):  # Streamlit runs this script again and again
    Opening.quick_advance, Opening.advance = Opening.advance, slow_advance
    checking.Task = SlowTask
    replay_check.PROGRESS_AFTER = 0.0

runpy.run_path(str(Path(__file__).parents[2] / "app" / "main.py"), run_name="__main__")
