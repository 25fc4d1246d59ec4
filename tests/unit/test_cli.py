"""The commands: what they print, where, and their exit status."""

import contextlib
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
from trace_samples import HYBRID, HYBRID_IDX, ISWA, KV, SMALL, TRACES, as_bytes, lines_of
from typer.testing import CliRunner

from kvsim.__main__ import main
from kvsim.cli import app
from kvsim.cli.memory import size_in_words, size_of
from kvsim.cli.terminal import map_text, table
from kvsim.hazards import HAZARDS
from kvsim.trace import read_trace
from kvsim.trace.cellmap import MapCell

ROLLBACK = TRACES / "dsv4" / "deepseek4-uni-c512-u16-s2-f16-rs2-01.jsonl.gz"
GOLDENS = TRACES.parent / "goldens"


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "160"})


@pytest.fixture
def tampered(tmp_path):
    """A recording in which one cell of one picture was changed, and what the cell was."""
    lines = lines_of(ISWA)
    line = next(x for x in lines[2:] if x["op"] == "decode" and x["ret"] == 0)
    cell = line["after"]["caches"]["swa"][0]["cells"][2]
    cell[1] += 1
    path = tmp_path / "tampered.jsonl"
    path.write_bytes(as_bytes(lines))
    return path, line["i"], cell


# -- replay -----------------------------------------------------------------------------------


def test_replay_prints_one_line_a_trace_and_the_sum(tmp_path):
    shutil.copy(SMALL, tmp_path / "a.jsonl.gz")
    shutil.copy(SMALL, tmp_path / "b.jsonl.gz")
    (tmp_path / "notes.txt").write_text("not a trace")
    result = run("replay", tmp_path)
    assert result.exit_code == 0
    assert [line.split()[-8:-2] for line in result.stdout.splitlines()] == [
        ["102", "operations", "49", "decodes", "0", "differences"],
        ["102", "operations", "49", "decodes", "0", "differences"],
        ["204", "operations", "98", "decodes", "0", "differences"],
    ]
    hazards = [int(line.split()[-2]) for line in result.stdout.splitlines()]
    assert hazards[0] > 0
    assert hazards[2] == 2 * hazards[0]
    assert result.stderr == ""


def test_one_of_a_thing_is_told_in_the_singular(tmp_path):
    trace = tmp_path / "one.jsonl"
    header, init, decode = lines_of(SMALL)[:3]
    trace.write_bytes(as_bytes([header, init, decode]))
    assert run("replay", trace).stdout == (
        f"{trace}       2 operations       1 decode        0 differences       0 hazards\n"
    )


def test_replay_of_one_trace_has_no_sum():
    assert run("replay", SMALL).stdout.count("\n") == 1


def test_replay_finds_a_difference(tampered):
    path, _, _ = tampered
    result = run("replay", path)
    assert result.exit_code == 1
    assert result.stdout.split()[-4:-2] == ["1", "difference"]


def test_replay_explains_the_first_difference_side_by_side(tampered):
    path, i, (index, pos, *_) = tampered
    lines = run("replay", "--explain", path).stdout.splitlines()
    lines = lines[:1] + lines[next(k for k, line in enumerate(lines) if line.startswith("  operation ")) :]
    assert lines[1].startswith(f"  operation {i}, decode(")
    assert lines[1].endswith(": 1 difference")
    assert lines[2].startswith(f"    after.caches.swa[0].cells[{index}]: recorded [{index}, {pos}, ")
    assert lines[4] == "  swa, stream 0"
    assert lines[5].startswith("  recorded, head ")
    left, right = lines[6].split("      0")[1:]
    assert left.rstrip() == right.rstrip()
    assert left[2 * index] == "!"
    assert left.count("!") == 1
    assert lines[7].startswith(f"    cell {index}: recorded position {pos}, seq ")
    assert f"; computed position {pos - 1}, seq " in lines[7]


def test_replay_tells_the_hazards_that_were_met():
    trace = TRACES / "kv" / "llama-uni-c256-u16-s4-f16-03.jsonl.gz"
    [met] = [outcome["met"] for outcome in json.loads(run("replay", "--json", trace).stdout)["traces"]]
    assert set(met) <= set(HAZARDS)
    moved = met["shift-moves-other-owners"]
    lines = run("replay", "--explain", trace).stdout.splitlines()
    [k] = [k for k, line in enumerate(lines) if line.startswith("  hazard shift-moves-other-owners: ")]
    told = f"{moved['operations']} operations, first {moved['first']}, seq_"
    assert lines[k].startswith(f"  hazard shift-moves-other-owners: {told}")
    assert lines[k + 1] == f"    {HAZARDS['shift-moves-other-owners'].happens}"


