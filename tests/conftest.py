"""For all tests: Hypothesis's settings, and the order of files.

Hypothesis takes fixed examples where CI=true, so that a run can be repeated; random ones elsewhere. No deadline
for single examples: machines are noisy.
"""

import os

import pytest
from hypothesis import settings

settings.register_profile("kvsim", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("kvsim"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "kvsim")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that drive a browser come first: begun last, a long one would keep a process waiting for the other."""
    with_browser = {item.path for item in items if item.get_closest_marker("browser")}
    items.sort(key=lambda item: item.path not in with_browser)
