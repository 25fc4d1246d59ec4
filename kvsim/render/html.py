"""A recording as one HTML file with the player."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from kvsim.errors import KvsimError, TraceError
from kvsim.player.notes import notes_of
from kvsim.player.page import page
from kvsim.player.payload import Packer
from kvsim.trace import Trace


def html_page(
    trace: Trace,
    at: int = 0,
    progress: Callable[[int], object] = lambda _: None,
    theme: str = "auto",
    height: str = "100vh",
) -> str:
    """The page, opened at operation ``at``, with the hazards a replay meets.

    ``progress`` is told the operations done. Raises TraceError if the recording cannot be read or has no
    operation ``at``.
    """
    packer = Packer(trace.header, trace.path.rsplit("/", 1)[-1].split(".")[0])
    for step in trace:
        packer.add(step)
        progress(len(packer.steps))
    if at >= len(packer.steps):
        reason = f"there is no operation {at}; the trace has 0 to {len(packer.steps) - 1}"
        raise TraceError(reason, trace.path)
    return page(packer.payload(), at, theme, height, _notes(trace))


def _notes(trace: Trace) -> dict[int, dict[str, object]]:
    """What a replay met, as far as kvsim can replay the recording; it can be shown all the same."""
    notes: dict[int, dict[str, object]] = {}
    with contextlib.suppress(KvsimError):
        notes.update(notes_of(trace))
    return notes
