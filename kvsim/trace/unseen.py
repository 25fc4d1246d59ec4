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

    The same step, unless the recording is of the live library (``config.live``).
    """
    if "live" not in header.config:
        return computed
    after = seen_part(recorded.after, computed.after)
    return replace(computed, ubatches=recorded.ubatches, after=after)


def seen_part(seen: dict[str, Any], picture: dict[str, Any]) -> dict[str, Any]:
    """A full picture with as much in it as one of the live library shows.

    Streams that are marked as unseen are taken from what was seen; a cell whose owners are unknown there
    (none) has none here. Of several owners, those beyond the sequences of the context are not shown.
    """
    unseen, n_seq = seen.get("unseen", {}), len(seen["pos"])
    caches = {
        name: [
            seen["caches"][name][s]
            if s in unseen.get(name, ())
            else _stream(stream, seen["caches"][name][s], n_seq)
            for s, stream in enumerate(streams)
        ]
        for name, streams in picture["caches"].items()
    }
    after = {"caches": caches, "recurrent": seen["recurrent"], "pos": picture["pos"]}
    return {**after, "unseen": unseen} if "unseen" in seen else after


def _stream(computed: dict[str, Any], recorded: dict[str, Any], n_seq: int) -> dict[str, Any]:
    unknown = {cell[0] for cell in recorded["cells"] if not cell[2]}
    # a cell at position -1 passes for empty in all that the library shows
    cells = [
        [i, pos, [] if i in unknown else _shown(owners, n_seq), *_NEUTRAL]
        for i, pos, owners, *_ in computed["cells"]
        if pos >= 0
    ]
    return {**computed, "has_shift": False, "cells": cells}


def _shown(owners: list[int], n_seq: int) -> list[int]:
    return owners if len(owners) == 1 else [seq for seq in owners if seq < n_seq]
