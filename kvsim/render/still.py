"""One operation of a recording as a picture: vector (SVG) or pixels (PNG)."""

from __future__ import annotations

from kvsim.render import Wanted
from kvsim.render.colours import Colours
from kvsim.render.frames import frames_of
from kvsim.render.sheet import Sheet
from kvsim.trace import Trace


def still(trace: Trace, wanted: Wanted, form: str) -> bytes:
    """The operation ``wanted.last`` (None: the last of all) as ``png`` or ``svg``.

    Raises TraceError if the recording cannot be read or has no such operation.
    """
    *_, frame = frames_of(trace, wanted.last or 0, wanted.last)
    sheet = Sheet(wanted.width, wanted.height, Colours(wanted.theme), [frame])
    return sheet.draw(frame).file(form)
