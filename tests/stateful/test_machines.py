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


def test_pytest_is_told_the_operations_and_no_draws_whatever_the_settings(tmp_path: Path) -> None:
    case = machine("kv", Forgetful, tmp_path).TestCase
    case.settings = settings(max_examples=200, deadline=None, database=None, derandomize=True)
    with pytest.raises(AssertionError) as failed:
        case("runTest").runTest()
    first, decode, removal, saved, *commands = str(failed.value).splitlines()
    assert first.startswith("reference differs at operation 2, seq_rm(seq=")
    assert (decode[:9], removal[:9]) == ("  decode(", "  seq_rm(")
    assert saved == f"2 operations lead there, saved as {tmp_path}/Machine.jsonl. Look at it with"
    assert [command.split()[1] for command in commands] == ["replay", "app"]
    assert "Draw" not in "".join(getattr(failed.value, "__notes__", []))
    assert failed.value.__cause__ is None


class Falls(ContextSubject):
    def apply(self, op: Op) -> int | None:
        return 1 // (op.op != "seq_cp") if op.op == "seq_cp" else super().apply(op)


def test_what_a_subject_raises_is_told_with_its_place_and_its_traceback(tmp_path: Path) -> None:
    found = settings(QUICK, max_examples=200, phases=[Phase.generate])
    with pytest.raises(AssertionError) as failed:
        run_state_machine_as_test(machine("kv", Falls, tmp_path), settings=found)
    assert "ZeroDivisionError: integer division or modulo by zero (test_machines.py, line " in str(
        failed.value
    )
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
