"""Rows and masks beside cells: the engine's are the reference's, and a fault in them is seen."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.caches.factory import LeafFactory
from kvsim.caches.kv import KVCache
from kvsim.caches.kv_view import KVView
from kvsim.errors import KvsimError
from kvsim.ops import Op
from kvsim.tensors.recurrent_store import RecurrentStore
from kvsim.tensors.store import KVStore
from kvsim.testing.cache_info import CACHES, Config
from kvsim.testing.difftest import Campaign, attempt, session_of
from kvsim.testing.match import DifferenceError, Match
from kvsim.testing.rows import RowsSubject, attend
from kvsim.testing.subject import Subject

ROOT = Path(__file__).parents[2]


def with_rows(config: Config) -> LeafFactory:
    return LeafFactory(data=True, sizes=config.sizes)


class Spoiled(RowsSubject):
    """The reference with rows, in which ``owner.name`` is replaced while it works."""

    def __init__(self, owner: Any, name: str, faulty: Callable[..., Any]) -> None:
        super().__init__("spoiled", with_rows)
        self._swap = owner, name, faulty

    def apply(self, op: Op) -> int | None:
        owner, name, faulty = self._swap
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, faulty)
            return super().apply(op)


def nothing(*args: Any) -> None:
    return None


def one_layer(right: Callable[..., None]) -> Callable[..., None]:
    def write(self: KVStore, il: int, stream: int, cells: Any, data: bytes) -> None:
        right(self, il, stream, cells[::-1].copy(), data)

    return write


@pytest.mark.parametrize(
    ("kind", "name", "spoiled", "said"),
    [
        ("kv", "streams", (KVStore, "copy_stream", nothing), "rows differ"),
        ("kv", "tiny", (KVCache, "_copy_and_shift", nothing), "has_shift"),
        ("kv", "tiny", (KVStore, "apply_shift", nothing), "kv[0] keys of layer 0: rows differ"),
        ("iswa", "tiny", (KVStore, "write_v", one_layer(KVStore.write_v)), "values of layer"),
        ("recurrent", "tiny", (RecurrentStore, "write_states", nothing), "state r of sequence"),
        ("iswa", "tiny", (KVView, "mask", lambda self: ~KVView._mask(self)), "ubatch 0: mask is"),
    ],
)
def test_a_fault_in_rows_or_masks_is_seen(
    kind: str, name: str, spoiled: tuple[Any, str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KVView, "_mask", KVView.mask, raising=False)
    info = CACHES[kind]
    config = next(c for c in info.configs if c.name == name)
    subjects: list[Subject] = [RowsSubject("right", with_rows), Spoiled(*spoiled)]
    with pytest.raises(DifferenceError) as found:
        play(Match(info, config, subjects))
    assert said in found.value.what


def play(match: Match) -> None:
    match.perform(Op.decode_run(0, 0, range(1, 5)))
    if match.info.kind == "kv":
        match.perform(Op.seq_cp(0, 1))
        match.perform(Op.seq_add(0, 1, -1, 2))
    match.perform(Op.decode_run(2, 0, range(5, 8)))


def test_without_a_fault_nothing_is_seen() -> None:
    for kind in ("kv", "iswa", "recurrent", "dsa"):
        info = CACHES[kind]
        for config in info.configs[:2]:
            play(Match(info, config, [RowsSubject("right", with_rows), RowsSubject("again", with_rows)]))


def test_rows_need_somebody_to_be_compared_with() -> None:
    with pytest.raises(KvsimError, match=r"with the reference's: give --subject or --exec too"):
        Campaign(rows=True)


class FlipsAByte(RowsSubject):
    """Saves states in which the last byte is another."""

    def state(self) -> bytes | None:
        saved = super().state()
        return saved and saved[:-1] + bytes([saved[-1] ^ 1])


class ReadsTooSoftly(RowsSubject):
    """Attends with another scale, so that every token reads a little of its neighbours."""

    def __init__(self) -> None:
        super().__init__(
            "spoiled", with_rows, lambda view, layer, q, n: attend(view, layer, np.float32(0.5) * q, n)
        )


@pytest.mark.parametrize("kind", ["kv", "iswa", "hybrid", "dsa"])
def test_a_fault_in_logits_is_seen(kind: str) -> None:
    info = CACHES[kind]
    match = Match(info, info.configs[0], [RowsSubject("right", with_rows), ReadsTooSoftly()])
    match.perform(Op.decode_run(0, 0, [1]))  # alone a token reads itself, however softly
    with pytest.raises(DifferenceError, match=r"decode.*: logits: rows differ by up to 0\.\d"):
        match.perform(Op.decode_run(0, 1, [2]))


def test_a_fault_in_saved_bytes_is_seen() -> None:
    info = CACHES["kv"]
    match = Match(info, info.configs[0], [RowsSubject("right", with_rows), FlipsAByte("spoiled", with_rows)])
    match.perform(Op.decode_run(0, 0, [1]))
    with pytest.raises(
        DifferenceError, match=r"saved state: 1 of \d+ bytes differ; byte \d+ is \d+, expected"
    ):
        match.perform(Op.state_seq_get(0, 0))


def test_states_are_told_after_they_were_saved_only() -> None:
    subject = RowsSubject("right", with_rows)
    subject.create(CACHES["kv"].configs[0])
    assert subject.state() is None
    n = subject.apply(Op.state_seq_get(0, 0))
    assert len(subject.state() or b"") == n
    subject.apply(Op.clear())
    assert subject.state() is None


SERVED = f"""
import base64, json, sys
sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
from kvsim.ops import Op
from kvsim.testing.cache_info import CACHES
from test_difftest_rows import RowsSubject, with_rows
subject, fault = RowsSubject("served", with_rows), sys.argv[1]
for line in sys.stdin:
    ask = json.loads(line)
    if ask["op"] == "hello":
        print(json.dumps({{"kvsim": 1, "name": "served", "observes": "cells", "memories": ["kv"]}}), flush=True)
        continue
    say = {{"i": ask["i"], "ret": None}}
    if ask["op"] == "create":
        subject.create(CACHES["kv"].configs[0])
    else:
        say["ret"] = subject.apply(Op(ask["op"], ask["args"]))
    say["after"], state, logits = subject.snapshot(), subject.state(), subject.logits()
    say["rows"] = {{where: (rows + (fault == "rows")).tolist() for where, rows in subject.read_rows().items()}}
    if logits is not None:
        say["logits"] = "none" if fault == "garbage" else (logits + (fault == "logits")).tolist()
    if state is not None:
        say["state"] = base64.b64encode(state[:-1] if fault == "state" else state).decode()
    print(json.dumps(say), flush=True)
