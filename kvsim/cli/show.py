"""``kvsim show``: the picture after one operation of a trace, in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from kvsim.changes import PictureReader
from kvsim.cli.terminal import fail, map_text, stdout, table
from kvsim.errors import TraceError
from kvsim.narrate import Narration, narrate
from kvsim.trace import Header, Step, read_trace
from kvsim.trace.cellmap import fold_rows, map_rows


def show_command(
    trace: Annotated[Path, typer.Argument(help="A trace: .jsonl or .jsonl.gz.")],
    at: Annotated[int | None, typer.Option(help="Look after this operation; else the last.")] = None,
) -> None:
    """Show the cells after one operation, as recorded.

    One block per cache and stream. A cell is the sequence that owns it, "+" several, "." empty; ">" is
    the head, where the next slot search starts.
    """
    try:
        reader = read_trace(trace)
        before, step = _find(reader, at)
    except TraceError as error:
        fail(error)
    out = stdout()
    _print_operation(out, _narrate(reader.header, before, step), step)
    for name, streams in step.after["caches"].items():
        for s, stream in enumerate(streams):
            old = before.after["caches"][name][s] if before else stream
            unseen = s in step.after.get("unseen", {}).get(name, ())
            _print_stream(out, name, s, stream, old, reader.header, unseen)
    _print_recurrent(out, step.after["recurrent"])
    _print_positions(out, step.after, reader.header)


def _find(steps: Any, at: int | None) -> tuple[Step | None, Step]:
    """The step ``at``, and the one before it."""
    before, found = None, None
    for step in steps:
        before, found = found, step
        if step.i == at:
            break
    if at is not None and found.i != at:  # type: ignore[union-attr]
        fail(f"{steps.path}: there is no operation {at}; the trace has 0 to {found.i}")  # type: ignore[union-attr]
    return before, found  # type: ignore[return-value]


def _narrate(header: Header, before: Step | None, step: Step) -> Narration:
    pictures = PictureReader(header)
    old = None if before is None else pictures.read(before.after)
    return narrate(step, old, pictures.read(step.after), pictures.owners, header)


def _print_operation(out: Console, said: Narration, step: Step) -> None:
    head = Text(f"{step.i}  {said.call}", style="bold")
    if said.verdict:
        head.append(f"  [{said.verdict}]", "bold red" if said.failed else "")
    out.print(head)
    out.print(Text(said.sentence))


def _print_stream(
    out: Console,
    name: str,
    s: int,
    stream: dict[str, Any],
    old: dict[str, Any],
    header: Header,
    unseen: bool,
) -> None:
    size = header.caches[name]["size"]
    facts = [f"{stream['used']:,} of {size:,} cells used", f"head {stream['head']}"]
    if old["head"] != stream["head"]:
        facts[1] += f" (was {old['head']})"
    if stream["has_shift"]:
        facts.append(f"{sum(cell[3] != 0 for cell in stream['cells'])} shifts pending")
    title = name if header.caches[name]["n_stream"] == 1 else f"{name}, stream {s}"
    if unseen:
        facts.append("its cells were not shown")
    out.print(Text(f"\n{title}", style="bold").append(f"  {', '.join(facts)}", "not bold"))
    if stream["cells"]:
        out.print(Text(f"        {', '.join(_held(stream['cells']))}"))
    elif unseen:
        return
    for row in fold_rows(map_rows(stream, size, 64 if out.width >= 136 else 32)):
        if isinstance(row, range):
            out.print(Text(f"{row.start:>7}  ... {len(row):,} empty cells", "dim"))
        else:
            out.print(Text(f"{row.first:>7} ").append(map_text(row.cells)))


def _held(cells: list[list[Any]]) -> list[str]:
    """``seq 0: 79 to 300``: the first and the last position of every sequence that has cells."""
    positions: dict[int, list[int]] = {}
    for _, pos, seqs, *_ in cells:
        for seq in seqs:
            positions.setdefault(seq, []).append(pos)
    return [f"seq {seq}: {min(held)} to {max(held)}" for seq, held in sorted(positions.items())]


def _print_recurrent(out: Console, recurrent: dict[str, Any] | None) -> None:
    if recurrent is None:
        return
    used, size = recurrent["used"], recurrent["size"]
    facts = f"{used} of {size} states used, head {recurrent['head']}, n {recurrent['n']}"
    out.print(Text("\nrecurrent", style="bold").append(f"  {facts}", "not bold"))
    heads = ("  cell", "sequences", "position", "reads", "tail of it")
    rows = [
        (f"  {i}", " ".join(map(str, seq)) or "-", *(str(v) if v >= 0 else "-" for v in (pos, src, tail)))
        for i, pos, src, _, tail, seq in recurrent["cells"]
    ]
    for line in table([heads, *rows]):
        out.print(Text(line))


def _print_positions(out: Console, after: dict[str, Any], header: Header) -> None:
    out.print(Text("\npositions", style="bold"))
    held = [(seq, ends) for seq, ends in after["pos"].items() if ends != [-1, -1]]
    for seq, (first, last) in held:
        out.print(Text(f"  seq {seq}: {first} to {last}"))
    if not held:
        untold = "log" in header.config and after.get("unseen")  # a log prints them with the cells
        out.print(Text("  not known yet" if untold else "  none: every sequence is empty"))
    for name, copies in after.get("pending_copies", {}).items():
        for source, target in copies:
            out.print(Text(f"  pending: {name} copies stream {source} to stream {target} at the next decode"))
    if any(after.get("rs_idx", ())):
        out.print(Text(f"  rollback index per sequence: {' '.join(map(str, after['rs_idx']))}"))
    for seq, pos in after.get("idx_stale", ()):
        out.print(Text(f"  seq {seq}: pooled index keys are stale from position {pos} on"))
