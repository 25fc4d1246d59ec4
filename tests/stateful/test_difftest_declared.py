"""What a subject declares: its own configurations, what it cannot show, where it may differ, which faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvsim.context import Fault
from kvsim.ops import Op
from kvsim.testing.cache_info import CACHES, CacheInfo, Config
from kvsim.testing.difftest import playable
from kvsim.testing.match import DifferenceError, Match
from kvsim.testing.profiles import PROFILES
from kvsim.testing.subject import ContextSubject, LedgerSubject, Picture, Subject

KV = CACHES["kv"]
TINY = KV.configs[0]


def without_heads(picture: Picture) -> Picture:
    caches = {
        name: [{**stream, "head": 0} for stream in streams] for name, streams in picture["caches"].items()
    }
    return {**picture, "caches": caches}


class Headless(ContextSubject):
    """Shows no heads."""

    def snapshot(self) -> Picture:
        return without_heads(super().snapshot())

    def shown(self, picture: Picture) -> Picture:
        return without_heads(picture)


class Stubborn(ContextSubject):
    """Refuses to remove from the middle, and says so; can only be aborted; has one configuration."""

    faults = frozenset({"abort"})

    def configs(self, info: CacheInfo) -> Sequence[Config]:
        return [replace(TINY, name="mine")] if info is KV else []

    def apply(self, op: Op) -> int | None:
        return 0 if op.op == "seq_rm" and op.args["p0"] > 0 else super().apply(op)

    def excuse(self, op: Op, wanted: int | str | None, found: int | str | None) -> str:
        return "it removes whole sequences only" if (wanted, found) == (1, 0) and op.args["p1"] < 0 else ""


def match_of(subject: Subject) -> Match:
    return Match(KV, TINY, [LedgerSubject(), subject])


def test_what_it_does_not_show_is_not_compared_and_all_else_is() -> None:
    match = match_of(Headless("headless"))
    match.perform(Op.decode_run(0, 0, [1, 2, 3]))
    assert match.picture["caches"]["kv"][0]["head"] == 3
    match.subjects[1].apply(Op.seq_rm(0, 2, -1))
    with pytest.raises(DifferenceError, match=r"caches\.kv\[0\]\.used is 2, expected 3"):
        match.perform(Op.seq_add(1, 0, -1, 0))


def test_where_it_may_differ_it_is_asked_no_more() -> None:
    match = match_of(Stubborn("stubborn"))
    match.perform(Op.decode_run(0, 0, [1, 2, 3]))
    assert match.excused == ""
    assert match.perform(Op.seq_rm(0, 2, -1)) == 1
    assert match.excused == "it removes whole sequences only"
    assert match.perform(Op.decode_run(0, 2, [7])) == 0


def test_an_answer_that_nothing_excuses_is_a_difference() -> None:
    match = match_of(Stubborn("stubborn"))
    match.perform(Op.decode_run(0, 0, [1, 2, 3]))
    with pytest.raises(DifferenceError, match="ret is 0, expected 1"):
        match.perform(Op.seq_rm(0, 1, 2))


def test_a_fault_that_one_cannot_be_given_is_left_out_for_all() -> None:
    match = match_of(Stubborn("stubborn"))
    assert match.perform(Op.decode_run(0, 0, [1, 2], Fault(0, "compute"))) == 0
    assert match.perform(Op.decode_run(0, 2, [1, 2], Fault(0))) == 2


def test_it_is_played_on_its_own_configurations() -> None:
    usual = PROFILES["usual"]
    assert [config.name for config in playable(usual, KV, [Stubborn("stubborn")])] == ["mine"]
    assert playable(usual, CACHES["iswa"], [Stubborn("stubborn")]) == []
    assert playable(usual, KV, [Headless("headless")]) == list(KV.configs)