def test_replay_as_json(tampered):
    path, i, cell = tampered
    result = run("replay", "--json", path, SMALL)
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    bad, good = answer["traces"]
    assert (answer["differences"], bad["differences"], good["differences"]) == (1, 1, 0)
    assert answer["operations"] == bad["operations"] + good["operations"]
    assert good["first"] is None
    assert (bad["first"]["i"], bad["first"]["op"]) == (i, "decode")
    [difference] = bad["first"]["differences"]
    assert difference["path"] == f"after.caches.swa[0].cells[{cell[0]}]"
    assert difference["recorded"] == cell
    assert difference["computed"] == [cell[0], cell[1] - 1, *cell[2:]]


def test_replay_of_damaged_input_is_one_line_and_the_others_still_run(tmp_path):
    lines = lines_of(KV)
    lines[4]["op"] = "seq_mv"
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(as_bytes(lines))
    result = run("replay", bad, SMALL)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{bad}:5: the operation.op is 'seq_mv', must be an operation")
    assert result.stderr.count("\n") == 1
    assert result.stdout.splitlines()[0].startswith(str(SMALL))
    assert json.loads(run("replay", "--json", bad).stdout)["traces"][0]["error"].startswith(f"{bad}:5: ")


def test_replay_refuses_a_header_of_another_memory(tmp_path):
    lines = lines_of(KV)
    lines[0]["arch"] = "no-such-model"
    path = tmp_path / "t.jsonl"
    path.write_bytes(as_bytes(lines))
    result = run("replay", path)
    assert result.exit_code == 2
    assert "no-such-model" in result.stderr


def test_replay_of_nothing(tmp_path):
    result = run("replay", tmp_path / "missing")
    assert (result.exit_code, result.stderr) == (2, f"{tmp_path}/missing: no such file or folder\n")
    result = run("replay", tmp_path)
    assert (result.exit_code, result.stderr) == (2, f"{tmp_path}: holds no trace (.jsonl or .jsonl.gz)\n")


def test_progress_bar_goes_to_a_terminal_and_results_stay_clean(tmp_path):
    controller, terminal = pty.openpty()
    results = tmp_path / "results"
    with results.open("wb") as stdout:
        command = [sys.executable, "-m", "kvsim", "replay", TRACES / "kv"]
        process = subprocess.Popen(command, stdout=stdout, stderr=terminal)
    os.close(terminal)
    drawn = read_to_end(controller)
    assert process.wait() == 0
    assert b"replaying" in drawn
    assert results.read_text().count("\n") == 13
    assert "\x1b" not in results.read_text()


def read_to_end(terminal):
    """All that is written to a terminal until its other side is closed."""
    written = b""
    with contextlib.suppress(OSError):  # how Linux says so
        while part := os.read(terminal, 65536):
            written += part
    os.close(terminal)
    return written


# -- show -------------------------------------------------------------------------------------


def test_show_draws_the_recorded_cells():
    result = run("show", HYBRID, "--at", 20)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:7] == [
        "20  decode(1 token of seq 2)  [0 ok]",
        "First the rows of stream 0 are copied to stream 2. Then position 14 of seq 2 goes to cell 42.",
        "",
        "attn, stream 0  42 of 256 cells used, head 42",
        "        seq 0: 0 to 40",  # more than its state, which is at 13
        "      0 " + " 0" * 42 + ">." + " ." * 21,
        "     64  ... 192 empty cells",
    ]
    assert "attn, stream 2  43 of 256 cells used, head 43 (was 42)" in result.stdout
    assert "recurrent  4 of 4 states used, head 1, n 1" in result.stdout
    assert result.stdout.splitlines()[-4:] == [
        "  seq 0: 13 to 13",
        "  seq 1: 88 to 88",
        "  seq 2: 14 to 14",
        "  seq 3: 33 to 33",
    ]


def shown_where(path, wanted):
    """``kvsim show`` at the first operation whose picture has what is wanted."""
    step = next(step for step in read_trace(path) if wanted(step.after))
    return run("show", path, "--at", step.i).stdout


def test_show_tells_what_waits_for_the_next_decode():
    shifted = shown_where(ISWA, lambda after: after["caches"]["base"][0]["has_shift"])
    assert " shifts pending\n" in shifted
    copied = shown_where(KV, lambda after: any(after.get("pending_copies", {}).values()))
    assert "  pending: kv copies stream " in copied
    rolled_back = shown_where(ROLLBACK, lambda after: any(after.get("rs_idx", ())))
    assert "  rollback index per sequence: " in rolled_back
    stale = shown_where(HYBRID_IDX, lambda after: after["idx_stale"])
    assert ": pooled index keys are stale from position " in stale


