"""The Playground page: what fields, buttons, text and files do, and what the address keeps."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.playground.files import trace_bytes
from app.playground.link import packed
from app.playground.run import Run
from app.playground.scenarios import NAMES, scenario
from app.playground.script import script
from app.playground.session import Play
from app.playground.setup import Setup

MAIN = Path(__file__).resolve().parents[2] / "app" / "main.py"
SETUP = Setup(cells=64)
LINES = ["prompt 0 6", "prompt 1 8"]


def start(**query: str) -> AppTest:
    at = AppTest.from_file(MAIN, default_timeout=90)
    for key, value in {"page": "playground", **query}.items():
        at.query_params[key] = value
    at.run()
    assert not at.exception
    return at


def opened(setup: Setup = SETUP, lines: list[str] = LINES) -> AppTest:
    return start(do=packed(setup, lines))


def play(at: AppTest) -> Play:
    found: Play = at.session_state["pg play"]
    return found


def labelled(elements: Any, label: str) -> Any:
    return next(element for element in elements if element.label == label)


def button(at: AppTest, label: str) -> Any:
    return labelled(at.button, label)


def shown(at: AppTest) -> str:
    return " ".join(block.proto.body for block in at.get("html"))


def apply(at: AppTest, act: str, **fields: str) -> AppTest:
    """Choose an act, fill in its text fields by label, apply it."""
    button(at, act).click().run()
    for label, value in fields.items():
        labelled(at.text_input, label.replace("_", " ")).set_value(value).run()
    button(at, "Apply").click().run()
    assert not at.exception
    return at


def test_without_a_link_a_scenario_is_shown() -> None:
    at = start()
    assert play(at).now == scenario(NAMES[0])
    assert at.query_params["do"] == packed(play(at).now.setup, play(at).now.lines)


def test_a_link_restores_memory_and_operations() -> None:
    at = opened()
    assert (play(at).now.setup, list(play(at).now.lines)) == (SETUP, LINES)
    assert labelled(at.number_input, "Cells").value == 64


@pytest.mark.parametrize("text", ["x", "<script>", "A" * 1500])
def test_a_damaged_link_starts_afresh_and_says_so(text: str) -> None:
    at = start(do=text)
    assert play(at).now == scenario(NAMES[0])
    assert "The link is damaged, so the playground starts afresh" in shown(at)


def test_an_act_appends_its_line_and_undo_takes_it_back() -> None:
    at = apply(opened(), "Remove", From_position="2")
    assert play(at).now.lines[-1] == "remove 0 2 end"
    link = at.query_params["do"]
    button(at, "Undo").click().run()
    assert list(play(at).now.lines) == LINES
    assert at.query_params["do"] == packed(SETUP, LINES) != link
    button(at, "Redo").click().run()
    assert at.query_params["do"] == link


@pytest.mark.parametrize(
    ("act", "line"),
    [
        ("Prompt", "prompt 0 12"),
        ("Decode", "decode 0"),
        ("Share", "share 0 1 start end"),
        ("Remove", "remove 0 start end"),
        ("Keep", "keep 0"),
        ("Shift", "shift 0 start end -4"),
        ("Divide", "divide 0 start end 2"),
        ("Save", "save 0"),
        ("Defragment", "defragment classic"),
        ("Speculate", "speculate 0 4 2"),
        ("Fault", "prompt 0 20 abort 2"),
    ],
)
def test_every_act_can_be_applied_as_it_stands(act: str, line: str) -> None:
    at = apply(opened(), act)
    assert play(at).now.lines[-1] == line
    assert play(at).run().error is None


def test_a_save_can_be_restored_and_damaged() -> None:
    at = apply(opened(), "Save")
    apply(at, "Restore")
    assert play(at).now.lines[-1] == "restore 1 from 0"
    button(at, "Fault").click().run()
    labelled(at.selectbox, "Fault").set_value("cut").run()
    button(at, "Apply").click().run()
    assert play(at).now.lines[-1] == "restore 0 from 0 cut 40"
    assert play(at).run().steps[-1].ret == 0


def test_the_end_of_a_range_is_included_as_the_page_says() -> None:
    at = apply(opened(), "Remove", From_position="2", **{"To_position,_itself_included": "4"})
    assert play(at).now.lines[-1] == "remove 0 2 5"


def test_what_an_act_would_do_stands_beside_it() -> None:
    at = opened()
    button(at, "Remove").click().run()
    assert "frees 6 cells" in shown(at)


def test_an_act_that_cannot_be_done_says_why_and_cannot_be_applied() -> None:
    at = opened()
    labelled(at.text_input, "Tokens").set_value("65").run()
    assert "a batch of 65 tokens exceeds n_batch = 64" in shown(at)
    assert button(at, "Apply").disabled
    labelled(at.text_input, "Tokens").set_value("<b>").run()
    assert "&lt;b&gt;" in shown(at)
    assert button(at, "Apply").disabled


def test_a_field_that_cannot_be_says_so_and_the_old_value_stays() -> None:
    at = opened()
    labelled(at.number_input, "Sequences").set_value(300).run()
    assert "n_seq_max = 300: llama.cpp knows at most 256 sequences. Still using 4." in shown(at)
    assert play(at).now.setup == SETUP
    labelled(at.number_input, "Sequences").set_value(2).run()
    assert "Still using" not in shown(at)
    assert play(at).now.setup == Setup(cells=64, sequences=2)


def test_another_family_member_takes_the_same_lines() -> None:
    at = opened()
    labelled(at.selectbox, "Family member").set_value("gemma3").run()
    assert play(at).now.setup == Setup("gemma3", cells=64)
    assert list(play(at).now.lines) == LINES
    assert play(at).run().error is None


def test_the_list_can_be_edited_as_text_with_errors_at_their_line() -> None:
    at = opened()
    at.segmented_control(key="pg as").set_value("text").run()
    at.text_area[0].set_value("prompt 0 6\n\n  restore 0 from 3 \nkeep 0").run()
    assert list(play(at).now.lines) == ["prompt 0 6", "restore 0 from 3", "keep 0"]
    assert "<b>Line 2</b> <code>restore 0 from 3</code><br>there is no save 3" in shown(at)
    assert button(at, "Apply").disabled
    at.text_area[0].set_value("prompt 0 6\nkeep 0").run()
    assert "there is no save" not in shown(at)
    assert [done.first for done in play(at).run().done] == [1, 2]


def test_the_script_is_shown() -> None:
    at = opened()
    at.segmented_control(key="pg as").set_value("Python").run()
    assert at.code[0].value == script(SETUP, play(at).run().steps).strip()


def test_hazards_and_refusals_are_marked_in_the_list() -> None:
    at = opened(SETUP, ["prompt 0 6", "share 0 1", "shift 0 start end 4", "prompt 2 62"])
    assert shown(at).count('title="hazard"') == 1
    assert shown(at).count('title="refused or failed"') == 1


def test_a_list_too_long_for_a_link_is_not_in_the_address() -> None:
    lines = [f"prompt {n % 4} {(n * n) % 37 + 1} at {(n * 7919) % 10007}" for n in range(390)]
    at = opened(SETUP, [])
    play(at).set_lines(lines)
    at.run()
    assert "do" not in at.query_params


# -- files -----------------------------------------------------------------------------------------


def imported(name: str, data: bytes) -> AppTest:
    at = opened()
    at.file_uploader[0].set_value((name, data, "application/octet-stream")).run()
    assert not at.exception
    return at


def run_of(lines: list[str]) -> Run:
    run = Run(SETUP.header)
    run.perform(lines)
    return run


def test_an_exported_trace_comes_back() -> None:
    run = run_of([*LINES, "speculate 0 3 1"])
    at = imported("run.jsonl.gz", trace_bytes(run.header, run.steps))
    assert play(at).now.setup == SETUP
    assert list(play(at).now.lines) == [*LINES, "decode 0*4 every", "remove 0 8 end"]


def test_an_exported_script_comes_back() -> None:
    at = imported("run.py", script(SETUP, run_of([*LINES, "keep 1"]).steps).encode())
    assert (play(at).now.setup, list(play(at).now.lines)) == (SETUP, [*LINES, "keep 1"])


def test_a_recording_of_llama_cpp_is_played_with_its_own_memory() -> None:
    data = Path("fixtures/traces/kv/llama-uni-c256-u16-s4-f16-03.jsonl.gz").read_bytes()
    at = imported("rec.jsonl.gz", data)
    assert "llama-dense.gguf, recorded by llama.cpp b11434" in at.text[0].value
    assert "do" not in at.query_params
    apply(at, "Keep")
    assert play(at).run().error is None
    button(at, "Use a memory of the table").click().run()
    assert play(at).now == scenario(NAMES[0])


def test_a_damaged_file_says_where_and_what_can_be_played() -> None:
    run = run_of(LINES)
    whole = gzip.decompress(trace_bytes(run.header, run.steps)).splitlines(keepends=True)
    at = imported("cut.jsonl", b"".join(whole[:3]) + whole[3][:40])
    assert [s.value for s in at.subheader] == ["This file is damaged"]
    assert at.code[0].value.startswith("cut.jsonl:4: ")
    button(at, "Play the 1 whole operation").click().run()
    assert not at.subheader
    assert list(play(at).now.lines) == LINES[:1]


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.jsonl", b"{}\n", "a.jsonl:1: not a trace"),
        ("a.py", b"import os\nos.system('x')\n", "a.py:2: "),
        ("a.jsonl.gz", b"\x1f\x8b\x08", "a.jsonl.gz:1: "),
    ],
)
def test_a_file_that_cannot_be_used_leaves_everything_as_it_was(name: str, data: bytes, says: str) -> None:
    at = imported(name, data)
    assert [s.value for s in at.subheader] == ["This file cannot be used"]
    assert at.code[0].value.startswith(says)
    button(at, "Back to the playground").click().run()
    assert list(play(at).now.lines) == LINES
