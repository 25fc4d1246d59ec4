"""A short run of the campaign that ``make live`` runs for long: random operations, no difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from live_lane import model_file, needs_library

from kvsim.caches.kv import KVCache
from kvsim.context import Fault
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
    assert title.startswith("kv llama/unified: llama.cpp differs at operation ")
    ops = [Op.from_json(json.loads(line)) for line in found.splitlines() if line[0] == "{"]
    assert [op.op for op in ops] in (["decode", "seq_rm"], ["decode", "seq_keep"])
    assert len(ops[0].args["tokens"]) == 1


def test_a_campaign_goes_on_where_its_report_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "live.jsonl"
    asked = ["--memory", "msa", "--seed", "4", "--report", str(report)]
    assert campaign.main([*asked, "--ops", "30"]) == 0
    assert campaign.main([*asked, "--ops", "50"]) == 0
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(line["config"], line["ops"], line["seed"]) for line in lines] == [
        ("unified", 30, 400_000), ("streams", 20, 400_001),
    ]  # fmt: skip
    assert "msa: 50 operations\nllama.cpp b11549: 0 differences\n" in capsys.readouterr().out
    report.write_text(report.read_text() + json.dumps(lines[1] | {"difference": "here"}) + "\n")
    assert campaign.main([*asked, "--ops", "50"]) == 0  # a part that differed does not count


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
        assert known.startswith("known: since b11434: a copy must be of the whole sequence")
        assert pair.report.codes["ends"] == 1
        assert pair.perform(Op.decode_run(0, 6, range(6))) == 0  # neither side has done it
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


@pytest.mark.parametrize(
    ("lengths", "beside", "refused", "known"),
    [([1], [], False, 0), ([2], [], False, 0), ([3], [], True, 0), ([9], [], True, 0), ([2, 2], [], False, 0),
     ([3, 3], [], True, 0), ([2], [2], True, 0), ([1], [1], True, 1)],
)  # fmt: skip
def test_deepseek4_from_position_minus_one(
    lengths: list[int], beside: list[int], refused: bool, known: int
) -> None:
    """Sequences of these lengths from -1 on, and others from 0 on: what we refuse ends llama.cpp, but for the
    last, where it reads what lies behind the ubatch."""
    tokens = [(s, pos) for s, n in enumerate(lengths) for pos in range(-1, n - 1)]
    tokens += [(s, pos) for s, n in enumerate(beside, len(lengths)) for pos in range(n)]
    pair = Pair(model_file("deepseek4"), CONFIGURATIONS["large-ubatch"])
    try:
        pair.perform(Op.decode([7] * len(tokens), [p for _, p in tokens], [[s] for s, _ in tokens]))
        assert pair.refused is refused
        assert sum("reads beyond" in kind for kind in pair.report.kinds) == known
    finally:
        pair.close()


def test_an_abort_comes_before_the_end() -> None:
    """A token shared in a quantised cache ends llama.cpp while it computes: an abort is asked for earlier."""
    pair = Pair(model_file("deepseek4"), CONFIGURATIONS["quantised"])
    try:
        pair.perform(Op.decode_run([1, 2], 0, [34], fault=Fault(0)))
        assert pair.refused
    finally:
        pair.close()


STRANGE = (-2, -1, 255, 256)
"""Ids that no sequence of a context has."""


@pytest.mark.parametrize("config", ["one-sequence", "streams"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba", "jamba", "deepseek4"])
def test_every_operation_on_a_sequence_that_does_not_exist(name: str, config: str) -> None:
    """The answer, or the end, of each, tried alone."""
    pair = Pair(model_file(name), CONFIGURATIONS[config])
    try:
        pair.perform(Op.decode_run(0, 0, [3] * 5))
        pair.perform(Op.state_seq_get(0, 0))
        for seq in (pair.n_seq_max, *STRANGE):
            for op in (
                *(Op.state_seq_get(seq, 1, flags) for flags in (0, 1)),
                *(Op.state_seq_set(seq, 0, flags) for flags in (0, 1)),
                Op.seq_rm(seq), Op.seq_rm(seq, 2, -1), Op.seq_cp(0, seq), Op.seq_cp(seq, 0), Op.seq_keep(seq),
                Op.seq_add(seq, -1, -1, 1), Op.seq_div(seq, -1, -1, 2),
            ):  # fmt: skip
                assert pair.alone(op)
    finally:
        pair.close()


def test_a_state_is_looked_at_where_the_next_decode_would_end() -> None:
    """A pending shift that cannot run ends every decode: the search shows nothing, the state does."""
    pair = Pair(model_file("lfm2-windowed"), CONFIGURATIONS["unified"])
    try:
        pair.perform(Op.decode_run(2, 22, [19]))
        pair.perform(Op.seq_add(2, -1, -1, -3), look=True)
        assert pair.report.kinds["looks"] == 1
        picture, state = pair.live.look()
        assert (picture["caches"]["base"], state is None) == ([None], False)
    finally:
        pair.close()
