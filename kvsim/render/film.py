"""Operations of a recording as a film: GIF by Pillow, MP4 by an installed ffmpeg."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.render import Wanted
from kvsim.render.colours import Colours
from kvsim.render.frames import Frame, frames_of
from kvsim.render.sheet import Sheet
from kvsim.trace import Trace

Pixels = NDArray[np.uint8]

MOVING = (0.12, 0.32, 0.55, 0.78)
"""How far a change has come in the pictures between two operations."""

TURN_MS, REST_MS = 60, 900
RATE = 25  # pictures a second of an MP4


def gif(trace: Trace, wanted: Wanted, progress: Callable[[int], object]) -> bytes:
    """An endless GIF of the wanted operations. Pictures stay as long as they need: few bytes, any speed."""
    from PIL import Image

    images, times = [], []
    for pixels, seconds in _pictures(trace, wanted, progress):
        images.append(Image.fromarray(pixels).convert("P", palette=Image.Palette.ADAPTIVE, colors=128))
        times.append(max(20, round(seconds * 1000)))
    file = io.BytesIO()
    images[0].save(
        file, format="GIF", save_all=True, append_images=images[1:], duration=times, loop=0, optimize=True
    )
    return file.getvalue()


def mp4(trace: Trace, wanted: Wanted, progress: Callable[[int], object]) -> bytes:
    """An MP4 (H.264) of the wanted operations. Raises KvsimError if there is no ffmpeg, or it fails."""
    program = shutil.which("ffmpeg")
    if program is None:
        raise KvsimError("MP4 needs ffmpeg on the PATH; install it, or write a .gif or .html instead")
    pictures = _pictures(trace, wanted, progress)
    first = next(pictures)
    height, width, _ = first[0].shape
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "film.mp4"
        command = [program, "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
        command += ["-s", f"{width}x{height}", "-r", str(RATE), "-i", "-", "-pix_fmt", "yuv420p"]
        # H.264 wants even sides; a film that is to play while it loads has its index in front
        command += ["-vf", "crop=trunc(iw/2)*2:trunc(ih/2)*2", "-movflags", "+faststart", str(target)]
        said = _feed(command, chain([first], pictures))
        if said is not None:
            raise KvsimError(f"ffmpeg failed: {said}")
        return target.read_bytes()


def _feed(command: list[str], pictures: Iterable[tuple[Pixels, float]]) -> str | None:
    """Run ffmpeg on the pictures; None, or the last line of what it said if it failed."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said)
        assert process.stdin is not None
        # ffmpeg may end early; its status tells
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            for pixels, seconds in pictures:
                for _ in range(max(1, round(seconds * RATE))):
                    pipe.write(pixels.tobytes())
        if process.wait() == 0:
            return None
        said.seek(0)
        lines = said.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it gave no reason")


def _pictures(
    trace: Trace, wanted: Wanted, progress: Callable[[int], object]
) -> Iterator[tuple[Pixels, float]]:
    """Pixels and how many seconds they stay: for each operation its change on the way, then its result."""
    frames = list(frames_of(trace, wanted.first, wanted.last))
    sheet = Sheet(wanted.width, wanted.height, Colours(wanted.theme), frames)
    turn, rest = TURN_MS / 1000 / wanted.speed, REST_MS / 1000 / wanted.speed
    for n, frame in enumerate(frames):
        if _moves(frame) and wanted.speed <= 4:
            for share in MOVING:
                yield sheet.draw(frame, share).pixels(), turn
        yield sheet.draw(frame).pixels(), rest * (2 if n == len(frames) - 1 else 1)
        progress(n + 1)


def _moves(frame: Frame) -> bool:
    """Whether any cell changes."""
    before = frame.before
    return before is not None and any(
        old.cells is not new.cells for old, new in zip(before.lanes, frame.after.lanes, strict=True)
    )
