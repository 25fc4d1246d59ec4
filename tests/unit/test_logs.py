"""Logs of the real llama.cpp as traces: the cells are those that kvsim's caches hold at that moment."""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from itertools import zip_longest
from time import process_time

import pytest
from log_sessions import LOGS, SESSIONS, Held, held_at_searches
from typer.testing import CliRunner

from kvsim.changes import PictureReader
from kvsim.cli import app
from kvsim.errors import TraceError
from kvsim.logs import Imported, import_log
from kvsim.narrate import narrate
from kvsim.player.payload import pack
from kvsim.replay import replay_beside
from kvsim.trace import Step, TraceWriter, read_trace

LEVEL_3 = [name for name, session in SESSIONS.items() if 3 in session.levels]
SHOWN = {"attn": "kv"}
"""The cache of a hybrid memory is shown as that of a plain one."""


@cache
def log_text(name: str, level: int = 3) -> str:
    return gzip.decompress((LOGS / f"{name}-debug{level}.log.gz").read_bytes()).decode()


def imported(name: str, level: int = 3) -> Imported:
    return import_log(log_text(name, level).splitlines())


@cache
def held(name: str) -> list[Held]:
    return held_at_searches(SESSIONS[name])


def seen_in(result: Imported) -> list[Held]:
    """What the steps of the trace show of the stream that was searched."""
    found = []
    for step in result.main.steps():
        if step.op == "seen":
            name, stream = step.args["cache"], step.args["stream"]
            shown = step.after["caches"][name][stream]
            cells = [(cell[0], cell[1], tuple(cell[2])) for cell in shown["cells"]]
            found.append(Held(name, stream, shown["head"], shown["used"], cells))
    return found


def same(shown: Held, ours: Held) -> bool:
    """All alike; owners may be unknown (empty) where three or more sequences could share the cell."""
    place = (shown.cache, shown.stream, shown.head, shown.used)
    if place != (SHOWN.get(ours.cache, ours.cache), ours.stream, ours.head, ours.used):
        return False
    if [cell[:2] for cell in shown.cells] != [cell[:2] for cell in ours.cells]:
        return False
    return all(
        a[2] == b[2] or (a[2] == () and len(b[2]) > 1) for a, b in zip(shown.cells, ours.cells, strict=True)
    )


@pytest.mark.parametrize("name", LEVEL_3)
def test_the_cells_are_those_of_our_caches_at_that_moment(name):
    shown, ours = seen_in(imported(name)), held(name)
    assert len(shown) == len(ours) > 2
    for i, (a, b) in enumerate(zip(shown, ours, strict=True)):
        assert same(a, b), f"search {i}: {a} is not {b}"


def test_owners_of_shared_cells_are_told_where_only_two_sequences_can_be_meant():
    shared = {cell[2] for shown in seen_in(imported("llama"))[2:4] for cell in shown.cells}
    assert shared == {(0, 1), (1,)}


def test_ids_of_two_digits_are_told_apart_by_the_ranges_of_the_sequences():
    last = seen_in(imported("llama-12"))[-1]
    # the cells shared by sequences 10 and 11 could be those of any two of the twelve
    assert {cell[2] for cell in last.cells} == {(seq,) for seq in range(12) if seq != 1} | {()}
    assert {cell[1] for cell in last.cells if cell[2] == ()} == {0, 1}


@pytest.mark.parametrize("level", [1, 2])
def test_a_lower_level_gives_what_it_shows_and_marks_the_rest_as_unseen(level):
    shown, ours = list(imported("gemma3", level).main.steps()), held("gemma3")
    looks = [step for step in shown if step.op == "seen"]
    assert len(looks) == len(ours)
    for step, wanted in zip(looks, ours, strict=True):
        stream = step.after["caches"][wanted.cache][0]
        assert (step.args["cache"], stream["head"], stream["used"]) == (
            wanted.cache,
            wanted.head,
            wanted.used,
        )
        with_cells = level == 2 and wanted.cache == "swa"
        assert (0 in step.after.get("unseen", {}).get(wanted.cache, [])) == (
            not with_cells and wanted.used > 0
        )
        assert [cell[1] for cell in stream["cells"]] == (
            [cell[1] for cell in wanted.cells] if with_cells else []
        )


