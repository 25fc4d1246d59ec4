"""The Compare page: where lanes part, that a planted fault is found, and that it stays in its own process."""

from __future__ import annotations

import base64
import gc
import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app import recordings, task
from app.compare import lanes, result, tell
from app.task import Task, Waiter
from app.views import compare
from kvsim.caches.kv import KVCache
from kvsim.testing.mutants import MUTANTS
from kvsim.trace import MISSING, Difference, read_trace

MAIN = Path(__file__).resolve().parents[2] / "app" / "main.py"
KV = "kv/llama-uni-c256-u16-s4-f16-03"
FAULT = "contiguous-slots"
LIVE = "llamacpp" in lanes.BESIDE


def job(name: str, subject: str) -> dict[str, str]:
    data = base64.b64encode(recordings.path_of(name).read_bytes()).decode()
    return {"job": "compare", "trace": data, "name": name, "subject": subject}


def finished(what: dict) -> Task:
    one = Task(what)
    one.wait(120)
    assert one.state == "done", one.error
    return one


@pytest.fixture(scope="module")
def compared() -> Task:
    return finished(job(KV, FAULT))


def test_reference_ledger_and_engine_agree_and_the_fault_does_not(compared: Task) -> None:
    """A restore needs one run of cells with this fault: operation 11 is the first into holes."""
    rows = {lane.name: lane.marks for lane in result.lanes(compared, FAULT, "llama.cpp")}
    assert list(rows) == ["recording", "kvsim", "ledger", "engine", *["llama.cpp"] * LIVE, FAULT]
    assert rows["recording"] == rows["kvsim"] == "a" * 85
    assert set(rows["ledger"]) == {"a", "h"}
    assert rows["engine"] in ("a" * 85, "." * 85)
    if LIVE:
        assert rows["llama.cpp"] == "a" * 85
    assert rows[FAULT].index("d") == 11


def test_what_differs_is_told_by_field_and_runs_of_cells(compared: Task) -> None:
    found = next(m for m in compared.of_kind("mark") if m["lane"] == "subject" and m.get("n"))
    assert found["rows"] == [
        ["head", "72", "77"],
        ["cells 8–12", "seq 2, positions 0–4", "empty"],
        ["cells 35–71", "seq 2, positions 5–41", "seq 2, positions 0–36"],
        ["cells 72–76", "empty", "seq 2, positions 37–41"],
    ]
    assert [tell.KINDS[k][0] for k in found["kinds"]] == [
        "cells: position, owners, shift, token",
        "heads, used, position ranges",
    ]


def test_hazards_explain_where_the_ledger_stays_silent(compared: Task) -> None:
    met = {m["i"]: m["hazards"] for m in compared.of_kind("mark") if m["lane"] == "ledger" and "hazards" in m}
    assert met
    assert all(isinstance(name, str) for names in met.values() for name in names)


def test_a_fault_in_what_rows_hold_ends_the_lane_with_a_reason() -> None:
    name = next(n for n in recordings.bundled() if n.startswith("iswa/gemma3-swa20-uni-c512"))
    one = finished(job(name, "window-leaks-into-base"))
    subject = result.lanes(one, "window-leaks-into-base", "llama.cpp")[-1]
    assert subject.marks.rstrip(".") == "a" * 10 + "d"
    assert subject.end.startswith("operation 10 is not as the ledger has it: base: the token of sequence 0")
    assert len(subject.end) < 400


def test_the_operation_at_which_the_ledger_ends_a_lane_is_compared_and_shown() -> None:
    """Removing 3 tokens from a state that can go back 2 is accepted with this fault, and attention forgets them."""
    one = finished(job("hybrid/qwen35-uni-c512-u32-s4-q8_0-rs2-09", "rollback-does-nothing"))
    last = [m for m in one.of_kind("mark") if m["lane"] == "subject"][-1]
    assert (last["i"], last["broken"], last["n"]) == (3, True, 6)
    assert ["cells 26–28", "seq 1, positions 26–28", "empty"] in last["rows"]
    told = json.loads(result.comparison(one, "rollback-does-nothing", "llama.cpp"))
    assert (told["ended"], len(told["subject"]["steps"])) == (3, 4)
    assert told["lanes"][-1]["marks"].rstrip(".") == "aaad"


