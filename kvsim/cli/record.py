"""``kvsim record``: a scenario as a trace, of kvsim's own context or of a real llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from kvsim.cli.terminal import check_writable, fail, keep_input, stderr, stdout
from kvsim.errors import KvsimError
from kvsim.narrate.words import count
from kvsim.scenarios import SHIPPED, load_scenario, record_reference
from kvsim.scenarios.live import record_live
from kvsim.scenarios.run import Unexpected
from kvsim.trace import TraceWriter


def record_command(
    scenario: Annotated[
        str | None, typer.Argument(help="A scenario that ships, or a YAML file (docs/scenarios.md).")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The trace; else the scenario's name with .jsonl.gz."),
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(help="On kvsim's own context: another model, tiny (jamba) or public (gemma3-4b)."),
    ] = None,
    model: Annotated[Path | None, typer.Option(help="On llama.cpp: a model file (GGUF).")] = None,
    lib: Annotated[
        Path | None, typer.Option(help="llama.cpp's shared library; else that of the installed wheel.")
    ] = None,
) -> None:
    """Record a scenario. Without a name, list those that ship.

    With --model (and --lib) it runs on a real llama.cpp, otherwise on kvsim's own context. Answers that are
    not those that the scenario expects are told; other models may give them.
    """
    if scenario is None:
        _list()
        return
    if lib is not None and model is None:
        fail("--lib needs --model: a model file for the library to load")
    if arch is not None and model is not None:
        fail("give either --arch (kvsim's own context) or --model (llama.cpp)")
    target = output or Path(f"{Path(scenario).stem}.jsonl.gz")
    keep_input(Path(scenario), target)
    check_writable(target)
    try:
        asked = load_scenario(scenario)
        if model is not None:
            header, steps = record_live(asked, model, lib, _tell)
        else:
            header, steps = record_reference(asked, arch, _tell)
        with TraceWriter(target, header) as writer:
            n = 0
            for step in steps:
                writer.write(step)
                n += 1
    except (KvsimError, OSError) as error:
        fail(error)
    stdout().print(
        Text(f"{target}: {asked.title}; {count(n, 'operation')} on {header.source}, {header.arch}")
    )


def _tell(unexpected: Unexpected) -> None:
    stderr().print(Text(f"note: {unexpected}"))


def _list() -> None:
    width = max(map(len, SHIPPED))
    for name in SHIPPED:
        shipped = load_scenario(name)
        stdout().print(Text(f"{name:<{width}}  {shipped.title} ({shipped.model})"))