def test_a_cache_that_is_not_printed_yet_is_unseen_once_another_shows_cells():
    """The first batch is placed in base, ubatch by ubatch, before swa is searched for the first time."""
    steps = list(imported("gemma3").main.steps())[:6]
    assert [step.after["caches"]["base"][0]["used"] for step in steps] == [0, 0, 32, 64, 64, 64]
    assert [step.after.get("unseen") for step in steps] == [
        None,
        None,
        {"swa": [0]},
        {"swa": [0]},
        None,
        None,
    ]


def test_positions_of_sequences_are_known_at_every_level():
    cells = held("gemma3")[-1].cells  # of the window cache, which the memory's positions are of
    spans = {str(seq): [p for _, p, owners in cells if seq in owners] for seq in (0, 1)}
    for level in (1, 2, 3):
        last = list(imported("gemma3", level).main.steps())[-1]
        assert last.after["pos"] == {seq: [min(p), max(p)] for seq, p in spans.items()}


@pytest.mark.parametrize("name", LEVEL_3)
def test_the_trace_is_written_read_shown_and_packed(name, tmp_path):
    context = imported(name).main
    path = tmp_path / "trace.jsonl.gz"
    with TraceWriter(path, context.header(name)) as writer:
        for step in context.steps():
            writer.write(step)
    trace = read_trace(path)
    assert list(trace) == list(context.steps())
    packed = pack(trace.header, trace)
    assert len(packed["steps"]) == len(context.seen) + 1
    result = CliRunner().invoke(app, ["show", str(path)])
    assert result.exit_code == 0, result.output
    with pytest.raises(TraceError, match="cannot be replayed"):
        list(replay_beside(trace))


def messages(result: Imported) -> list[str]:
    return [message.explanation.id for message in result.messages]


def test_messages_are_marked_where_they_stand_and_explained():
    result = imported("llama")
    assert messages(result) == ["no-slot", "inconsistent-positions", "restore-no-cells", "restore-failed"]
    assert "X = 19 - the tokens for sequence 2" in result.messages[1].text
    ops = [(step.op, step.args.get("explanation")) for step in result.main.steps()]
    at = ops.index(("said", "no-slot"))
    assert ops[at - 1] == ("seen", None)


def test_steps_are_told_in_words():
    context = imported("llama").main
    header, reader, before, told = context.header(), None, None, []
    reader = PictureReader(header)
    for step in context.steps():
        after = reader.read(step.after)
        told.append(narrate(step, before, after, reader.owners, header))
        before = after
    assert told[0].sentence == "A log of llama.cpp: a context. Caches: kv with 256 cells."
    assert told[2].sentence == (
        "Before a slot is looked for, kv has 32 of 256 cells used, head 32. Positions: seq 0 0–31. "
        "Since the last look: 32 cells filled."
    )
    said = next(n for n in told if n.short == "log: no-slot")
    assert said.failed
    assert said.sentence.startswith(
        "The log says: “decode: failed to find a memory slot for batch of size 200”."
    )


def test_purged_positions_are_messages_of_the_window_cache():
    assert set(messages(imported("gemma3"))) == {"purged"}


def test_of_a_hybrid_memory_the_attention_part_is_shown():
    context = imported("jamba").main
    header = context.header()
    assert (header.memory, header.config["log"]["memory"], list(header.caches)) == ("kv", "hybrid", ["kv"])


# -- what stands around llama.cpp's lines ---------------------------------------------------------


def entries(text: str) -> list[str]:
    """The log in the pieces that llama.cpp writes at once: a print of cells has many lines."""
    return re.findall(r"\n[.M\d][^a-z]*\n(?=\n|find_slot)|[^\n]*\n", text)


def with_prefixes(text: str) -> str:
    return "".join(f"0.00.{i // 1000:03}.{i % 1000:03} D {entry}" for i, entry in enumerate(entries(text)))


