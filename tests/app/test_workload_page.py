"""The Workload page: its figures are those of the simulation, links restore it, files are refused with their line."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.task import Task
from app.workload_page import drawing, figure, series, worker
from app.workload_page.configuration import FIRST, in_words, setup_of_text, text_of_setup
from app.workload_page.source import FOLDER, MADE_UP, UPLOAD, Source, requests_of
from kvsim.errors import ModelError
from kvsim.models.gguf_header import read_model
from kvsim.models.tiny import write_tiny
from kvsim.trace import read_trace
from kvsim.workload.plan import Limits, plan
from kvsim.workload.read import Workload
from kvsim.workload.setup import Setup

MAIN = Path(__file__).resolve().parents[2] / "app" / "main.py"
CHAT = FOLDER / "azure_llm_2023_conv.csv.gz"
TIGHT = FIRST.with_(n_ctx=4096, parallel=4)
FEW = Source(requests=60)
DAMAGED = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:45.00,9,9\n"
)


def told(what: str, source: Source = FEW, setup: Setup = TIGHT, **more: Any) -> Task:
    job = {"job": what, "source": vars(source), "setup": vars(setup), **more}
    task = Task(job, "app.workload_page.worker", 300)
    task.wait(300)
    return task


@pytest.fixture(scope="module")
def served() -> Task:
    return told("run")


# -- what is asked for -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        Source(),
        Source("mooncake", 0, True, turns=2.5, system=700, seed=3),
        Source(MADE_UP, 50, rate=0.5, user=30, answer=9, spread=0.25, burstiness=2.0, think=1.5),
    ],
)
def test_an_address_restores_the_requests(source: Source) -> None:
    assert Source.from_query(source.to_query()) == source


@pytest.mark.parametrize(
    "query", [{"kind": "../x"}, {"requests": "-1"}, {"turns": "nan"}, {"rate": "x"}, {"seed": "٣"}]
)
def test_a_damaged_address_keeps_what_can_be(query: dict[str, str]) -> None:
    assert Source.from_query({"system": "12", **query}) == Source(system=12)


def test_an_address_cannot_ask_for_more_than_the_page_takes() -> None:
    found = Source.from_query({"requests": "99999999999", "turns": "0", "kind": UPLOAD})
    assert found == Source(requests=100_000, turns=1.0)


def test_a_setup_as_text_and_back() -> None:
    setup = Setup("jamba-v0.1", 4096, 2, type_k="q8_0", policy="paged", bandwidth=1e12, ctx_shift=True)
    text = text_of_setup(setup)
    assert (
        text == "arch:jamba-v0.1,n_ctx:4096,parallel:2,type_k:q8_0,policy:paged,ctx_shift:1,bandwidth:1e+12"
    )
    assert setup_of_text(text) == setup


@pytest.mark.parametrize(
    "text", ["", "n_ctx:8", "arch:none", "arch:gemma3-4b,n_ctx:99999999999", "arch:gemma3-4b,x:1"]
)
def test_a_setup_that_cannot_be_is_none(text: str) -> None:
    assert setup_of_text(text) is None


def test_configurations_in_words() -> None:
    assert in_words(FIRST) == "gemma3-4b, 16,384 cells, 8 slots, unified"
    assert in_words(FIRST.with_(unified=False, type_k="q8_0"), FIRST) == "streams, K q8_0"


def test_fitted_requests_are_as_many_as_asked_for_and_the_same_again() -> None:
    source = Source(requests=30, fitted=True, turns=3.0, system=100, seed=5)
    requests, n, _ = requests_of(source, None)
    assert n == 30
    assert list(requests) == list(requests_of(source, None)[0])
    assert min(r.n_prompt for r in requests) > 100


# -- what is simulated -------------------------------------------------------------------------------


def test_the_figures_are_those_of_the_simulation(served: Task) -> None:
    account = TIGHT.run(Workload(CHAT, 60))
    (found,) = served.of_kind("account")
    assert found["complete"]
    assert found["totals"] == json.loads(json.dumps(account.to_json()["totals"]))
    assert found["totals"]["failed_decodes"] > 0
    assert served.of_kind("begin")[0] == {
        "kind": "begin", "n": 60, "bytes": TIGHT.memory_bytes(), "sizes": {"base": 4096, "swa": 4096},
    }  # fmt: skip


def test_a_simulation_that_is_ended_leaves_what_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The account so far is told while it runs, and can be drawn."""
    monkeypatch.setattr(worker, "EVERY", 0.0)
    monkeypatch.setattr(worker, "PICTURE_EVERY", 0.0)
    parts: list[dict[str, Any]] = []

    def tell(kind: str, **found: Any) -> None:
        parts.extend([found] if kind == "account" else [])

    worker.run({"job": "run", "source": vars(FEW), "setup": vars(TIGHT)}, tell)
    counts = [len(part["samples"]) for part in parts]
    assert [part["complete"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert counts == sorted(counts)
    assert 2 <= counts[0] < counts[-1]
    run = series.Run("A", json.loads(json.dumps(parts[0])), {"base": 4096, "swa": 4096})
    assert len(series.panels(run)) == 6


def test_curves_add_up(served: Task) -> None:
    """What the bars show is all there was; the layers of the slots are the used cells of a unified cache."""
    account = served.of_kind("account")[0]
    run = series.Run("A", account, served.of_kind("begin")[0]["sizes"])
    _, grown = series.growth(run.samples)
    assert sum(grown["failed_decodes"]) == account["totals"]["failed_decodes"]
    assert sum(grown["requests"]) == 60
    base = next(panel for panel in series.panels(run) if panel["title"] == "Cells of base, by slot")
    stacked = [sum(values) for values in zip(*(layer["y"] for layer in base["layers"]), strict=True)]
    assert stacked == base["used"]
    assert max(base["used"]) <= base["limit"] == 4096


def test_what_lies_between_two_samples_counts_where_the_second_stands() -> None:
    sums = dict.fromkeys(series.SUMS, 0)
    samples = [{**sums, "time": t, "hits": hits} for t, hits in ((1.0, 2), (2.0, 2), (9.0, 7), (10.0, 8))]
    edges, grown = series.growth(samples)
    assert edges == pytest.approx([0, 10 / 3, 20 / 3, 10])
    assert grown["hits"] == [2, 0, 6]


def test_the_interval_is_what_the_server_did_then(served: Task) -> None:
    first = served.of_kind("account")[0]["failures"][0]
    start, end = first["time"] - 0.05, first["time"] + 0.05
    task = told("record", **{"from": start, "to": end})
    assert task.state == "done", task.error
    (found,) = task.of_kind("trace")
    steps = list(read_trace(base64.b64decode(found["data"]), name="interval"))
    assert (len(steps), found["until"]) == (found["n"], end)
    said = json.loads(found["payload"])["steps"][0]["say"]
    used = steps[0].after["caches"]["base"][0]["used"]
    assert said.startswith(f"The recording begins in the middle: {used:,} of 4,096 cells of base are used, ")
    assert {i for i, note in found["notes"] if "graph" in note} == {
        step.i for step in steps if step.op == "decode" and step.ret == 0
    }
    failed = [step for step in steps if step.op == "decode" and step.ret == 1]
    counted = [f for f in served.of_kind("account")[0]["failures"] if start <= f["time"] <= end]
    assert len(failed) == len(counted) > 0
    assert len(failed[0].args["seq"]) >= first["asked"] > first["free"]


def test_a_memory_without_cells_is_plotted_and_played() -> None:
    setup = Setup("mamba-130m", n_ctx=4096, parallel=4, unified=True)
    account, begun = (told("run", setup=setup).of_kind(kind)[-1] for kind in ("account", "begin"))
    run = series.Run("A", account, begun["sizes"])
    for panels in (series.panels(run), series.beside([run, run])):
        assert all(panel["kind"] != "area" for panel in panels)
        assert figure.figure(panels, "without cells", "png").startswith(b"\x89PNG")
    played = told("record", setup=setup, **{"from": 0.0, "to": 2.0})
    assert played.state == "done", played.error
    assert played.of_kind("trace")[0]["n"] > 1


def test_where_nothing_is_done_there_is_nothing_to_play() -> None:
    task = told("record", **{"from": 1e6, "to": 1e6 + 1})
    assert (task.state, task.error) == (
        "failed", "nothing was done between 1,000,000.0 s and 1,000,001.0 s: choose another time",
    )  # fmt: skip
    paged = told("record", setup=TIGHT.with_(policy="paged"), **{"from": 0.0, "to": 1.0})
    assert paged.error == "the paged policy has none of llama.cpp's cells: there is nothing to play"


def test_a_plan_is_that_of_the_library() -> None:
    choices = [(["n_ctx"], [[4096], [16384]]), (["parallel"], [[4]])]
    task = told("search", choices=choices, limits={"failed_decodes": 0, "unserved": 0.0})
    several = [[{"n_ctx": 4096}, {"n_ctx": 16384}], [{"parallel": 4}]]
    found = plan(lambda: Workload(CHAT, 60), TIGHT, several, Limits(), whole=True)
    assert found.best is not None
    assert task.of_kind("plan") == [
        {"kind": "plan", "best": text_of_setup(found.best.setup), "binding": list(found.binding)}
    ]
    assert [t["bytes"] for t in task.of_kind("tried")] == [t.bytes for t in found.tried]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (DAMAGED, "mine.csv:3: comes 1.68 s before the line above it: sort the file by time"),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,many,44\n",
            "mine.csv:2: ContextTokens 'many'",
        ),
        (b"", "mine.csv: the file is empty"),
        (gzip.compress(DAMAGED, mtime=0)[:40], "mine.csv:1: the compressed file is damaged"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_its_line(data: bytes, error: str) -> None:
    task = told("read", Source(UPLOAD, 0), name="mine.csv", data=base64.b64encode(data).decode())
    assert task.state == "failed"
    assert task.error.startswith(error)


# -- what is drawn -----------------------------------------------------------------------------------


def test_plots_are_saved_as_pictures(served: Task) -> None:
    run = series.Run("A", served.of_kind("account")[0], served.of_kind("begin")[0]["sizes"])
    assert figure.figure(series.panels(run), "a title", "png").startswith(b"\x89PNG")
    drawn = figure.figure(series.beside([run, run]), r"a title, no $\frac$ formula", "svg")
    assert b"<svg" in drawn


def test_the_frontier_is_what_nothing_as_small_betters() -> None:
    tried = [{"bytes": b, "failed": f} for b, f in ((1, 9), (2, 9), (2, 4), (3, 5), (4, 0), (5, 0))]
    assert drawing.frontier(tried, "failed") == [0, 2, 4]


def test_a_plan_is_drawn_whatever_it_holds() -> None:
    one = {"setup": text_of_setup(FIRST), "bytes": 5, "broken": ["unserved"], "failed": 0, "reprocessed": 0.0,
           "unserved": 1.0, "first_token": 0.0}  # fmt: skip
    for axis in drawing.AXES:
        assert drawing.scatter([one], axis, None).count("kvw-bad") == 1
    assert "requests not served in full" in drawing.plan_table([one], None)


def test_reasons_and_failures_are_told_or_said_to_be_none() -> None:
    assert "No decode failed" in drawing.failures({"failures": []})
    assert "as far as it could be" in drawing.reasons({"not_reused": {}, "reprocessed_by": {}})
    assert "&lt;b&gt;" in drawing.reasons({"not_reused": {"<b>": 2}, "reprocessed_by": {"<b>": 7}})


# -- the page ----------------------------------------------------------------------------------------


def start(**query: str) -> AppTest:
    at = AppTest.from_file(MAIN, default_timeout=120)
    at.query_params["page"] = "workload"
    for key, value in query.items():
        at.query_params[key] = value
    at.run()
    assert not at.exception
    return at


def settled(at: AppTest) -> AppTest:
    """Once everything that was begun is through."""
    for task in at.session_state["workload-tasks"].values():
        task.wait(300)
    at.run()
    assert not at.exception
    return at


def shown(at: AppTest) -> str:
    return " ".join(block.proto.body for block in at.get("html") if "<style>" not in block.proto.body)


def test_nothing_is_simulated_before_it_is_asked_for() -> None:
    at = start(requests="60")
    assert at.session_state["workload-tasks"] == {}
    assert [s.value for s in at.subheader] == ["Serve a workload"]
    at.button(key="wl-first").click().run()
    assert at.query_params["runs"] == text_of_setup(FIRST)
    settled(at)
    assert "60 of 60" in shown(at)


def test_a_link_restores_runs_interval_and_configuration() -> None:
    runs = f"{text_of_setup(TIGHT)}~{text_of_setup(TIGHT.with_(unified=False))}"
    at = settled(start(requests="60", runs=runs, show="A", **{"from": "0.01", "to": "0.05"}))
    settled(at)
    assert at.number_input(key="wl-n_ctx").value == 4096
    assert at.session_state["workload-interval"] == (0.01, 0.05)
    assert (at.query_params["runs"], at.query_params["from"]) == (runs, "0.01")
    assert "operations<small>from second 0.010 on" in shown(at)
    assert "<b>B</b> streams" in shown(at)


def test_runs_stand_side_by_side_until_the_workload_changes() -> None:
    at = settled(start(requests="60", runs=text_of_setup(TIGHT)))
    at.number_input(key="wl-n_ctx").set_value(8192).run()
    at.button(key="wl-serve").click().run()
    settled(at)
    assert [run.n_ctx for run in at.session_state["workload-runs"]] == [4096, 8192]
    assert "<b>B</b> 8,192 cells" in shown(at)
    at.number_input(key="wl-source-requests").set_value(30).run()
    assert "runs" not in at.query_params
    at.button(key="wl-serve").click().run()
    assert [run.n_ctx for run in at.session_state["workload-runs"]] == [8192]


def test_made_up_requests_are_served_by_every_kind_of_cache() -> None:
    at = start(
        kind=MADE_UP,
        requests="40",
        rate="2",
        turns="3",
        user="30",
        answer="10",
        set="arch:jamba-v0.1,n_ctx:4096",
    )
    assert at.number_input(key="wl-source-rate").value == 2.0
    assert at.number_input(key="wl-rate").value == 312.0
    at.button(key="wl-serve").click().run()
    settled(at)
    assert "Made up: 40 requests" in shown(at)
    assert "40 of 40" in shown(at)
    assert (at.query_params["rate"], at.query_params["kind"]) == ("2", MADE_UP)


def test_a_refused_configuration_is_told_beside_the_fields() -> None:
    at = start(set="arch:deepseek-v3,n_ctx:4096,type_k:q8_0")
    assert "stores one row for both" in at.error[0].value
    assert at.button(key="wl-serve").disabled


def test_the_name_of_a_file_is_no_markup() -> None:
    at = start()
    at.session_state["workload-gguf"] = ("![x](a.png).gguf", ModelError("no **GGUF**"))
    at.run()
    said = r"!\[x\](a.png).gguf: no \*\*GGUF\*\*. The model above is used meanwhile."
    assert said in [error.value for error in at.error]


def test_the_paged_policy_has_no_cells_to_play() -> None:
    at = settled(start(requests="60", runs=text_of_setup(TIGHT.with_(policy="paged"))))
    assert "none of llama.cpp&#x27;s cells" in shown(at)
    assert not [n for n in at.number_input if n.key == "wl-from"]


def test_a_run_that_is_cancelled_can_be_begun_again() -> None:
    at = start(runs=text_of_setup(FIRST), requests="0")
    (task,) = at.session_state["workload-tasks"].values()
    task.cancel()
    task.wait(60)
    at.run()
    assert not at.exception
    assert task.state == "cancelled"
    at.button(key="wl-again-A").click().run()
    (again,) = at.session_state["workload-tasks"].values()
    again.cancel()
    assert again is not task


def test_a_plan_in_a_link_is_tried_and_its_best_served() -> None:
    at = start(
        requests="60",
        view="plan",
        go="1",
        p_n_ctx="4096,16384",
        p_parallel="4",
        p_unified="1",
        axis="unserved",
    )
    settled(at)
    assert "<b>16k × 4 unified</b> serves it" in shown(at)
    assert at.query_params["p_n_ctx"] == "4096,16384"
    at.button(key="wl-use").click().run()
    settled(at)
    assert at.session_state["workload-runs"][0].n_ctx == 16384
    assert at.number_input(key="wl-n_ctx").value == 16384


def test_too_large_a_plan_is_not_begun() -> None:
    at = start(view="plan", p_n_ctx="4096,8192,16384,32768,65536,131072", p_parallel="1,2,4,8,16,32", go="1")
    assert "72 combinations are more than the 48" in shown(at)
    assert at.button(key="wl-try").disabled
    assert at.session_state["workload-tasks"] == {}


def test_a_model_from_a_header_is_simulated_with_the_parameters_it_is_given(tmp_path) -> None:
    write_tiny("gemma3", tmp_path / "my.gguf")
    at = AppTest.from_file(MAIN, default_timeout=120)
    at.query_params["page"] = "workload"
    at.query_params["requests"] = "20"
    at.session_state["workload-gguf"] = ("my.gguf", read_model(tmp_path / "my.gguf"))
    at.run()
    assert not at.exception
    assert at.number_input(key="wl-n_params").value == 8.0
    at.button(key="wl-serve").click().run()
    settled(at)
    assert "<b>A</b> gemma3 (from a header), 16,384 cells" in shown(at)
    assert "20 of 20" in shown(at)


def test_the_slots_have_a_legend() -> None:
    """Those that hold something; with more slots than the twelve colours, one colour is of several."""
    layers = [
        {"tone": tone, "y": y} for tone, y in (("seq:0", [0, 2]), ("seq:1", [0, 0]), ("seq:12:pale", [1, 0]))
    ]
    shown = series.slots([{"kind": "area", "layers": layers}, {"kind": "bars", "layers": []}])
    assert shown == [0, 12]
    assert drawing.slot_colours([*shown, 1]).count("<span>") == 2
    assert "slot 0, 12</span>" in drawing.slot_colours([*shown, 1])