def test_a_campaign_finds_shrinks_and_saves_a_trace_that_still_differs() -> None:
    one = finished({"job": "campaign", "mutant": FAULT, "seed": 1})
    (found,), (shortest,) = one.of_kind("found"), one.of_kind("shortest")
    lengths = [found["length"], *(m["length"] for m in one.of_kind("shrunk"))]
    assert lengths == sorted(lengths, reverse=True)
    assert len(shortest["ops"]) == lengths[-1] < 5
    data = base64.b64decode(shortest["trace"])
    trace = read_trace(data, name="shrunk")
    marks = list(lanes.mutant(FAULT, trace.header, list(trace)))
    assert [bool(mark.differences) for mark in marks] == [False] * (len(marks) - 1) + [True]
    again = finished({"job": "campaign", "mutant": FAULT, "seed": 1})
    assert again.of_kind("shortest") == [shortest]


@pytest.mark.parametrize("name", ["range-of-base", "images-masked-by-time", "rollback-does-nothing"])
def test_other_faults_are_found_too(name: str) -> None:
    assert finished({"job": "campaign", "mutant": name, "seed": 2}).of_kind("shortest")


def test_the_fault_is_not_in_this_process() -> None:
    one = Task({"job": "campaign", "mutant": "freed-still-counted", "seed": 1})
    before = dict(vars(KVCache))
    one.wait(60)
    assert one.of_kind("found")
    assert dict(vars(KVCache)) == before
    assert all(patch.owner.__dict__.get(patch.name) is not patch.new for patch in MUTANTS[FAULT].patches)


def test_a_cancelled_job_ends_and_keeps_what_it_told() -> None:
    one = Task(job(KV, FAULT))
    while not one.of_kind("mark") and not one.over:
        one.wait(0.05)
    one.cancel()
    one.wait(10)
    assert one.state == "cancelled"
    assert one.of_kind("mark")
    assert one._process.poll() is not None


def test_no_more_than_two_jobs_run_at_a_time() -> None:
    jobs = [Task(job(KV, FAULT)) for _ in range(4)]
    while not any(one.of_kind("begin") for one in jobs):
        jobs[0].wait(0.05)
    assert sum(one.state == "running" for one in jobs) <= task.AT_ONCE
    assert sum(one.state == "waiting" for one in jobs) >= 2
    for one in jobs:
        one.cancel()
    for one in jobs:
        one.wait(10)
    assert {one.state for one in jobs} == {"cancelled"}


def test_an_unusable_trace_is_told() -> None:
    one = Task({**job(KV, FAULT), "trace": base64.b64encode(b"{}").decode(), "name": "mine.jsonl"})
    one.wait(60)
    assert one.state == "failed"
    assert one.error.startswith("mine.jsonl:1: ")


def test_a_process_that_is_ended_in_the_middle_of_a_message_is_told_and_leaves_no_files() -> None:
    one = Task({"job": "die"}, "tests.app.dying_worker")
    one.wait(60)
    assert (one.state, one.error) == ("failed", "it was ended by signal 9")
    (told,) = one.told
    assert not Path(told["path"]).exists()


def test_a_job_ends_when_the_last_who_waits_for_it_is_no_more() -> None:
    one, first, second = Task(job(KV, FAULT)), Waiter(), Waiter()
    assert one.join(first)
    assert one.join(second)
    del first
    gc.collect()
    assert not one.over
    del second
    gc.collect()
    one.wait(60)
    assert one.state == "cancelled"
    assert not one.join(Waiter())


