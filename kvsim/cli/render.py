"""``kvsim render``: a recording as a page, a film or a still."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from kvsim.cli.terminal import check_writable, fail, keep_input, stderr, stdout
from kvsim.errors import KvsimError
from kvsim.render import Wanted, render
from kvsim.trace import read_trace


class Theme(Enum):
    LIGHT = "light"
    DARK = "dark"


def render_command(
    trace: Annotated[Path, typer.Argument(help="A trace: .jsonl or .jsonl.gz.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="What to write: .html, .gif, .mp4, .png or .svg.")],
    at: Annotated[
        str, typer.Option(metavar="N|N-M", help="An operation; for films the first and last.")
    ] = "",
    speed: Annotated[float, typer.Option(help="Films: 2 is twice as fast.")] = 1.0,
    size: Annotated[str, typer.Option(metavar="W|WxH", help="Films and stills: pixels.")] = "1280",
    theme: Annotated[Theme, typer.Option(help="Films and stills; a page follows its reader.")] = Theme.LIGHT,
) -> None:
    """Make a page, a film or a still of a recording, by the ending of its name.

    .html is one file with the animated player: it opens without a network, also inside a lecture's page.
    .gif and .mp4 (which needs ffmpeg) play operations N to M; .png and .svg show operation N.
    Exit status 2: a recording or a wish that cannot be used.
    """
    first, last = _operations(at)
    width, height = _pixels(size)
    if out.suffix in (".png", ".svg") and last is None and at:
        last = first
    keep_input(trace, out)
    check_writable(out)
    wanted = Wanted(first, last, speed, width, height, theme.value)
    try:
        with stderr().status(f"making {out}") as status:
            render(read_trace(trace), out, wanted, lambda n: status.update(f"making {out}: {n:,} operations"))
    except KvsimError as error:
        fail(error)
    stdout().print(f"{out}: {out.stat().st_size:,} bytes")


def _operations(text: str) -> tuple[int, int | None]:
    """``15`` and ``15-18`` as first and last."""
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text or "0", re.ASCII)
    if match is None:
        fail(f"--at {text!r} is no operation; write one like 15, or the first and last like 15-18")
    return int(match[1]), int(match[2]) if match[2] else None


def _pixels(text: str) -> tuple[int, int | None]:
    """``1280x800`` and ``1280`` as width and height; the latter as high as needed."""
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text, re.ASCII)
    if match is None:
        fail(f"--size {text!r} is not a size; write a width like 1280, or both like 1280x800")
    return int(match[1]), int(match[2]) if match[2] else None
