"""Hypothesis plays the memories of the family against the ledger, and finds a planted fault."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import run_state_machine_as_test

from kvsim.ops import Op
from kvsim.testing import CacheMachine
from kvsim.testing.cache_info import CACHES
from kvsim.testing.subject import ContextSubject, Subject

QUICK = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def machine(kind: str, subject: type[Subject], traces: Path) -> type[CacheMachine]:
    return type("Machine", (CacheMachine,), {"memory": kind, "subject": subject, "traces": traces})


@pytest.mark.parametrize("kind", CACHES)
def test_the_reference_refines_the_ledger(kind: str, tmp_path: Path) -> None:
    """With ink in its rows and a network that reads them, or with metadata alone: the cells are the same."""
    run_state_machine_as_test(machine(kind, ContextSubject, tmp_path), settings=QUICK)


@pytest.mark.parametrize("line", ["import kvsim.testing.machine", "from kvsim.testing import CacheMachine"])
def test_without_hypothesis_it_says_what_to_install(line: str) -> None:
    code = f"import sys; sys.modules['hypothesis'] = None\nimport kvsim.testing.difftest\n{line}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: kvsim.testing.machine needs hypothesis: pip install 'kvsim[test]'"
    )


class Forgetful(ContextSubject):
    """Forgets to remove the last position of a range."""

    def apply(self, op: Op) -> int | None:
        if op.op == "seq_rm" and op.args["p1"] > 1:
            op = Op.seq_rm(op.args["seq"], op.args["p0"], op.args["p1"] - 1)
        return super().apply(op)


def test_failing_examples_are_kept_in_a_folder_and_tried_first(tmp_path: Path) -> None:
    """So that who has the folder has the failures."""
    kept = settings(QUICK, database=DirectoryBasedExampleDatabase(tmp_path / "examples"), derandomize=False)
    found = settings(kept, max_examples=200, phases=[Phase.generate])
    with pytest.raises(AssertionError, match="reference differs at operation"):
        run_state_machine_as_test(machine("kv", Forgetful, tmp_path), settings=found)
    assert list((tmp_path / "examples").rglob("*"))
    again = settings(kept, phases=[Phase.reuse])
    with pytest.raises(AssertionError, match="reference differs at operation"):
        run_state_machine_as_test(machine("kv", Forgetful, tmp_path), settings=again)


def test_a_fault_is_found_and_its_trace_says_where(tmp_path: Path) -> None:
    found = settings(QUICK, max_examples=200, phases=[Phase.generate])
    with pytest.raises(AssertionError, match=r"(?s)reference differs at operation .*kvsim app .*jsonl"):
        run_state_machine_as_test(machine("kv", Forgetful, tmp_path), settings=found)
    assert (tmp_path / "Machine.jsonl").exists()