def with_colours(text: str) -> str:
    return "".join(f"\x1b[34m0.00.000.123\x1b[0m \x1b[33mD {e[:-1]}\x1b[0m\n" for e in entries(text))


def from_compose(text: str) -> str:
    return "".join(f"llama-server-1  | {line}\n" for line in text.splitlines())


def from_journal(text: str) -> str:
    return "".join(f"2026-03-01T12:00:00.123456+0100 host llama-server[12]: {x}\n" for x in text.splitlines())


def from_syslog(text: str) -> str:
    return "".join(f"Mar  1 12:00:00 host llama-server[12]: {line}\n" for line in text.splitlines())


def as_json_lines(text: str) -> str:
    logged = ({"type": "log", "time": 1, "level": "debug", "msg": entry} for entry in entries(text))
    return "".join(json.dumps(entry) + "\n" for entry in logged)


def among_others(text: str) -> str:
    others = ("srv  log_server_r: request: POST /completion 200", "slot print_timing: id  0 | task 3 |")
    lines = text.splitlines()
    return "".join(f"{line}\n" + (f"{others[i % 2]}\n" if i % 5 == 0 else "") for i, line in enumerate(lines))


def without_blanks_at_ends(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def with_windows_ends(text: str) -> str:
    return text.replace("\n", "\r\n")


def wrapped(width: int):
    def wrap(text: str) -> str:
        lines = (line for line in text.splitlines())
        return "".join(
            f"{line[at : at + width]}\n" for line in lines for at in range(0, max(len(line), 1), width)
        )

    return wrap


@pytest.mark.parametrize("name", ["gemma3", "llama-12"])
@pytest.mark.parametrize(
    "changed",
    [with_prefixes, with_colours, from_compose, from_journal, from_syslog, as_json_lines, among_others,
     without_blanks_at_ends, with_windows_ends],
)  # fmt: skip
def test_what_stands_around_the_lines_does_not_matter(changed, name):
    assert "".join(entries(log_text(name))) == log_text(name)
    result = import_log(changed(log_text(name)).splitlines(keepends=True))
    assert seen_in(result) == seen_in(imported(name))
    assert messages(result) == messages(imported(name))


@pytest.mark.parametrize("width", [100, 120, 132, 200])
def test_wrapped_lines_are_put_together_again(width):
    for text in (
        wrapped(width)(log_text("gemma3")),
        without_blanks_at_ends(wrapped(width)(log_text("gemma3"))),
    ):
        assert seen_in(import_log(text.splitlines())) == seen_in(imported("gemma3"))


def test_a_log_that_begins_late_shows_its_searches():
    text = log_text("gemma3")
    late = text[text.index("find_slot", text.index("used =    64")) :]
    result = import_log(late.splitlines())
    assert (result.main.header().memory, result.main.header().config["log"]["memory"]) == ("iswa", "")
    cells = [shown.cells for shown in seen_in(result)]
    assert cells == [shown.cells for shown in seen_in(imported("gemma3"))][-len(cells) :]
    assert next(result.main.steps()).after["unseen"] == {"base": [0], "swa": [0]}


def test_a_print_that_is_cut_off_is_unseen():
    text = log_text("llama")
    at = [match.start() for match in re.finditer("find_slot: stream.*, n =", text)][3]
    cut = text[: text.index("\n\n", at + 400) - 30]
    *_, last = import_log(cut.splitlines()).main.steps()
    assert (last.op, last.after["unseen"]) == ("seen", {"kv": [0]})


# -- several contexts -----------------------------------------------------------------------------


def searches_of(text: str) -> list[str]:
    """The prints of a log, one piece each."""
    return re.split(r"(?=find_slot: stream.*, n =)", text)[1:]


def test_each_context_has_its_own_searches():
    result = import_log((log_text("gemma3") + log_text("llama")).splitlines())
    assert [context.facts.memory for context in result.contexts] == ["iswa", "kv"]
    assert [len(c.searches) for c in result.contexts] == [len(held("gemma3")), len(held("llama"))]


def test_searches_of_two_contexts_in_turns_go_to_the_one_with_such_a_cache():
    texts = [log_text("gemma3"), log_text("llama")]
    made = "".join(text[: text.index("find_slot")] for text in texts)
    turns = zip_longest(*map(searches_of, texts), fillvalue="")
    result = import_log((made + "".join(a + b for a, b in turns)).splitlines())
    for context, name in zip(result.contexts, ("gemma3", "llama"), strict=True):
        assert [search.used for search in context.searches] == [h.used for h in held(name)]


def test_of_two_contexts_made_alike_a_search_goes_to_the_one_it_continues():
    text = log_text("llama")
    making, first = text[: text.index("find_slot")], searches_of(text)
    grown, fresh = first[5], first[0]
    turns = [*first[:6], fresh, *first[1:3], grown, first[3]]
    result = import_log((making + making + "".join(turns)).splitlines())
    used = [[search.used for search in context.searches] for context in result.contexts]
    assert used == [[0, 32, 40, 45], [0, 32, 40, 45, 65, 68, 68]]


# -- nothing to show ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "hello\nworld\n", "W decode: failed to find a memory slot for batch of size 3"]
)
def test_a_log_without_a_search_is_refused_with_what_to_do(text):
    with pytest.raises(TraceError, match=r"no context and no slot search.*LLAMA_KV_CACHE_DEBUG=3"):
        import_log(text.splitlines()).main.header()


