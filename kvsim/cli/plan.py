"""``kvsim plan``: the smallest configuration that serves a workload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from kvsim.cli.memory import size_in_words, size_of
from kvsim.cli.simulate import model_settings, only_with
from kvsim.cli.terminal import DIFFERENT, fail, stderr, stdout, table
from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from kvsim.workload.plan import Plan, Tried

VARIED = ("arch", "n_ctx", "parallel", "unified", "swa_full", "type_k", "checkpoints")


def plan_command(
    workload: Annotated[Path, typer.Argument(help="An Azure trace (CSV) or a Mooncake trace (JSON lines).")],
    arch: Annotated[list[str], typer.Option(metavar="NAME", help="A model; give it again for more.")] = [],  # noqa: B006 - typer copies it
    gguf: Annotated[list[Path], typer.Option(help="A model file; give it again for more.")] = [],  # noqa: B006 - typer copies it
    n_ctx: Annotated[str, typer.Option(help="Contexts to try.")] = "8192,16384,32768,65536,131072",
    parallel: Annotated[str, typer.Option(help="Numbers of slots to try.")] = "4,8,16",
    layout: Annotated[str, typer.Option(help="unified, streams or both.")] = "both",
    swa_full: Annotated[str, typer.Option(help="Full window caches: no, yes or both.")] = "no",
    types: Annotated[str, typer.Option(help="Types of stored keys and values to try.")] = "f16",
    checkpoints: Annotated[str, typer.Option(help="Most checkpoints per slot to try.")] = "32",
    n_batch: Annotated[int, typer.Option(help="Tokens of a batch.", min=1)] = 2048,
    n_ubatch: Annotated[int, typer.Option(help="Tokens that go through the graph at once.")] = 512,
    weight_bytes: Annotated[float, typer.Option(help="Bytes per parameter; 0: 2, or as in the file.")] = 0.0,
    bandwidth: Annotated[float, typer.Option(help="Device: bytes a second.")] = 2.039e12,
    rate: Annotated[float, typer.Option(help="Device: floating-point operations a second.")] = 312e12,
    overhead: Annotated[float, typer.Option(help="Device: seconds per ubatch in any case.")] = 0.5e-3,
    max_failed: Annotated[int, typer.Option(help="Most failed decodes.", min=0)] = 0,
    max_reprocessed: Annotated[float, typer.Option(help="Part of prompt tokens computed twice.")] = 1.0,
    max_unserved: Annotated[float, typer.Option(help="Part of requests not served in full.")] = 0.0,
    max_first_token: Annotated[float, typer.Option(help="Seconds to the first token, 99%; 0: any.")] = 0.0,
    max_memory: Annotated[str, typer.Option(metavar="SIZE", help="Caches at most so large: 24GiB.")] = "",
    requests: Annotated[int, typer.Option(help="Serve only so many; 0: all.", min=0)] = 0,
    fitted: Annotated[int, typer.Option(help="Make up so many, fitted to the workload.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Made up: seed.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Find the smallest configuration that serves a workload within limits, and say which limit binds.

    Lists are separated by commas. Exit status 1: nothing serves it. 2: input that cannot be used.
    """
    from kvsim.workload.choose import choose
    from kvsim.workload.plan import Limits, plan
    from kvsim.workload.setup import FileSetup

    only_with("--fitted", fitted, {"--seed": seed})
    models = [model_settings(name, None) for name in arch] + [model_settings("", path) for path in gguf]
    if not models:
        model_settings("", None)
    layouts = {"unified": [True], "streams": [False], "both": [True, False]}
    fulls = {"no": [False], "yes": [True], "both": [False, True]}
    names = [name.strip() for name in types.split(",")]
    choices: list[list[dict[str, Any]]] = [
        [{"gguf": "", **model} for model in models],
        [{"n_ctx": n} for n in _numbers("--n-ctx", n_ctx)],
        [{"parallel": n} for n in _numbers("--parallel", parallel)],
        [{"unified": flag} for flag in _flags("--layout", layout, layouts)],
        [{"swa_full": flag} for flag in _flags("--swa-full", swa_full, fulls)],
        [{"type_k": name, "type_v": name} for name in names],
        [{"checkpoints": n} for n in _numbers("--checkpoints", checkpoints)],
    ]
    base = FileSetup(
        arch="", n_batch=n_batch, n_ubatch=n_ubatch, weight_bytes=weight_bytes, bandwidth=bandwidth, rate=rate,
        overhead=overhead,
    )  # fmt: skip
    try:
        limits = Limits(
            failed_decodes=max_failed,
            reprocessed=max_reprocessed,
            unserved=max_unserved,
            first_token=max_first_token or None,
            bytes=size_of(max_memory, "--max-memory") if max_memory else None,
        )
        chosen, _, _ = choose(workload, requests, fitted, seed=seed)
        with stderr().status("trying") as status:
            found = plan(
                lambda: chosen,
                base,
                choices,
                limits,
                lambda each: status.update(_in_words(each)),
            )
    except KvsimError as error:
        fail(error)
    if as_json:
        print(json.dumps(_json(found)))
    else:
        _print(found)
    if found.best is None:
        raise typer.Exit(DIFFERENT)


def _numbers(option: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        fail(f"{option} {text!r} is not a list of numbers such as 4,8,16")
    return [int(part) for part in parts]


def _flags(option: str, text: str, known: dict[str, list[bool]]) -> list[bool]:
    if text not in known:
        fail(f"{option} {text!r} is unknown: use one of {', '.join(known)}")
    return known[text]


def _in_words(tried: Tried) -> str:
    varied = ", ".join(f"{name} {getattr(tried.setup, name)}" for name in VARIED)
    return f"{size_in_words(tried.bytes)}: {varied}"


def _json(found: Plan) -> dict[str, Any]:
    tried = [
        {
            "setup": {name: getattr(each.setup, name) for name in VARIED},
            "bytes": each.bytes,
            "broken": each.broken,
            "complete": each.complete,
        }
        for each in found.tried
    ]
    return {"best": tried[-1] if found.best else None, "binding": found.binding, "tried": tried}


def _print(found: Plan) -> None:
    out = stdout()
    rows: list[tuple[str, ...]] = [("memory", *VARIED, "breaks")]
    for each in found.tried:
        values = (str(getattr(each.setup, name)) for name in VARIED)
        rows.append((size_in_words(each.bytes), *values, ", ".join(each.broken) or "nothing"))
    for line in table(rows):
        out.print(Text(line))
    binding = ", ".join(found.binding)
    if found.best is None:
        out.print(Text(f"nothing serves it within the limits; in the way: {binding}"))
    else:
        out.print(Text(f"smallest: {_in_words(found.best)}"))
        out.print(
            Text(f"binds: {binding}" if binding else "no limit binds: it is the smallest there is to try")
        )
