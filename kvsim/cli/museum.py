"""``kvsim museum``: whether the tester finds the faults that real caches had."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from kvsim.cli.terminal import DIFFERENT, check_writable, fail, stdout
from kvsim.testing.cache_info import Config
from kvsim.testing.match import DifferenceError
from kvsim.testing.museum import LIMIT, hunt, page, read_cases, shortest
from kvsim.testing.mutants import MUTANTS
from kvsim.testing.recorded import write_failure

CASES = Path("fixtures/bugs/cases.jsonl")


def museum_command(
    names: Annotated[list[str] | None, typer.Argument(metavar="[MUTANT]...", help="Only these.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    limit: Annotated[int, typer.Option(help="Operations to look for each.", min=1)] = LIMIT,
    write: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Save the shortest traces there.")
    ] = None,
    as_page: Annotated[bool, typer.Option("--page", help="Print docs/museum.md, and hunt nothing.")] = False,
) -> None:
    """Put public faults of KV caches into the reference, one by one, and look for each with the tester.

    One line a mutant: found or not, after how many operations, and the length of the shortest way there.
    Exit status 0: all were found; 1: some were not.
    """
    if as_page:
        try:
            print("\n\n".join(page(read_cases(CASES))))
        except OSError as missing:
            fail(f"{CASES}: {missing.strerror}; the page is made in the folder of the repository")
        return
    unknown = set(names or ()) - MUTANTS.keys()
    if unknown:
        fail(f"no mutant {', '.join(sorted(unknown))}; there are {', '.join(MUTANTS)}")
    if write is not None:
        check_writable(write / "x.jsonl")
    out, needed = stdout(), []
    out.print(Text(f"{'mutant':<28}{'reported as':<12}{'found':<7}{'operations':>10}{'shortest':>10}  on"))
    chosen = [MUTANTS[name] for name in names or MUTANTS]
    for mutant in chosen:
        find = hunt(mutant, seed, limit)
        reported = ", ".join(mutant.cases)
        if find is None:
            out.print(Text(f"{mutant.id:<28}{reported:<12}{'NO':<7}{limit:>10,}"))
            continue
        ops, error = shortest(find)
        needed.append(find.n_ops)
        where = f"{find.info.kind}/{find.config.name}"
        out.print(Text(f"{mutant.id:<28}{reported:<12}{'yes':<7}{find.n_ops:>10,}{len(ops):>10}  {where}"))
        if write is not None:
            _save(write / f"{mutant.id}.jsonl", find.config, error, seed)
    median = f", median {statistics.median(needed):,.0f} operations, most {max(needed):,}" if needed else ""
    out.print(Text(f"{len(needed)} of {len(chosen)} found{median}"))
    raise typer.Exit(0 if len(needed) == len(chosen) else DIFFERENT)


def _save(trace: Path, config: Config, error: DifferenceError, seed: int) -> None:
    try:
        write_failure(trace, config, error, seed)
    except OSError as failed:
        fail(f"{trace} cannot be written: {failed.strerror}")