def test_a_log_without_debug_output_still_shows_its_contexts_and_messages():
    text = "\n".join(
        x for x in log_text("gemma3").splitlines() if "find_slot" not in x and "purging" not in x
    )
    steps = list(import_log([*text.splitlines(), "srv decode: Context size has been exceeded."]).main.steps())
    assert [(step.op, step.args.get("explanation")) for step in steps] == [
        ("init", None),
        ("said", "context-exceeded"),
    ]


def test_numbers_beyond_belief_are_refused():
    line = "find_slot: stream[0], n = 1, used = 1, head = 1, size = 99999999999, n_swa = 0"
    with pytest.raises(TraceError, match="99999999999, must be an integer from 1 to 16777216"):
        import_log([line]).main.header()


MAKING = "llama_context: constructing llama_context\n"
CACHE = "llama_kv_cache: size =   16.00 MiB (   256 cells,   8 layers,  1/1 seqs), K (f16)\n"
SEARCH = "find_slot: stream[0], n = 1, used = 3, head = 3, size = 256, n_swa = 0\n"
NINES = "9" * 5000


@pytest.mark.parametrize(
    "before",
    [
        '{"msg":' + "[" * 100_000 + "\n",
        '{"msg":' + NINES + "}\n",
        SEARCH.replace("3", NINES),
        SEARCH.replace("used = 3", "used = 300"),
        SEARCH.replace("head = 3", "head = 300"),
        MAKING + "llama_context: n_seq_max = ²\n",
        MAKING + f"llama_context: n_seq_max = {NINES}\n",
        MAKING + f"llama_context: freq_base = nan\nllama_context: freq_scale = 1e999\n{CACHE}",
        "print_info: n_swa = abc\n" + MAKING + CACHE,
        MAKING + CACHE.replace("256", NINES),
        MAKING + CACHE.replace("1/1", f"{NINES}/1"),
        SEARCH + f"find_slot: stream[0] min[0] = {NINES}, max[0] = 1\n",
        SEARCH + "find_slot: stream[0] min[0] = 0, max[0] = 99999999999\n",
        SEARCH + "find_slot: stream[0] min[999] = 0, max[999] = 5\n",
        SEARCH.replace("3", "400").replace("256", "512"),
        MAKING + CACHE + SEARCH.replace("3", "400").replace("256", "512"),
    ],
)
def test_damaged_lines_spoil_nothing_of_the_others(before, tmp_path):
    context = import_log((before + SEARCH).splitlines()).main
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path, context.header()) as writer:
        for step in context.steps():
            writer.write(step)
    last = list(read_trace(path))[-1].after["caches"]["kv"][0]
    assert (last["head"], last["used"]) == (3, 3)


