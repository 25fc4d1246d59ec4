"""Plans, sweeps, and jobs that outlive their workers."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from dying_workers import die, die_once, wrong
from typer.testing import CliRunner

from kvsim.cli import app
from kvsim.cli.terminal import counted
from kvsim.errors import CacheUsageError, ModelError
from kvsim.models.gguf_metadata import read_header
from kvsim.spread import SpreadError, over_processes
from kvsim.workload.account import MOST_SAMPLES, Account, Histogram, Sample, Totals
from kvsim.workload.cost import Weights
from kvsim.workload.plan import Limits, candidates, plan
from kvsim.workload.read import Workload
from kvsim.workload.setup import FileSetup, Setup
from kvsim.workload.sweep import Job, read_spec, run_job, sweep

CHAT = Path("fixtures/workloads/azure_llm_2023_conv.csv.gz").absolute()
GGUF = Path("fixtures/goldens/logits/gemma2-s0.gguf").absolute()
MOONCAKE = CHAT.with_name("mooncake_conversation_4000.jsonl.gz")


# -- counting ---------------------------------------------------------------------------------


def test_a_histogram_knows_quantiles_to_two_per_cent() -> None:
    histogram = Histogram()
    for value in [0.0, *range(1, 100)]:
        histogram.add(float(value))
    assert histogram.quantile(0.01) == 0
    assert histogram.quantile(0.5) == pytest.approx(49, rel=0.02)
    assert histogram.quantile(0.99) == pytest.approx(98, rel=0.02)
    assert histogram.to_json()["max"] == 99
    assert Histogram().quantile(0.5) == 0


def test_samples_are_thinned() -> None:
    account = Account(every=1.0)
    for t in range(10 * MOST_SAMPLES):
        if account.due(t):
            account.sample(Sample(t, 0, 0, 0, 0, {}))
    assert MOST_SAMPLES / 2 <= len(account.samples) < MOST_SAMPLES
    gaps = [b.time - a.time for a, b in pairwise(account.samples)]
    assert max(gaps) <= 2 * account.every
    assert account.samples[0].time == 0


def test_samples_tell_what_had_happened_by_then() -> None:
    account = Setup("llama3-8b", n_ctx=65536, unified=True).run(Workload(MOONCAKE, 30), sample_every=0.0)
    sums = [(s.requests, s.hits, s.reused, s.computed) for s in account.samples]
    assert sums == sorted(sums)
    totals = account.totals
    assert sums[-1] == (30, account.hits, totals.reused, totals.computed)
    assert account.hits > 0


def test_unaccounted_tokens_are_noticed() -> None:
    from kvsim.errors import IntegrityError

    Totals(requests=1, finished=1, prompt=3, computed=3, decoded=3).check()
    with pytest.raises(IntegrityError, match="3 tokens of prompts, but 2"):
        Totals(requests=1, finished=1, prompt=3, computed=2, decoded=2).check()


# -- plans ------------------------------------------------------------------------------------


def plan_for(
    limits: Limits, contexts: tuple[int, ...] = (2048, 8192, 16384)
) -> tuple[int | None, tuple[str, ...]]:
    choices = [[{"n_ctx": n} for n in contexts], [{"unified": False}]]
    found = plan(lambda: Workload(CHAT, 40), Setup("llama3-8b", parallel=2), choices, limits)
    return (found.best.setup.n_ctx if found.best else None), found.binding


def test_the_smallest_configuration_is_found_and_what_binds() -> None:
    """The longest of the first 40 conversations does not fit into the half of 8,192 cells."""
    longest = max(r.n_prompt + r.n_answer for r in Workload(CHAT, 40))
    assert 4096 < longest < 8192
    assert plan_for(Limits()) == (16384, ("unserved",))
    assert plan_for(Limits(unserved=1.0)) == (2048, ())


def test_memory_can_be_in_the_way() -> None:
    of_largest = Setup("llama3-8b", parallel=2, n_ctx=16384).memory_bytes()
    assert of_largest == 16384 * 32 * 2 * 8 * 128 * 2
    assert plan_for(Limits(bytes=of_largest - 1)) == (None, ("bytes",))
    assert plan_for(Limits(bytes=of_largest)) == (16384, ("unserved",))


def test_a_whole_plan_tries_everything_to_its_end_and_says_the_same() -> None:
    """2,048 and 8,192 cells of one buffer for 16 slots fail; the plan goes on beyond the best, the smallest."""
    choices = [[{"n_ctx": n} for n in (2048, 8192, 65536, 131072)], [{"unified": True}]]
    base = Setup("llama3-8b", parallel=16)
    short = plan(lambda: Workload(CHAT, 60), base, choices, Limits())
    whole = plan(lambda: Workload(CHAT, 60), base, choices, Limits(), whole=True)
    assert [each.complete for each in short.tried] == [False, False, True]
    assert [each.complete for each in whole.tried] == [True] * 4
    assert whole.best is not None
    assert (whole.best.setup.n_ctx, whole.binding) == (65536, short.binding)
    assert all(each.account.totals.requests == 60 for each in whole.tried)


def test_every_limit_can_bind() -> None:
    account = Account(totals=Totals(requests=10, rejected=1, prompt=100, reprocessed=11, failed_decodes=3))
    account.first_token.add(2.0)
    assert Limits(2, 0.1, 0.05, 1.9).broken(account) == [
        "failed_decodes",
        "reprocessed",
        "unserved",
        "first_token",
    ]
    assert Limits(3, 0.11, 0.1, 2.0).broken(account) == []
    assert Limits(2, 0.1, 0.05, 1.9).broken(account, complete=False) == ["failed_decodes"]


def test_candidates_are_those_that_can_be() -> None:
    found = candidates(
        Setup("llama3-8b", n_ctx=512), [[{"parallel": 2}, {"parallel": 300}], [{"n_batch": 512}]]
    )
    assert [setup.parallel for _, setup in found] == [2]
    with pytest.raises(CacheUsageError, match="256"):
        candidates(Setup("llama3-8b"), [[{"parallel": 300}]])


# -- sweeps -----------------------------------------------------------------------------------


def spec_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    return path


BASE = f"workloads: [{CHAT}]\nrequests: 5\nbase: {{arch: llama3-8b, n_ctx: 8192}}\n"


def test_a_grid_is_every_combination(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    jobs = read_spec(spec_file(tmp_path, BASE + "grid: {parallel: [1, 2], unified: [true, false]}\n"))
    assert [(j.setup.parallel, j.setup.unified, j.requests) for j in jobs] == [
        (1, True, 5), (1, False, 5), (2, True, 5), (2, False, 5),
    ]  # fmt: skip
    assert len({job.key for job in jobs}) == 4


def test_a_random_search_draws(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    text = BASE + "random: {n: 6, seed: 3, choices: {parallel: [1, 2, 3], n_ubatch: [64, 128]}}\n"
    jobs = read_spec(spec_file(tmp_path, text))
    assert 1 <= len(jobs) <= 6
    assert jobs == read_spec(spec_file(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1]", "a sweep has some of"),
        ("{", "not YAML"),
        ("[" * 3000, "nested too deeply"),
        ("workloads: [2020-99-99]", "not YAML: month must be in 1..12"),
        ("requests: " + "9" * 5000, "not YAML: Exceeds the limit"),
        ("workloads: []", "workloads is not a list"),
        (BASE + "grid: {parallel: 4}", "lists of values"),
        (BASE + "grid: {threads: [4]}", "unknown setting 'threads'"),
        (BASE + "grid: {parallel: ['4']}", "parallel = '4' is not of type int"),
        (BASE + "grid: {arch: [gpt]}", "unknown model 'gpt'"),
        (BASE + "seeds: [0, 1]", "set fitted too"),
        (BASE + "grid: {}\nrandom: {}", "not both"),
        (BASE.replace("arch: llama3-8b, ", ""), "no model"),
        (BASE + "fitted: -1", "fitted = -1"),
        ("#" * (256 << 10) + "\n" + BASE, "longer than 256 KiB"),
        (
            BASE + f"grid: {{n_ctx: &x {[*range(50)]}, n_keep: *x, checkpoints: *x}}",
            "125,000 combinations",
        ),
        (
            BASE + "random: {n: 1000000000, choices: {parallel: [1]}}",
            "1,000,000,000 combinations are too many",
        ),
        (BASE + "grid: {bandwidth: [.nan]}", "bandwidth = nan is not a number"),
        (BASE + f"grid: {{bandwidth: [{'9' * 400}]}}", "is not a number that can be calculated with"),
        (BASE + "grid: {bandwidth: [0]}", "a device of 0 bytes/s"),
        (BASE + "grid: {n_keep: [-5]}", "n_keep = -5 is negative"),
        (BASE + "fitted: 3\nseeds: [0, -1]", "seeds = -1 is not a number"),
        (BASE + "fitted: 3\nseeds: [9223372036854775808]", "seeds = 9223372036854775808 is not a number"),
        (BASE + "requests: 9223372036854775808", "requests = 9223372036854775808 is not a number"),
        (BASE + "grid: {n_keep: [9223372036854775808]}", "n_keep = 9223372036854775808 is not a number"),
        (BASE + "grid: {n_params: [-1]}", "no more active than all"),
    ],
)
def test_a_wrong_spec_is_refused(tmp_path: Path, text: str, says: str) -> None:
    pytest.importorskip("yaml")
    with pytest.raises(Exception, match=r"spec.yaml|unknown model") as caught:
        read_spec(spec_file(tmp_path, text))
    assert says in str(caught.value)


@pytest.mark.parametrize("damaged", [b"", b"{", b"5", b"\xff", b"[" * 100_000])
def test_a_damaged_result_is_told_with_its_file(tmp_path: Path, damaged: bytes) -> None:
    pytest.importorskip("pyarrow")
    job = jobs_of(1)[0]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / f"{job.key}.json").write_bytes(damaged)
    with pytest.raises(CacheUsageError, match=rf"{job.key}\.json is damaged: remove it"):
        sweep([job], tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheUsageError, match=r"file: results cannot be kept there: Not a directory"):
        sweep(jobs_of(1), tmp_path / "file")


def jobs_of(n: int) -> list[Job]:
    return [Job(str(CHAT), Setup("llama3-8b", n_ctx=8192, parallel=1 + i), requests=5) for i in range(n)]


def row_of(job: Job) -> dict[str, object]:
    return {"key": job.key, "parallel": job.setup.parallel}


def test_a_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    jobs = jobs_of(3)
    done: list[Job] = []
    sweep(jobs[:2], tmp_path, report=done.append, work=row_of)
    assert done == jobs[:2]
    (tmp_path / "rows" / f"{jobs[0].key}.json").write_text(json.dumps({"key": "kept", "parallel": 99}))
    path = sweep(jobs, tmp_path, report=done.append, work=row_of)
    assert done == jobs
    assert pq.read_table(path).to_pylist() == [{"key": "kept", "parallel": 99}, *map(row_of, jobs[1:])]


def test_a_job_is_a_flat_row() -> None:
    row = run_job(Job(str(CHAT), Setup("llama3-8b", n_ctx=8192, parallel=2), requests=5))
    assert (row["arch"], row["requests"], row["finished"], row["failed_decodes"]) == ("llama3-8b", 5, 5, 0)
    assert row["bytes"] == 8192 * 32 * 2 * 8 * 128 * 2
    assert all(isinstance(value, str | int | float) for value in row.values())
    made = run_job(Job(str(CHAT), Setup("llama3-8b", n_ctx=8192), requests=50, fitted=7, seed=1))
    assert made["requests"] == 7


# -- workers that die -------------------------------------------------------------------------


def test_a_killed_process_costs_only_time(tmp_path: Path) -> None:
    items = [str(tmp_path / name) for name in ("a", "b.kill", "c", "d")]
    assert dict(over_processes(die_once, items, 2)) == {item: len(item) for item in items}
    assert (tmp_path / "b.kill").exists()


def test_a_job_that_always_kills_its_process_ends_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.spread.MOST_ATTEMPTS", 2)
    with pytest.raises(SpreadError, match="died 2 times at 'x'"):
        list(over_processes(die, ["x"], 1))
    with pytest.raises(ValueError, match="no x"):
        list(over_processes(wrong, ["x"], 1))


# -- commands ---------------------------------------------------------------------------------


def run(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    return result.exit_code, result.output


def test_simulate_prints_a_table_and_json() -> None:
    asked = ("simulate", CHAT, "--arch", "llama3-8b", "--n-ctx", 8192, "--requests", 20)
    code, text = run(*asked)
    assert code == 0
    assert "20 requests in" in text
    assert "prompt tokens" in text
    code, text = run(*asked, "--json")
    report = json.loads(text)
    assert (code, report["totals"]["requests"], report["setup"]["arch"]) == (0, 20, "llama3-8b")
    assert report["samples"][-1]["caches"]["kv"]["used"] > 0
    code, text = run(*asked, "--policy", "paged", "--fitted", 10, "--turns", 3, "--system", 50, "--json")
    assert json.loads(text)["totals"]["requests"] == 10


def test_progress_without_a_terminal_is_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with counted("requests", 2000, lambda: now) as report:
        for n in range(1, 36):  # a call a second
            now = float(n)
            report(50 * n)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "requests: 500 of 2,000\nrequests: 1,000 of 2,000\nrequests: 1,500 of 2,000\n"


def test_simulate_writes_an_interval(tmp_path: Path) -> None:
    trace = tmp_path / "interval.jsonl.gz"
    code, _ = run(
        "simulate", CHAT, "--arch", "llama3-8b", "--n-ctx", 4096, "--requests", 5, "--trace", trace,
        "--trace-from", 2, "--trace-ops", 5,
    )  # fmt: skip
    assert code == 0
    from kvsim.trace import read_trace

    assert [step.i for step in read_trace(trace)] == list(range(6))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("simulate", "no.csv", "--arch", "llama3-8b"), "cannot be opened"),
        (("simulate", CHAT, "--arch", "no"), "unknown model"),
        (("simulate", CHAT, "--arch", "llama3-8b", "--policy", "no"), "unknown policy"),
        (("simulate", CHAT, "--arch", "llama3-8b", "--type-v", "q9"), "unknown cache type"),
        (
            ("simulate", CHAT, "--arch", "llama3-8b", "--policy", "paged", "--trace", "x", "--requests", 2),
            "--trace changes nothing without --policy slots",
        ),
        (("simulate", CHAT, "--arch", "llama3-8b", "--turns", 2), "--turns changes nothing without --fitted"),
        (("simulate", CHAT, "--arch", "llama3-8b", "--trace-ops", 2), "nothing without --trace:"),
        (("simulate", CHAT, "--arch", "llama3-8b", "--n-keep", 2), "nothing without --ctx-shift"),
        (("simulate", CHAT, "--arch", "llama3-8b", "--n-params", "nan"), "no more active than all"),
        (("simulate", CHAT, "--arch", "llama3-8b", "--trace", CHAT), "is the file that is read"),
        (("simulate", CHAT, "--arch", "llama3-8b", "--trace", "no/x.jsonl"), "there is no folder no"),
        (("simulate", CHAT, "--arch", "llama3-8b", "--trace", CHAT.parent), "is a folder"),
        (("simulate", CHAT, "--arch", "llama3-8b", "--trace", "/dev/full", "--requests", 2), "No space left"),
        (("simulate", CHAT), "give one model: --gguf FILE, or --arch NAME"),
        (("simulate", CHAT, "--arch", "llama3-8b", "--gguf", "x"), "give one model"),
        (("simulate", CHAT, "--gguf", "no.gguf"), "no.gguf: there is no such file"),
        (("plan", CHAT), "give one model"),
        (("plan", CHAT, "--arch", "llama3-8b", "--max-memory", "much"), "--max-memory 'much' is not a size"),
        (("plan", CHAT, "--arch", "llama3-8b", "--max-reprocessed", "nan"), "reprocessed = nan is no limit"),
        (("plan", CHAT, "--arch", "llama3-8b", "--max-unserved", -1), "unserved = -1.0 is no limit"),
        (("plan", CHAT, "--arch", "llama3-8b", "--seed", 2), "--seed changes nothing without --fitted"),
        (("sweep", "x.yaml", "--out", "x", "--ray", "local", "--processes", 2), "nothing with --ray"),
        (("plan", CHAT, "--arch", "llama3-8b", "--parallel", "a"), "not a list of numbers"),
        (("plan", CHAT, "--arch", "llama3-8b", "--layout", "a"), "unknown"),
        (("sweep", "no.yaml", "--out", "x"), "cannot be opened"),
    ],
)
def test_unusable_input_is_status_two(args: tuple[object, ...], says: str) -> None:
    code, text = run(*args)
    assert code == 2
    assert says in text


def test_plan_says_what_binds() -> None:
    asked = (
        "plan", CHAT, "--arch", "llama3-8b", "--parallel", 2, "--layout", "streams", "--requests", 40,
    )  # fmt: skip
    code, text = run(*asked, "--n-ctx", "8192,16384")
    assert code == 0
    assert "smallest: 2.00 GiB" in text
    assert "binds: unserved" in text
    code, text = run(*asked, "--n-ctx", "8192", "--json")
    assert (code, json.loads(text)["best"], json.loads(text)["binding"]) == (1, None, ["unserved"])


def test_a_model_file_is_as_good_as_a_name() -> None:
    """The header says what the memory is; the tensors, how many parameters."""
    asked = ("--n-ctx", 2048, "--parallel", 2, "--requests", 5)
    code, text = run("simulate", CHAT, "--gguf", GGUF, *asked, "--json")
    report = json.loads(text)
    assert (code, report["setup"]["arch"], report["totals"]["finished"]) == (0, "gemma2-s0", 5)
    assert set(report["peak_used"]) == {"base", "swa"}
    told = json.loads(run("memory", "--gguf", GGUF, "--n-ctx", 2048, "--n-seq-max", 2, "--json")[1])
    assert report["bytes"] == told["total"]
    code, text = run(
        "plan", CHAT, "--gguf", GGUF, "--n-ctx", "2048", *asked[2:], "--layout", "streams", "--json"
    )
    best = json.loads(text)["best"]
    assert (code, best["setup"]["arch"], best["bytes"]) == (0, "gemma2-s0", report["bytes"])


def test_weights_of_a_file() -> None:
    """All tensors count; the file is whole, so it says how many bytes a parameter has. A name and a file can be
    compared in one plan."""
    header = read_header(GGUF)
    weights = Weights.in_file(str(GGUF))
    assert weights.total == weights.active == sum(info.n_values for info in header.tensors.values())
    assert weights.bytes_each * weights.total == GGUF.stat().st_size - header.data_start
    setup = FileSetup(arch="x", gguf=str(GGUF))
    assert setup.cost().weights == weights
    assert setup.with_(weight_bytes=0.5).cost().weights.bytes_each == 0.5
    assert FileSetup(arch="llama3-8b").cost().weights == Weights.of("llama3-8b")


def test_of_experts_as_many_are_active_as_are_used(tmp_path: Path) -> None:
    """8 values of all, 32 of four experts of which one is used: 16 are active. A file cut after its header still
    says that, and two bytes each are assumed."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "moe.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_expert_count(4)
    writer.add_expert_used_count(1)
    writer.add_tensor("output_norm.weight", np.zeros(8, np.float32))
    writer.add_tensor("blk.0.ffn_up_exps.weight", np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert Weights.in_file(str(path)) == Weights(40, 16, 4.0)
    path.write_bytes(path.read_bytes()[: read_header(path).data_start])
    assert Weights.in_file(str(path)) == Weights(40, 16, 2.0)


@pytest.mark.parametrize(("used", "count"), [(5, 4), (1, "4"), (1, [4]), (1, float("nan"))])
def test_experts_that_cannot_be_are_refused(used: int, count: object, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "moe.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    add = {int: writer.add_uint32, str: writer.add_string, list: writer.add_array, float: writer.add_float32}
    add[type(count)]("llama.expert_count", count)
    writer.add_expert_used_count(used)
    writer.add_tensor("blk.0.ffn_up_exps.weight", np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        ModelError, match=r"moe\.gguf: llama\.expert_used_count = . of llama\.expert_count = "
    ):
        Weights.in_file(str(path))


def test_sweep_makes_a_table(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    pq = pytest.importorskip("pyarrow.parquet")
    spec = spec_file(tmp_path, BASE + "grid: {parallel: [1, 2]}\n")
    code, text = run("sweep", spec, "--out", tmp_path / "out", "--processes", 1)
    assert code == 0
    assert "2 simulations" in text
    table = pq.read_table(tmp_path / "out" / "results.parquet")
    assert table.column("parallel").to_pylist() == [1, 2]
    assert table.column("finished").to_pylist() == [5, 5]
