"""A real browser for the app's tests, and the app to point it at."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def chromium() -> str:
    """The path of an installed browser; fails the test with a clear message if there is none."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.fail(f"the browser tests need one of {', '.join(NAMES)} on the PATH, or its path in CHROMIUM")
    return found


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=ARGS)
        yield opened
        opened.close()


def new_page(opened: Browser, errors: list[str], **options: object) -> Page:
    """A page of its own context that notes every script error in ``errors``."""
    options = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "no-preference", **options}
    page = opened.new_context(**options).new_page()
    page.set_default_timeout(90_000)  # a busy machine takes its time; nothing waits longer than it must
    page.on("pageerror", lambda error: errors.append(str(error)))
    return page


@contextlib.contextmanager
def app() -> Iterator[str]:
    """The app on a free port; gives its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app/main.py", "--server.headless=true"]
    command += [f"--server.port={port}", "--server.address=127.0.0.1", "--server.fileWatcherType=none"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(f"{url}/_stcore/health", process)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _wait(url: str, process: subprocess.Popen, limit: float = 90) -> None:
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if process.poll() is not None:
            pytest.fail(f"the app ended with status {process.returncode} before it answered")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    pytest.fail(f"the app did not answer within {limit} s")
