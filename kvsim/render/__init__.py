"""Recordings as files: a page with the player, a film, a still.

``render`` chooses by the file's ending. Pages need numpy only; films and stills matplotlib
(``pip install 'kvsim[app]'``), MP4 also an installed ffmpeg.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvsim.errors import KvsimError
from kvsim.trace import Trace

ENDINGS = (".html", ".gif", ".mp4", ".png", ".svg")
SMALLEST, LARGEST = 160, 4096


@dataclass(frozen=True)
class Wanted:
    """What a file shall show: operations ``first`` to ``last`` (None: all), at ``speed`` times the usual
    pace, ``width`` x ``height`` pixels (None: as high as needed), in the theme ``light`` or ``dark``.
    """

    first: int = 0
    last: int | None = None
    speed: float = 1.0
    width: int = 1280
    height: int | None = None
    theme: str = "light"


def render(
    trace: Trace,
    out: str | os.PathLike[str],
    wanted: Wanted,
    progress: Callable[[int], object] = lambda _: None,
) -> None:
    """Write ``trace`` to ``out`` as its ending says: .html, .gif, .mp4, .png or .svg.

    A page holds the whole recording and opens at ``wanted.first``, a still shows ``wanted.last``, a film all
    between them. ``progress`` is told the operations done. Raises KvsimError for an unknown ending, a wish
    that cannot be met or a missing library, TraceError for a recording that cannot be read; the file is
    written only when all of it is made.
    """
    path = Path(out)
    _check(path, wanted)
    if path.suffix == ".html":
        from kvsim.render.html import html_page

        data = html_page(trace, wanted.first, progress).encode()
    elif path.suffix in (".png", ".svg"):
        from kvsim.render.still import still

        data = still(trace, wanted, path.suffix[1:])
    elif path.suffix == ".gif":
        from kvsim.render.film import gif

        data = gif(trace, wanted, progress)
    else:
        from kvsim.render.film import mp4

        data = mp4(trace, wanted, progress)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise KvsimError(f"{path}: cannot be written: {error.strerror}") from None


def _check(path: Path, wanted: Wanted) -> None:
    if path.suffix not in ENDINGS:
        raise KvsimError(f"{path}: the ending says what to make; use one of {', '.join(ENDINGS)}")
    for name, pixels in (("width", wanted.width), ("height", wanted.height)):
        if pixels is not None and not SMALLEST <= pixels <= LARGEST:
            raise KvsimError(f"a {name} of {pixels} is not possible: {SMALLEST} to {LARGEST} pixels are")
    if not 0.1 <= wanted.speed <= 100:
        raise KvsimError(f"a speed of {wanted.speed:g} is not possible: 0.1 to 100 are")
    if wanted.last is not None and wanted.last < wanted.first:
        raise KvsimError(f"operations {wanted.first}-{wanted.last}: the last comes before the first")
