"""The frames of a recording: each operation with the pictures before and after it, and its words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvsim.changes import OwnerTable, Picture, PictureReader
from kvsim.errors import TraceError
from kvsim.narrate import Narration, narrate
from kvsim.trace import Step, Trace


@dataclass(frozen=True)
class Frame:
    """One operation of a recording. ``before`` is None for the first."""

    step: Step
    words: Narration
    before: Picture | None
    after: Picture
    owners: OwnerTable


def frames_of(trace: Trace, first: int, last: int | None) -> Iterator[Frame]:
    """The frames of operations ``first`` to ``last``, both included, in order; ``last`` None: to the end.

    Raises TraceError if the recording ends before them, or cannot be read.
    """
    reader, before, i = PictureReader(trace.header), None, -1
    for i, step in enumerate(trace):
        after = reader.read(step.after)
        if i >= first:
            words = narrate(step, before, after, reader.owners, trace.header)
            yield Frame(step, words, before, after, reader.owners)
        if i == last:
            return
        before = after
    if last is not None or i < first:
        missing = first if i < first else last
        raise TraceError(f"there is no operation {missing}; the trace has 0 to {i}", trace.path)
