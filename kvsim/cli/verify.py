"""``kvsim verify``: recompute what llama.cpp computed, from its recorded inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from kvsim.cli.terminal import DIFFERENT, beside, fail, progress, stdout
from kvsim.narrate.words import count
from kvsim.verify import GoldenError, Result, golden_files, verify_file


def verify_command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Goldens (.npz), or folders of them.")
    ],
    arrays: Annotated[bool, typer.Option("--arrays", help="The largest error of every array.")] = False,
) -> None:
    """Recompute numeric goldens and compare.

    One line a file, and one for each array out of tolerance (with --arrays, or a single file: for each
    array). Exit status 0: all agree, 1: some do not, 2: input that cannot be used.
    """
    try:
        files = golden_files(paths)
        failed = checked = 0
        sizes = [path.stat().st_size for path in files]
        with progress(sum(sizes)) as bar:
            task = bar.add_task("verifying", total=sum(sizes))
            for path, size in zip(files, sizes, strict=True):
                result = verify_file(path)
                _print(beside(bar), result, every=arrays or len(files) == 1)
                checked += len(result.checks)
                failed += not result.ok
                bar.advance(task, size)
    except GoldenError as error:
        fail(error)
    stdout().print(
        Text(
            f"{count(len(files), 'file')}, {count(checked, 'array')}, {count(failed, 'file')} out of tolerance"
        )
    )
    raise typer.Exit(DIFFERENT if failed else 0)


def _print(out: Console, result: Result, every: bool) -> None:
    worst = max((check.max_error for check in result.checks if check.tolerance), default=0.0)
    verdict = "agrees" if result.ok else "DIFFERS"
    line = f"{result.path!s:<60} {len(result.checks):>4} arrays  worst {worst:.1e}  {verdict}"
    out.print(Text(line, style="" if result.ok else "bold red"))
    for check in result.checks:
        if every or not check.ok:
            line = f"    {check.name}: {check.max_error:g}, allowed {check.tolerance:g}"
            out.print(Text(line, style="" if check.ok else "bold red"))
