"""The player in a notebook."""

from __future__ import annotations

import html
import os

from kvsim.render.html import html_page
from kvsim.trace import Trace, read_trace


class Display:
    """A recording that notebooks show as the player: an iframe with the whole page inside, no server."""

    def __init__(self, trace: Trace | str | os.PathLike[str], at: int = 0, height: int = 620) -> None:
        opened = trace if isinstance(trace, Trace) else read_trace(trace)
        self.height = height
        self.page = html_page(opened, at, height=f"{height}px")

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {self.height}px; border: 0"
        frame = f'<iframe title="kvsim" sandbox="allow-scripts" style="{style}"'
        return f'{frame} srcdoc="{html.escape(self.page)}"></iframe>'
