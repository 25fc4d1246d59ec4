"""What llama.cpp shows, as pictures in the trace format: neutral values where it shows nothing.

A picture names under ``unseen`` the streams that a look could not reach; they are as they were seen last.
:func:`kvsim.trace.unseen.seen_part` takes the same out of a picture of ours.
"""

from __future__ import annotations

from typing import Any

from kvsim.lanes.llamacpp import LlamaCpp
from kvsim.trace import Header


class Pictures:
    """Takes pictures of a lane, whose context ``header`` describes."""

    def __init__(self, lane: LlamaCpp, header: Header) -> None:
        self.lane, self.header = lane, header
        self._last: dict[str, list[dict[str, Any]]] = {
            name: [_stream({"head": 0, "used": 0, "cells": []})] * cache["n_stream"]
            for name, cache in header.caches.items()
        }

    def take(self) -> dict[str, Any]:
        """What is held now: ``after`` of the trace format."""
        seen = self.lane.snapshot()
        unseen: dict[str, list[int]] = {}
        for name, streams in self._last.items():
            found = seen["caches"].get(name) or [None] * len(streams)
            hidden = [s for s, stream in enumerate(found) if stream is None]
            if hidden:
                unseen[name] = hidden
            self._last[name] = [
                old if new is None else _stream(new) for old, new in zip(streams, found, strict=True)
            ]
        recurrent = self.header.config["recurrent"]
        if recurrent is not None:
            unseen["recurrent"] = [0]
        after: dict[str, Any] = {
            "caches": dict(self._last),
            "recurrent": recurrent and _no_states(recurrent, self.header.n_seq_max),
            "pos": seen["pos"],
        }
        return {**after, "unseen": unseen} if unseen else after


def _stream(seen: dict[str, Any]) -> dict[str, Any]:
    cells = [[i, pos, list(owners or ()), 0, -1, 0, 0] for i, pos, owners in seen["cells"]]
    return {"head": seen["head"], "used": seen["used"], "has_shift": False, "cells": cells}


def _no_states(recurrent: dict[str, Any], n_seq_max: int) -> dict[str, Any]:
    """A recurrent part of which nothing is known."""
    cells = [[i, -1, -1, -1, -1, []] for i in range(recurrent["size"])]
    numbers = {"head": 0, "size": recurrent["size"], "used": 0, "n": 0, "rs_z": -1}
    return {**numbers, "n_rs_seq": recurrent["n_rs_seq"], "rs_idx": [0] * n_seq_max, "cells": cells}
