"""kvsim: an executable reference of llama.cpp's memory family, in numpy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.render.notebook import Display
    from kvsim.trace import Trace

__version__ = "0.1.0"


def display(trace: Trace | str | os.PathLike[str], at: int = 0, height: int = 620) -> Display:
    """Show a recording in a notebook: the player, opened at operation ``at``, ``height`` pixels high.

    ``trace`` is a path or what :func:`kvsim.trace.read_trace` gave. The player is part of the notebook: it
    works without a server and where kvsim is not installed. Raises :class:`~kvsim.errors.TraceError` if the
    recording cannot be read or has no operation ``at``.
    """
    from kvsim.render.notebook import Display

    return Display(trace, at, height)
