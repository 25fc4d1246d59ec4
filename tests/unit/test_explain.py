"""Messages of llama.cpp explained: each is found by its text, by similar words, and its trace shows it."""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvsim.cli import app
from kvsim.explain import EXPLANATIONS, explain, explanation_by_id, explanation_in, page
from kvsim.trace import read_trace

ROOT = Path(__file__).parents[2]
MESSAGES = [(entry, message) for entry in EXPLANATIONS for message in entry.messages]

SHOWN = {
    "decode-returned-1": ("decode", 1),
    "decode-returned-2": ("decode", 2),
    "decode-returned-minus-1": ("decode", -1),
    "no-slot": ("decode", 1),
    "no-slot-retried": ("decode", 1),
    "context-exceeded": ("decode", 1),
    "too-few-states": ("decode", -1),
    "inconsistent-positions": ("decode", -1),
    "inconsistent-positions-mrope": ("decode", -1),
    "positions-not-continuous": ("decode", -1),
    "positions-decrease": ("decode", -1),
    "coupled-diverged": ("decode", -1),
    "incompatible-sets": ("decode", -1),
    "invalid-sequence": ("decode", -1),
    "invalid-token": ("decode", -1),
    "empty-batch": ("decode", -1),
    "coupled-needs-unified": ("decode", 1),
    "positions-skip-state": ("decode", 0),
    "rolled-back": ("decode", 2),
    "compute-failed": ("decode", 2),
    "update-failed": ("seq_add", None),
    "full-reprocessing": ("seq_rm", 1),
    "checkpoint-erased": ("state_seq_set", 84),
    "purged": ("decode", 1),
    "full-size-window": ("decode", 0),
    "slot-without-cells": ("state_seq_set", 0),
    "context-shift": ("seq_add", None),
    "cannot-shift": ("seq_add", None),
    "partial-copy-asserts": ("seq_cp", None),
    "restore-failed": ("state_seq_set", 0),
    "restore-no-cells": ("state_seq_set", 0),
    "restore-damaged": ("state_seq_set", 0),
    "rollback-indices-differ": ("seq_rm", 1),
    "context-rounded": ("init", None),
    "no-speculation": ("seq_rm", 0),
}
"""What stands in the recording that an explanation names, at the operation it names."""


def test_ids_are_unique_and_every_field_says_something():
    assert len({entry.id for entry in EXPLANATIONS}) == len(EXPLANATIONS) >= 35
    for entry in EXPLANATIONS:
        assert all((entry.messages, entry.where, entry.cause, entry.see, entry.remedy)), entry.id


@pytest.mark.parametrize(("entry", "message"), MESSAGES, ids=lambda value: getattr(value, "id", None))
@settings(max_examples=8)
@given(data=st.data())
def test_every_message_is_found_whatever_its_values_and_prefix(entry, message, data):
    values = st.one_of(st.integers(-1, 2**31).map(str), st.sampled_from(["f16", "0xdeadbeef", "qwen3"]))
    while "{}" in message:
        message = message.replace("{}", data.draw(values), 1)
    prefix = data.draw(
        st.sampled_from(["", "0.12.345.678 W llama_context: ", "srv  update_slots: ", "what():  "])
    )
    assert explanation_in(prefix + message + data.draw(st.sampled_from(["", "\n", " (x)"]))) is entry


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("llama_decode returned 1", "decode-returned-1"),
        ("why did `llama_decode` return 1", "decode-returned-1"),
        ("llama_decode() returned 2", "decode-returned-2"),
        ("llama_decode returned -1", "decode-returned-minus-1"),
        ("llama_decode returns -2?", "decode-returned-minus-2"),
        ("main: llama_decode() returned -3", "decode-returned-minus-3"),
    ],
)
def test_every_return_code_of_a_decode_is_found(asked, wanted):
    """spec decode 2, return codes."""
    [found] = explain(asked)
    assert (found.explanation.id, found.exact) == (wanted, True)


def test_a_number_that_begins_like_a_return_code_is_another():
    assert explanation_in("llama_decode returned 12") is None


