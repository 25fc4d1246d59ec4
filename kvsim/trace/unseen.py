"""What a recording of the live library cannot show, taken out of a computed step before comparing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvsim.trace.header import Header
from kvsim.trace.read import Step

LIVE_UNSEEN = ("ubatches", "shift", "tok", "x", "y", "pending_copies", "rs_idx", "idx_stale")
"""What no operation of the public interface shows: of cells, of the picture, of a decode."""

_NEUTRAL = (0, -1, 0, 0)
"""Shift, token, x and y of a cell that shows none."""


def as_seen(header: Header, recorded: Step, computed: Step) -> Step:
    """The computed step with as much in it as the recorded one shows.

    The same step, unless the recording is of the live library (``config.live``). Streams that are marked as
    unseen are taken from the recording; a cell whose owners are unknown there (none) has none here.
    """
    if "live" not in header.config:
        return computed
    unseen = recorded.after.get("unseen", {})
    caches = {
        name: [
            recorded.after["caches"][name][s]
            if s in unseen.get(name, ())
            else _stream(stream, recorded.after["caches"][name][s])
            for s, stream in enumerate(streams)
        ]
        for name, streams in computed.after["caches"].items()
    }
    after = {"caches": caches, "recurrent": recorded.after["recurrent"], "pos": computed.after["pos"]}
    if "unseen" in recorded.after:
        after["unseen"] = unseen
    return replace(computed, ubatches=recorded.ubatches, after=after)


def _stream(computed: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    unknown = {cell[0] for cell in recorded["cells"] if not cell[2]}
    # a cell at position -1 passes for empty in all that the library shows
    cells = [
        [i, pos, [] if i in unknown else owners, *_NEUTRAL]
        for i, pos, owners, *_ in computed["cells"]
        if pos >= 0
    ]
    return {**computed, "has_shift": False, "cells": cells}
