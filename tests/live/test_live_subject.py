"""The real llama.cpp as a subject of the tester."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from live_lane import needs_library
from typer.testing import CliRunner

from kvsim.caches.kv import KVCache
from kvsim.cli import app
from kvsim.context import Fault
from kvsim.errors import CacheUsageError
from kvsim.lanes.library import LaneError, library_named
from kvsim.lanes.subject import LlamaSubject, tiny_configs
from kvsim.ops import Op
from kvsim.testing import CacheMachine
from kvsim.testing.cache_info import CACHES, Config
from kvsim.testing.match import ENDS, DifferenceError, Match
from kvsim.testing.subject import LedgerSubject, Subject, UnsupportedError, subject_named

pytestmark = needs_library


def config_of(kind: str, name: str) -> Config:
    return next(config for config in tiny_configs(kind) if config.name == name)


def match_of(kind: str, name: str, subject: Subject | None = None) -> Match:
    return Match(CACHES[kind], config_of(kind, name), [LedgerSubject(), subject or LlamaSubject()])


def test_it_is_known_by_name_and_brings_configurations_of_every_memory() -> None:
    subject = subject_named("llamacpp")
    assert subject.name == "llama.cpp b11549"
    for info in CACHES.values():
        names = [config.name.partition("/")[2] for config in subject.configs(info) or ()]
        assert {"unified", "streams", "rollback"} <= set(names), info.kind
    with pytest.raises(UnsupportedError, match="tiny models in contexts of its own"):
        subject.create(CACHES["kv"].configs[0])


@pytest.mark.parametrize(
    ("kind", "name"),
    [("kv", "llama/streams"), ("iswa", "gemma3/unified"), ("hybrid", "lfm2/rollback"),
     ("dsv4", "deepseek4/unified"), ("dsa_iswa", "dots3note/unified"), ("recurrent", "mamba/streams")],
)  # fmt: skip
def test_it_agrees_with_the_reference(kind: str, name: str) -> None:
    match = match_of(kind, name)
    try:
        for op in (
            Op.decode_run(0, 0, range(10)), Op.seq_cp(0, 1), Op.decode_run(0, 10, [1, 2]),
            Op.state_seq_get(0, 0), Op.decode_run(2, 0, [3] * 13), Op.seq_rm(2), Op.decode_run(1, 10, [5, 6]),
            Op.state_seq_set(2, 0), Op.seq_keep(1), Op.state_get(1), Op.clear(True), Op.state_set(1),
        ):  # fmt: skip
            match.perform(op)
        assert match.excused == ""
    finally:
        match.close()


def test_what_ends_llamacpp_is_an_outcome_and_it_goes_on() -> None:
    match = match_of("kv", "llama/streams")
    try:
        match.perform(Op.decode_run(0, 0, range(10)))
        match.perform(Op.seq_cp(0, 1, 2, 5))
        assert (match.answer, match.raised) == (ENDS, True)
        assert match.perform(Op.decode_run(0, 10, [1])) == 0
        live = match.subjects[1]
        with pytest.raises(CacheUsageError, match=r"llama\.cpp ended at seq_cp.*GGML_ASSERT"):
            live.apply(Op.seq_cp(0, 1, 2, 5))
    finally:
        match.close()


def test_a_fault_that_it_cannot_be_given_is_left_out() -> None:
    match = match_of("kv", "llama/unified")
    try:
        assert match.perform(Op.decode_run(0, 0, [1, 2], Fault(0, "compute"))) == 0
        assert match.perform(Op.decode_run(0, 2, [1, 2], Fault(0))) == 2
    finally:
        match.close()


def test_a_known_change_excuses_it() -> None:
    match = match_of("hybrid_idx", "glm5-next/unified")
    try:
        match.perform(Op.decode_run(0, 0, range(6)))
        match.perform(Op.seq_cp(0, 1, 2, -1))
        assert match.excused.startswith("since b11434: a copy must be of the whole sequence")
    finally:
        match.close()


def test_a_fault_of_ours_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCache, "_lower_head", lambda self, stream, freed: None)
    match = match_of("kv", "llama/unified")
    try:
        match.perform(Op.decode_run(0, 0, [1, 2, 3]))
        with pytest.raises(DifferenceError, match=r"caches\.kv\[0\]\.head is 1, expected 3"):
            match.perform(Op.seq_rm(0, 1, -1))
    finally:
        match.close()


def test_it_tells_logits_and_the_bytes_of_states() -> None:
    subject = LlamaSubject()
    try:
        subject.create(config_of("kv", "llama/unified"))
        subject.apply(Op.decode([5, 6, 7], [0, 1, 2], [[0]] * 3, out=[1, 0, 1]))
        logits = subject.logits()
        assert logits is not None
        assert (logits.shape, logits.dtype) == ((2, 128), np.float32)
        size = subject.apply(Op.state_seq_get(0, 0))
        assert subject.logits() is None
        assert len(subject.state() or b"") == size
    finally:
        subject.close()


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.testing.difftest.SESSION", 40)
    asked = ["difftest", "--subject", "llamacpp", "--memory", "msa", "--config", "minimax-m3/unified"]
    result = CliRunner().invoke(
        app, [*asked, "--ops", "1", "--seed", "2", "--trace", str(tmp_path / "t.jsonl")]
    )
    assert result.exit_code == 0, result.output
    assert "40 operations in 1 session," in result.stdout


class Live(CacheMachine):
    subject = LlamaSubject
    memory = "iswa"


TestLive = Live.TestCase
TestLive.settings = settings(
    max_examples=2, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_library_is_named_by_version_folder_or_file(tmp_path: Path) -> None:
    assert library_named("") is None
    assert library_named("b11549") is None
    with pytest.raises(LaneError, match=r"pip install --no-deps --target b11063 xllamacpp==2026\.9\.11063"):
        library_named("b11063")
    with pytest.raises(LaneError, match=r"llama\.cpp b1 is not here, installed is b11549$"):
        library_named("b1")
    with pytest.raises(LaneError, match="neither xllamacpp"):
        library_named(str(tmp_path))
    (tmp_path / "xllamacpp").mkdir()
    (tmp_path / "xllamacpp" / "xllamacpp.abi3.so").touch()
    assert library_named(str(tmp_path)) == tmp_path / "xllamacpp" / "xllamacpp.abi3.so"
