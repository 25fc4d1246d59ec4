"""The graph-reuse decision and its reasons (spec decode.md, section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_memories import (
    ISWA,
    KV,
    KV_STREAMS,
    MSA,
    MSA_STREAMS,
    feed,
    recorded,
    tokens,
    ubatch,
)  # fmt: skip

from kvsim.batch import Batch, Ubatch
from kvsim.context import Context, Fault
from kvsim.graph import GraphCache
from kvsim.memory import View


class Shapes(View):
    def __init__(self, **key: int) -> None:
        self.key = key

    def reuse_key(self) -> dict[str, Any]:
        return dict(self.key)

    def describe(self, name: str, record: dict[str, Any]) -> None: ...


VIEWS: Mapping[str, View] = {"kv": Shapes(n_kv=256, n_stream=1)}
ONE = ubatch([0])


def after(first: Ubatch = ONE, outputs: int = 1, arch: str = "llama") -> GraphCache:
    graphs = GraphCache(arch)
    graphs.decide(first, outputs, VIEWS)
    return graphs


def test_the_first_graph_is_built_and_an_equal_one_reuses_it() -> None:
    graphs = GraphCache("llama")
    first = graphs.decide(ONE, 1, VIEWS)
    assert (first.reused, str(first)) == (False, "rebuilt: the first graph")
    again = graphs.decide(ubatch([7], 3), 1, VIEWS)  # positions, tokens and sequences do not matter
    assert (again.reused, str(again)) == (True, "reused")


BOTH = replace(ONE, has_embd=True)
EMBD = replace(ONE, tokens=None, has_embd=True)
MIXED = replace(ubatch([0, 1]), has_embd=True, is_embd=np.array([True, False]))
EQUAL = replace(ubatch([0, 0], [0, 1]), equal_seqs=True, n_seqs=2)


@pytest.mark.parametrize(
    ("first", "then", "reason"),
    [
        (ONE, ubatch([0, 1]), "n_tokens 1 -> 2"),
        (EQUAL, replace(EQUAL, n_seq_tokens=2, n_seqs=1), "n_seq_tokens 1 -> 2"),
        (EQUAL, replace(EQUAL, n_seqs=1), "n_seqs 2 -> 1"),
        (ubatch([0, 1], [0, 0]), ubatch([0, 1], [0, 1]), "n_seqs_unq 1 -> 2"),
        (ONE, replace(ONE, equal_seqs=True), "equal_seqs False -> True"),
        (EQUAL, replace(EQUAL, seq_id_unq=(1, 2)), "sequences 0,1 -> 1,2"),
        (ONE, EMBD, "tokens True -> False"),
        (ONE, BOTH, "embeddings False -> True"),
        (EMBD, BOTH, "tokens False -> True"),
        (MIXED, replace(MIXED, is_embd=None), "mixed, rows of tokens 1 -> None"),
        (MIXED, replace(MIXED, is_embd=np.array([True, True])), "mixed, rows of tokens 1 -> 0"),
    ],
)
def test_what_the_ubatch_must_have_in_common(first: Ubatch, then: Ubatch, reason: str) -> None:
    decision = after(first).decide(then, 1, VIEWS)
    assert (decision.reused, decision.reason) == (False, reason)


@pytest.mark.parametrize("same", [BOTH, EMBD, MIXED, EQUAL])
def test_equal_kinds_reuse(same: Ubatch) -> None:
    assert after(same).decide(same, 1, VIEWS).reused


def test_sequences_count_only_in_equal_splits() -> None:
    assert after(ubatch([0, 1], [0, 1])).decide(ubatch([0, 1], [2, 3]), 1, VIEWS).reused


def test_outputs_count() -> None:
    two = ubatch([0, 1])
    assert after(two, 2).decide(two, 1, VIEWS).reason == "n_outputs 2 -> 1"


def test_alternating_with_and_without_outputs_rebuilds_every_time() -> None:
    """Surprise 1: two graphs, one active."""
    graphs = after()
    for outputs, had in ((0, "outputs"), (1, "no outputs"), (0, "outputs")):
        decision = graphs.decide(ONE, outputs, VIEWS)
        assert (decision.reused, decision.reason) == (False, f"the last ubatch had {had}, this one not so")
    assert graphs.decide(ONE, 0, VIEWS).reused


def test_shapes_of_a_view_count_by_name() -> None:
    assert after().decide(ONE, 1, {"kv": Shapes(n_kv=512, n_stream=1)}).reason == "n_kv 256 -> 512"
    two = {"base": Shapes(n_kv=256), "swa": Shapes(n_kv=256)}
    graphs = GraphCache("gemma2")
    graphs.decide(ONE, 1, two)
    assert graphs.decide(ONE, 1, {**two, "swa": Shapes(n_kv=512)}).reason == "swa n_kv 256 -> 512"


def test_causality_counts() -> None:
    decision = after().decide(ONE, 1, VIEWS, causal_attn=False)
    assert decision.reason == "causal_attn True -> False"


@pytest.mark.parametrize("arch", ["llama4", "t5", "mistral3", "graniteswitch"])
def test_inputs_without_a_check_always_rebuild(arch: str) -> None:
    decision = after(arch=arch).decide(ONE, 1, VIEWS)
    assert not decision.reused
    assert decision.reason.endswith("input has no check")


def test_dropped_graphs_are_built_again_with_the_reason() -> None:
    graphs = after()
    graphs.drop("the memory was updated")
    assert graphs.decide(ONE, 1, VIEWS).reason == "the memory was updated"
    assert graphs.decide(ONE, 1, VIEWS).reused


# -- in the decode loop -----------------------------------------------------------------------------


def decisions(ctx: Context) -> list[str]:
    return [str(record.graph) for record in ctx.records]


def test_generation_reuses_until_the_length_grows_over_a_multiple_of_256() -> None:
    ctx = recorded("kv/llama-uni-c512-u16-s2-f16-01")
    feed(ctx, 0, 254, step=127)
    said = []
    for _ in range(4):
        feed(ctx, 0, 1)
        said += decisions(ctx)
    assert said == ["rebuilt: n_tokens 15 -> 1", "reused", "rebuilt: n_kv 256 -> 512", "reused"]


def test_an_update_of_the_memory_drops_the_graphs() -> None:
    ctx = recorded(KV)
    feed(ctx, 0, 1)
    feed(ctx, 0, 1)
    assert decisions(ctx) == ["reused"]
    ctx.memory.seq_add(0, -1, -1, 1)
    feed(ctx, 0, 1)
    assert decisions(ctx) == ["rebuilt: the memory was updated"]


def test_a_graph_that_could_not_be_allocated_is_gone() -> None:
    ctx = recorded(KV)
    feed(ctx, 0, 1)
    assert ctx.decode(tokens(0, 1), Fault(0, "alloc")) == -2
    feed(ctx, 0, 1)
    assert decisions(ctx) == ["rebuilt: the last graph could not be allocated"]
    assert ctx.decode(tokens(0, 1), Fault(0, "compute")) == -3
    feed(ctx, 0, 1)
    assert decisions(ctx) == ["reused"]


def test_streams_are_bound_to_the_sequences_of_a_ubatch() -> None:
    ctx = recorded(KV_STREAMS)
    for seqs, said in (((0, 1), "the first graph"), ((1, 2), "sequences 0,1 -> 1,2"), ((1, 2), "")):
        start = [ctx.memory.seq_pos_max(s) + 1 for s in seqs]
        ctx.decode(Batch.joined(*(tokens(s, 1, p) for s, p in zip(seqs, start, strict=True))))
        assert ctx.records[0].graph.reason == said


def test_the_lengths_of_all_parts_count() -> None:
    ctx = recorded(ISWA, {"base": 1024, "swa": 256})
    feed(ctx, 0, 255, step=51)
    said = []
    for _ in range(3):
        feed(ctx, 0, 1)
        said += decisions(ctx)
    assert said == ["rebuilt: n_tokens 51 -> 1", "rebuilt: base n_kv 256 -> 512", "reused"]


def test_block_attention_is_bound_to_how_far_positions_go() -> None:
    """MSA with one sequence per stream: positions beyond 255 need a longer map, though the cells do not."""
    ctx = recorded(MSA_STREAMS)
    feed(ctx, 0, 1, start=250)
    feed(ctx, 0, 1)
    assert decisions(ctx) == ["reused"]
    feed(ctx, 0, 4)
    feed(ctx, 0, 1)
    assert decisions(ctx) == ["rebuilt: n_tokens 4 -> 1"]
    ctx.memory.clear(False)
    feed(ctx, 0, 1, start=254)
    feed(ctx, 0, 1)
    assert decisions(ctx) == ["reused"]
    feed(ctx, 0, 1)
    assert decisions(ctx) == ["rebuilt: base n_pos 256 -> 512"]


def test_dense_attention_of_a_unified_msa_cache_is_not() -> None:
    ctx = recorded(MSA)
    feed(ctx, 0, 1, start=255)
    feed(ctx, 0, 1)
    assert decisions(ctx) == ["reused"]
