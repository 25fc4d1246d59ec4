"""What a cache does, without saying where anything lies: what the next token of each sequence attends to.

Two allocators that are both right differ in cells and agree in this::

    {"reads": {"kv": {"0": [[0, 17], [1, 18]], "2": [[0, 17]]}}}

Sequence 0 would attend to its tokens at positions 0 and 1, whose ids are 17 and 18. Sequences that would see
nothing are left out. A window is applied, so a cache may forget what no window shows any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from kvsim import window
from kvsim.models.cache_spec import CacheSpec

Reads = dict[str, dict[str, list[list[int]]]]


def behaviour(picture: Mapping[str, Any], caches: Mapping[str, CacheSpec]) -> dict[str, Reads]:
    """The behaviour behind a picture of cells. ``caches`` says what windows the attention caches have."""
    return {"reads": {name: _reads(picture["caches"][name], spec) for name, spec in caches.items()}}


def _reads(streams: list[dict[str, Any]], spec: CacheSpec) -> dict[str, list[list[int]]]:
    held: dict[int, list[list[int]]] = {}
    for stream in streams:
        for _, pos, owners, _, tok, _, _ in stream["cells"]:
            for seq in owners if pos >= 0 else ():
                held.setdefault(seq, []).append([pos, tok])
    seen = {str(seq): _in_window(sorted(held[seq]), spec) for seq in sorted(held)}
    return {seq: tokens for seq, tokens in seen.items() if tokens}


def _in_window(tokens: list[list[int]], spec: CacheSpec) -> list[list[int]]:
    start = window.window_start(spec.swa_type, spec.n_swa, tokens[-1][0] + 1)
    return [token for token in tokens if token[0] >= start]


def normal(picture: Mapping[str, Any]) -> dict[str, Reads]:
    """A subject's own account in the same form: sorted, without empty sequences.

    Raises KeyError, TypeError, AttributeError or ValueError if it is none.
    """
    return {
        "reads": {
            part: {_seq(seq): sorted(map(_token, tokens)) for seq, tokens in reads.items() if tokens}
            for part, reads in picture["reads"].items()
        }
    }


def _seq(name: Any) -> str:
    text = str(name)
    if not (len(text) < 10 and text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r:.40} is no sequence")
    return text


def _token(entry: Any) -> list[int]:
    pos, token = entry
    if not (isinstance(pos, Integral) and isinstance(token, Integral)):
        raise ValueError(f"{entry!r:.40} is no [position, token]")
    return [int(pos), int(token)]
