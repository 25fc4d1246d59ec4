"""``docs/findings.md``, made from the table of findings.

``python -m kvsim.lanes.finding_page > docs/findings.md``
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from kvsim.hazards import HAZARDS, KINDS
from kvsim.lanes.finding_table import FINDINGS, UNCONFIRMED
from kvsim.lanes.findings import Finding
from kvsim.models.context_params import ContextParams
from kvsim.ops import Op

LONGEST = 6
"""Numbers of a list that are written out."""

INTRODUCTION = """\
# Findings

Faults of llama.cpp that were seen in the library itself, on tiny models with random weights. Each is one of the
[hazards](hazards.md): there is what a caller can do. `tests/live/test_findings_live.py` tries each on the installed
library, and says so when it is no longer there. What is looked at is explained in `kvsim/lanes/findings.py`. Made from
`kvsim/lanes/finding_table.py` by `python -m kvsim.lanes.finding_page > docs/findings.md`."""


def page() -> Iterator[str]:
    """The blocks of the page, which are separated by blank lines."""
    yield INTRODUCTION
    yield f"{len(FINDINGS)} of {len(HAZARDS)} hazards are confirmed."
    for kind, meaning in KINDS.items():
        yield f"## {kind.capitalize()}: {meaning}"
        for finding in FINDINGS:
            if HAZARDS[finding.hazard].kind == kind:
                yield from section(finding)
    yield "## Not confirmed"
    yield "\n".join(f"- [{name}](hazards.md#{name}): {why}" for name, why in UNCONFIRMED.items())


def section(finding: Finding) -> Iterator[str]:
    """One finding in plain words."""
    hazard = HAZARDS[finding.hazard]
    yield f"### {finding.hazard}"
    gone = f"; no longer in {', '.join(finding.gone)}" if finding.gone else ""
    yield f"*Seen in {', '.join(finding.seen)}{gone}* · `{hazard.where}` · [trace](../{hazard.trace})"
    yield hazard.happens
    yield "\n".join(["```", f"{finding.model}: {context(finding.params)}", *map(told, finding.ops), "```"])
    if finding.control:
        ops = "; ".join(f"`{told(op)}`" for op in finding.control)
        yield f"The {_compared(finding.looks[0])} must be those after {ops}, and are different."
    else:
        rows = zip(finding.looks, finding.found, finding.wanted, strict=True)
        yield "\n".join(
            f"- `{look}` is `{found}`; consistent would be `{wanted}`." for look, found, wanted in rows
        )
    yield f"Consistent would be: {hazard.instead}"


def context(params: ContextParams) -> str:
    """The parameters that are not the default."""
    plain = ContextParams()
    changed = {f.name: getattr(params, f.name) for f in fields(params)}
    return ", ".join(f"{name}={value}" for name, value in changed.items() if value != getattr(plain, name))


def told(op: Op) -> str:
    """An operation in one line, with long lists cut short."""
    args = op.args
    if op.op != "decode":
        return f"{op.op}({', '.join(f'{name}={value}' for name, value in args.items())})"
    fault = f", abort at ubatch {args['abort_at_ubatch']}" if "abort_at_ubatch" in args else ""
    seqs = args["seq"] if any(seq != args["seq"][0] for seq in args["seq"]) else args["seq"][0]
    return f"decode(tokens={_short(args['tokens'])}, pos={_short(args['pos'])}, seq={_short(seqs)}{fault})"


def _short(values: Sequence[Any]) -> str:
    if len(values) <= LONGEST:
        return str(list(values))
    first, last = (", ".join(map(str, part)) for part in (values[:3], values[-1:]))
    return f"[{first}, ... {last}; {len(values)} in all]"


def _compared(look: str) -> str:
    return (
        "logits of the last token" if look == "logits" else f"bytes of the saved state of sequence {look[-1]}"
    )


if __name__ == "__main__":
    print("\n\n".join(page()))