@pytest.mark.parametrize(
    "part", ["\x1b]", "D ", "llama_kv_cache: size = ", "failed to find a memory slot for "]
)
def test_long_lines_take_no_longer_than_short_ones(part):
    line = MAKING.strip() + " " + part * ((1 << 20) // len(part))
    began = process_time()
    import_log([line] * 4)
    assert process_time() - began < 5


# -- the command ----------------------------------------------------------------------------------


def test_on_the_command_line(tmp_path):
    log, trace = tmp_path / "server.log", tmp_path / "out.jsonl.gz"
    log.write_text(with_prefixes(log_text("llama")))
    run = CliRunner().invoke(app, ["import-log", str(log), "-o", str(trace)])
    assert run.exit_code == 0, run.output
    assert "failed to find a memory slot for batch of size 200" in run.stdout
    assert "context 1, kv: " in run.stdout
    assert isinstance(list(read_trace(trace))[-1], Step)
    log.write_text("nothing\n")
    run = CliRunner().invoke(app, ["import-log", str(log), "-o", str(trace)])
    assert run.exit_code == 2
    assert "LLAMA_KV_CACHE_DEBUG=3" in run.stderr
    assert CliRunner().invoke(app, ["import-log", str(tmp_path / "missing.log")]).exit_code == 2


def test_show_does_not_call_sequences_empty_that_the_log_has_not_told_of(tmp_path):
    main, path = imported("gemma3").main, tmp_path / "gemma3.jsonl"
    with TraceWriter(path, main.header()) as writer:
        for step in main.steps():
            writer.write(step)
    last = [
        CliRunner().invoke(app, ["show", str(path), "--at", str(at)]).stdout.splitlines()[-1] for at in (1, 3)
    ]
    assert last == ["  none: every sequence is empty", "  not known yet"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (SEARCH.encode("utf-16"), "bytes that are 0 (UTF-16? save it as UTF-8)"),
        (gzip.compress(b"hello\n" * 999, mtime=0)[:30], "the gzip stream is damaged"),
        (gzip.compress(b"0" * (17 << 20), mtime=0), "a line is longer than 16 MiB"),
    ],
)
def test_what_is_no_text_is_refused_in_one_line(data, told, tmp_path):
    (tmp_path / "x.log").write_bytes(data)
    for run in (
        CliRunner().invoke(app, ["import-log", str(tmp_path / "x.log"), "-o", str(tmp_path / "x.jsonl")]),
        CliRunner().invoke(app, ["import-log", "-", "-o", str(tmp_path / "x.jsonl")], input=data),
    ):
        assert (run.exit_code, run.stderr.count("\n")) == (2, 1), run.output
        assert told in run.stderr
    assert not (tmp_path / "x.jsonl").exists()


def test_a_compressed_log_is_read_and_a_log_is_never_written_over(tmp_path):
    log, trace = tmp_path / "log.gz", tmp_path / "trace.jsonl"
    log.write_bytes(gzip.compress(b"\xff\n" + SEARCH.encode()))
    before = log.read_bytes()
    run = CliRunner().invoke(app, ["import-log", str(log), "-o", str(trace)])
    assert run.exit_code == 0, run.output
    assert len(list(read_trace(trace))) == 2
    for target, told in ((log, "is the file that is read"), (tmp_path, "Is a directory")):
        run = CliRunner().invoke(app, ["import-log", str(log), "-o", str(target)])
        assert (run.exit_code, run.stderr.count("\n")) == (2, 1), run.output
        assert f"{target}" in run.stderr
        assert told in run.stderr
    assert log.read_bytes() == before


def test_show_says_which_cells_the_log_does_not_show(tmp_path):
    context = imported("gemma3", 2).main
    path = tmp_path / "trace.jsonl.gz"
    with TraceWriter(path, context.header()) as writer:
        for step in context.steps():
            writer.write(step)
    lines = CliRunner().invoke(app, ["show", str(path), "--at", "6"]).stdout.splitlines()
    assert "base  64 of 512 cells used, head 64, its cells were not shown" in lines
    assert any(line.startswith("swa  ") and "not shown" not in line for line in lines)
