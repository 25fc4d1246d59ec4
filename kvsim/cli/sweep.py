"""``kvsim sweep``: many simulations, on this machine or on a cluster."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from kvsim.cli.terminal import counted, fail, stdout
from kvsim.errors import KvsimError
from kvsim.narrate.words import count


def sweep_command(
    spec: Annotated[Path, typer.Argument(help="What to vary, in YAML: see docs/workloads.md.")],
    out: Annotated[Path, typer.Option(help="Folder of results; what is in it is not done again.")],
    processes: Annotated[int, typer.Option(help="Processes; 0: one per core.", min=0)] = 0,
    ray: Annotated[str, typer.Option(metavar="ADDRESS", help="A Ray cluster; local starts one here.")] = "",
) -> None:
    """Simulate every configuration of a sweep and write one table, results.parquet.

    Exit status 2: a file or a setting that cannot be used, or workers that keep dying.
    """
    from kvsim.workload.sweep import read_spec, sweep

    if ray and processes:
        fail("--processes changes nothing with --ray, whose cluster has processors of its own: leave it out")
    try:
        jobs = read_spec(spec)
        with counted("simulations", len(jobs)) as report:
            done = itertools.count(1)
            table = sweep(jobs, out, processes or os.cpu_count() or 1, ray, lambda job: report(next(done)))
    except KvsimError as error:
        fail(error)
    stdout().print(Text(f"{count(len(jobs), 'simulation')}: {table}"))