def test_a_job_that_takes_too_long_is_ended_and_says_so() -> None:
    one = Task(job(KV, FAULT), longest=0.01)
    one.wait(60)
    assert (one.state, one.error) == ("failed", "it took longer than 0 s")


def test_cells_are_told_by_what_happened_to_them() -> None:
    cell = [5, 9, [0, 2], -3, 7, 0, 0]
    path = "after.caches.kv[1].cells[5]"
    assert tell.rows_of([Difference(path, cell, MISSING)]) == [
        ("cell 5", "seq 0, 2, position 9, shift −3", "empty")
    ]
    rows = tell.rows_of([Difference(path, cell, MISSING)], several=True)
    assert rows[0][0] == "cell 5 of kv, stream 1"
    many = [Difference(f"after.pos[{s}][0]", 0, 1) for s in range(40)]
    assert len(tell.rows_of(many)) == tell.MOST + 1
    assert tell.rows_of(many)[-1] == ("and 26 more", "", "")


# -- the page ------------------------------------------------------------------------------------


def start(**query: str) -> AppTest:
    at = AppTest.from_file(MAIN, default_timeout=90)
    at.query_params["page"] = "compare"
    for key, value in query.items():
        at.query_params[key] = value
    at.run()
    assert not at.exception
    return at


@pytest.fixture
def nobody_has_compared() -> None:
    """What one user has compared is there for all others; tests that do not ask for this take it as it is."""
    compare._comparisons.clear()


@pytest.mark.usefixtures("nobody_has_compared")
def test_users_of_one_recording_wait_for_one_comparison_and_leave_it_one_by_one() -> None:
    first, second = start(scenario=KV), start(scenario=KV)
    (task,) = first.session_state["compare-tasks"].values()
    assert list(second.session_state["compare-tasks"].values()) == [task]
    next(b for b in first.button if b.label == "Cancel").click().run()
    assert [s.value for s in first.subheader] == ["Cancelled"]
    assert not task.over
    task.wait(120)
    second.run()
    assert not second.subheader
    next(b for b in first.button if b.label == "Compare again").click().run()
    assert not first.subheader  # it is there already
    assert not first.exception


@pytest.mark.usefixtures("nobody_has_compared")
def test_a_comparison_that_nobody_waits_for_ends() -> None:
    first, second = start(scenario=KV), start(scenario=KV)
    (task,) = first.session_state["compare-tasks"].values()
    for at in (first, second):
        next(b for b in at.button if b.label == "Cancel").click().run()
    assert task.state == "cancelled"
    next(b for b in second.button if b.label == "Compare again").click().run()
    (other,) = second.session_state["compare-tasks"].values()
    assert other is not task
    other.cancel()


@pytest.mark.usefixtures("nobody_has_compared")
def test_progress_then_result_then_another_subject() -> None:
    at = start(scenario=KV)
    (running,) = at.session_state["compare-tasks"].values()
    assert [s.value for s in at.subheader] == ["Comparing"]
    running.wait(120)
    at.run()
    assert not at.exception
    assert not at.subheader
    assert at.query_params["subject"] == FAULT
    assert "engine" in at.selectbox(key="compare-subject").options[-1 - LIVE]


def test_the_way_to_the_first_difference_opens_in_the_playground() -> None:
    """The fault parts at operation 11: init and 11 more are taken along, to a memory of kvsim."""
    at = start(scenario=KV)
    (running,) = at.session_state["compare-tasks"].values()
    running.wait(120)
    at.run()
    (save,) = [b for b in at.get("download_button") if b.proto.label == "Save as a trace"]
    assert "operations 0–11" in save.proto.help
    at.button(key="compare-play").click().run()
    assert not at.exception
    play = at.session_state["pg play"]
    assert len(play.now.lines) == 11
    assert play.now.lines[-1] == "restore 2 from 2"
    assert len(play.run().steps) == 12


