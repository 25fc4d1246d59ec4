"""``kvsim app``: the web app."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from kvsim.cli.terminal import fail


def app_command(
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TRACE]",
            help="A recording (.jsonl, .jsonl.gz) or a log of llama.cpp (.log, .txt) to open.",
        ),
    ] = None,
) -> None:
    """Open the web app: recordings, cell by cell.

    It runs until Ctrl+C; Streamlit's settings (STREAMLIT_SERVER_PORT, ...) apply.
    """
    if importlib.util.find_spec("streamlit") is None:
        fail("the app needs streamlit: pip install 'kvsim[app]'")
    if trace is not None and not trace.is_file():
        fail(f"{trace}: no such file")
    script = Path(__file__).parents[2] / "app" / "main.py"
    # without the flag, Streamlit's first start waits for an e-mail address
    command = [sys.executable, "-m", "streamlit", "run", str(script), "--server.showEmailPrompt=false"]
    given = {} if trace is None else {"KVSIM_TRACE": str(trace.resolve())}
    try:
        raise typer.Exit(subprocess.run(command, env={**os.environ, **given}, check=False).returncode)
    except KeyboardInterrupt:
        raise typer.Exit from None
