"""The table of findings: it fits the hazards, the page, and what kvsim itself does."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.context import Context
from kvsim.events import Event
from kvsim.hazards import HAZARDS
from kvsim.lanes.finding_page import page
from kvsim.lanes.finding_table import FINDINGS, UNCONFIRMED
from kvsim.lanes.findings import Finding
from kvsim.models.tiny import TINY
from kvsim.ops import Op
from kvsim.replay import Replayer

ROOT = Path(__file__).parents[2]
REFUSED_HERE = {"undo-misses-position-minus-one", "heads-exchanged", "purge-survives-refusal"}
"""Findings about a batch that finds no room."""


def test_every_hazard_is_found_or_it_is_said_why_not() -> None:
    found = [finding.hazard for finding in FINDINGS]
    assert len(found) == len(set(found))
    assert set(found) | set(UNCONFIRMED) == set(HAZARDS)
    assert not set(found) & set(UNCONFIRMED)


def test_the_page_is_made_from_the_table() -> None:
    made = "\n\n".join(page()) + "\n"
    again = "python -m kvsim.lanes.finding_page > docs/findings.md"
    assert (ROOT / "docs/findings.md").read_text() == made, again


def performed(finding: Finding, ops: tuple[Op, ...]) -> tuple[set[str], list[int | None]]:
    """The hazards that kvsim meets, and its answers to decodes."""
    context = Context(TINY[finding.model].params(), finding.params, 128)
    met: set[str] = set()

    def listen(event: Event) -> None:
        if event.kind == "hazard":
            met.add(event.detail["id"])

    context.observe(listen)
    replayer = Replayer(context)
    answers = [replayer.apply(op.op, op.args) for op in ops]
    return met, [answer for op, answer in zip(ops, answers, strict=True) if op.op == "decode"]


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.hazard)
def test_the_operations_meet_the_hazard_and_the_control_does_not(finding: Finding) -> None:
    met, answers = performed(finding, finding.ops)
    assert finding.hazard in met
    assert set(answers) <= ({0, 1} if finding.hazard in REFUSED_HERE else {0, 2})
    assert finding.found != finding.wanted
    if finding.control:
        met, answers = performed(finding, finding.control)
        assert finding.hazard not in met
        assert set(answers) <= {0}