def test_of_two_messages_in_a_line_the_longer_one_is_meant():
    line = "state_read_meta: not enough cells in kv cache to restore state (300 > 256)"
    assert explanation_in(line).id == "restore-no-cells"
    assert explanation_in(
        "failed to restore kv cache: mirrored slot layout has the wrong stream count"
    ).id == ("restore-failed")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "llama_context: n_ctx = 4096",
        "find_slot: stream[0], n = 3, used = 3, head = 3, size = 256, n_swa = 0",
        "slot print_timing: id 0 | task 5 | eval time = 12.00 ms / 3 tokens",
        "a memory slot for a batch",
    ],
)
def test_other_lines_have_no_explanation(line):
    assert explanation_in(line) is None


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("inconsistant sequence positons", "inconsistent-positions"),
        ("cant find memory slot for batch", "no-slot"),
        ("full prompt re-processing", "full-reprocessing"),
        ("quantized v cache flash attention", "quantised-v-needs-flash"),
        ("context shift disabled", "cannot-shift"),
        ("restore kv cache fails", "restore-failed"),
        ("try bigger --parallel", "too-few-states"),
        ("context size exceeded", "context-exceeded"),
        ("n_stream mismtach", "restore-other-streams"),
        ("divereged coupled sequences", "coupled-diverged"),
    ],
)
def test_similar_words_find_the_message(asked, wanted):
    found = explain(asked)
    assert found[0].explanation.id == wanted
    assert all(0.5 < f.score <= 1 for f in found)
    assert [f.score for f in found] == sorted((f.score for f in found), reverse=True)


def test_words_about_something_else_find_nothing():
    assert explain("hello world, how do I bake bread") == []
    assert explain("") == []


def test_a_pasted_log_gives_each_of_its_messages_once():
    pasted = (
        "init: the tokens of sequence 1 in the input batch have inconsistent sequence positions:\n"
        " - the last position stored in the memory module of the context (i.e. the KV cache) for sequence 1 "
        "is X = 9\n"
        " - the tokens for sequence 1 in the input batch have a starting position of Y = 4\n"
        " it is required that the sequence positions remain consecutive: Y = X + 1\n"
        "state_seq_set_data: error loading state: failed to restore kv cache\n"
    )
    assert [f.explanation.id for f in explain(pasted)] == ["inconsistent-positions", "restore-failed"]


@pytest.mark.parametrize("entry", [e for e in EXPLANATIONS if e.trace], ids=lambda entry: entry.id)
def test_the_trace_shows_it(entry):
    step = next(step for step in read_trace(ROOT / entry.trace) if step.i == entry.at)
    assert (step.op, step.ret) == SHOWN[entry.id]


def test_the_traces_of_shortages_are_full():
    entry = explanation_by_id("no-slot")
    steps = [step for step in read_trace(ROOT / entry.trace) if step.i <= entry.at]
    [stream] = steps[-2].after["caches"]["kv"]
    assert stream["used"] + len(steps[-1].args["seq"]) > 1024


@pytest.mark.parametrize(
    "message",
    [
        " ".join(f"{a}{b}{c}xyzzy" for a in "abcdefgh" for b in "ijklmnop" for c in "qrstuvwxyz"),
        "a" * 100_000,
        "failed to find a memory slot for " * 20_000,
    ],
)
def test_long_questions_take_no_longer_than_short_ones(message):
    began = process_time()
    explain(message)
    assert process_time() - began < 2


def test_what_is_no_text_is_no_message():
    run = CliRunner().invoke(app, ["explain", "-"], input=b"\xff\xfe\0\n")
    assert (run.exit_code, run.stdout, run.stderr.count("\n")) == (1, "", 1)


def test_on_the_command_line():
    run = CliRunner().invoke(
        app, ["explain", "failed", "to", "find", "a", "memory", "slot", "for", "batch", "of", "size", "9"]
    )
    assert run.exit_code == 0
    for words in ("no-slot", "Cause: ", "To see: ", "To do: ", "Shown by: kvsim show fixtures/traces/kv/"):
        assert words in run.stdout
    assert "most similar" in CliRunner().invoke(app, ["explain", "inconsistant positons"]).stdout
    assert len(CliRunner().invoke(app, ["explain"]).stdout.splitlines()) == len(EXPLANATIONS)
    run = CliRunner().invoke(app, ["explain", "-", "--json"], input="W decode: n_stream mismatch\n")
    assert [found["id"] for found in json.loads(run.stdout)] == ["restore-other-streams"]
    run = CliRunner().invoke(app, ["explain", "bread"])
    assert (run.exit_code, run.stdout) == (1, "")


def test_the_page_is_that_of_the_table():
    assert (ROOT / "docs" / "messages.md").read_text() == "\n\n".join(page()) + "\n"
