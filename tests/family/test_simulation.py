"""Simulations over the real caches: by hand, step by step, conserved, whatever the memory."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated import config_of, paged_of, random_requests, request, server_of

from kvsim.batch import Batch
from kvsim.caches.factory import LeafFactory
from kvsim.context import Context
from kvsim.errors import CacheUsageError, TraceError
from kvsim.policies import Slot, reuse
from kvsim.replay import replay_beside
from kvsim.trace import read_trace
from kvsim.trace.compare import compare_step
from kvsim.workload.read import Workload
from kvsim.workload.record import IntervalRecorder
from kvsim.workload.setup import Setup
from kvsim.workload.simulate import simulate

TRACE = Path("fixtures/workloads/azure_llm_2023_conv.csv.gz")


def test_a_tiny_workload_is_the_same_operations_by_hand() -> None:
    """Two slots, three requests. The third comes back to the prompt of the first, which a slot holds."""
    server = server_of(config_of(n_ctx=512, n_seq_max=2, kv_unified=True))
    prompts = [range(40), range(1000, 1010), range(44)]
    requests = [request(i, 6.0 * (i == 2), prompt, 3) for i, prompt in enumerate(prompts)]
    account = simulate(requests, server)

    context = Context(server.config.model, server.config.params, leaves=LeafFactory())
    slots = [Slot(context, seq) for seq in range(2)]
    first, second = requests[0].answer, requests[1].answer
    # fresh slots: of those that were never used the last one is taken first; prompts go in by slot
    decodes = [
        [(0, 0, prompts[1]), (1, 0, prompts[0])],
        [(0, 10, second[:1]), (1, 40, first[:1])],
        [(0, 11, second[1:2]), (1, 41, first[1:2])],
    ]
    for parts in decodes:
        assert context.decode(Batch.joined(*(Batch.tokens_of(s, p, at) for s, at, p in parts))) == 0
    slots[1].tokens = [*prompts[0], *first[:2]]
    report = reuse(slots[1], list(prompts[2]))
    assert (report.n_past, report.n_decode) == (40, 4)
    for part in (prompts[2][40:], requests[2].answer[:1], requests[2].answer[1:2]):
        assert slots[1].feed(part) == 0

    assert server.context.memory.snapshot() == context.memory.snapshot()
    totals = account.totals
    assert (totals.finished, totals.decodes, account.hits) == (3, 6, 1)
    assert (totals.computed, totals.reused, totals.reprocessed) == (54, 40, 0)
    assert (totals.generated, totals.fed_back, totals.decoded) == (9, 6, 60)
    assert account.reasons == {"the slot was empty": 2}
    # the slot held the 40 of the first prompt and two of its answer
    assert (totals.rollbacks, totals.taken_back) == (1, 2)
    # one second a ubatch of 32: two for the 50 tokens of the first batch, then one each
    assert account.first_token.max == 2.0
    assert account.latency.max == 4.0


MEMORIES = [
    {"arch": "llama3-8b"},
    {"arch": "gemma3-4b", "n_swa": 16},
    {"arch": "gemma3-4b", "swa_full": True},
    {"arch": "llama3-8b", "ctx_shift": True, "cache_reuse": 4},
    {"arch": "lfm2-1.2b"},
    {"arch": "mamba-130m"},
    {"arch": "deepseek-v3.2"},
]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(MEMORIES), st.booleans(), st.integers(1, 4), st.integers(0, 10_000))
def test_every_token_is_accounted_for(
    memory: dict[str, Any], unified: bool, parallel: int, seed: int
) -> None:
    """Conservation, with too little memory for all that is asked; the paged policy sees the same requests."""
    config = config_of(**memory, n_seq_max=parallel, kv_unified=unified, n_ctx=256, n_batch=64)
    requests = random_requests(seed, 12, longest=300)
    server = server_of(config)
    totals = simulate(requests, server).totals  # checks the sums itself
    server.context.memory.check_integrity()
    assert totals.requests == len(requests)
    assert totals.prompt == sum(r.n_prompt for r in requests)
    assert totals.reused + totals.computed + totals.reprocessed + totals.refused == totals.prompt
    assert totals.decoded == totals.computed + totals.reprocessed + totals.fed_back
    paged = simulate(requests, paged_of(config)).totals
    assert (paged.requests, paged.prompt, paged.answer) == (totals.requests, totals.prompt, totals.answer)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(MEMORIES), st.booleans(), st.integers(1, 4), st.integers(0, 10_000))
def test_together_or_step_by_step_is_one_simulation(
    memory: dict[str, Any], unified: bool, parallel: int, seed: int
) -> None:
    """Cells, counts, times and samples do not depend on how many steps are made at once."""
    config = config_of(**memory, n_seq_max=parallel, kv_unified=unified, n_ctx=256, n_batch=64)
    one, other = server_of(config), server_of(config, bulk=False)
    requests = random_requests(seed, 8)
    a, b = simulate(requests, one).to_json(), simulate(requests, other).to_json()
    assert one.context.memory.snapshot() == other.context.memory.snapshot()
    for left_out in ("samples", "peak_used"):  # taken after a round, of which there are fewer
        del a[left_out], b[left_out]
    for each in (a, b):  # a search that starts over at cell 0 is told by how far the head went, step by step
        del each["totals"]["searched"]
    assert a == b


def test_what_is_searched_does_not_depend_on_when_cells_are_looked_at() -> None:
    config = config_of("gemma3-4b", n_swa=16, n_seq_max=4, kv_unified=True, n_ctx=512, n_batch=64)
    totals = []
    for often in (False, True):
        server = server_of(config)
        sample = server.sample if often else lambda clock: None
        totals.append(simulate(random_requests(5, 20), server, look=sample).totals)
    assert totals[0].searched == totals[1].searched > 0


def test_a_full_unified_cache_empties_an_idle_slot() -> None:
    """Of 256 cells an idle slot holds 150. A prompt of 200 finds no room until that slot is purged."""
    server = server_of(config_of(n_seq_max=2, kv_unified=True))
    account = simulate([request(0, 0, range(150), 1), request(1, 10, range(1000, 1200), 1)], server)
    assert (account.totals.failed_decodes, account.totals.purged_slots, account.totals.finished) == (1, 1, 2)
    (failure,) = account.failures
    # the prompt goes through in ubatches of 32: after three of them ten cells are left
    assert (failure.time, failure.asked, failure.free, failure.largest_hole) == (10.0, 32, 10, 10)


def test_too_many_conversations_end_each_other() -> None:
    """Both slots generate until all 256 cells are taken: down to one token, then everyone is sent away."""
    server = server_of(config_of(n_seq_max=2, kv_unified=True))
    requests = [request(0, 0, range(100), 90), request(1, 0, range(1000, 1100), 90)]
    totals = simulate(requests, server).totals
    # 200 cells of prompts and 28 steps of two tokens; the 29th is tried with 256, 128, ..., 1 tokens
    assert (totals.aborted, totals.fed_back, totals.failed_decodes) == (2, 56, 9)
    assert (totals.generated, totals.cut, totals.refused) == (58, 122, 0)
    assert server.context.memory.seq_pos_max(0) == -1


def test_too_long_prompts_are_rejected_and_long_answers_cut() -> None:
    server = server_of(config_of(n_seq_max=1))
    requests = [request(0, 0, range(256), 5), request(1, 0, range(250), 20), request(2, 0, range(0), 4)]
    totals = simulate(requests, server).totals
    assert (totals.rejected, totals.refused) == (1, 256)
    # 250 tokens and five more fill it but for one cell; six were sampled
    assert (totals.truncated, totals.generated, totals.fed_back) == (1, 6, 5)
    assert (totals.finished, totals.cut) == (1, 5 + 14 + 4)


def test_a_full_conversation_is_shifted() -> None:
    server = server_of(config_of(n_seq_max=1, ctx_shift=True, n_keep=10))
    totals = simulate([request(0, 0, range(200), 100)], server).totals
    # due at 255 tokens; of the 245 after the first ten half go, 122, and 123 move
    assert (totals.shifts, totals.forgotten, totals.shifted_cells) == (1, 122, 123)
    assert (totals.finished, totals.generated, totals.truncated) == (1, 100, 0)


def test_a_passed_window_needs_a_checkpoint() -> None:
    """A follow-up that goes back in a conversation finds its window passed, unless a checkpoint was kept."""
    requests = [request(0, 0, range(300), 500), request(1, 1000, (range(300), range(900, 905)), 1)]
    settings = {"arch": "gemma3-4b", "n_swa": 16, "n_seq_max": 1, "n_ctx": 1024}
    without = simulate(requests, server_of(config_of(**settings, ctx_checkpoints=0)))
    assert without.reprocessed == {"window passed": 300}
    assert (without.totals.reprocessed, without.totals.computed) == (300, 305)
    kept = simulate(requests, server_of(config_of(**settings)))
    # at 264 and 296, and of the second prompt, which goes on at 295, at 295 and 301
    assert kept.totals.checkpoints == 4
    assert (kept.totals.restored, kept.totals.reused, kept.totals.reprocessed) == (1, 295, 5)


def test_samples_say_what_each_slot_holds() -> None:
    server = server_of(config_of("gemma3-4b", n_swa=16, n_seq_max=2, kv_unified=True))
    account = simulate([request(0, 0, range(100), 3)], server)
    last = account.samples[-1]
    assert (last.waiting, last.serving) == (0, 0)
    assert last.caches["base"].live_by_slot == (0, 102)
    # positions 85 on are seen by the next token, 102; the window cache has 16 x 2 + 32 cells, padded to 256
    swa = last.caches["swa"]
    assert (swa.used, swa.live_by_slot[1], swa.reclaimable_by_slot[1]) == (102, 102, 87)
    assert (swa.largest_hole, swa.holes) == (154, 1)


def test_memory_is_bounded() -> None:
    """What a simulation holds does not grow with the number of requests served."""

    def peak(n: int) -> int:
        requests = (request(i, 100.0 * i, range(10 * i, 10 * i + 10), 2) for i in range(n))
        tracemalloc.start()
        server = server_of(config_of(n_seq_max=1))
        server.account.every = 1e9
        simulate(requests, server)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    few, many = peak(50), peak(250)
    assert many < few + 20_000


def test_an_interval_becomes_a_trace(tmp_path: Path) -> None:
    """It begins with the picture of its moment, and is what the server did; the simulation is the same."""
    config = config_of("gemma3-4b", n_swa=16, n_seq_max=2, kv_unified=True)
    requests = random_requests(3, 10)
    server = server_of(config)
    path = tmp_path / "interval.jsonl"
    with IntervalRecorder(server, path, start=20.0, most=30) as recorder:
        account = simulate(requests, server, look=recorder.look)
    steps = list(read_trace(path))
    assert [step.i for step in steps] == list(range(31))
    assert {step.op for step in steps} >= {"init", "decode", "state_seq_get", "seq_rm"}
    assert all(step.ubatches for step in steps if step.op == "decode")
    plain = server_of(config)
    assert asdict(simulate(requests, plain).totals) | {"searched": 0} == asdict(account.totals) | {
        "searched": 0
    }
    assert plain.context.memory.snapshot() == server.context.memory.snapshot()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(MEMORIES), st.booleans(), st.integers(0, 10_000), st.floats(0, 60))
def test_an_interval_replays(
    tmp_path: Path, memory: dict[str, Any], unified: bool, seed: int, start: float
) -> None:
    """From its first picture on, to the last cell; states of before the interval are restored as well."""
    config = config_of(**memory, n_seq_max=2, kv_unified=unified, n_ctx=512, n_batch=64)
    server = server_of(config)
    path = tmp_path / "interval.jsonl"
    path.unlink(missing_ok=True)
    with IntervalRecorder(server, path, start, most=40) as recorder:
        simulate(random_requests(seed, 12), server, look=recorder.look)
    if path.exists():
        for recorded, computed in replay_beside(read_trace(path)):
            assert compare_step(recorded, computed) == []


def test_a_state_of_before_an_interval_is_carried(tmp_path: Path) -> None:
    """The checkpoint of the first prompt is made at once, and restored when the second comes, at 1,000 s."""
    requests = [request(0, 0, range(300), 500), request(1, 1000, (range(300), range(900, 905)), 1)]
    server = server_of(config_of("gemma3-4b", n_swa=16, n_seq_max=1, n_ctx=1024))
    path = tmp_path / "interval.jsonl"
    with IntervalRecorder(server, path, 900, most=40) as recorder:
        simulate(requests, server, look=recorder.look)
    restored = [step for step in read_trace(path) if step.op == "state_seq_set"]
    assert ["data" in step.args for step in restored] == [True]
    assert not any(compare_step(*pair) for pair in replay_beside(read_trace(path)))


def test_a_picture_that_cannot_be_is_not_taken_up(tmp_path: Path) -> None:
    server = server_of(config_of(n_seq_max=2, kv_unified=True))
    path = tmp_path / "interval.jsonl"
    with IntervalRecorder(server, path, start=3.0, most=2) as recorder:
        simulate(random_requests(1, 6), server, look=recorder.look)
    header, first, *rest = path.read_text().splitlines()
    line = json.loads(first)
    line["after"]["pos"]["0"] = [0, 3]
    path.write_text("\n".join([header, json.dumps(line), *rest]))
    with pytest.raises(TraceError, match="operation 0 shows what no kv memory of these sizes can hold"):
        list(replay_beside(read_trace(path)))


def test_an_interval_opens_in_the_player(tmp_path: Path) -> None:
    from kvsim.player.payload import pack

    server = server_of(config_of(n_seq_max=2, kv_unified=True))
    path = tmp_path / "interval.jsonl"
    with IntervalRecorder(server, path, start=0.0, most=10) as recorder:
        simulate(random_requests(1, 6), server, look=recorder.look)
    trace = read_trace(path)
    assert len(pack(trace.header, trace)["steps"]) == 11


@pytest.mark.parametrize("unified", [True, False])
def test_a_public_trace_runs(unified: bool) -> None:
    setup = Setup("gemma3-4b", n_ctx=65536, parallel=16, unified=unified)
    account = setup.run(Workload(TRACE, 60))
    assert account.totals.requests == 60
    assert account.totals.finished + account.totals.truncated + account.totals.rejected == 60


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(CacheUsageError, match="n_batch = 2 is less than the 4 slots"):
        config_of(n_seq_max=4, n_batch=2)
    with pytest.raises(CacheUsageError, match="slot_prompt_similarity"):
        config_of(slot_prompt_similarity=1.5)
    with pytest.raises(CacheUsageError, match="cache_reuse = -1"):
        config_of(cache_reuse=-1)
    with pytest.raises(CacheUsageError, match="unknown policy"):
        Setup("llama3-8b", policy="no")
