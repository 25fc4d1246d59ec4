"""Steps placed together leave what steps placed one by one leave: cells, heads, codes, failures."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.batch import BatchAllocator
from kvsim.caches.factory import LeafFactory
from kvsim.context import NO_SLOT, OK, Context
from kvsim.events import Recorder
from kvsim.models.context_params import ContextParams
from kvsim.models.gguf_header import model_from_metadata
from kvsim.models.known import known_model
from kvsim.workload.bulk import BulkDecoder
from kvsim.workload.runs import Run, batch_of
from kvsim.workload.ubatches import equal_split, simple_split

ARCHS = (
    "llama3-8b", "gemma3-4b", "gpt-oss-20b", "llama4-scout", "lfm2-1.2b", "mamba-130m", "deepseek-v3.2",
    "dots3note-moe.gguf", "lfm2-l4-dense.gguf", "minimax-m3-moe.gguf",
)  # fmt: skip
METADATA = json.loads(Path("fixtures/models/metadata.json").read_text())


def contexts(
    arch: str, n_seqs: int, unified: bool, n_ubatch: int, n_swa: int, spare: int, size: int
) -> tuple[Context, Context]:
    """Two equal contexts with tiny caches: windows of ``n_swa`` and ``spare`` cells more than they need."""
    model = model_from_metadata(METADATA[arch]) if arch in METADATA else known_model(arch)
    if model.n_swa:
        model = replace(model, n_swa=n_swa)
    params = ContextParams(
        n_ctx=256 * n_seqs, n_batch=2 * n_ubatch, n_ubatch=n_ubatch, n_seq_max=n_seqs, kv_unified=unified,
        swa_full=False,
    )  # fmt: skip
    swa = n_swa * (n_seqs if unified else 1) + n_ubatch + spare
    leaves = LeafFactory(
        sizes={"swa": swa} | dict.fromkeys(["kv", "base", "attn", "mla", "lid", "idx"], size)
    )
    return Context(model, params, leaves=leaves), Context(model, params, leaves=leaves)


class Pair:
    """The same operations, together in one context and step by step in the other."""

    def __init__(self, together: Context, by_step: Context) -> None:
        self.decoder = BulkDecoder(together)
        self.together, self.by_step = together, by_step
        self.held = [0] * together.resolved.n_seq_max

    def runs(self, lengths: dict[int, int], token: int) -> list[Run]:
        return [Run(s, self.held[s], range(token, token + n)) for s, n in lengths.items()]

    def decode(self, lengths: dict[int, int], token: int) -> None:
        runs = self.runs(lengths, token)
        code = self.decoder.decode(runs)
        assert code == self.by_step.decode(batch_of(runs))
        assert self.together.last_failure == self.by_step.last_failure
        if code == OK:
            for s, n in lengths.items():
                self.held[s] += n

    def steps(self, seqs: list[int], n: int, token: int) -> int:
        runs = self.runs(dict.fromkeys(seqs, n), token)
        made = self.decoder.steps(runs)
        for i in range(made):
            step = [Run(run.seq, run.start + i, run.tokens[i : i + 1]) for run in runs]
            assert self.by_step.decode(batch_of(step)) == OK
        for s in seqs:
            self.held[s] += made
        return made

    def remove(self, s: int, keep: int) -> None:
        keep = min(keep, self.held[s])
        if "recurrent" in self.by_step.memory.leaves():  # a state cannot go back
            keep = 0
        if keep <= self.by_step.memory.seq_pos_min(s):  # a window has passed it
            keep = 0
        self.decoder.settle(s)
        for context in (self.together, self.by_step):
            context.memory.seq_rm(s, keep, -1)
        self.held[s] = keep

    def compare(self) -> None:
        self.decoder.settle()
        assert self.together.memory.snapshot() == self.by_step.memory.snapshot()
        self.together.memory.check_integrity()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_together_is_step_by_step(data: st.DataObject) -> None:
    draw = data.draw
    n_seqs, n_ubatch = draw(st.integers(1, 4)), draw(st.sampled_from([8, 16]))
    pair = Pair(
        *contexts(
            draw(st.sampled_from(ARCHS)), n_seqs, draw(st.booleans()), n_ubatch,
            draw(st.sampled_from([4, 9])), draw(st.sampled_from([-6, 0, 5, 30])),
            draw(st.sampled_from([40, 90, 200])),
        )
    )  # fmt: skip
    seqs = st.lists(st.integers(0, n_seqs - 1), min_size=1, unique=True).map(sorted)
    for token in range(0, 20_000, 1000):
        if draw(st.booleans()):  # else it waits for what comes next
            pair.compare()
        kind = draw(st.sampled_from(["remove", "batch", "steps", "steps"]))
        if kind == "remove":
            pair.remove(draw(st.integers(0, n_seqs - 1)), draw(st.sampled_from([0, 3, 20])))
        elif kind == "batch":
            chosen = draw(seqs)
            long = draw(st.integers(1, 2 * n_ubatch - len(chosen)))
            pair.decode({**dict.fromkeys(chosen[:-1], 1), chosen[-1]: long}, token)
        else:
            pair.steps(draw(seqs), draw(st.integers(1, 40)), token)
    pair.compare()


@pytest.mark.parametrize("seed", range(24))
def test_long_sessions_with_windows(seed: int) -> None:
    """Windows pass, are purged and searched again, for so long that every reason to stop a run of steps
    occurs: a search that starts over, a cell that is usable only later."""
    random = np.random.default_rng(seed)
    n_seqs = int(random.choice([1, 2, 3, 5]))
    n_ubatch, n_swa = int(random.choice([8, 16, 32])), int(random.choice([4, 9, 20]))
    arch, unified = str(random.choice(["gemma3-4b", "gpt-oss-20b"])), bool(random.random() < 0.7)
    pair = Pair(*contexts(arch, n_seqs, unified, n_ubatch, n_swa, int(random.choice([0, 10, 30])), 200))
    for token in range(0, 40_000, 1000):
        if random.random() < 0.5:  # else it waits for what comes next
            pair.compare()
        seqs = sorted(random.choice(n_seqs, int(random.integers(1, n_seqs + 1)), replace=False).tolist())
        kind = random.random()
        if kind < 0.25:
            s = seqs[0]
            pair.remove(s, int(random.choice([0, 0, pair.held[s] // 2, max(0, pair.held[s] - 2)])))
        elif kind < 0.6:
            long = int(random.integers(1, 2 * n_ubatch - len(seqs)))
            pair.decode({**dict.fromkeys(seqs[:-1], 1), seqs[-1]: long}, token)
        else:
            pair.steps(seqs, int(random.integers(1, 31)), token)
    pair.compare()


@pytest.mark.parametrize("seed", range(30))
def test_states_that_move_round_after_round(seed: int) -> None:
    """Sequences in any order make several ubatches of a step, and each may move the states of another: it takes
    some rounds, or goes on for ever, before all stay where they are."""
    random = np.random.default_rng(seed)
    pair = Pair(*contexts("mamba-130m", 8, False, 8, 4, 0, 40))
    for token in range(0, 12_000, 1000):
        seqs = random.permutation(8)[: random.integers(1, 9)].tolist()
        assert pair.steps(seqs, 6, token) == 6
        if random.random() < 0.4:
            pair.remove(int(random.integers(8)), 0)
        pair.compare()


@given(
    st.permutations(range(5)), st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 16),
    st.sampled_from(["simple", "equal", "sequential"]),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_runs_get_the_ubatches_of_their_tokens(
    seqs: list[int], lengths: list[int], n_ubatch: int, how: str
) -> None:
    """Sequences in any order, with others left out in between."""
    seqs = seqs[: len(lengths)]
    runs = [Run(s, 0, range(n)) for s, n in zip(seqs, lengths, strict=True)]
    allocator = BatchAllocator(1, 16)
    allocator.init(batch_of(runs))
    if how == "simple":
        ubatches = allocator.split_all(lambda: allocator.split_simple(n_ubatch))
        found = simple_split(lengths, n_ubatch)
    else:
        sequential = how == "sequential"
        ubatches = allocator.split_all(lambda: allocator.split_equal(n_ubatch, sequential=sequential))
        found = equal_split(seqs, lengths, n_ubatch, sequential)
    assert ubatches is not None
    expected = [[(s, len(list(same))) for (s,), same in groupby(each.seq_ids)] for each in ubatches]
    assert [[(seqs[i], n) for i, n in parts] for parts in found] == expected


def test_steps_of_one_stream_interleave() -> None:
    """Cells are taken step by step, sequence by sequence, on from the head."""
    together, _ = contexts("llama3-8b", 2, True, 8, 4, 0, 40)
    decoder = BulkDecoder(together)
    assert decoder.steps([Run(0, 0, range(10, 13)), Run(1, 0, range(20, 23))]) == 3
    decoder.settle()
    (cells,) = together.memory.snapshot().caches["kv"]
    assert cells["head"] == 6
    assert [(row[0], row[1], row[2], row[4]) for row in cells["cells"]] == [
        (0, 0, [0], 10), (1, 0, [1], 20), (2, 1, [0], 11), (3, 1, [1], 21), (4, 2, [0], 12), (5, 2, [1], 22),
    ]  # fmt: skip


def test_only_steps_that_fit_are_made() -> None:
    """Of 40 cells 37 are used: one step of two sequences fits, the next is refused with its numbers."""
    together, by_step = contexts("llama3-8b", 2, True, 32, 4, 0, 40)
    pair = Pair(together, by_step)
    pair.decode({0: 36, 1: 1}, 0)
    assert pair.steps([0, 1], 5, 1000) == 1
    assert pair.steps([0, 1], 5, 1000) == 0
    pair.decode({0: 1, 1: 1}, 1000)
    failure = together.last_failure
    assert failure is not None
    assert failure.code == NO_SLOT
    assert failure.slot is not None
    assert (failure.slot.asked, failure.slot.free, failure.slot.largest_hole) == (2, 1, 1)
    pair.compare()


def test_a_head_far_ahead_starts_over() -> None:
    """After a removal the used cells are few and the head is far: both must begin at cell 0 again."""
    pair = Pair(*contexts("llama3-8b", 2, True, 32, 4, 0, 200))
    pair.decode({0: 60, 1: 1}, 0)
    pair.remove(0, 0)
    assert pair.steps([1], 30, 500) == 30
    pair.compare()
    assert pair.together.memory.snapshot().caches["kv"][0]["cells"][0][:3] == [0, 1, [1]]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("unified", [True, False])
def test_every_member_goes_together(arch: str, unified: bool) -> None:
    """Steps and batches wait, and leave what single decodes leave."""
    pair = Pair(*contexts(arch, 3, unified, 16, 9, 30, 200))
    pair.decode({0: 20, 2: 5}, 0)
    assert pair.steps([0, 2], 7, 1000) == 7
    pair.decode({1: 12, 0: 1, 2: 1}, 2000)
    assert pair.steps([0, 1, 2], 30, 3000) == 30
    assert pair.decoder.together
    if pair.decoder.caches:  # states move at once
        assert pair.together.memory.snapshot() != pair.by_step.memory.snapshot()
    pair.remove(1, 0)
    assert pair.steps([2, 0], 5, 4000) == 5
    pair.compare()


def test_an_observer_sees_every_step() -> None:
    """Then nothing is placed together, so that what is told is what happens."""
    together, _ = contexts("llama3-8b", 2, True, 8, 4, 0, 40)
    decoder = BulkDecoder(together)
    recorder = Recorder()
    together.observe(recorder)
    assert decoder.steps([Run(0, 0, range(3))]) == 0
    assert decoder.decode([Run(0, 0, range(3))]) == OK
    assert "write" in recorder.kinds()


def test_an_observer_that_comes_later_finds_everything_placed() -> None:
    """What waited is placed before the first decode that it sees."""
    together, by_step = contexts("llama3-8b", 2, True, 8, 4, 0, 40)
    pair = Pair(together, by_step)
    pair.decode({0: 3, 1: 2}, 0)
    recorder = Recorder()
    together.observe(recorder)
    pair.decode({0: 1, 1: 1}, 100)
    pair.compare()
    assert [event.kind for event in recorder.events].count("write") == 2


def test_other_memories_go_through_the_context() -> None:
    context = Context(known_model("lfm2-1.2b"), ContextParams(n_ctx=256, n_rs_seq=2))
    decoder = BulkDecoder(context)
    assert decoder.steps([Run(0, 0, range(3))]) == 0
    assert decoder.decode([Run(0, 0, range(3))]) == OK
    assert context.memory.seq_pos_max(0) == 2


def test_cells_searched_are_counted() -> None:
    """Four cells taken; then one is freed, and the search takes it and passes three to take one more."""
    together, _ = contexts("llama3-8b", 2, True, 8, 4, 0, 40)
    decoder = BulkDecoder(together)
    decoder.decode([Run(0, 0, range(1)), Run(1, 0, range(3))])
    decoder.settle()
    assert decoder.n_searched == 4
    together.memory.seq_rm(0, -1, -1)
    decoder.decode([Run(0, 0, np.arange(2).tolist())])
    decoder.settle()
    assert decoder.n_searched == 4 + 5  # cell 0, past 1 to 3, cell 4
