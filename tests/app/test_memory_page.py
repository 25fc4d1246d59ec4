"""The Memory page: its figures are those of `kvsim memory`, alternatives change one thing, links restore."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app import recordings
from app.memory_page import drawing
from app.memory_page.costs import alternatives, cost, explanation, in_words, summary
from app.memory_page.occupancy import History, Occupancy, history
from app.memory_page.setting import MODELS, Setting, model_of
from app.views import memory
from kvsim.models.memory_bytes import memory_bytes
from kvsim.models.tiny import write_tiny

MAIN = Path(__file__).resolve().parents[2] / "app" / "main.py"
GEMMA = "iswa/gemma3-swa20-uni-c512-u64-s8-q8_0-05"


def start(**query: str) -> AppTest:
    at = AppTest.from_file(MAIN, default_timeout=90)
    at.query_params["page"] = "memory"
    for key, value in query.items():
        at.query_params[key] = value
    at.run()
    assert not at.exception
    return at


def shown(at: AppTest) -> str:
    return " ".join(block.proto.body for block in at.get("html"))


def test_the_total_is_that_of_llama_cpp() -> None:
    """gemma3-12b: 8 layers of 32,768 cells and 40 of 1,536, 8,192 bytes each: 2,650,800,128."""
    own = cost(model_of("gemma3-12b"), Setting())
    assert own.total == 2_650_800_128
    assert [(p.name, p.layers, p.rows, p.each) for p in own.parts] == [
        ("base", 8, 32768, 8192),
        ("swa", 40, 1536, 8192),
    ]
    assert "2,650,800,128 bytes: 8 layers without window, 40 layers with a window of 1,024" in shown(start())


@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_the_page_has_a_total_by_part(name: str) -> None:
    model, setting = model_of(name), Setting(name, n_ctx=4096)
    own = cost(model, setting)
    assert own.refusal == ""
    assert own.total == memory_bytes(model, setting.params).total > 0
    drawing.bars(own, list(alternatives(model, setting)))


def test_alternatives_change_one_thing() -> None:
    found = {a.title: a.total for a in alternatives(model_of("gemma3-12b"), Setting())}
    assert {title: round(total / 2**30, 2) for title, total in found.items()} == {
        "K and V in q8_0": 1.31,
        "K and V in q4_0": 0.69,
        "4 sequences, unified": 3.41,
        "4 streams of 8,192": 3.88,
        "swa_full": 12.0,
    }


def test_where_the_window_cells_come_from_is_said() -> None:
    model = model_of("gemma3-12b")
    one, four = explanation(model, Setting()), explanation(model, Setting(n_seq_max=4))
    assert one[0] == "1,536 = window 1,024 + ubatch 512, padded to 256."
    assert one[1] == "A calculator that treats all 48 layers alike says 12.0 GiB, 4.9 times as much."
    assert four[0] == "4,608 = 4 x window 1,024 + ubatch 512, padded to 256."
    assert explanation(model, Setting(swa_full=True)) == []


def test_what_llama_cpp_refuses_is_told_with_its_reason() -> None:
    at = start(model="deepseek-v3", type_k="q8_0")
    assert "stores one row for both" in at.error[0].value
    refused = cost(model_of("deepseek-v3"), Setting("deepseek-v3", type_k="q8_0"))
    assert (refused.total, refused.parts) == (0, ())


def test_a_link_restores_the_configuration() -> None:
    at = start(model="jamba-v0.1", n_ctx="4096", n_seq_max="4", streams="1", type_k="q8_0")
    assert at.selectbox(key="memory-model").value == "jamba-v0.1"
    assert at.number_input(key="memory-n_ctx").value == 4096
    expected = Setting("jamba-v0.1", 4096, 4, type_k="q8_0", streams=True)
    assert at.session_state["memory"] == expected
    assert Setting.from_query(expected.to_query()) == expected


@pytest.mark.parametrize(
    "query",
    [
        {"n_ctx": "-5"},
        {"n_ctx": "x"},
        {"n_ctx": "9" * 30},
        {"n_ctx": "9" * 5000},
        {"model": "<b>"},
        {"type_k": "q9"},
        {"n_ctx": "٣"},
    ],
)
def test_a_damaged_link_keeps_what_can_be(query: dict[str, str]) -> None:
    at = start(n_seq_max="2", **query)
    assert at.number_input(key="memory-n_seq_max").value == 2
    assert at.session_state["memory"].model == "gemma3-12b"


def test_choosing_changes_the_figure_and_the_address() -> None:
    at = start()
    at.number_input(key="memory-n_ctx").set_value(65536).run()
    assert at.query_params["n_ctx"] == "65536"
    assert f"{2_650_800_128 + 2 * 2**30:,} bytes" in shown(at)


def test_a_header_from_a_file_is_used_and_a_damaged_one_told(tmp_path) -> None:
    write_tiny("gemma3", tmp_path / "my.gguf")
    data = (tmp_path / "my.gguf").read_bytes()
    for content, told in ((data, "my.gguf: gemma3, 2 layers"), (data[:40], "my.gguf: ")):
        at = AppTest.from_function(_uploading, args=(content,), default_timeout=90)
        at.run()
        assert not at.exception
        assert told in (at.text[0].value if content is data else at.error[0].value)


def _uploading(content: bytes) -> None:
    import io

    import streamlit as st

    from app import header_upload
    from app.views import memory

    file = io.BytesIO(content)
    file.name = "my.gguf"
    if "memory-gguf" not in st.session_state:
        st.session_state["memory-file"] = file
        header_upload.uploaded("memory")
        del st.session_state["memory-file"]
    memory.show()


def test_occupancy_counts_cells_and_pieces() -> None:
    trace = recordings.trace_of(recordings.path_of(GEMMA), GEMMA)
    past = history(trace.header, trace)
    base, swa = past.caches
    assert (base.cache, base.size, swa.size) == ("base", 512, 256)
    step = next(s for s in trace if s.i == 30)
    assert base.used[30] == step.after["caches"]["base"][0]["used"]
    held = {cell[0] for cell in step.after["caches"]["base"][0]["cells"]}
    gaps = "".join("x" if i in held else "." for i in range(512)).split("x")
    assert base.hole[30] == max(map(len, gaps))
    assert past.failed[30] == 1
    assert past.n_steps == len(base.used) == 97
    assert all(0 <= share < 1 for share in base.scattered)


def test_the_page_leads_to_the_failure() -> None:
    at = start(trace=GEMMA)
    assert f"./?page=replay&amp;scenario={GEMMA}&amp;at=30" in shown(at)
    assert "no slot" in shown(at)


def test_the_first_failure_of_each_kind_is_told_in_words() -> None:
    """They stand in a line of text above the curves, so that they cannot run into one another or a line."""
    past = History([Occupancy("kv", 4, [1] * 100, [3] * 100)], {10: 1, 12: -1, 13: 1, 60: 2}, 100)
    page = drawing.curves(past, GEMMA)
    assert page.count("kvm-fail") == 4
    assert re.findall(r'at=(\d+)">([^<]+)</a>', page) == [
        ("10", "no slot at 10"), ("12", "refused at 12"), ("60", "aborted at 60"),
    ]  # fmt: skip
    assert "Lines:" not in drawing.curves(History(past.caches, {}, 100), GEMMA)


@pytest.mark.parametrize("folder", sorted({n.split("/")[0] for n in recordings.bundled()}))
def test_every_kind_of_recording_has_curves(folder: str) -> None:
    name = next(n for n in recordings.bundled() if n.startswith(f"{folder}/"))
    past = memory._history(name)
    assert past.caches
    assert drawing.curves(past, name).count("kvm-curve") >= len(past.caches)


@pytest.mark.parametrize(
    ("n", "words"),
    [(0, "0 B"), (1023, "1,023 B"), (1536, "1.50 KiB"), (503316480, "480 MiB"), (2**50, "1.00 PiB")],
)
def test_sizes_have_three_digits(n: int, words: str) -> None:
    assert in_words(n) == words


def test_layers_in_words() -> None:
    assert summary(model_of("jamba-v0.1")) == "4 layers of attention, 28 layers with a recurrent state"
    assert summary(model_of("llama3-8b")) == "32 layers of attention"


@pytest.mark.browser
def test_a_configuration_is_chosen_and_its_link_restored(visit, tmp_path) -> None:
    write_tiny("gemma3", tmp_path / "my.gguf")
    page = visit("?page=memory&model=gemma3-12b&n_seq_max=4")
    page.locator(".kvm-total b", has_text="3.41 GiB").wait_for()
    page.get_by_role("radio", name="swa_full").click()
    page.locator(".kvm-total b", has_text="12.0 GiB").wait_for()
    page.wait_for_function("new URL(location.href).searchParams.get('swa_full') === '1'")
    page.reload()
    page.locator(".kvm-total b", has_text="12.0 GiB").wait_for()
    page.get_by_text("Read a GGUF header").click()
    page.locator("input[type=file]").set_input_files(tmp_path / "my.gguf")
    page.get_by_text("my.gguf: gemma3, 2 layers").wait_for()
    page.locator(".kvm-fail").first.click()
    page.locator(".kv-sentence.kv-failed").wait_for()
