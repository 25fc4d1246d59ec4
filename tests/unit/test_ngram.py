"""n-gram embeddings: predecessors and hash rows (spec kv_cache.md 8)."""

from __future__ import annotations

import numpy as np

from kvsim.tensors.ngram import hash_rows, previous_positions, previous_tokens

EOS = 0
TABLE = {"eos": EOS, "multipliers": [1, 3, 5], "vocab_sizes": [128] * 4, "offsets": [0, 128, 256, 384]}


def rows(token: int, two_back: int, one_back: int) -> list[int]:
    found = hash_rows(np.array([token]), np.array([[two_back, one_back]]), **TABLE)
    return found[0].tolist()


def test_plain_tokens_look_back_by_position() -> None:
    found = previous_positions(np.array([7, 0], np.int32), [0, 1], 2, by_order=False)
    assert found.tolist() == [[5, 6], [-2, -1]]


def test_embeddings_look_back_by_order_within_their_sequence() -> None:
    pos, seq = np.array([5, 5, 9, 5], np.int32), [0, 0, 1, 0]
    assert previous_positions(pos, seq, 2, by_order=True).tolist() == [[3, 4], [4, 5], [7, 8], [5, 5]]


def test_predecessor_is_the_nearest_cell_at_or_before() -> None:
    cells = {(0, 4): 44, (0, 6): 66}

    def at_or_before(seq: int, pos: int) -> int:
        held = [p for s, p in cells if s == seq and p <= pos]
        return cells[(seq, max(held))] if held else -1

    found = previous_tokens(np.array([[5, 6], [-1, 3]]), [0, 0], at_or_before)
    assert found.tolist() == [[44, 66], [-1, -1]]


def test_bigram_heads_ignore_the_older_token() -> None:
    assert rows(10, 20, 30) == [10 ^ 90, (10 ^ 90) + 128, (10 ^ 90 ^ 100) + 256, (10 ^ 90 ^ 100) + 384]


def test_everything_before_an_eos_or_a_gap_reads_as_eos() -> None:
    assert rows(10, 20, EOS) == rows(10, EOS, EOS) == rows(10, 20, -1)
    assert rows(10, -1, 30) == rows(10, EOS, 30)


def test_own_eos_hides_nothing() -> None:
    assert rows(EOS, 20, 30) == [90, 90 + 128, (90 ^ 100) + 256, (90 ^ 100) + 384]


def test_products_are_64_bit() -> None:
    big = hash_rows(np.array([200_000]), np.array([[3]]), 0, [2 * 10**13, 1], [1_000_003], [0])
    assert big.tolist() == [[((200_000 * 2 * 10**13) ^ 3) % 1_000_003]]
    wrapped = hash_rows(np.array([2**30]), np.array([[0]]), 0, [2**40 + 1, 1], [97], [0])
    assert wrapped.tolist() == [[(2**70 + 2**30) % 2**64 % 97]]