def test_what_a_campaign_found_opens_in_the_playground() -> None:
    at = start(scenario=KV)
    for one in at.session_state["compare-tasks"].values():
        one.cancel()
    at.button(key="compare-run").click().run()
    at.session_state["compare-campaign"].wait(120)
    at.run()
    at.button(key="compare-hunted").click().run()
    assert not at.exception
    n = len(finished({"job": "campaign", "mutant": FAULT, "seed": 1}).of_kind("shortest")[0]["ops"])
    assert len(at.session_state["pg play"].now.lines) == n


@pytest.mark.parametrize(("data", "told"), [(b"", ["This cannot be compared"]), (None, [])])
def test_an_upload_is_compared_or_refused(data: bytes | None, told: list[str]) -> None:
    whole = recordings.path_of(KV).read_bytes()
    at = AppTest.from_file(MAIN, default_timeout=60)
    at.query_params["page"] = "compare"
    at.session_state["compare-upload"] = ("<b>mine.jsonl", whole if data is None else data)
    at.run()
    for one in at.session_state["compare-tasks"].values():
        one.wait(120)
    at.run()
    assert not at.exception
    assert [s.value for s in at.subheader] == told
    assert "scenario" not in at.query_params
    tags = next(block.proto.body for block in at.get("html") if "kvs-tags" in block.proto.body)
    assert "&lt;b&gt;mine.jsonl" in tags
    next(b for b in at.button if b.label == "Back to the recordings").click().run()
    assert at.selectbox(key="compare-scenario").value == KV
    for one in at.session_state["compare-tasks"].values():
        one.cancel()


@pytest.mark.usefixtures("nobody_has_compared")
def test_cancelling_offers_to_compare_again() -> None:
    at = start(scenario=KV)
    next(b for b in at.button if b.label == "Cancel").click().run()
    assert [s.value for s in at.subheader] == ["Cancelled"]
    next(b for b in at.button if b.label == "Compare again").click().run()
    assert [s.value for s in at.subheader] == ["Comparing"]
    for one in at.session_state["compare-tasks"].values():
        one.cancel()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scenario", "../x"),
        ("subject", "<b>"),
        ("mutant", "none"),
        ("seed", "-1"),
        ("seed", "9" * 5000),
        ("at", "x"),
        ("at", "9" * 5000),
    ],
)
def test_a_damaged_link_shows_the_first(field: str, value: str) -> None:
    at = start(**{field: value})
    assert at.selectbox(key="compare-scenario").value == KV
    assert at.selectbox(key="compare-subject").value == FAULT
    assert at.number_input(key="compare-seed").value == 1
    for one in at.session_state["compare-tasks"].values():
        one.cancel()


@pytest.mark.browser
def test_a_campaign_is_run_watched_and_looked_at_and_its_link_restored(visit) -> None:
    page = visit(f"?page=compare&scenario={KV}&subject={FAULT}&mutant={FAULT}", height=900)
    page.locator(".kvc .kv-say", has_text="First difference, in 48 fields").wait_for()
    assert page.locator(".kvc .kv-number").inner_text() == "11"
    page.locator(".kvc").focus()
    page.keyboard.press("ArrowLeft")
    page.locator(".kvc .kv-say", has_text="All agree.").wait_for()
    page.get_by_role("button", name="Next", exact=True).click()
    page.locator(".kvc-table td", has_text="cells 35–71").wait_for()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Look at it here").click()
    page.locator(".kvs-tags", has_text="shortest way to contiguous-slots, seed 1").wait_for()
    page.locator(".kvc .kv-say", has_text="First difference, in 9 fields").wait_for()
    large = page.locator(".kvc-grids canvas").first.bounding_box()  # 12 cells are drawn large
    assert large["height"] > 80
    assert "shrunk=1" in page.url
    page.reload()
    page.locator(".kvc .kv-say", has_text="First difference, in 9 fields").wait_for()
