"""Write the logs of fixtures/logs: sessions on the real llama.cpp, with everything that it prints.

    PYTHONPATH=tests/unit:tests/live python tests/live/capture_logs.py

Left out are the many lines about tensors being loaded and graphs being reserved.
"""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from log_sessions import LOGS, SESSIONS, LogSession

from kvsim.lanes.session import CELLS_DEBUG, Session
from kvsim.models.context_params import ContextParams
from kvsim.models.tiny import write_tiny

_LEFT_OUT = re.compile(
    r"create_tensor|graph_n_input_tensors|graph_reserve|_reserve: |load_tensors|print_info: f_"
    r"|loader: - kv|^\.$|loaded meta data|resolve_fused|update_chat|^\n$"
)


class LoggingSession(Session):
    """A session that prints its cells as a level of LLAMA_KV_CACHE_DEBUG says, and keeps all that is said."""

    def __init__(self, model: Path, params: ContextParams, level: int) -> None:
        self.level = level
        self.entries: list[tuple[int, str]] = []
        super().__init__(None, model, params, debug=True, faults=False)

    def _log(self, level: int, text: Any, user: Any) -> None:
        super()._log(level, text, user)
        self.entries.append(self.lines[-1])

    def _make_context(self, asked: ContextParams, faults: bool) -> Any:
        os.environ[CELLS_DEBUG] = str(self.level)  # read when the caches are made
        return super()._make_context(asked, faults)


def captured(session: LogSession, model: Path, level: int) -> str:
    """The log of a session at a level of LLAMA_KV_CACHE_DEBUG."""
    live = LoggingSession(model, session.params, level)
    for op in session.ops:
        live.perform(op.op, op.args)
    return "".join(text for _, text in live.entries if not _LEFT_OUT.search(text))


def log_name(name: str, level: int) -> str:
    return f"{name}-debug{level}.log.gz"


def main() -> None:
    LOGS.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        for name, session in SESSIONS.items():
            model = Path(folder) / f"{session.model}.gguf"
            write_tiny(session.model, model)
            for level in session.levels:
                text = captured(session, model, level)
                with gzip.GzipFile(LOGS / log_name(name, level), "wb", mtime=0) as file:
                    file.write(text.encode())


if __name__ == "__main__":
    main()
