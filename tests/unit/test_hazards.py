"""Every hazard is in the table, in the documentation and in a minimal trace, and does what it says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from kvsim.caches.factory import LeafFactory
from kvsim.errors import KvsimError
from kvsim.events import Event
from kvsim.hazard_table import CONTENT
from kvsim.hazards import HAZARDS, page
from kvsim.ops import Op
from kvsim.replay import Replayer, context_of
from kvsim.testing.cache_info import CACHES
from kvsim.testing.checked import Checked, CheckError
from kvsim.testing.hazard_traces import CASES, Case, write
from kvsim.testing.recorded import steps_of
from kvsim.trace import compare_step, read_trace

ROOT = Path(__file__).parents[2]

EMITTED = re.compile(r'hazard\(\s*"([a-z-]+)"|_emit\("hazard", id="([a-z-]+)"|"id": "([a-z-]+)"', re.DOTALL)


def hazards_met(case: Case, ops: Sequence[Op]) -> list[str]:
    """The ids reported while these operations are performed."""
    met: list[str] = []

    def listen(event: Event) -> None:
        if event.kind == "hazard":
            met.append(event.detail["id"])

    context = case.config.context(LeafFactory(sizes=case.config.sizes))
    context.observe(listen)
    replayer = Replayer(context)
    for op in ops:
        replayer.apply(op.op, op.args)
    return met


def test_every_id_in_the_code_is_in_the_table_and_the_reverse() -> None:
    sources = [p for p in (ROOT / "kvsim").rglob("*.py") if "testing" not in p.parts]
    text = "\n".join(path.read_text() for path in sources)
    found = {next(filter(None, match)) for match in EMITTED.findall(text)}
    named = {hazard for hazard in HAZARDS if f'"{hazard}"' in text.replace(f'id="{hazard}"', "")}
    assert found - set(HAZARDS) == set()
    assert set(HAZARDS) - (found | named) == set()


def test_the_page_is_made_from_the_table() -> None:
    assert (ROOT / "docs/hazards.md").read_text() == "\n\n".join(page()) + "\n"


def test_every_hazard_has_a_case_and_a_trace() -> None:
    assert set(CASES) == set(HAZARDS)
    folder = ROOT / "fixtures/hazards"
    assert {p.name for p in folder.glob("*.gz")} == {Path(h.trace).name for h in HAZARDS.values()}


@pytest.mark.parametrize("hazard", HAZARDS)
def test_the_trace_meets_the_hazard_and_no_operation_can_be_spared(hazard: str) -> None:
    case = CASES[hazard]
    assert hazard in hazards_met(case, case.ops)
    for k in range(len(case.ops)):
        shorter = (*case.ops[:k], *case.ops[k + 1 :])
        with suppress(KvsimError, KeyError):  # without it the rest may not even be possible
            assert hazard not in hazards_met(case, shorter), f"{case.ops[k]} can be spared"


@pytest.mark.parametrize("hazard", HAZARDS)
def test_the_trace_in_the_fixtures_is_what_kvsim_does(hazard: str) -> None:
    trace = read_trace(str(ROOT / HAZARDS[hazard].trace))
    replayer = Replayer(context_of(trace.header))
    case = CASES[hazard]
    for recorded, ours in zip(trace, steps_of(case.config, case.ops), strict=True):
        assert compare_step(recorded, ours) == []
        assert replayer.apply(recorded.op, recorded.args) == recorded.ret


def test_the_traces_are_written_as_they_are(tmp_path: Path) -> None:
    write(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        assert path.read_bytes() == (ROOT / "fixtures/hazards" / path.name).read_bytes(), path.name


SEEN_LATER = {
    "base-keeps-later-positions",
    "clear-keeps-copies",
    "clearing-empties-queued-copy",
    "compressed-rows-of-nothing",
    "device-state-replaced",
    "indexer-slots-diverge",
    "partial-state-alone",
    "position-minus-one",
    "rollback-arms-uncomputed",
    "rollback-beyond-snapshot",
    "rollback-consumed-early",
    "save-before-copy",
    "save-before-shift",
    "shared-token-sees-one-history",
    "stale-rollback-kept",
    "state-knows-last-position-only",
    "state-not-used-up",
    "state-omits-owner",
    "state-skips-positions",
    "unknown-sequence-ignored",
    "window-forgets-sequence",
}
"""Their traces only prepare the ground: it takes more operations, or tokens, to see the difference."""


class Deaf(Checked):
    """Checks as if nobody had reported the hazard."""

    def _listen(self, event: Event) -> None:
        if event.kind != "hazard":
            super()._listen(event)


@pytest.mark.parametrize("hazard", [h for h in HAZARDS if HAZARDS[h].kind == CONTENT and h not in SEEN_LATER])
def test_without_the_report_the_ledger_finds_the_difference(hazard: str) -> None:
    """What a hazard says about content is so: memory and ledger part, and only the report excuses it."""
    case = CASES[hazard]
    info = CACHES[case.config.context(LeafFactory()).memory.kind]
    perform_all(Checked(info, case.config), case.ops)
    with pytest.raises(CheckError, match="Hazards reported: none"):
        perform_all(Deaf(info, case.config), case.ops)


def perform_all(world: Checked, ops: Sequence[Op]) -> None:
    for op in ops:
        world.perform(op)
