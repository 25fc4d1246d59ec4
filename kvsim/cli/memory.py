"""``kvsim memory``: what a model's memory costs, or what fits into a budget."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from kvsim.cli.terminal import DIFFERENT, fail, stdout, table
from kvsim.errors import KvsimError
from kvsim.models.context_params import ContextParams
from kvsim.models.gguf_header import read_model
from kvsim.models.known import KNOWN, known_model
from kvsim.models.memory_bytes import Fit, MemoryReport, fit_context, fit_sequences, memory_bytes
from kvsim.models.params import ModelParams
from kvsim.narrate.words import count

_DECIMAL = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS = {**_DECIMAL, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def memory_command(
    arch: Annotated[str, typer.Option(metavar="NAME", help="A model by name, such as gemma3-4b.")] = "",
    gguf: Annotated[Path | None, typer.Option(help="A model file; only its header is read.")] = None,
    n_ctx: Annotated[int, typer.Option(help="Context in tokens; 0 is what the model was trained for.")] = 0,
    n_seq_max: Annotated[int | None, typer.Option(help="Sequences at a time; 1 if not given.")] = None,
    n_ubatch: Annotated[int, typer.Option(help="Tokens that go through the graph at once.")] = 512,
    n_rs_seq: Annotated[int, typer.Option(help="Rollback snapshots of recurrent states.")] = 0,
    type_k: Annotated[str, typer.Option(help="Type of stored keys.")] = "f16",
    type_v: Annotated[str, typer.Option(help="Type of stored values.")] = "f16",
    unified: Annotated[bool, typer.Option("--unified", help="One buffer for all sequences.")] = False,
    swa_full: Annotated[bool, typer.Option("--swa-full", help="Window caches hold the context.")] = False,
    budget: Annotated[str, typer.Option(metavar="SIZE", help="What fits into this: 24GiB, 800MB, ...")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Say what a model's memory costs, part by part.

    Counted are the caches and states; weights and compute buffers are not.
    With --budget: the longest context that fits, or with --n-ctx too, how many sequences of that length; with
    --n-ctx and --n-seq-max, whether that fits.
    Exit status 1: it does not fit. 2: a model or a setting that cannot be used.
    """
    try:
        model = _model(arch, gguf)
        params = ContextParams(
            n_ctx=n_ctx,
            n_ubatch=n_ubatch,
            n_seq_max=1 if n_seq_max is None else n_seq_max,
            n_rs_seq=n_rs_seq,
            kv_unified=unified,
            swa_full=swa_full,
            type_k=type_k,
            type_v=type_v,
        )
        if not budget:
            _print(stdout(), memory_bytes(model, params), as_json)
            return
        if n_ctx and n_seq_max is not None:
            fits = _print_whether(stdout(), memory_bytes(model, params), size_of(budget), as_json)
            raise typer.Exit(0 if fits else DIFFERENT)
        fit = (fit_sequences if n_ctx else fit_context)(model, params, size_of(budget))
    except KvsimError as error:
        fail(error)
    _print_fit(stdout(), fit, n_ctx, as_json)


def size_of(text: str, option: str = "--budget") -> int:
    """Bytes of ``24GiB``, ``1.5 GB``, ``4096``. Exits with a message if it is none of these."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]{0,3})", text.strip(), re.ASCII)
    unit = {name.lower(): size for name, size in UNITS.items()}.get(match[2].lower()) if match else None
    if match is None or unit is None:
        fail(f"{option} {text[:40]!r} is not a size; write it like 24GiB, 1.5GB or 800MiB")
    return int(float(match[1]) * unit)


def size_in_words(n: int) -> str:
    """1536 -> "1.50 KiB"."""
    value, unit = float(n), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{n} B" if unit == "B" else f"{value:.2f} {unit}"


def one_model(arch: str, gguf: Path | None) -> str | Path:
    """The one that was given; fails for none and for both."""
    if bool(arch) == (gguf is not None):
        fail(f"give one model: --gguf FILE, or --arch NAME with one of {', '.join(KNOWN)}")
    return arch if gguf is None else gguf


def _model(arch: str, gguf: Path | None) -> ModelParams:
    one = one_model(arch, gguf)
    return known_model(one) if isinstance(one, str) else read_model(one)


def _print(out: Console, report: MemoryReport, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.to_json()))
        return
    if report.kind is None:
        out.print(Text("this model keeps no memory"))
        return
    sequences = f"{report.n_seq_max} sequence{'s' if report.n_seq_max > 1 else ''}"
    out.print(Text(f"{report.kind} memory, context {report.n_ctx:,} for {sequences}"))
    heads = ("part", "rows of", "type", "layers", "rows each", "bytes", "")
    rows = [
        (p.part, p.rows_of, p.type, f"{p.n_layers}", f"{p.rows:,}", f"{p.bytes:,}", size_in_words(p.bytes))
        for p in report.parts
    ]
    total = ("total", "", "", "", "", f"{report.total:,}", size_in_words(report.total))
    for line in table([heads, *rows, total], left=3):
        out.print(Text(line))


def _print_whether(out: Console, report: MemoryReport, budget: int, as_json: bool) -> bool:
    """Whether exactly this fits, and by how much; returned too."""
    left = budget - report.total
    if as_json:
        print(json.dumps({"fits": left >= 0, "budget": budget, **report.to_json()}))
    else:
        out.print(
            Text(
                f"fits, {size_in_words(left)} are left:" if left >= 0 else f"{size_in_words(-left)} too much:"
            )
        )
        _print(out, report, as_json)
    return left >= 0


def _print_fit(out: Console, fit: Fit | None, n_ctx: int, as_json: bool) -> None:
    if as_json:
        report = {} if fit is None else {"budget": fit.budget, **fit.report.to_json()}
        print(json.dumps({"fits": fit is not None, **report}))
    elif fit is None:
        smallest = "one sequence" if n_ctx else "the smallest context"
        out.print(Text(f"nothing fits, not even {smallest}"))
    else:
        n = fit.params.n_seq_max
        each = f"{count(n, 'sequence')} of {n_ctx:,} tokens {'fits' if n == 1 else 'fit'}"
        out.print(Text(f"{each}:" if n_ctx else f"a context of {fit.params.n_ctx:,} tokens fits:"))
        _print(out, fit.report, as_json)
    if fit is None:
        raise typer.Exit(DIFFERENT)
