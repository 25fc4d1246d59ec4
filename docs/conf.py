"""How ``make docs`` builds these pages: Sphinx, MyST for the Markdown, and the docstrings as the API.

Nothing is fetched, neither here nor when a page is read.
"""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # the lessons belong to the app, which need not be installed

project = "kvsim"
author = "the authors of kvsim"
version = release = version_of("kvsim")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.apidoc"]
html_theme = "furo"
html_title = "kvsim"
html_copy_source = False
html_static_path: list[str] = []

myst_heading_anchors = 3

# myst.xref_missing: pages link to folders of the project that are no pages
# ref.python: a field may be called as a builtin is, and a name may be exported by its package too
suppress_warnings = ["myst.xref_missing", "ref.python"]

# what is for users; the commands, the known bugs and the recomputations have pages or help of their own
apidoc_modules = [
    {
        "path": "../kvsim",
        "destination": "api",
        "module_first": True,
        "exclude_patterns": [
            f"../kvsim/{part}"
            for part in (
                "__main__.py",
                "cli",
                "bench",
                "verify",
                "testing/mutants",
                "render/[a-z]*",
                "player",
            )
        ],
    }
]
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}


def setup(app: Any) -> None:
    """The lessons' page is written from the lessons themselves."""
    from app.lessons.page import write_page

    app.connect("builder-inited", lambda _: write_page(Path(__file__).parent))
