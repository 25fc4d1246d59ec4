"""Blocks found by hash, and the policy built on them."""

from __future__ import annotations

import pytest
from simulated import config_of, paged_of, request

from kvsim.errors import CacheUsageError
from kvsim.workload.paged import BlockPool, block_hashes
from kvsim.workload.simulate import simulate


def test_blocks_are_known_until_taken_again() -> None:
    pool = BlockPool(3, block_size=2)
    hashes = block_hashes([1, 2, 3, 4, 5], 2)
    assert len(hashes) == 2  # the third block is not full
    blocks = pool.take(2)
    for block, content in zip(blocks, hashes, strict=True):
        pool.name(block, content)
    pool.release(blocks)
    assert (pool.n_free, pool.n_known) == (3, 2)
    assert pool.find(hashes) == blocks
    pool.take(2)  # the third one, and the end of the released ones: beginnings stay longest
    assert pool.find(hashes) == blocks[:1]


def test_a_hash_knows_what_came_before() -> None:
    assert block_hashes([1, 2, 3, 4], 2)[1] != block_hashes([9, 2, 3, 4], 2)[1]
    whole = block_hashes(range(100), 8)
    assert block_hashes(range(100), 8, whole[:5]) == whole


def test_shared_blocks_stay_while_someone_uses_them() -> None:
    pool = BlockPool(2, block_size=1)
    (block,) = pool.take(1)
    pool.name(block, 7)
    pool.share([block])
    pool.release([block])
    assert (pool.n_used, pool.n_idle([block])) == (1, 0)
    pool.release([block])
    assert (pool.n_used, pool.n_idle([block])) == (0, 1)


def test_a_pool_needs_blocks() -> None:
    with pytest.raises(CacheUsageError, match="0 blocks"):
        BlockPool(0)


def test_a_prefix_is_shared_whoever_computed_it() -> None:
    """40 tokens are two full blocks of 16; both others find them, though the first still runs."""
    requests = [request(i, float(3 * i), (range(40), range(1000 * i, 1000 * i + 5)), 10) for i in (1, 2, 3)]
    account = simulate(requests, paged_of(config_of(n_seq_max=3, kv_unified=True)))
    totals = account.totals
    assert (totals.reused, totals.computed) == (64, 45 + 13 + 13)
    assert (account.hits, totals.generated, totals.preempted) == (2, 30, 0)


def test_whoever_came_last_gives_its_blocks_up() -> None:
    """256 cells are 16 blocks. Two requests of 100 and 40 tokens more do not fit; the second starts over when
    both have 8 blocks full, and finds seven of them again in the end: the first one took one."""
    requests = [request(0, 0, range(100), 40), request(1, 0, range(1000, 1100), 40)]
    account = simulate(requests, paged_of(config_of(n_seq_max=2, kv_unified=True)))
    totals = account.totals
    assert (totals.finished, totals.generated, totals.preempted, totals.failed_decodes) == (2, 80, 1, 1)
    assert totals.again == 128 - 7 * 16
    assert totals.decoded == 200 + 78 + totals.again


def test_long_prompts_are_rejected() -> None:
    totals = simulate(
        [request(0, 0, range(300), 4), request(1, 0, range(0), 2)], paged_of(config_of())
    ).totals
    assert (totals.rejected, totals.refused, totals.finished, totals.cut) == (1, 300, 1, 6)