def test_show_of_an_empty_memory():
    assert run("show", KV, "--at", 0).stdout.splitlines()[-1] == "  none: every sequence is empty"


def test_show_does_not_compute(tampered):
    path, i, _ = tampered
    lines = lines_of(ISWA)
    cells = next(line for line in lines if line.get("i") == i)["after"]["caches"]["swa"][0]["cells"]
    assert f"swa  {len(cells)} of 512 cells used" in run("show", path, "--at", i).stdout


def test_show_ends_at_the_last_operation_and_tells_the_range():
    assert run("show", SMALL).stdout.startswith("101  ")
    result = run("show", SMALL, "--at", 102)
    assert result.exit_code == 2
    assert result.stderr == f"{SMALL}: there is no operation 102; the trace has 0 to 101\n"


def test_show_of_damaged_input(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(SMALL.read_bytes()[:2000])
    result = run("show", path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{path}:")
    assert result.stderr.endswith("the gzip stream ends early: the file is cut off\n")


def test_cells_are_coloured_by_sequence():
    cells = [
        MapCell("1", (1,), " "),
        MapCell("+", (0, 1), "!"),
        MapCell(".", (), ">"),
        MapCell("d", (13,), " "),
    ]
    text = map_text(cells)
    assert text.plain == " 1!+>. d"
    styles = [str(span.style) for span in text.spans]
    assert styles[1] == styles[7] == "#0b0e12 on #e6830c"
    assert styles[2:4] == ["bold red", "reverse bold"]
    assert styles[5] == "dim"


def test_what_a_file_says_is_text_and_no_markup(tmp_path):
    lines = lines_of(SMALL)
    lines[2]["op"] = "[red]op[/red]\x1b[31m"
    path = tmp_path / "t.jsonl"
    path.write_bytes(as_bytes(lines))
    result = run("show", path)
    assert result.exit_code == 2
    assert "the operation.op is '[red]op[/red]\\x1b[31m', must be" in result.stderr


# -- verify -----------------------------------------------------------------------------------


def test_verify_a_golden():
    result = run("verify", GOLDENS / "rowcodec" / "rows32.npz")
    assert result.exit_code == 0
    line, *arrays, total = result.stdout.splitlines()
    assert line.endswith("25 arrays  worst 0.0e+00  agrees")
    assert len(arrays) == 25
    assert "    q4_0.cache_bytes: 0, allowed 0" in arrays
    assert total == "1 file, 25 arrays, 0 files out of tolerance"


def test_verify_tells_the_error_of_every_array_of_many_files():
    files = [GOLDENS / "rowcodec" / name for name in ("rows32.npz", "rows64.npz")]
    assert len(run("verify", *files).stdout.splitlines()) == 3
    assert len(run("verify", "--arrays", *files).stdout.splitlines()) == 3 + 50


def test_verify_finds_an_altered_array(tmp_path):
    source = GOLDENS / "rowcodec" / "rows32.npz"
    with np.load(source) as npz:
        arrays = dict(npz)
    name = next(name for name, array in arrays.items() if name != "meta_json" and array.dtype == np.uint8)
    arrays[name] = arrays[name] ^ 1
    path = tmp_path / "rowcodec" / "rows32.npz"
    path.parent.mkdir()
    np.savez(path, **arrays)
    result = run("verify", path)
    assert result.exit_code == 1
    assert "DIFFERS" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("1 file out of tolerance")


def test_verify_of_what_is_no_golden(tmp_path):
    path = tmp_path / "rowcodec" / "x.npz"
    path.parent.mkdir()
    path.write_bytes(b"no")
    assert run("verify", path).exit_code == 2
    assert "no goldens there" in run("verify", tmp_path / "none").stderr


# -- memory -----------------------------------------------------------------------------------


def test_memory_of_a_known_model():
    report = json.loads(run("memory", "--arch", "llama3.1-8b", "--n-ctx", 8192, "--json").stdout)
    # 32 layers, 8 heads of 128 values, two bytes each, keys and values
    assert report["total"] == 8192 * 32 * 8 * 128 * 2 * 2
    lines = run("memory", "--arch", "llama3.1-8b", "--n-ctx", 8192).stdout.splitlines()
    assert lines[0] == "kv memory, context 8,192 for 1 sequence"
    assert lines[-1].split() == ["total", "1,073,741,824", "1.00", "GiB"]


def test_memory_that_fits_a_budget():
    def fit(*args):
        return json.loads(run("memory", "--arch", "llama3.1-8b", "--json", *args).stdout)

    assert fit("--budget", "1GiB")["n_ctx"] == 8192
    assert fit("--budget", "1GiB", "--n-ctx", 2048)["n_seq_max"] == 4
    result = run("memory", "--arch", "llama3.1-8b", "--budget", "1MiB")
    assert (result.exit_code, result.stdout) == (1, "nothing fits, not even the smallest context\n")
    result = run("memory", "--arch", "llama3.1-8b", "--budget", "1GiB", "--n-ctx", 2048)
    assert result.stdout.startswith("4 sequences of 2,048 tokens fit:\n")


def test_memory_says_whether_what_was_asked_for_fits():
    """A context and a number of sequences leave nothing to look for: 65,536 tokens are 8 GiB."""
    asked = ("memory", "--arch", "llama3.1-8b", "--n-ctx", 65536, "--n-seq-max", 16)
    result = run(*asked, "--budget", "9GiB")
    assert (result.exit_code, result.stdout.splitlines()[:2]) == (
        0, ["fits, 1.00 GiB are left:", "kv memory, context 65,536 for 16 sequences"],
    )  # fmt: skip
    result = run(*asked, "--budget", "7GiB")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (1, "1.00 GiB too much:")
    result = run(*asked, "--budget", "7GiB", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["fits"], report["total"], report["n_seq_max"]) == (
        1,
        False,
        8 * 2**30,
        16,
    )
    assert run(*asked[:-1], 1, "--budget", "8GiB").stdout.startswith("fits, 0 B are left:")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "give one model: --gguf FILE, or --arch NAME with one of llama2-7b"),
        (["--arch", "llama3-8b", "--gguf", "x"], "give one model"),
        (["--arch", "none"], "unknown model 'none'"),
        (["--arch", "llama3-8b", "--type-k", "q9"], "unknown cache type 'q9'"),
        (["--arch", "llama3-8b", "--budget", "much"], "--budget 'much' is not a size; write it like 24GiB"),
        (["--gguf", "/no/such/file"], "/no/such/file"),
    ],
)
def test_memory_that_cannot_be_told(args, message):
    result = run("memory", *args)
    assert result.exit_code == 2
    assert message in result.stderr


