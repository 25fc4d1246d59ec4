"""A Streamlit app on a free port of this computer, for measuring and for tests."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvsim.errors import KvsimError

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "app" / "main.py"
PATIENCE = 90.0
"""Seconds a server may take to answer."""


@dataclass(frozen=True)
class Served:
    """A running app: its address, and its process."""

    url: str
    pid: int

    def processor(self) -> tuple[float, float] | None:
        """Seconds of processor time of the process and of those it started and that are over; None where the
        system does not tell."""
        with contextlib.suppress(OSError):
            told = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            own, started = sum(map(int, told[11:13])), sum(map(int, told[13:15]))
            return own / os.sysconf("SC_CLK_TCK"), started / os.sysconf("SC_CLK_TCK")
        return None

    def memory(self) -> int | None:
        """Bytes of memory the process holds now, None where the system does not tell."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return None


@contextlib.contextmanager
def served(script: Path = APP) -> Iterator[Served]:
    """Start an app and wait until it answers; it is ended afterwards.

    Raises KvsimError without streamlit, or if the app does not answer.
    """
    if importlib.util.find_spec("streamlit") is None:
        raise KvsimError("the app needs streamlit: pip install 'kvsim[app]'")
    port = _free_port()
    command = [sys.executable, "-m", "streamlit", "run", str(script), "--server.headless=true"]
    command += [f"--server.port={port}", "--server.address=127.0.0.1", "--server.fileWatcherType=none"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=quiet, stderr=quiet)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(f"{url}/_stcore/health", process)
        yield Served(url, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if process.poll() is not None:
            raise KvsimError(f"the app ended with status {process.returncode} before it answered")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise KvsimError(f"the app did not answer within {PATIENCE:.0f} s")