"""
"""The reference with rows, behind a pipe."""


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("nothing", None),
        ("rows", r"keys of layer 0: rows differ by up to 1"),
        ("logits", r"logits: rows differ by up to 1"),
        ("state", r"saved state: \d+ bytes, expected \d+"),
        ("garbage", r'its "logits" are no table of numbers: "none"'),
    ],
)
def test_a_program_may_tell_rows_logits_and_states(tmp_path: Path, fault: str, said: str | None) -> None:
    program = tmp_path / "served.py"
    program.write_text(SERVED)
    campaign = Campaign(command=(sys.executable, str(program), fault), memory="kv", config="tiny", rows=True)
    info, config = CACHES["kv"], CACHES["kv"].configs[0]
    ops = [Op.decode_run(0, 0, [1, 2, 3]), Op.seq_add(0, 1, -1, 2), Op.state_seq_get(0, 0)]
    error = attempt(info, config, campaign.subjects(), ops)
    if said is None:
        assert error is None, error
    else:
        assert error is not None
        assert re.search(said, error.what)


@pytest.mark.parametrize("kind", ["kv", "iswa", "hybrid", "dsv4"])
def test_the_engine_holds_the_references_rows(kind: str) -> None:
    pytest.importorskip("torch")
    campaign = Campaign("engine", memory=kind, seed=11, rows=True)
    _, failure = session_of(campaign, 1, campaign.configs())
    assert failure is None, failure.error
