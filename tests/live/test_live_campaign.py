"""A short run of the campaign that ``make live`` runs for long: random operations, no difference."""

from __future__ import annotations

import json

import pytest
from live_lane import model_file, needs_library

from kvsim.caches.kv import KVCache
from kvsim.lanes import campaign
from kvsim.lanes.campaign import CONFIGURATIONS
from kvsim.lanes.known_differences import Parting, explained
from kvsim.lanes.pair import Pair, Report
from kvsim.models.network import MODELS
from kvsim.models.tiny import TINY
from kvsim.ops import Op
from kvsim.testing.match import DifferenceError

pytestmark = needs_library

OPS = 60


def short_run(name: str, config: str, n_ops: int = OPS, seed: int = 2) -> Report:
    pair = Pair(model_file(name), CONFIGURATIONS[config])
    try:
        return campaign.run(pair, seed, n_ops)
    finally:
        pair.close()


@pytest.mark.parametrize("name", TINY)
def test_random_operations_agree(name: str) -> None:
    """A different context for each model; all of them in ``make live``."""
    config = list(CONFIGURATIONS)[list(TINY).index(name) % 5]
    report = short_run(name, config)
    assert report.ops >= OPS
    assert report.codes["0"] > OPS // 5
    assert report.kinds["looks"] >= 2
    if TINY[name].arch in MODELS:
        assert report.logits > 10


def test_a_head_that_stays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCache, "_lower_head", lambda self, stream, freed: None)
    with pytest.raises(DifferenceError, match="head"):
        short_run("llama", "unified", 300)


def test_a_removal_that_is_too_short_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = KVCache.seq_rm
    monkeypatch.setattr(
        KVCache, "seq_rm", lambda self, seq, p0, p1: remove(self, seq, p0, p1 - 1 if p1 > 0 else p1)
    )
    with pytest.raises(DifferenceError):
        short_run("llama", "streams", 300)


def test_keys_that_do_not_turn_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.tensors.shift.KeyShift.apply", lambda self, rows, shift: None)
    with pytest.raises(DifferenceError, match="logits of batch entry"):
        short_run("llama", "unified", 300)


def test_a_difference_shrinks_to_the_operations_that_matter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A head that stays: a token, and an operation that frees its cell."""
    monkeypatch.setattr(KVCache, "_lower_head", lambda self, stream, freed: None)
    assert campaign.main(["--model", "llama", "--config", "unified", "--ops", "300", "--seed", "2"]) == 1
    title, _, found = capsys.readouterr().out.partition("the shortest way there:\n")
    assert title.startswith("llama/unified: llama.cpp differs at operation ")
    ops = [Op.from_json(json.loads(line)) for line in found.splitlines()]
    assert [op.op for op in ops] in (["decode", "seq_rm"], ["decode", "seq_keep"])
    assert len(ops[0].args["tokens"]) == 1


def test_a_token_that_sees_nothing_ends_the_comparison_of_logits_until_a_clear() -> None:
    """At position -1: llama.cpp has NaN there, and from then on in every row that it spoils."""
    pair = Pair(model_file("llama"), CONFIGURATIONS["unified"])
    try:
        pair.perform(Op.decode_run(0, -1, [5]))
        assert pair.blind
        assert pair.report.logits == 0
        pair.perform(Op.clear(False))
        assert pair.blind
        pair.perform(Op.clear(True))
        pair.perform(Op.decode_run(0, 0, [5, 6]))
        assert not pair.blind
        assert pair.report.logits == 1
    finally:
        pair.close()


def test_a_change_since_b11434_is_explained() -> None:
    partial, whole = Op.seq_cp(0, 1, 2, -1), Op.seq_cp(0, 1)
    for version, kind, op, parting, known in (
        ("b11549", "hybrid_idx", partial, Parting.IT_ENDS, True),
        ("b11549", "hybrid_idx", partial, Parting.WE_REFUSE, False),
        ("b11549", "hybrid_idx", whole, Parting.IT_ENDS, False),
        ("b11434", "hybrid_idx", partial, Parting.IT_ENDS, False),
        ("b11549", "hybrid", partial, Parting.IT_ENDS, False),
    ):
        assert bool(explained(version, kind, op.op, op.args, parting)) == known
    pair = Pair(model_file("glm5-next"), CONFIGURATIONS["unified"])
    try:
        pair.perform(Op.decode_run(0, 0, range(6)))
        pair.perform(partial)
        (known,) = [kind for kind in pair.report.kinds if "known" in kind]
        assert known.startswith("ended (known: since b11434: a copy must be of the whole sequence")
        assert pair.perform(Op.decode_run(0, 0, range(6))) == 0  # both sides are anew
    finally:
        pair.close()


def test_a_shared_state_is_rolled_back_by_b11434_only() -> None:
    """The wheel refuses; with the other sequence gone, or nothing shared, both do it."""
    start = [Op.decode_run(0, 0, [3] * 4), Op.seq_cp(0, 1)]
    for between, known in (([], 1), ([Op.seq_rm(1)], 0)):
        pair = Pair(model_file("lfm2"), CONFIGURATIONS["rollback"])
        try:
            for op in [*start, *between, Op.seq_rm(0, 3, -1)]:
                pair.perform(op)
            assert sum("is not rolled back" in kind for kind in pair.report.kinds) == known
        finally:
            pair.close()


@pytest.mark.parametrize(("n", "ends"), [(1, False), (2, False), (3, True)])
def test_deepseek4_survives_a_short_start_at_minus_one(
    n: int, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kvsim refuses all of them; only the long one ends llama.cpp."""
    monkeypatch.setattr("kvsim.lanes.pair.ENDS_TRIED", 1)
    pair = Pair(model_file("deepseek4"), CONFIGURATIONS["one-sequence"])
    try:
        pair.perform(Op.decode_run(0, -1, [7] * n))
        assert pair.refused
        (how,) = [kind for kind in pair.report.kinds if kind.startswith("ended")]
        assert how.startswith(
            "ended (signal 6)" if ends else "ended (known: a batch that begins at position -1"
        )
    finally:
        pair.close()
