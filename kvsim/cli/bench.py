"""``kvsim bench``: how fast the reference is, as ratios of one run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kvsim.bench.measure import NOTHING, Row, in_words
from kvsim.cli.terminal import fail, stderr, stdout
from kvsim.errors import KvsimError

SMALLEST = 1024
WIDTH = 170
"""Columns of the table; a narrower terminal wraps lines rather than loses figures."""


class Part(Enum):
    """What is measured."""

    CELLS = "cells"
    TENSORS = "tensors"
    ENGINE = "engine"
    TRACE = "trace"
    CAMPAIGN = "campaign"
    APP = "app"


USERS = 30
COMPARED = (Part.CELLS, Part.TENSORS, Part.ENGINE)
MEANT_FOR = {"--size": (*COMPARED, Part.TRACE), "--lib": COMPARED, "--users": (Part.APP,)}


def bench_command(
    part: Annotated[
        Part,
        typer.Argument(
            help="cells: operations on cells; tensors: on rows; engine: torch; trace: opening a recording; "
            "campaign: an operation of kvsim difftest; app: its pages in a browser, and many users at once."
        ),
    ],
    size: Annotated[
        int | None,
        typer.Option(help="Cells of the cache; else 131,072, in a recording 8,192.", min=SMALLEST),
    ] = None,
    lib: Annotated[Path | None, typer.Option(help="llama.cpp's shared library to compare with.")] = None,
    users: Annotated[int, typer.Option(help="Of the app, at once; 0: the pages alone.", min=0)] = USERS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Measure kvsim beside llama.cpp's library, plain copies of the same rows, torch, parsing JSON, or a page
    of Streamlit's own.

    Every ratio is of medians measured in the same run. One thread is used for each side; set
    OMP_NUM_THREADS=1 so that numpy's matrix products keep to it too.
    """
    given = {"--size": size is not None, "--lib": lib is not None, "--users": users != USERS}
    for name, is_given in given.items():
        if is_given and part not in MEANT_FOR[name]:
            fail(f"{name} changes nothing in kvsim bench {part.value}: leave it out")
    if part is not Part.APP and os.environ.get("OMP_NUM_THREADS") != "1":
        stderr().print("note: OMP_NUM_THREADS is not 1, so matrix products may use several threads")
    # here, so that other commands don't wait for what only this one needs
    from kvsim.bench.campaign import campaign_table
    from kvsim.bench.cells import cells_table
    from kvsim.bench.tensors import tensors_table
    from kvsim.bench.trace import N_CELLS as TRACED
    from kvsim.bench.trace import trace_table
    from kvsim.bench.upstream import upstream_table

    rows: list[Row] = []
    told: list[str] = []
    size = size or (TRACED if part is Part.TRACE else 131_072)
    try:
        if part is Part.ENGINE:
            measured = _engine_table(size, lib)
        elif part is Part.TRACE:
            measured = trace_table(size)
        elif part is Part.CELLS:
            measured = cells_table(size, lib)
        elif part is Part.CAMPAIGN:
            measured = campaign_table()
        elif part is Part.APP:
            measured = _app_table(users, told)
        else:
            measured = chain(tensors_table(size), upstream_table(size // 2, lib))
        with stderr().status("measuring") as status:
            for row in measured:
                rows.append(row)
                status.update(f"measured {row.name}")
    except KvsimError as error:
        fail(error)
    if as_json:
        about: dict[str, Any] = {"users": users, "told": told} if part is Part.APP else {"cells": size}
        about = {} if part is Part.CAMPAIGN else about
        print(json.dumps({"bench": part.value, **about, "rows": [row.to_json() for row in rows]}))
    else:
        out = stdout()
        out.width = max(out.width, WIDTH)
        sized = part not in (Part.APP, Part.CAMPAIGN)
        out.print(table_of(f"{part.value}, {size:,} cells" if sized else part.value, rows))
        for line in told:
            out.print(line, highlight=False)


def _engine_table(size: int, lib: Path | None) -> Iterator[Row]:
    try:
        from engine.bench import engine_table
    except ModuleNotFoundError as error:
        raise KvsimError(f"the engine needs {error.name}: pip install 'kvsim[engine]'") from error
    table: Iterator[Row] = engine_table(size, lib)
    return table


def _app_table(users: int, told: list[str]) -> Iterator[Row]:
    """The pages' rows, then the users'; ``told`` gets what is no row."""
    from kvsim.bench.app import pages_table

    yield from pages_table()
    if not users:
        return
    try:
        from app.load.crowd import crowd_table
    except ModuleNotFoundError as error:
        raise KvsimError(f"users without browsers need {error.name}: pip install 'kvsim[test]'") from error
    yield from crowd_table(users, told.append)


def table_of(title: str, rows: list[Row]) -> Table:
    """The rows as a table for the terminal."""
    table = Table(title=title, title_justify="left")
    table.add_column("operation", no_wrap=True)
    for heading in ("median", "against", "its median", "ratio", "goal"):
        table.add_column(heading, justify="left" if heading == "against" else "right", no_wrap=True)
    table.add_column("held")
    for row in rows:
        reference = NOTHING if row.reference is None else in_words(row.reference)
        held = {True: "yes", False: "no", None: NOTHING}[row.held]
        goal = NOTHING if row.goal is None else str(row.goal)
        table.add_row(row.name, in_words(row.seconds), row.against, reference, ratio_of(row), goal, held)
    return table


def ratio_of(row: Row) -> str:
    """The ratio in the direction of the goal: ``35x faster``, or ``1.3x`` its time."""
    if row.ratio is None:
        return NOTHING
    if row.ratio < 1:
        return f"{1 / row.ratio:.3g}x faster"
    return f"{row.ratio:.3g}x"