def test_sizes():
    assert [size_of(text) for text in ("24GiB", "1.5 gb", "4096", "10kib", "0B")] == [
        24 * 2**30,
        1_500_000_000,
        4096,
        10240,
        0,
    ]
    sizes = [size_in_words(n) for n in (0, 1023, 1024, 1536 * 2**20)]
    assert sizes == ["0 B", "1023 B", "1.00 KiB", "1.50 GiB"]


def test_table_aligns_names_left_and_numbers_right():
    assert table([("a", "100"), ("long", "2")]) == ["a     100", "long    2"]


# -- app --------------------------------------------------------------------------------------


def test_app_serves_the_app():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "STREAMLIT_SERVER_PORT": str(port), "STREAMLIT_SERVER_HEADLESS": "true"}
    server = subprocess.Popen(
        [sys.executable, "-m", "kvsim", "app"], env=env, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        assert answer_of(f"http://127.0.0.1:{port}/_stcore/health") == b"ok"
    finally:
        os.killpg(server.pid, signal.SIGINT)
        assert server.wait(timeout=20) == 0


def answer_of(url):
    """The body of a page, as soon as the server is up."""
    for _ in range(200):
        try:
            with urllib.request.urlopen(url) as page:
                return page.read()
        except OSError:
            time.sleep(0.1)
    return None


def test_app_without_streamlit_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("app")
    assert (result.exit_code, result.stderr) == (2, "the app needs streamlit: pip install 'kvsim[app]'\n")


# -- the command itself -----------------------------------------------------------------------


def test_no_arguments_show_the_commands():
    result = run()
    assert result.exit_code == 2
    for command in ("replay", "show", "verify", "memory"):
        assert f"  {command} " in result.output


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_libraries_it_says_how_to_install_them(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; from kvsim.__main__ import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == f"the kvsim command needs {missing}: pip install 'kvsim[cli]'\n"


def test_too_little_memory_is_said_in_one_line(monkeypatch, capsys):
    def app():
        raise MemoryError("Unable to allocate 4 GiB")

    monkeypatch.setattr("kvsim.cli.app", app)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err == (
        "there is not enough memory (Unable to allocate 4 GiB): ask for fewer cells or operations\n"
    )


def test_run_as_a_module():
    result = subprocess.run(
        [sys.executable, "-m", "kvsim", "replay", str(SMALL)], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.split()[-4:-2] == ["0", "differences"]
