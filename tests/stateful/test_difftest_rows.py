"""Rows and masks beside cells: the engine's are the reference's, and a fault in them is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvsim.caches.factory import LeafFactory
from kvsim.caches.kv import KVCache
from kvsim.caches.kv_view import KVView
from kvsim.errors import KvsimError
from kvsim.ops import Op
from kvsim.tensors.recurrent_store import RecurrentStore
from kvsim.tensors.store import KVStore
from kvsim.testing.cache_info import CACHES, Config
from kvsim.testing.difftest import Campaign, session_of
from kvsim.testing.match import DifferenceError, Match
from kvsim.testing.rows import RowsSubject
from kvsim.testing.subject import Subject


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


def test_rows_are_compared_of_the_engine_only() -> None:
    with pytest.raises(KvsimError, match=r"rows are compared of the engine only: give --subject engine"):
        Campaign(rows=True)


@pytest.mark.parametrize("kind", ["kv", "iswa", "hybrid"])
def test_the_engine_holds_the_references_rows(kind: str) -> None:
    pytest.importorskip("torch")
    campaign = Campaign("engine", memory=kind, seed=11, rows=True)
    _, failure = session_of(campaign, 1, campaign.configs())
    assert failure is None, failure.error
